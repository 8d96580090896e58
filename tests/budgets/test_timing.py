"""Floors under a decode step, against published figures and against a search for where a gain ends."""

from __future__ import annotations

import math

import pytest
from headscope.budgets import DEVICES, Device, cache_bytes, floor_seconds
from headscope.budgets.timing import bound_by, device_from, gain_ends_at, queries_until_no_gain
from headscope.models import GroupedConfig, LRKVConfig, MLAConfig
from headscope.models.variant import AttentionConfig

H200 = DEVICES["h200"]
HEADS = {"n_heads": 18, "d_head": 128}
MODELS = {
    "mha": GroupedConfig(**HEADS),
    "lrkv": LRKVConfig(**HEADS, rank=55),
    "gqa": GroupedConfig(**HEADS, n_kv_heads=3),
    "mla": MLAConfig(n_heads=18, d_latent=512, d_nope=128, d_rope=64, d_value_head=128),
    "mqa": GroupedConfig(**HEADS, n_kv_heads=1),
}


def step(attention: AttentionConfig, requests: int, length: int, queries: int = 1) -> tuple[int, int]:
    """Bytes and operations of 18 layers, ranks padded to 8."""
    return (
        cache_bytes(attention, 18, [length] * requests).padded,
        2 * 18 * requests * queries * attention.decode_products(length),
    )


@pytest.mark.parametrize(
    ("requests", "floors"),
    [
        (1, {"mha": "0.316", "lrkv": "0.156", "gqa": "0.053", "mla": "0.040", "mqa": "0.018"}),
        (8, {"mha": "2.53", "lrkv": "1.25", "gqa": "0.42", "mla": "0.32", "mqa": "0.14"}),
        (64, {"mha": "20.2", "lrkv": "10.0", "gqa": "3.4", "mla": "2.5", "mqa": "1.1"}),
    ],
)
def test_floors_on_an_h200_of_18_layers_at_8192_tokens_are_those_worked_out_by_hand(requests, floors):
    for name, printed in floors.items():
        n_bytes, operations = step(MODELS[name], requests, 8192)
        digits = len(printed.split(".")[1])
        assert f"{1e3 * floor_seconds(n_bytes, operations, H200):.{digits}f}" == printed, name
        assert bound_by(n_bytes, operations, H200) == "memory"


def test_lrkv_makes_2_9_operations_a_byte():
    n_bytes, operations = step(MODELS["lrkv"], 1, 2**20)
    assert round(operations / n_bytes, 1) == 2.9


@pytest.mark.parametrize(("length", "ratio"), [(2048, 1.4565), (10**9, 1.4297)])
def test_decode_arithmetic_of_rank_55(length, ratio):
    found = MODELS["lrkv"].decode_products(length) / MODELS["mha"].decode_products(length)
    assert round(found, 4) == ratio
    assert found == pytest.approx(1 + 55 / 128 + 55 / length, rel=1e-15)


def test_the_gain_of_half_a_cache_ends_at_0_699():
    assert round(gain_ends_at(0.485, 1.43), 3) == 0.699
    assert gain_ends_at(0.3, 1.0) == 1
    assert gain_ends_at(0.3, 0.9) == math.inf
    assert gain_ends_at(1.1, 1.5) == 0


@pytest.mark.parametrize("name", ["lrkv", "gqa", "mla", "mqa"])
@pytest.mark.parametrize("device", [H200, Device("even", 1e12, 20e12, "made up")])
def test_the_gain_ends_where_the_two_floors_meet(name, device):
    """Both floors, recomputed for one more query token a reading until the variant's is no lower."""
    ends = queries_until_no_gain(MODELS[name], 4096, device, element_bytes=2, rank_multiple=8)

    def gains(queries: int) -> bool:
        mine, dense = (floor_seconds(*step(MODELS[which], 1, 4096, queries), device) for which in (name, "mha"))
        return mine < dense * (1 - 1e-12)

    first = next(queries for queries in range(1, 1000) if not gains(queries))
    assert first == math.ceil(ends - 1e-9)


def test_devices_by_name_and_by_their_two_figures():
    assert device_from("H200") is H200
    assert (H200.bandwidth, H200.flops) == (4.3e12, 790e12)
    assert "measured" in H200.source
    assert all("datasheet" in device.source for name, device in DEVICES.items() if name != "h200")
    own = device_from("3.35,989")
    assert (own.bandwidth, own.flops) == (3.35e12, 989e12)
    assert device_from(own) is own


@pytest.mark.parametrize(
    ("text", "words"), [("h300", "device should be one of h200"), ("1,2,3", "device should be"), ("0,5", "above zero")]
)
def test_devices_that_are_none_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        device_from(text)
