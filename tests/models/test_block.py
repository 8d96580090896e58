"""Blocks of every arrangement against their parts put together by hand; models whose layers differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from headscope.models import GroupedConfig, HookedModel, LayerChanges, MLPConfig, ModelConfig, Rotary
from torch import Tensor

HEADS = GroupedConfig(n_heads=4, n_kv_heads=2, d_head=4)


def tiny(**options: Any) -> ModelConfig:
    fixed = {"d_model": 16, "n_layers": 2, "d_vocab": 19, "n_ctx": 12, "attention": HEADS, "mlp": MLPConfig(d_mlp=10)}
    return ModelConfig(**fixed | options)


def by_hand(block: Any, x: Tensor, arrangement: str) -> Tensor:
    attn, mlp = (lambda y: block.attn(y, torch.arange(len(y[0]))[None], None)), block.mlp
    if arrangement == "post":
        x = x + block.ln1_post(attn(x))
        return x + block.ln2_post(mlp(x))
    if arrangement == "sandwich":
        x = x + block.ln1_post(attn(block.ln1(x)))
        return x + block.ln2_post(mlp(block.ln2(x)))
    if arrangement == "parallel":
        return x + attn(block.ln1(x)) + mlp(block.ln2(x))
    if arrangement == "parallel_one_norm":
        return x + attn(block.ln1(x)) + mlp(block.ln1(x))
    x = x + attn(block.ln1(x))
    return x + mlp(block.ln2(x))


@pytest.mark.parametrize("arrangement", ["pre", "post", "sandwich", "parallel", "parallel_one_norm"])
@torch.no_grad()
def test_a_block_is_its_parts_put_together(arrangement, build, close):
    model = build(tiny(arrangement=arrangement))
    x = torch.randn(1, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    end, cache = model.run_with_cache(x, start_at_layer=0, stop_at_layer=2)
    first = by_hand(model.blocks[0], x, arrangement)
    close(cache["blocks.0.hook_resid_post"], first)
    close(end, by_hand(model.blocks[1], first, arrangement))
    added = cache["blocks.0.hook_attn_out"] + cache["blocks.0.hook_mlp_out"]
    close(x + added, first)  # what the hooks see is what is added, whatever norms stand behind
    assert ("blocks.0.hook_resid_mid" in cache) == (not arrangement.startswith("parallel"))


def test_norms_are_named_as_transformer_lens_names_them():
    names = {
        arrangement: [name for name, _ in HookedModel(tiny(arrangement=arrangement)).blocks[0].named_children()]
        for arrangement in ("pre", "post", "sandwich", "parallel_one_norm")
    }
    norms = {arrangement: [name for name in found if name.startswith("ln")] for arrangement, found in names.items()}
    assert norms["pre"] == ["ln1", "ln2"]
    assert norms["post"] == ["ln1_post", "ln2_post"]
    assert norms["sandwich"] == ["ln1", "ln1_post", "ln2", "ln2_post"]
    assert norms["parallel_one_norm"] == ["ln1"]


@torch.no_grad()
def test_ends_of_a_model(build, tokens, close):
    """Scale and norm of the embedding, bias and cap of the logits."""
    options = {"embed_scale": 3.0, "embed_norm": True, "unembed_bias": True, "logit_softcap": 2.0}
    model = build(tiny(**options))
    logits, cache = model.run_with_cache(tokens)
    close(cache["hook_embed"], model.embed_norm(model.embed.weight[tokens] * 3))
    raw = model.ln_final(cache["blocks.1.hook_resid_post"]) @ model.W_U + model.b_U
    close(logits, 2 * (raw / 2).tanh())
    assert float(model.b_U.abs().min()) > 0
    close(model.W_E, 3 * model.embed.weight)


@torch.no_grad()
def test_layers_that_differ(build, tokens, close):
    """Each layer as in a model whose every layer is like it."""
    changes = LayerChanges(
        attention=replace(HEADS, window=2, scale=0.3), positions=Rotary(base=50.0), mlp=MLPConfig(d_mlp=7)
    )
    model = build(tiny(by_layer=(None, changes)))
    second = model.config.at(1)
    assert (second.attention.window, second.rotary, second.mlp) == (2, Rotary(base=50.0), MLPConfig(d_mlp=7))
    assert model.config.at(0) == tiny()
    alike = build(second)
    alike.load_state_dict(
        {**alike.state_dict(), **{k: v for k, v in model.state_dict().items() if "blocks.0." not in k}}
    )
    _, cache = model.run_with_cache(tokens)
    expected = alike(cache["blocks.1.hook_resid_pre"], start_at_layer=1, stop_at_layer=2)
    close(cache["blocks.1.hook_resid_post"], expected)
    # the rotation of the layer is the one in its factors
    assert torch.equal(model.factors(1).circuits["qk"]["all"][0].planes.theta, alike.attention(1).planes().theta)
    with pytest.raises(IndexError, match="layer 2 does not exist: this model has layers 0–1"):
        model.config.at(2)


@torch.no_grad()
def test_biases_behind_a_norm_do_not_add_up(build):
    with pytest.raises(ValueError, match="arrangement 'sandwich'"):
        build(tiny(arrangement="sandwich")).accumulated_bias(1)
    heads = replace(HEADS, output_bias=True)
    model = build(tiny(arrangement="parallel", attention=heads))
    # In a parallel block the MLP reads what came before attention.
    assert torch.equal(model.accumulated_bias(1, mlp_input=True), model.accumulated_bias(1))
