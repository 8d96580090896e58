"""Presets: matched in everything but attention, of a million parameters, ranks from the spec's formula."""

from __future__ import annotations

import pytest
from headscope.models import HookedModel
from headscope.training.presets import BACKBONES, PRESETS, build, matched, n_parameters, rank_for


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
    ("ratio", "heads", "width", "rank"), [(0.5, 18, 128, 56), (1 / 3, 18, 128, 35), (0.5, 8, 16, 6), (1.125, 8, 16, 16)]
)
def test_rank_for_a_cache_budget(ratio, heads, width, rank):
    assert rank_for(ratio, heads, width) == rank
    assert 1 / heads + rank / width <= ratio + 1e-9 < 1 / heads + (rank + 1) / width + 1e-9


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.2])
def test_budgets_that_no_rank_meets_are_refused(ratio):
    with pytest.raises(ValueError, match="cache ratio should be between"):
        rank_for(ratio, 8, 16)


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
