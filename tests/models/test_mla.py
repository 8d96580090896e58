"""MLA against its absorbed form, and against the grouped attention that it contains."""

from __future__ import annotations

import pytest
import torch
from headscope.models import GroupedConfig, HookedModel, MLAConfig, ModelConfig, Rotary
from headscope.models.attention import build_attention
from torch import Tensor


def rms(x: Tensor, eps: float, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def input_of(model: HookedModel, cache: dict[str, Tensor], layer: int) -> Tensor:
    """Return what a layer's attention reads."""
    norm = model.blocks[layer].ln1
    x = cache[f"blocks.{layer}.ln1.hook_normalized"] * norm.w
    return x if norm.b is None else x + norm.b


def test_absorbed_form(mla_config, build, tokens, run_all, close):
    """``score = ((q_n W_UK) . c + q_r . k_r) scale``, ``z = (sum a c) W_UV``: no key or value is ever expanded."""
    cfg = mla_config.attention
    model = build(mla_config)
    _, cache = run_all(model, tokens)
    for layer in range(2):
        attn = model.attention(layer)
        c = attn.kv_down(input_of(model, cache, layer))
        c = rms(c, cfg.latent_eps, attn.latent_norm.w) if cfg.latent_norm else c
        close(cache[f"blocks.{layer}.attn.hook_latent"], c, 1e-12)
        rotated = "rot_" if mla_config.rotary else ""
        q = cache[f"blocks.{layer}.attn.hook_{rotated}q"]
        k = cache[f"blocks.{layer}.attn.hook_{rotated}k"]
        scores, pattern, z = (cache[f"blocks.{layer}.attn.hook_{name}"] for name in ("attn_scores", "pattern", "z"))
        visible = torch.ones(7, 7).tril().bool()
        for head in range(cfg.n_heads):
            w_uk = attn.k_up.weight[head * cfg.d_nope : (head + 1) * cfg.d_nope]
            w_uv = attn.v_up.weight[head * cfg.d_value_head : (head + 1) * cfg.d_value_head]
            absorbed = q[:, :, head, : cfg.d_nope] @ w_uk
            score = torch.einsum("bic,bjc->bij", absorbed, c)
            # every head's rotary key is the one that head 0 has
            score = score + torch.einsum("bir,bjr->bij", q[:, :, head, cfg.d_nope :], k[:, :, 0, cfg.d_nope :])
            score = score * (cfg.d_nope + cfg.d_rope) ** -0.5
            close(scores[:, head][:, visible], score[:, visible], 1e-12)
            read = torch.einsum("bij,bjc->bic", pattern[:, head], c)
            close(z[:, :, head], read @ w_uv.T, 1e-12)


def test_rotary_key_is_one_for_all_heads(mla_config, build, tokens, run_all):
    cfg = mla_config.attention
    _, cache = run_all(build(mla_config), tokens)
    if cfg.d_rope == 0:
        assert "blocks.0.attn.hook_k_rot" not in cache
        return
    shared = cache["blocks.0.attn.hook_k_rot"]
    assert shared.shape == (2, 7, cfg.d_rope)
    for head in range(cfg.n_heads):
        assert torch.equal(cache["blocks.0.attn.hook_k"][:, :, head, cfg.d_nope :], shared)


def test_widths(mla_config, build, tokens, run_all):
    """What a token stores is the latent and the rotary key."""
    cfg = mla_config.attention
    _, cache = run_all(build(mla_config), tokens)
    assert cache["blocks.0.attn.hook_latent"].shape == (2, 7, cfg.d_latent)
    assert cache["blocks.0.attn.hook_q"].shape == (2, 7, cfg.n_heads, cfg.d_nope + cfg.d_rope)
    assert cache["blocks.0.attn.hook_v"].shape == (2, 7, cfg.n_heads, cfg.d_value_head)
    assert ("blocks.0.attn.hook_q_latent" in cache) == (cfg.d_q_latent is not None)


def as_mla(model: HookedModel) -> HookedModel:
    """Write grouped attention as MLA: the latent holds every group's key and value, the up-projections select."""
    cfg = model.config.attention
    groups, width = cfg.n_groups, cfg.d_head
    attention = MLAConfig(
        n_heads=cfg.n_heads,
        d_latent=2 * groups * width,
        d_nope=width,
        d_rope=0,
        d_value_head=width,
        latent_norm=False,
        output_bias=cfg.output_bias,
        scale=cfg.scale,
    )
    latent = HookedModel(model.config.with_(attention=attention)).double()
    state = {name: value for name, value in model.state_dict().items() if name in latent.state_dict()}
    eye = torch.eye(2 * groups * width, dtype=torch.float64)
    for layer in range(model.config.n_layers):
        attn, prefix = model.attention(layer), f"blocks.{layer}.attn."
        state[prefix + "kv_down.weight"] = torch.cat((attn.k.weight, attn.v.weight))
        rows = [range(cfg.head_to_group[h] * width, (cfg.head_to_group[h] + 1) * width) for h in range(cfg.n_heads)]
        state[prefix + "k_up.weight"] = torch.cat([eye[list(r)] for r in rows])
        state[prefix + "v_up.weight"] = torch.cat([eye[[groups * width + i for i in r]] for r in rows])
    latent.load_state_dict(state)
    return latent


@pytest.mark.parametrize("name", ["mha-no_positions", "mha-learned", "mha-layer_norm", "mqa-layer_norm", "gqa"])
def test_grouped_attention_is_mla_with_selectors(matrix, build, tokens, run_all, close, name: str):
    model = build(matrix[name].with_(positions="learned" if name == "mha-learned" else "none"))
    latent = as_mla(model)
    ours, ours_cache = run_all(latent, tokens)
    theirs, cache = run_all(model, tokens)
    close(ours, theirs, 1e-12)
    group = torch.tensor(model.config.attention.head_to_group)
    close(ours_cache["blocks.1.attn.hook_k"], cache["blocks.1.attn.hook_k"][:, :, group], 1e-12)
    close(ours_cache["blocks.1.attn.hook_v"], cache["blocks.1.attn.hook_v"][:, :, group], 1e-12)


def scalar_of(actual: Tensor, linear: Tensor) -> Tensor:
    """Return the factor of each token, checked to be one positive number for all heads and columns."""
    scalar = (actual * linear).sum((-2, -1), keepdim=True) / linear.square().sum((-2, -1), keepdim=True)
    torch.testing.assert_close(actual, scalar * linear, rtol=1e-9, atol=1e-11)
    assert (scalar > 0).all()
    return scalar


def test_folded_views_hold_up_to_a_scalar_a_token(mla_config, build, tokens, run_all, close):
    cfg = mla_config.attention
    if cfg.bias:
        mla_config = mla_config.with_(attention=MLAConfig(**vars(cfg) | {"bias": False}))
    model = build(mla_config)
    _, cache = run_all(model, tokens)
    attn = model.attention(1)
    x = input_of(model, cache, 1)
    q, k, v = (cache[f"blocks.1.attn.hook_{name}"] for name in "qkv")
    linear_q, linear_k, linear_v = (torch.einsum("bpm,hmd->bphd", x, w) for w in (attn.W_Q, attn.W_K, attn.W_V))
    of_query = scalar_of(q, linear_q)
    of_key = scalar_of(k[..., : cfg.d_nope], linear_k[..., : cfg.d_nope])
    of_value = scalar_of(v, linear_v)
    close(of_key, of_value, 1e-9)
    close(k[..., cfg.d_nope :], linear_k[..., cfg.d_nope :], 1e-12)
    ones = torch.ones_like(of_key)
    assert torch.allclose(of_query, ones) == (cfg.d_q_latent is None or not cfg.latent_norm)
    assert torch.allclose(of_key, ones) == (not cfg.latent_norm)


def test_no_rotary_channel_with_rotary_positions():
    """The message must name what can be changed: the channel's width or the positions."""
    attention = MLAConfig(n_heads=2, d_latent=4, d_nope=4, d_rope=0, d_value_head=4)
    with pytest.raises(ValueError, match="d_rope"):
        ModelConfig(d_model=8, n_layers=1, d_vocab=5, n_ctx=4, attention=attention, positions=Rotary())
    with pytest.raises(ValueError, match="d_rope"):
        build_attention(attention, 8, Rotary())


def test_rotary_width_is_the_channels():
    attention = MLAConfig(n_heads=2, d_latent=4, d_nope=4, d_rope=2, d_value_head=4)
    options = {"d_model": 8, "n_layers": 1, "d_vocab": 5, "n_ctx": 4, "attention": attention}
    assert ModelConfig(**options, positions=Rotary(width=2)).rotary.width == 2
    with pytest.raises(ValueError, match=r"positions\.width should be 2 .*got 4"):
        ModelConfig(**options, positions=Rotary(width=4))


def test_mla_contains_mqa_of_its_latent(matrix, build, tokens, run_all, close):
    """Absorbed, every head attends to one shared key, as MQA of width ``d_latent`` does."""
    model = build(matrix["mla-no_positions"])
    cfg, attn = model.config.attention, model.attention(0)
    _, cache = run_all(model, tokens)
    c, q = cache["blocks.0.attn.hook_latent"], cache["blocks.0.attn.hook_q"]
    w_uk = attn.k_up.weight.unflatten(0, (cfg.n_heads, cfg.d_nope))
    wide = torch.einsum("bphn,hnc->bphc", q, w_uk)
    shared = GroupedConfig(n_heads=cfg.n_heads, d_head=cfg.d_latent, n_kv_heads=1, scale=attn.scale)
    mqa = build_attention(shared, 16, None)
    mqa.queries = lambda x: wide
    mqa.rows = lambda x: {"k": c[:, :, None], "v": c[:, :, None]}
    seen = {}
    mqa.hook_pattern.add_hook(lambda pattern, hook: seen.update(pattern=pattern))
    visible = torch.ones(7, 7, dtype=torch.bool).tril().expand(2, 1, 7, 7)
    x = torch.zeros(2, 7, 16, dtype=torch.float64)  # unread: what reads it is replaced
    mqa.double()(x, torch.zeros(2, 7, dtype=torch.long), visible)
    close(seen["pattern"], cache["blocks.0.attn.hook_pattern"], 1e-12)
