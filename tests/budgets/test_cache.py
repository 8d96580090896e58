"""Bytes of caches, against the formulas written out by hand, figures worked out elsewhere, and a count row by row."""

from __future__ import annotations

import pytest
from headscope.budgets import CacheBytes, Storage, cache_bytes, parse_batches, shard
from headscope.budgets.cache import LAYOUTS, batch_name
from headscope.models import GroupedConfig, LRKVConfig, MLAConfig, QKNorm
from hypothesis import given
from hypothesis import strategies as st

MIB = 2**20
MHA = GroupedConfig(n_heads=18, d_head=128)
LRKV = LRKVConfig(n_heads=18, d_head=128, rank=55)


@pytest.mark.parametrize(
    ("attention", "length", "mib"),
    [(MHA, 2048, 324), (MHA, 8192, 1296), (LRKV, 2048, 157.21875), (LRKV, 8192, 628.875)],
)
def test_18_layers_of_18_heads_in_bfloat16(attention, length, mib):
    assert cache_bytes(attention, 18, [length]).payload / MIB == mib


def test_ratios_of_lrkv_to_mha():
    """``1/H + r/d_head``: logical 55 and physical 64 of 128, 18 heads."""
    logical = cache_bytes(LRKV, 18, [2048]).payload / cache_bytes(MHA, 18, [2048]).payload
    to_64 = cache_bytes(LRKV, 18, [2048], Storage(rank_multiple=64)).padded / cache_bytes(MHA, 18, [2048]).payload
    assert round(100 * logical, 3) == 48.524
    assert round(100 * to_64, 3) == 55.556
    assert cache_bytes(LRKV, 18, [1]).padded == 2 * 18 * 2 * (128 + 18 * 56)
    assert round(100 * LRKVConfig(n_heads=12, d_head=128, rank=51).cache_width() / (2 * 12 * 128), 3) == 48.177


def test_a_joint_key_norm_costs_one_in_two_head_widths_of_mha():
    normed = LRKVConfig(n_heads=18, d_head=128, rank=55, qk_norm=QKNorm())
    extra = cache_bytes(normed, 18, [2048]).payload - cache_bytes(LRKV, 18, [2048]).payload
    assert extra / cache_bytes(MHA, 18, [2048]).payload == 1 / (2 * 128)
    assert round(100 / (2 * 128), 2) == 0.39


def test_lengths_of_a_ragged_batch_add_up_and_each_has_a_last_page_of_its_own():
    held = cache_bytes(LRKV, 3, [1, 64, 65], Storage(element_bytes=4))
    logical, physical = 2 * (128 + 18 * 55), 2 * (128 + 18 * 56)
    assert held == CacheBytes(4 * 3 * 130 * logical, 4 * 3 * 130 * physical, 4 * 3 * (64 + 64 + 128) * physical)


@given(
    st.lists(st.integers(0, 300), max_size=5),
    st.integers(1, 12),
    st.sampled_from([1, 3, 16, 64]),
    st.sampled_from([1, 8, 64]),
)
def test_payload_padded_and_allocated_count_every_row(lengths, rank, page, multiple):
    attention = LRKVConfig(n_heads=3, d_head=12, rank=rank)
    stored = next(r for r in range(rank, rank + multiple) if r % multiple == 0)
    slots = sum(next(n for n in range(length, length + page) if n % page == 0) for length in lengths)
    held = cache_bytes(attention, 2, lengths, Storage(2, multiple, page))
    tokens = sum(1 for length in lengths for _ in range(length))
    assert held.payload == tokens * 2 * 2 * 2 * (12 + 3 * rank)
    assert held.padded == tokens * 2 * 2 * 2 * (12 + 3 * stored)
    assert held.allocated == slots * 2 * 2 * 2 * (12 + 3 * stored)
    assert held.payload <= held.padded <= held.allocated


@pytest.mark.parametrize(("devices", "percent"), [(1, 45.3125), (4, 54.6875)])
def test_a_replicated_shared_row_costs_p_over_h(devices, percent):
    attention = LRKVConfig(n_heads=32, d_head=128, rank=54)
    held = shard(attention, 32, [8192], devices, "replicated")
    dense = 2 * 32 * 8192 * attention.dense_width
    assert 100 * held.total / dense == percent
    assert held.fullest * devices == held.total
    assert held.moved == 0


def test_a_row_held_once_is_moved_to_all_other_devices_at_every_step():
    attention = LRKVConfig(n_heads=32, d_head=128, rank=54)
    held = shard(attention, 32, [8000, 192], 4, "held once")
    assert held.total == cache_bytes(attention, 32, [8192]).payload
    assert held.moved == 3 * 2 * 32 * 8192 * (2 * 128)
    assert held.fullest == held.total // 4


@pytest.mark.parametrize(
    "attention",
    [
        GroupedConfig(n_heads=12, d_head=4),
        GroupedConfig(n_heads=12, d_head=4, n_kv_heads=4),
        GroupedConfig(n_heads=12, d_head=4, n_kv_heads=1),
        LRKVConfig(n_heads=12, d_head=4, rank=3, qk_norm=QKNorm()),
        MLAConfig(n_heads=12, d_latent=10, d_nope=4, d_rope=2, d_value_head=4),
    ],
    ids=["mha", "gqa", "mqa", "lrkv", "mla"],
)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 12])
def test_devices_hold_the_rows_that_their_heads_read(attention, devices):
    """Counted head by head: device d has the heads d·H/P …, and a row is needed where a head of its own reads it."""
    tokens, here = 7, 12 // devices
    total = single = fullest = 0
    per_device = [0] * devices
    for part in attention.streams(1):
        readers = [{h for h in range(12) if h * part.groups // 12 == row} for row in range(part.groups)]
        for row in readers:
            single += part.width * tokens
            for d in range(devices):
                if row & set(range(d * here, (d + 1) * here)):
                    per_device[d] += part.width * tokens
    total, fullest = sum(per_device), max(per_device)
    replicated, once = (shard(attention, 1, [3, 4], devices, layout, element_bytes=1) for layout in LAYOUTS)
    assert (replicated.total, replicated.fullest, replicated.moved) == (total, fullest, 0)
    assert (once.total, once.moved) == (single, total - single)
    assert single / devices <= once.fullest <= replicated.fullest


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("2048", ((2048,),)),
        ("2048, 8192", ((2048,), (8192,))),
        ("3x5", ((5, 5, 5),)),
        ("2x5+7,1", ((5, 5, 7), (1,))),
    ],
)
def test_batches_are_read_and_written_alike(text, batches):
    assert parse_batches(text) == batches
    assert parse_batches(",".join(map(batch_name, batches))) == batches


@pytest.mark.parametrize("text", ["", "0", "x5", "0x5", "5x", "2048,", "-3", "1.5", "2048;8192"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="lengths should be like 2048,8192"):
        parse_batches(text)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cache_bytes(MHA, 1, [3, -1]), "lengths should be 0 or more tokens but got -1"),
        (lambda: Storage(page=0), "page should be an integer > 0 but got 0"),
        (lambda: shard(MHA, 1, [1], 4, "replicated"), r"devices should divide the 18 heads \(one of \[1, 2, 3"),
        (lambda: shard(MHA, 1, [1], 2, "mirrored"), "layout should be one of replicated, held once but got 'mirrored'"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
