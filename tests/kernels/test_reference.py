"""The float64 decode step against the hooked forward pass and the toys worked out by hand."""

from __future__ import annotations

import pytest
import torch
from headscope.kernels import dense_decode, lrkv_decode, mla_decode
from headscope.models import GroupedConfig, HookedModel, LRKVConfig, MLAConfig, ModelConfig, Rotary

D = torch.float64


def last_step(attention, positions="none"):
    """Run a float64 model and return what its first layer saw at the last position."""
    torch.manual_seed(0)
    config = ModelConfig(d_model=24, n_layers=1, d_vocab=13, n_ctx=32, attention=attention, positions=positions)
    model = HookedModel(config).double()
    _, cache = model.run_with_cache(torch.randint(13, (1, 17)))
    return model.attention(0), {name.split("hook_")[1]: cache[name][0] for name in cache if ".attn.hook_" in name}


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("positions", ["none", Rotary(base=100.0)], ids=["none", "rotary"])
def test_dense_decode_is_the_last_row_of_the_forward_pass(groups, positions):
    attn, seen = last_step(GroupedConfig(n_heads=6, n_kv_heads=groups, d_head=4), positions)
    q, k = (seen["q"], seen["k"]) if positions == "none" else (seen["rot_q"], seen["rot_k"])
    torch.testing.assert_close(dense_decode(q[-1], k, seen["v"], attn.scale), seen["z"][-1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_lrkv_decode_is_the_last_row_of_the_forward_pass(rank):
    attn, seen = last_step(LRKVConfig(n_heads=6, d_head=4, rank=rank))
    out = lrkv_decode(
        seen["q"][-1],
        seen["k_shared"],
        seen["k_coords"],
        attn.k.B,
        seen["v_shared"],
        seen["v_coords"],
        attn.v.B,
        attn.scale,
    )
    torch.testing.assert_close(out, seen["z"][-1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("query_latent", [None, 10])
def test_mla_decode_is_the_last_row_of_the_forward_pass(query_latent):
    shape = MLAConfig(n_heads=3, d_latent=9, d_nope=5, d_rope=4, d_value_head=6, d_q_latent=query_latent)
    attn, seen = last_step(shape, Rotary(base=100.0))
    q, k = seen["rot_q"][-1], seen["rot_k"][:, 0]
    k_up = attn.k_up.weight.unflatten(0, (3, 5)).transpose(1, 2)
    v_up = attn.v_up.weight.unflatten(0, (3, 6)).transpose(1, 2)
    out = mla_decode(q[:, :5], q[:, 5:], seen["latent"], k[:, 5:], k_up, v_up, attn.scale)
    torch.testing.assert_close(out, seen["z"][-1], rtol=0, atol=1e-13)


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=D)


def test_key_toy_scores_nine():
    """q=(2,1), s=(1,3), z=4, B=(1,-1)^T: k=(5,-1), score 9 = 5 + 1*4; against a second position that scores 0."""
    zero = torch.zeros(2, 1, 1, dtype=D)
    out = lrkv_decode(
        row(2, 1)[None],
        torch.stack([row(1, 3), row(0, 0)]),
        torch.stack([row(4)[None], row(0)[None]]),
        row(1, -1)[None, :, None],
        torch.stack([row(1, 0), row(0, 1)]),
        zero,
        row(0, 0)[None, :, None],
        scale=1.0,
    )
    weight = torch.tensor([9.0, 0.0], dtype=D).softmax(-1)
    torch.testing.assert_close(out[0], weight)


def test_value_toy_reduces_then_expands():
    """Weights 1/4, 3/4 over private coordinates 2, 6 -> 5 -> (5, -5)."""
    log3 = torch.log(torch.tensor(3.0, dtype=D))
    out = lrkv_decode(
        row(1, 0)[None],
        torch.stack([row(0, 0), torch.stack([log3, log3 * 0])]),
        torch.zeros(2, 1, 1, dtype=D),
        row(0, 0)[None, :, None],
        torch.zeros(2, 2, dtype=D),
        torch.tensor([[[2.0]], [[6.0]]], dtype=D),
        row(1, -1)[None, :, None],
        scale=1.0,
    )
    torch.testing.assert_close(out[0], row(5, -5))


def test_branches_meet_before_the_softmax():
    """Logits (2,0) and (0,2): merged (0.5, 0.5); softmaxed apart (0.881, 0.119) and (0.119, 0.881)."""
    out = lrkv_decode(
        row(1, 1)[None],
        torch.stack([row(2, 0), row(0, 0)]),
        torch.tensor([[[0.0]], [[2.0]]], dtype=D),
        row(1, 0)[None, :, None],
        torch.stack([row(1, 0), row(0, 1)]),
        torch.zeros(2, 1, 1, dtype=D),
        row(0, 0)[None, :, None],
        scale=1.0,
    )
    torch.testing.assert_close(out[0], row(0.5, 0.5))
    assert round(float(row(2, 0).softmax(-1)[0]), 3) == 0.881


def test_gqa_is_mla_with_selectors():
    """A latent of all groups' keys and values, with up-projections that pick a group's: the same output to 1e-14."""
    torch.manual_seed(1)
    heads, groups, width, steps = 6, 2, 4, 11
    q = torch.randn(heads, width, dtype=D)
    k, v = torch.randn(steps, groups, width, dtype=D), torch.randn(steps, groups, width, dtype=D)
    latent = torch.cat((k.flatten(1), v.flatten(1)), dim=1)
    pick_k, pick_v = (torch.zeros(heads, latent.shape[1], width, dtype=D) for _ in range(2))
    for head in range(heads):
        group = head // (heads // groups)
        pick_k[head, group * width : (group + 1) * width] = torch.eye(width, dtype=D)
        pick_v[head, (groups + group) * width : (groups + group + 1) * width] = torch.eye(width, dtype=D)
    nothing = torch.zeros(heads, 0, dtype=D), torch.zeros(steps, 0, dtype=D)
    absorbed = mla_decode(q, nothing[0], latent, nothing[1], pick_k, pick_v, scale=0.5)
    torch.testing.assert_close(absorbed, dense_decode(q, k, v, scale=0.5), rtol=0, atol=1e-14)
