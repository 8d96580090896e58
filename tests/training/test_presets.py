"""Presets: matched in everything but attention, of a million parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headscope.models.config import LayerChanges, ModelConfig
from headscope.models.grouped import GroupedConfig
from headscope.models.hooked import HookedModel, n_parameters
from headscope.models.lrkv import LRKVConfig
from headscope.training.presets import BACKBONES, PRESETS, build, label, matched

RUNS = Path(__file__).parents[2] / "docs" / "reference-runs"


@pytest.mark.parametrize("size", BACKBONES)
def test_presets_differ_in_attention_alone(size):
    configs = [build(preset, size) for preset in PRESETS]
    assert [config.attention.variant for config in configs] == list(PRESETS)
    assert len({str(config.with_(attention=configs[0].attention)) for config in configs}) == 1
    assert len({config.attention.n_heads for config in configs}) == 1


def test_reference_models_have_about_a_million_parameters_and_six_heads_or_more():
    for preset in PRESETS:
        config = build(preset)
        assert 0.75e6 < n_parameters(config) < 1.25e6
        assert config.attention.n_heads >= 6
        assert n_parameters(config) == sum(p.numel() for p in HookedModel(config).parameters())


def test_matched_presets_have_the_parameters_of_mha():
    wanted = n_parameters(build("mha"))
    column = 3 * BACKBONES["reference"].d_model * BACKBONES["reference"].n_layers
    for preset in PRESETS:
        assert abs(n_parameters(matched(preset)) - wanted) <= column


@pytest.mark.parametrize("size", BACKBONES)
@pytest.mark.parametrize(("asked", "rank"), [({"rank": 1}, 1), ({"rank": 8}, 8), ({"cache_ratio": 0.9}, None)])
def test_another_rank_is_matched_too(size, asked, rank):
    config, wanted = matched("lrkv", size, **asked), n_parameters(build("mha", size))
    found = config.attention.rank
    assert found == (rank or int((0.9 - 1 / BACKBONES[size].n_heads) * BACKBONES[size].d_head))
    assert label(config) == f"lrkv-r{found}"
    assert abs(n_parameters(config) / wanted - 1) < 0.01
    assert config.mlp.d_mlp != build("lrkv", size, **asked).mlp.d_mlp


def test_the_cache_of_presets_as_a_share_of_mhas():
    for size, gqa, mqa in (("reference", 1 / 4, 1 / 8), ("tiny", 1 / 2, 1 / 4)):
        width = {preset: build(preset, size).attention.cache_width() for preset in PRESETS}
        share = {preset: width[preset] / width["mha"] for preset in PRESETS}
        assert share == {"mha": 1, "gqa": gqa, "mqa": mqa, "mla": 1 / 4, "lrkv": 1 / 2}


def test_a_label_says_the_preset_and_another_rank():
    for size in BACKBONES:
        assert [label(build(preset, size)) for preset in PRESETS] == list(PRESETS)
        assert label(build("lrkv", size, cache_ratio=0.5)) == label(build("lrkv", size)) == "lrkv"
        assert label(build("lrkv", size, rank=1)) == "lrkv-r1"
    assert label(matched("mqa")) == "mqa"


def test_what_no_preset_makes_is_custom():
    base = build("lrkv")
    for attention in (
        LRKVConfig(n_heads=8, d_head=16, rank=4, bias=True),
        LRKVConfig(n_heads=4, d_head=16, rank=16),
        GroupedConfig(n_heads=8, n_kv_heads=4, d_head=16),
    ):
        assert label(base.with_(attention=attention)) == "custom"
    changed = LayerChanges(attention=LRKVConfig(n_heads=8, d_head=16, rank=6, scale=0.5))
    assert label(base.with_(by_layer=(changed, None, None, None))) == "custom"


def test_runs_on_record_have_the_label_of_their_model():
    records = [json.loads(file.read_text()) for file in sorted(RUNS.glob("*/run.json"))]
    assert records
    for record in records:
        assert label(ModelConfig.from_dict(record["model"])) == record["preset"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"preset": "gpt"}, "preset should be one of mha"),
        ({"preset": "mha", "size": "huge"}, "size should be one of reference"),
        ({"preset": "gqa", "rank": 4}, "belong to lrkv"),
        ({"preset": "lrkv", "rank": 4, "cache_ratio": 0.5}, "not both"),
        ({"preset": "lrkv", "rank": 17}, "attention.rank"),
    ],
)
def test_impossible_presets_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        build(**arguments)
