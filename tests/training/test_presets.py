"""Presets: matched in everything but attention, of a million parameters."""

from __future__ import annotations

import pytest
from headscope.models.hooked import HookedModel, n_parameters
from headscope.training.presets import BACKBONES, PRESETS, build, matched


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
