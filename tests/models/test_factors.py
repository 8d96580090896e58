"""Stacks of factors against their dense products, and layers' forms against the scores that the layers compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from headscope.models import HookedModel, ModelConfig
from headscope.models.factors import (
    BilinearForm,
    HeadStack,
    Separate,
    SharedPlusPrivate,
    Through,
    comparable_part,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

HEADS, D_IN, WIDTH = 5, 7, 3


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def separate(of_head: list[int], d_in: int = D_IN) -> tuple[HeadStack, list[Tensor]]:
    weight = draw(max(of_head) + 1, WIDTH, d_in)
    return Separate(weight, torch.tensor(of_head)), [weight[group].T for group in of_head]


def shared_plus_private(rank: int = 2) -> tuple[HeadStack, list[Tensor]]:
    shared, down, up = draw(D_IN, WIDTH), draw(HEADS, D_IN, rank), draw(HEADS, WIDTH, rank)
    dense = [shared + down[h] @ up[h].T for h in range(HEADS)]
    return SharedPlusPrivate(shared, down, up), dense


def through(of_head: list[int]) -> tuple[HeadStack, list[Tensor]]:
    base = draw(D_IN, 4)
    inner, dense = separate(of_head, d_in=4)
    return Through(base, inner), [base @ factor for factor in dense]


STACKS: dict[str, Callable[[], tuple[HeadStack, list[Tensor]]]] = {
    "separate-one_a_head": lambda: separate([0, 1, 2, 3, 4]),
    "separate-groups": lambda: separate([0, 0, 1, 1, 1]),
    "separate-one_group": lambda: separate([0] * 5),
    "separate-mixed_groups": lambda: separate([2, 0, 2, 0, 1]),
    "separate-unused_group": lambda: separate([0, 2, 2, 0, 2]),
    "shared_plus_private": shared_plus_private,
    "shared_plus_private-rank_1": lambda: shared_plus_private(1),
    "through": lambda: through([0, 1, 2, 3, 4]),
    "through-groups": lambda: through([0, 0, 1, 1, 1]),
}


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> tuple[HeadStack, list[Tensor]]:
    return STACKS[request.param]()


def check_cross(stack: HeadStack, dense: list[Tensor], rows: slice, cols: slice) -> None:
    expected = torch.stack([torch.stack([a.T @ b for b in dense[cols]]) for a in dense[rows]])
    torch.testing.assert_close(stack.cross(rows, cols), expected, rtol=1e-12, atol=1e-12)


def test_shape_and_dense(stack, close):
    factors, dense = stack
    assert (factors.n_heads, factors.d_in, factors.width) == (HEADS, D_IN, WIDTH)
    for head in range(HEADS):
        close(factors.dense(head), dense[head], 1e-13)


def test_cross_of_every_slice(stack):
    factors, dense = stack
    slices = [slice(first, last) for first in range(HEADS) for last in range(first + 1, HEADS + 1)]
    for rows in slices:
        for cols in slices:
            check_cross(factors, dense, rows, cols)


def test_cross_of_open_slices(stack):
    factors, dense = stack
    for rows, cols in (
        (slice(None), slice(-2, None)),
        (slice(None, 3), slice(0, 99)),
        (slice(-1, None), slice(1, -1)),
    ):
        check_cross(factors, dense, rows, cols)


def test_scaled_columns(stack, close):
    factors, dense = stack
    gain = torch.tensor([2.0, -0.5, 0.0], dtype=torch.float64)
    scaled = factors.scale_columns(gain)
    wanted = [factor * gain for factor in dense]
    for head in range(HEADS):
        close(scaled.dense(head), wanted[head], 1e-13)
        close(factors.dense(head), dense[head], 1e-13)
    check_cross(scaled, wanted, slice(None), slice(1, 4))


@given(
    of_head=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    first=st.integers(0, 5),
    count=st.integers(1, 6),
)
@settings(deadline=None)
def test_cross_under_any_grouping(of_head: list[int], first: int, count: int):
    factors, dense = separate(of_head)
    first = min(first, len(of_head) - 1)
    check_cross(factors, dense, slice(first, first + count), slice(None))


# -- a layer's forms against its scores ------------------------------------------------------------------------------------


def bare(config: ModelConfig, build) -> HookedModel:
    """Return the model without the biases that no bilinear form can hold."""
    model = build(config.with_(attention=replace(config.attention, bias=False)))
    with torch.no_grad():
        for block in model.blocks:
            if block.ln1.b is not None:
                block.ln1.b.zero_()
    return model


def turned(x: Tensor, form: BilinearForm, positions: Tensor) -> Tensor:
    """Turn ``[pos, width]`` by each position, plane by plane as complex numbers."""
    if form.planes is None:
        return x
    first, second = form.planes.pairs
    out = x.clone()
    plane = torch.complex(x[:, first], x[:, second])
    spin = torch.polar(torch.ones(1, dtype=torch.float64), positions[:, None] * form.planes.theta)
    plane = plane * spin * form.planes.amplitude
    out[:, first], out[:, second] = plane.real, plane.imag
    return out


def form_scores(form: BilinearForm, x_left: Tensor, x_right: Tensor) -> Tensor:
    """Return ``[head, query_pos, key_pos]``, every query against every key, rotated by their positions."""
    positions = torch.arange(len(x_left), dtype=torch.float64)
    return torch.stack(
        [
            turned(x_left @ form.left.dense(h), form, positions)
            @ turned(x_right @ form.right.dense(h), form, positions).T
            for h in range(form.left.n_heads)
        ]
    )


def scale_of(cache: dict[str, Tensor], name: str) -> Tensor:
    """Return a norm's divisor a position, ones where the model has no such norm; ``[pos]`` or ``[pos, head]``."""
    if name not in cache:
        return torch.ones(1, dtype=torch.float64)
    return cache[name][0, ..., 0]


def placed(cache: dict[str, Tensor], side: str, qk_norm) -> Tensor:
    """Return queries or keys as they enter the scores, ``[pos, head or group, width]``."""
    prefix = "blocks.1.attn.hook_"
    order = ["rot_{}", "{}_normed"] if qk_norm is not None and qk_norm.where == "after" else ["{}_normed", "rot_{}"]
    names = [prefix + side] + [prefix + name.format(side) for name in order]
    return cache[[name for name in names if name in cache][-1]][0]


def check_scores(model: HookedModel, cache: dict[str, Tensor], tol: float) -> None:
    """The folded form on the raw residual gives the layer's scores, up to the norms' positive scalars."""
    cfg = model.config.attention
    qk_norm = getattr(cfg, "qk_norm", None)
    x = cache["blocks.1.hook_resid_pre"][0]
    q, k = placed(cache, "q", qk_norm), placed(cache, "k", qk_norm)
    groups = torch.tensor(cfg.head_to_group)
    true = torch.einsum("ihd,jhd->hij", q, k[:, groups])
    (form,) = model.factors(1).circuits["qk"]["all"]
    outer = scale_of(cache, "blocks.1.ln1.hook_scale")
    inner = [scale_of(cache, f"blocks.1.attn.{side}_norm.hook_scale") for side in "qk"]
    # [pos, head], or one divisor for all heads where they are normalised together
    by_query, by_key = (outer[:, None] * (one[:, None] if one.ndim == 1 else one) for one in inner)
    by_query, by_key = by_query.expand(7, cfg.n_heads), by_key.expand(7, k.shape[1])[:, groups]
    ours = form_scores(form, x, x) / by_query.T[:, :, None] / by_key.T[:, None, :]
    if qk_norm is not None and qk_norm.where == "after" and qk_norm.gain and model.config.rotary:
        ours, true = (
            ours[:, :, :1],
            true[:, :, :1],
        )  # exact for a key at position 0 only, and the factors say so
        assert any("position 0" in note for note in model.factors(1).notes)
    torch.testing.assert_close(ours, true, rtol=tol, atol=tol)
    assert true.abs().max() > 0.1


def tolerance(config: ModelConfig) -> float:
    return 1e-10 if config.rotary is None else 5e-6  # float32 angles in the model, exact ones here


def test_forms_give_the_scores(config: ModelConfig, build, tokens, run_all):
    model = bare(config, build)
    _, cache = run_all(model, tokens[:1])
    check = check_mla_scores if config.attention.variant == "mla" else check_scores
    check(model, cache, tolerance(config))


def check_mla_scores(model: HookedModel, cache: dict[str, Tensor], tol: float) -> None:
    """Content through the latents and up to their scalars, positions exactly; the two parts apart."""
    cfg = model.config.attention
    prefix, x = "blocks.1.attn.", cache["blocks.1.hook_resid_pre"][0]
    q, k = placed(cache, "q", None), placed(cache, "k", None)
    parts = model.factors(1).circuits["qk"]
    outer = scale_of(cache, "blocks.1.ln1.hook_scale")
    of_query = outer * scale_of(cache, prefix + "q_latent_norm.hook_scale")
    of_key = outer * scale_of(cache, prefix + "latent_norm.hook_scale")

    def true(columns: slice) -> Tensor:
        return torch.einsum("ihd,jhd->hij", q[..., columns], k[..., columns])

    content = true(slice(0, cfg.d_nope))
    (form,) = parts["content_d_model"]
    ours = form_scores(form, x, x) / of_query[:, None] / of_key[None]
    torch.testing.assert_close(ours, content, rtol=1e-10, atol=1e-10)

    # Between the latents themselves, before their gains: the divisor is all that is left out.
    def latent(name: str, norm: str) -> Tensor:
        normalized = cache.get(f"{prefix}{norm}.hook_normalized")
        return cache[f"{prefix}{name}"][0] if normalized is None else normalized[0]

    (form,) = parts["content"]
    left = latent("hook_q_latent", "q_latent_norm") if cfg.d_q_latent else x / outer[:, None]
    ours = form_scores(form, left, latent("hook_latent", "latent_norm"))
    torch.testing.assert_close(ours, content, rtol=1e-10, atol=1e-10)
    assert ("position" in parts) == (cfg.d_rope > 0)
    if cfg.d_rope:
        (position,) = parts["position"]
        ours = form_scores(position, left, x / outer[:, None])
        torch.testing.assert_close(ours, true(slice(cfg.d_nope, None)), rtol=tol, atol=tol)
        assert [id(part) for part in parts["joint"]] == [id(parts["content"][0]), id(position)]


def test_scores_compare_across_variants_between_residual_streams(config: ModelConfig, build):
    circuits = build(config).factors(1).circuits
    (form,) = circuits["qk"][comparable_part(circuits["qk"])]
    assert form.left.d_in == form.right.d_in == config.d_model
    assert comparable_part(circuits["ov"]) == "all"


def test_a_circuit_without_a_part_that_compares_is_named():
    with pytest.raises(ValueError, match=r"should have the part content_d_model or all but has \['content', 'joint'\]"):
        comparable_part(["content", "joint"])


PLAIN = ["mha-no_positions", "mha-layer_norm", "mqa-layer_norm", "lrkv-no_positions", "lrkv-full_rank"]


@pytest.mark.parametrize("name", PLAIN)
def test_ratio_is_one_positive_scalar_a_token(matrix, build, tokens, run_all, name: str):
    """What folding leaves out: score / form is ``a_i a_j``, whatever the head."""
    model = bare(matrix[name], build)
    _, cache = run_all(model, tokens[:1])
    x = cache["blocks.1.hook_resid_pre"][0]
    groups = torch.tensor(model.config.attention.head_to_group)
    q, k = cache["blocks.1.attn.hook_q"][0], cache["blocks.1.attn.hook_k"][0][:, groups]
    (form,) = model.factors(1).circuits["qk"]["all"]
    ratio = torch.einsum("ihd,jhd->hij", q, k) / form_scores(form, x, x)
    assert (ratio > 0).all()
    of_token = ratio[0].diagonal().sqrt()
    assert of_token.std() > 1e-3
    torch.testing.assert_close(ratio, of_token.outer(of_token).expand_as(ratio), rtol=1e-7, atol=0)


def test_ov_forms_give_the_written_vectors(config: ModelConfig, build, tokens, run_all, close):
    """What key position j writes through head h: ``v_j W_O[h]``."""
    cfg = config.attention
    model = bare(config, build)
    _, cache = run_all(model, tokens[:1])
    groups = torch.tensor(cfg.head_to_group)
    v, x = cache["blocks.1.attn.hook_v"][0][:, groups], cache["blocks.1.hook_resid_pre"][0]
    true = torch.einsum("jhd,hdm->hjm", v, model.attention(1).W_O)
    (form,) = model.factors(1).circuits["ov"]["all"]
    if cfg.variant == "mla":
        normalized = cache.get("blocks.1.attn.latent_norm.hook_normalized", cache["blocks.1.attn.hook_latent"])
        source = normalized[0]
    else:
        source = x / scale_of(cache, "blocks.1.ln1.hook_scale")[:, None]
    for head in range(cfg.n_heads):
        close(source @ form.left.dense(head) @ form.right.dense(head).T, true[head])


def test_unfolded_forms_read_the_normed_input(config: ModelConfig, build):
    """Without folding, left and right are the bare weights."""
    model = build(config)
    factors, attn = model.factors(1, fold_norm=False), model.attention(1)
    assert not factors.folded
    assert model.factors(1).folded
    assert factors.layer == 1
    assert factors.n_heads == config.attention.n_heads
    if config.attention.variant == "mla":
        k = factors.circuits["qk"]["content"][0].right
        assert torch.equal(k.dense(1), attn.k_up.weight[4:8].T)
        return
    (form,) = factors.circuits["qk"]["all"]
    for head, group in enumerate(config.attention.head_to_group):
        assert torch.equal(form.left.dense(head), attn.W_Q[head])
        torch.testing.assert_close(form.right.dense(head), attn.W_K[group], rtol=1e-13, atol=1e-13)


def test_keys_of_another_layer_are_behind_its_norm(config: ModelConfig, build):
    """Queries behind one norm and keys behind another: the sides of two layers that have one norm each."""
    model = build(config)
    first, second = model.layers
    if first.ln1 is None:
        pytest.skip("no norm stands before attention")
    mixed = second.factors(1, keys_behind=first).circuits
    own = second.factors(1).circuits
    others = second.attn.factors(1, first.ln1).circuits
    for part, forms in mixed["qk"].items():
        for form, left, right in zip(forms, own["qk"][part], others["qk"][part], strict=True):
            for head in range(config.attention.n_heads):
                assert torch.equal(form.left.dense(head), left.left.dense(head))
                assert torch.equal(form.right.dense(head), right.right.dense(head))
    for form, left, right in zip(mixed["ov"]["all"], others["ov"]["all"], own["ov"]["all"], strict=True):
        assert torch.equal(form.left.dense(0), left.left.dense(0))
        assert torch.equal(form.right.dense(0), right.right.dense(0))


def test_factors_share_what_heads_share(matrix, build):
    """One key factor a group, LRKV's base once, MLA's rotary key once."""
    right = {name: build(matrix[name]).factors(0).circuits["qk"] for name in ("gqa", "mqa", "lrkv", "mla")}
    assert right["gqa"]["all"][0].right.weight.shape == (2, 4, 16)
    assert right["mqa"]["all"][0].right.weight.shape == (1, 4, 16)
    assert right["lrkv"]["all"][0].right.shared.shape == (16, 4)
    assert right["lrkv"]["all"][0].right.down.shape == (4, 16, 2)
    assert right["mla"]["position"][0].right.weight.shape == (1, 2, 16)
    assert right["mla"]["content_d_model"][0].right.base.shape == (16, 10)


# -- weights that cannot be used, and types ----------------------------------------------------------------------------------


def test_notes_say_what_is_left_out(config: ModelConfig, build):
    notes = " | ".join(build(config).factors(0).notes)
    # LayerNorm's own bias reaches queries and keys as a bias does
    assert ("bias" in notes) == (config.attention.bias or config.norm.kind == "layer")
    assert ("q/k norm" in notes) == (getattr(config.attention, "qk_norm", None) is not None)
    assert ("latents' norms" in notes) == (config.attention.variant == "mla" and config.attention.latent_norm)


GROUPED_ROWS = {
    "W_Q": ("q", 13, "head 3"),
    "W_K": ("k", 5, "(group 1|head 2)"),
    "W_V": ("v", 5, "(group 1|head 2)"),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", GROUPED_ROWS)
def test_bad_weight_of_grouped_heads(matrix, build, name: str, value: float):
    """Report 13. The second key row belongs to group 1, which heads 2 and 3 read; no "head 1" has it."""
    model = build(matrix["gqa"])
    layer, row, owner = GROUPED_ROWS[name]
    with torch.no_grad():
        getattr(model.attention(1), layer).weight[row, 2] = value
    model.factors(0)
    with pytest.raises(ValueError, match=rf"layer 1, {owner}.*{name}"):
        model.factors(1)


def test_bad_output_weight(matrix, build):
    model = build(matrix["gqa"])
    with torch.no_grad():
        model.attention(1).o.weight[3, 9] = math.nan  # [d_model, head * width]: column 9 is head 2's
    with pytest.raises(ValueError, match=r"layer 1, head 2.*W_O"):
        model.factors(1)


@pytest.mark.parametrize(
    ("parameter", "index", "message"),
    [
        ("k.shared.weight", (1, 2), r"layer 1.*W_SK"),
        ("v.shared.weight", (1, 2), r"layer 1.*W_SV"),
        ("k.down.weight", (5, 2), r"layer 1, head 2.*U_K"),
        ("v.down.weight", (5, 2), r"layer 1, head 2.*U_V"),
        ("k.B", (3, 0, 0), r"layer 1, head 3.*B_K"),
        ("v.B", (3, 0, 0), r"layer 1, head 3.*B_V"),
        ("q.weight", (4, 0), r"layer 1, head 1.*W_Q"),
    ],
)
def test_bad_weight_of_lrkv(matrix, build, parameter: str, index, message: str):
    model = build(matrix["lrkv"])
    with torch.no_grad():
        model.attention(1).get_parameter(parameter)[index] = math.nan
    with pytest.raises(ValueError, match=message):
        model.factors(1)


@pytest.mark.parametrize(
    ("parameter", "index", "message"),
    [
        ("kv_down.weight", (1, 2), r"layer 1.*W_DKV"),
        ("q_down.weight", (1, 2), r"layer 1.*W_DQ"),
        ("q_up.weight", (6, 2), r"layer 1, head 1.*W_UQ"),
        ("k_up.weight", (8, 2), r"layer 1, head 2.*W_UK"),
        ("v_up.weight", (4, 2), r"layer 1, head 0.*W_UV"),
        ("k_rot.weight", (0, 0), r"layer 1.*W_KR"),
        ("o.weight", (0, 14), r"layer 1, head 2.*W_O"),
    ],
)
def test_bad_weight_of_mla(matrix, build, parameter: str, index, message: str):
    model = build(matrix["mla-query_latent"])
    with torch.no_grad():
        model.attention(1).get_parameter(parameter)[index] = math.nan
    with pytest.raises(ValueError, match=message):
        model.factors(1)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("gqa", "ln1.w"),
        ("mha-layer_norm", "ln1.w"),
        ("qk_norm-before", "attn.q_norm.w"),
        ("qk_norm-after", "attn.k_norm.w"),
        ("lrkv-qk_norm", "attn.k_norm.w"),
        ("mla", "attn.latent_norm.w"),
        ("mla-query_latent", "attn.q_latent_norm.w"),
    ],
)
def test_bad_gain(matrix, build, name: str, parameter: str):
    """A gain is folded into the factors: a NaN in it must not reach them either, and the layer is named."""
    model = build(matrix[name])
    with torch.no_grad():
        model.blocks[1].get_parameter(parameter)[1] = math.nan
    model.factors(0)
    with pytest.raises(ValueError, match=r"layer 1.*(gain|norm)"):
        model.factors(1)


def stacks_of(model: HookedModel) -> list[HeadStack]:
    circuits = model.factors(1).circuits
    forms = [form for parts in circuits.values() for part in parts.values() for form in part]
    return [side for form in forms for side in (form.left, form.right)]


def test_bf16_weights_give_the_factors_of_their_upcast(config: ModelConfig, build):
    """Report 12."""
    model = build(config, dtype=torch.bfloat16)
    low = stacks_of(model)
    high = stacks_of(model.double())
    for ours, theirs in zip(low, high, strict=True):
        assert ours.cross(slice(None), slice(None)).dtype == torch.float64
        assert torch.equal(ours.cross(slice(None), slice(None)), theirs.cross(slice(None), slice(None)))
        for head in range(ours.n_heads):
            assert torch.equal(ours.dense(head), theirs.dense(head))


def test_factors_leave_the_model_alone(config: ModelConfig, build):
    """They neither change the weights nor carry a gradient."""
    model = build(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for side in stacks_of(model):
        assert not side.cross(slice(None), slice(None)).requires_grad
        assert not side.scale_columns(torch.full((side.width,), 2.0, dtype=torch.float64)).dense(0).requires_grad
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_huge_weights_are_not_called_bad(matrix, build):
    """The sum of a matrix may overflow though every entry is finite."""
    model = build(matrix["gqa"])
    with torch.no_grad():
        model.attention(0).q.weight[0, :2] = torch.finfo(torch.float64).max
    model.factors(0)
