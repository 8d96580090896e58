"""MHA, GQA and MQA: what sharing a key among heads means."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from headscope.models import GroupedConfig


@pytest.mark.parametrize(("groups", "variant"), [(None, "mha"), (4, "mha"), (2, "gqa"), (1, "mqa")])
def test_variant_follows_from_the_groups(groups: int | None, variant: str):
    config = GroupedConfig(n_heads=4, d_head=8, n_kv_heads=groups)
    assert config.variant == variant
    assert config.n_groups == (groups or 4)


@pytest.mark.parametrize("name", ["gqa", "mqa", "gqa-bias", "qk_norm-after", "gqa-partial_interleaved"])
def test_grouped_heads_are_dense_heads_with_equal_keys(matrix, build, tokens, close, name: str):
    """Write every group's key and value once a head: an MHA model with the same logits."""
    config = matrix[name]
    grouped = build(config)
    dense = build(config.with_(attention=replace(config.attention, n_kv_heads=4)), seed=1)
    state = dict(grouped.state_dict())
    per_group = 4 // config.attention.n_groups
    for key, value in state.items():
        if ".attn.k." in key or ".attn.v." in key:
            groups = value.unflatten(0, (config.attention.n_groups, -1))
            state[key] = torch.cat([groups[head // per_group] for head in range(4)])
    dense.load_state_dict(state)
    assert dense.config.attention.variant == "mha"
    with torch.no_grad():
        close(dense(tokens), grouped(tokens), 1e-12)


def test_ablating_the_only_group_of_mqa_changes_every_head(matrix, build, tokens, run_all):
    """A key or value that all heads share is missed by all of them."""
    model = build(matrix["mqa"])
    _, before = run_all(model, tokens)
    for point in ("hook_k", "hook_v"):
        with model.hooks([(f"blocks.0.attn.{point}", lambda tensor, hook: tensor * 0)]):
            _, after = run_all(model, tokens)
        moved = (before["blocks.0.attn.hook_z"] - after["blocks.0.attn.hook_z"]).abs().amax((0, 1, 3))
        assert (moved > 1e-6).all()


def test_parameters_shrink_with_the_groups(build, matrix):
    counts = {name: build(matrix[name]).attention(0).k.weight.shape for name in ("mha-no_mlp", "gqa", "mqa")}
    assert counts == {"mha-no_mlp": (16, 16), "gqa": (8, 16), "mqa": (4, 16)}
