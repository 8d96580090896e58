"""Attention against explicit loops, and against what a mask must do to it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from headscope.models import HookedModel
from headscope.models.attention import masked_softmax
from torch import Tensor

# -- an oracle in loops: reads the parameters, uses none of the package's code -----------------------------------------


def affine(layer, x: Tensor) -> Tensor:
    out = layer.weight @ x
    return out if layer.bias is None else out + layer.bias


def rms(x: Tensor, eps: float, gain: Tensor | None) -> Tensor:
    out = x / math.sqrt(sum(float(v) ** 2 for v in x) / len(x) + eps)
    return out if gain is None else out * gain


def head_rows(layer, x: Tensor, head: int, width: int) -> Tensor:
    return affine(layer, x)[head * width : (head + 1) * width]


def grouped_qkv(attn, x: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
    cfg = attn.config
    group = head // (cfg.n_heads // cfg.n_groups)
    width = cfg.d_head
    q, k, v = affine(attn.q, x), affine(attn.k, x), affine(attn.v, x)
    if cfg.qk_norm is not None and cfg.qk_norm.span == "all":
        q, k = rms(q, cfg.qk_norm.eps, attn.q_norm.w), rms(k, cfg.qk_norm.eps, attn.k_norm.w)
    return (
        q[head * width : (head + 1) * width],
        k[group * width : (group + 1) * width],
        v[group * width : (group + 1) * width],
    )


def lrkv_qkv(attn, x: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
    width, rank = attn.config.d_head, attn.config.rank
    out = [head_rows(attn.q, x, head, width)]
    for side in (attn.k, attn.v):
        base = side.shared.weight.T
        down = side.down.weight[head * rank : (head + 1) * rank].T
        effective = base + down @ side.B[head].T
        out.append(x @ effective if side.bias is None else x @ effective + side.bias[head])
    return out[0], out[1], out[2]


def mla_qkv(attn, x: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
    cfg = attn.config
    if cfg.d_q_latent is None:
        q = head_rows(attn.q, x, head, cfg.d_nope + cfg.d_rope)
    else:
        squeezed = affine(attn.q_down, x)
        squeezed = rms(squeezed, cfg.latent_eps, attn.q_latent_norm.w) if cfg.latent_norm else squeezed
        q = head_rows(attn.q_up, squeezed, head, cfg.d_nope + cfg.d_rope)
    latent = affine(attn.kv_down, x)
    latent = rms(latent, cfg.latent_eps, attn.latent_norm.w) if cfg.latent_norm else latent
    k = head_rows(attn.k_up, latent, head, cfg.d_nope)
    if cfg.d_rope:
        k = torch.cat((k, affine(attn.k_rot, x)))
    return q, k, head_rows(attn.v_up, latent, head, cfg.d_value_head)


QKV = {"mha": grouped_qkv, "gqa": grouped_qkv, "mqa": grouped_qkv, "lrkv": lrkv_qkv, "mla": mla_qkv}


def turn(x: Tensor, position: int, rotary, columns: range) -> Tensor:
    """Turn column pairs as complex numbers, one at a time."""
    out, width = x.clone(), len(columns)
    theta = rotary.frequencies(width)  # checked against transformers in test_rope.py
    for plane in range(width // 2):
        if rotary.interleaved:
            a, b = columns[2 * plane], columns[2 * plane + 1]
        else:
            a, b = columns[plane], columns[plane + width // 2]
        angle = position * float(theta[plane])
        turned = complex(float(x[a]), float(x[b])) * complex(math.cos(angle), math.sin(angle)) * rotary.amplitude
        out[a], out[b] = turned.real, turned.imag
    return out


def place(attn, x: Tensor, norm_name: str, position: int) -> Tensor:
    """Apply the q/k norm and the rotation to one vector."""
    cfg = attn.config
    qk_norm = getattr(cfg, "qk_norm", None)
    norm = None if qk_norm is None or qk_norm.span == "all" else getattr(attn, norm_name)
    if norm is not None and qk_norm.where == "before":
        x = rms(x, qk_norm.eps, norm.w)
    if attn.rotary is not None:
        if cfg.variant == "mla":
            columns = range(cfg.d_nope, cfg.d_nope + cfg.d_rope)
        else:
            columns = range(attn.rotary.width or len(x))
        x = turn(x, position, attn.rotary, columns)
    if norm is not None and qk_norm.where == "after":
        x = rms(x, qk_norm.eps, norm.w)
    return x


def score(cfg, head: int, product: float, distance: int) -> float:
    """Cap, slope and window of one score."""
    if cfg.window is not None and distance >= cfg.window:
        return -math.inf
    capped = product if cfg.softcap is None else cfg.softcap * math.tanh(product / cfg.softcap)
    return capped if cfg.slopes is None else capped - cfg.slopes[head] * distance


def naive_attention(attn, x: Tensor) -> Tensor:
    """Attend over ``[pos, d_model]``, one head, query and key at a time."""
    cfg = attn.config
    out = [torch.zeros(attn.d_model, dtype=x.dtype) for _ in x]
    for head in range(cfg.n_heads):
        triples = [QKV[cfg.variant](attn, row, head) for row in x]
        width_v = len(triples[0][2])
        w_o = attn.o.weight[:, head * width_v : (head + 1) * width_v]
        queries = [place(attn, q, "q_norm", p) for p, (q, _, _) in enumerate(triples)]
        keys = [place(attn, k, "k_norm", p) for p, (_, k, _) in enumerate(triples)]
        scale = cfg.scale if cfg.scale is not None else 1 / math.sqrt(len(keys[0]))
        for i, query in enumerate(queries):
            weights = [math.exp(score(cfg, head, float(query @ keys[j]) * scale, i - j)) for j in range(i + 1)]
            z = sum(w / sum(weights) * triples[j][2] for j, w in enumerate(weights))
            out[i] = out[i] + w_o @ z
    bias = 0 if attn.o.bias is None else attn.o.bias
    return torch.stack(out) + bias


def test_oracle_turns_by_a_quarter():
    rotary = SimpleNamespace(
        interleaved=False,
        amplitude=1.0,
        frequencies=lambda width: torch.tensor([math.pi / 2], dtype=torch.float64),
    )
    turned = turn(torch.tensor([1.0, 0.0], dtype=torch.float64), 1, rotary, range(2))
    torch.testing.assert_close(turned, torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_forward_equals_loops(model: HookedModel, close):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 16, generator=generator, dtype=torch.float64)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    # The package turns by float32 angles, as released models were trained; the loops by exact ones.
    tol = 1e-11 if model.config.rotary is None else 3e-6
    with torch.no_grad():
        for layer in range(2):
            attn = model.attention(layer)
            expected = naive_attention(attn, x)
            for mask in (visible, None):  # None: causal, through the fused product
                close(attn(x[None], torch.arange(5)[None], mask)[0], expected, tol)


def test_watching_the_pattern_changes_nothing(model: HookedModel, tokens, close):
    """Hooked, the pattern is written out; unhooked, it is not: logits and gradients are the same."""

    def run() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        logits = model(tokens)
        logits.square().sum().backward()
        return logits.detach(), [parameter.grad.clone() for parameter in model.parameters()]

    plain, plain_gradients = run()
    for point in ("hook_pattern", "hook_attn_scores"):
        seen = []
        with model.hooks([(lambda name, point=point: name.endswith(point), lambda t, hook, seen=seen: seen.append(t))]):
            logits, gradients = run()
        assert len(seen) == 2
        close(logits, plain, 1e-11)
        for watched, unwatched in zip(gradients, plain_gradients, strict=True):
            close(watched, unwatched, 1e-9)


def test_watching_the_pattern_in_bf16(family_model: HookedModel, tokens):
    """The two ways of attending round differently, by no more than bf16 drifts from float32."""
    model = family_model.bfloat16()
    with torch.no_grad():
        plain = model(tokens).float()
        watched, _ = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
    assert (watched.float() - plain).norm() / plain.norm() < 0.016


# -- patterns and masks -------------------------------------------------------------------------------------------------


def test_pattern_is_causal_and_normalised(model: HookedModel, tokens, run_all, close):
    _, cache = run_all(model, tokens)
    for layer in range(2):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
        assert pattern.shape == (2, model.config.attention.n_heads, 7, 7)
        assert torch.all(pattern.triu(1) == 0)
        assert torch.all(pattern >= 0)
        close(pattern.sum(-1), torch.ones(pattern.shape[:-1], dtype=pattern.dtype))
        scores = cache[f"blocks.{layer}.attn.hook_attn_scores"]
        behind = torch.arange(7)[:, None] - torch.arange(7)
        hidden = (behind < 0) | (behind >= (model.config.attention.window or 7))
        assert torch.equal(torch.isinf(scores), hidden.expand_as(scores))


def padded(rows: list[list[int]], side: str, pad: int = 0) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows)) + 1  # a pad in every row
    filler = [[pad] * (longest - len(row)) for row in rows]
    pairs = list(zip(filler, rows, strict=True))
    tokens = [f + r if side == "left" else r + f for f, r in pairs]
    mask = [[0] * len(f) + [1] * len(r) if side == "left" else [1] * len(r) + [0] * len(f) for f, r in pairs]
    return torch.tensor(tokens), torch.tensor(mask)


ROWS = [[3, 0], [5, 8, 0, 7]]  # 0 is a token here and the pad as well


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_real_token(model: HookedModel, side: str, run_all, close):
    batch, mask = padded(ROWS, side)
    logits, cache = run_all(model, batch, attention_mask=mask)
    for row, (tokens, keep) in enumerate(zip(ROWS, mask.bool(), strict=True)):
        alone, alone_cache = run_all(model, torch.tensor([tokens]))
        close(logits[row, keep], alone[0])
        pattern = cache["blocks.1.attn.hook_pattern"][row]
        close(pattern[:, keep][:, :, keep], alone_cache["blocks.1.attn.hook_pattern"][0])
        assert torch.all(pattern[:, ~keep] == 0)
        assert torch.all(pattern[:, :, ~keep] == 0)
        z = cache["blocks.1.attn.hook_z"][row]
        assert torch.all(z[~keep] == 0)
    for name, value in cache.items():
        assert torch.all(torch.isfinite(value) | (torch.tensor("scores" in name) & value.isneginf())), name


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_leaves_loss_and_gradients(model: HookedModel, side: str, close):
    batch, mask = padded(ROWS, side)
    model(batch, "loss", attention_mask=mask).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    # Three predictions follow from the longer row, one from the shorter: the mean weighs rows by their tokens.
    losses = [model(torch.tensor([row]), "loss") * (len(row) - 1) for row in ROWS]
    (sum(losses) / 4).backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(gradients[name]).all(), name
        close(gradients[name], parameter.grad)


def test_pad_token_is_never_read(family_model: HookedModel, run_all):
    model = family_model
    for side in ("left", "right"):
        zeros, mask = padded(ROWS, side, pad=0)
        nines, _ = padded(ROWS, side, pad=9)
        first, _ = run_all(model, zeros, attention_mask=mask)
        second, _ = run_all(model, nines, attention_mask=mask)
        keep = mask.bool()
        assert torch.equal(first[keep], second[keep])
        assert not torch.equal(first[~keep], second[~keep])


def test_masked_softmax_survives_a_row_without_keys():
    visible = torch.tensor([[[[True, True], [False, False]]]])
    scores = torch.tensor([[[[0.0, math.log(3.0)], [5.0, 7.0]]]], dtype=torch.float64).masked_fill(~visible, -math.inf)
    scores.requires_grad_()
    pattern = masked_softmax(scores, visible)
    torch.testing.assert_close(pattern[0, 0], torch.tensor([[0.25, 0.75], [0.0, 0.0]], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(pattern[0, 0, 0, 0] + 3 * pattern[0, 0, 1, 1], scores)
    torch.testing.assert_close(gradient[0, 0], torch.tensor([[3 / 16, -3 / 16], [0.0, 0.0]], dtype=torch.float64))


# -- groups and weights in TransformerLens's shapes ----------------------------------------------------------------------


def test_head_to_group(matrix, build):
    assert build(matrix["gqa"]).attention(0).head_to_group == [0, 0, 1, 1]
    assert build(matrix["mqa"]).attention(0).head_to_group == [0, 0, 0, 0]
    assert build(matrix["lrkv"]).attention(0).head_to_group == [0, 1, 2, 3]
    assert build(matrix["mla"]).attention(0).head_to_group == [0, 1, 2]


def test_forms_of_a_head(model: HookedModel, close):
    cfg = model.config.attention
    attn = model.attention(1)
    assert model.QK.shape == model.OV.shape == (2, cfg.n_heads, 16, 16)
    per_group = cfg.n_heads // cfg.n_groups
    for head in range(cfg.n_heads):
        qk = attn.W_Q[head] @ attn.W_K[head // per_group].T
        ov = attn.W_V[head // per_group] @ attn.W_O[head]
        close(attn.QK(head).AB, qk)
        close(attn.OV(head).AB, ov)
        close(model.QK[1, head].AB, qk)
        close(model.OV[1, head].AB, ov)


def test_gqa_head_3_reads_group_1(matrix, build, close):
    attn = build(matrix["gqa"]).attention(0)
    q = attn.q.weight[12:16]  # head 3 of width 4
    k = attn.k.weight[4:8]  # group 1
    close(attn.QK(3).AB, q.T @ k)


@pytest.mark.parametrize("head", [4, -1])
@pytest.mark.parametrize("form", ["QK", "OV", "group_of"])
def test_missing_head_is_an_index_error(matrix, build, form: str, head: int):
    attn = build(matrix["gqa"]).attention(0)
    with pytest.raises(IndexError, match=rf"head {head} .*0–3"):
        getattr(attn, form)(head)


def test_weight_shapes(model: HookedModel):
    cfg = model.config.attention
    heads, groups = cfg.n_heads, cfg.n_groups
    assert model.W_Q.shape == (2, heads, 16, cfg.d_key)
    assert model.W_K.shape == (2, groups, 16, cfg.d_key)
    assert model.W_V.shape == (2, groups, 16, cfg.d_value)
    assert model.W_O.shape == (2, heads, cfg.d_value, 16)
    assert model.b_O.shape == (2, 16)


def test_grouped_weights_are_views(grouped_config, build):
    attn = build(grouped_config).attention(0)
    for view, layer in ((attn.W_Q, attn.q), (attn.W_K, attn.k), (attn.W_V, attn.v), (attn.W_O, attn.o)):
        assert view.untyped_storage().data_ptr() == layer.weight.untyped_storage().data_ptr()
        with torch.no_grad():
            view[-1, -1, -1] = 123.0  # for W_O [head, d_value, d_model], for the others [head, d_model, width]
        assert layer.weight[-1, -1] == 123.0


def test_lrkv_and_mla_weights_are_views_where_they_can_be(matrix, build):
    for name in ("lrkv", "mla"):
        attn = build(matrix[name]).attention(0)
        assert attn.W_Q.data_ptr() == attn.q.weight.data_ptr()
        assert attn.W_O.data_ptr() == attn.o.weight.data_ptr()


def test_every_query_head_reads_its_group_only(config, build, tokens, run_all):
    """Zero one group's keys (through the hook): the heads that read it change, the others do not."""
    cfg = config.attention
    model = build(config)
    _, before = run_all(model, tokens)
    for group in range(cfg.n_groups):

        def zero(k, hook, group=group):
            return torch.cat((k[:, :, :group], torch.zeros_like(k[:, :, :1]), k[:, :, group + 1 :]), dim=2)

        # Heads that are normalised together feel each other's keys in the divisor: there, zero what comes behind it.
        joint = getattr(cfg, "qk_norm", None) is not None and cfg.qk_norm.span == "all"
        with model.hooks([(f"blocks.0.attn.{'hook_k_normed' if joint else 'hook_k'}", zero)]):
            _, after = run_all(model, tokens)
        moved = (before["blocks.0.attn.hook_z"] - after["blocks.0.attn.hook_z"]).abs().amax((0, 1, 3)) > 1e-9
        readers = [head // (cfg.n_heads // cfg.n_groups) == group for head in range(cfg.n_heads)]
        assert moved.tolist() == readers


def test_mqa_has_one_group_that_all_heads_read(matrix, build, tokens, run_all):
    model = build(matrix["mqa"])
    _, cache = run_all(model, tokens)
    assert cache["blocks.0.attn.hook_k"].shape == (2, 7, 1, 4)


# -- precision ----------------------------------------------------------------------------------------------------------


def test_bf16_drift_is_bounded(model: HookedModel, tokens):
    """Relative drift of the logits from float32's with the same (rounded) weights.

    Measured on this matrix over three seeds: 0.0032 to 0.0080, a rounding or two of bf16's 8 bits (4e-3 each).
    """
    model = model.bfloat16()
    with torch.no_grad():
        half = model(tokens)
        full = model.float()(tokens)
    assert half.dtype == torch.bfloat16
    assert torch.isfinite(half).all()
    drift = float((half.float() - full).norm() / full.norm())
    assert 0 < drift < 0.016


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_of_half_precision_scores_is_float32s(dtype: torch.dtype):
    """A long row of nearly equal weights: in bf16 its sum would be off by percents."""
    scores = torch.randn(1, 1, 1, 500, generator=torch.Generator().manual_seed(0)).to(dtype)
    pattern = masked_softmax(scores, torch.ones(1, 1, 1, 500, dtype=torch.bool))
    assert pattern.dtype == torch.float32
    torch.testing.assert_close(pattern.double(), scores.double().softmax(-1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_bf16_padding_stays_finite(family_model: HookedModel, side: str):
    batch, mask = padded(ROWS, side)
    model = family_model.bfloat16()
    loss = model(batch, "loss", attention_mask=mask)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_score_scale(matrix, build):
    """``1 / sqrt(full key width)``, for MLA content and rotary columns together, unless given."""
    expected = {"gqa": 4**-0.5, "gqa-wide_head": 6**-0.5, "gqa-scale": 0.3, "lrkv": 4**-0.5, "mla": 6**-0.5}
    scales = {name: build(matrix[name]).attention(0).scale for name in expected}
    assert scales == pytest.approx(expected, rel=1e-12)


def test_attention_keeps_no_state_between_calls(family_model: HookedModel, tokens):
    with torch.no_grad():
        first = family_model(tokens)
        family_model(tokens[:, :3])
        assert torch.equal(family_model(tokens), first)
