"""Inner products of forms against forms written out, gauge by gauge and offset by offset."""

from __future__ import annotations

import math

import pytest
import torch
from headscope.diversity import Offsets, gram
from headscope.diversity.forms import ways
from headscope.diversity.rotation import phase_mean
from headscope.models import GroupedConfig, LRKVConfig, MLAConfig, QKNorm, Rotary
from headscope.models.factors import BilinearForm, Separate
from headscope.models.rope import rotate


def written_out(form: BilinearForm, delta: int | None) -> torch.Tensor:
    """Every head's A = L R_delta R^T by brute force: the rotation as a matrix, plane by plane."""
    width = form.left.width
    turn = torch.eye(width, dtype=torch.float64)
    if delta is not None and form.planes is not None:
        planes = form.planes
        a, b = (torch.arange(width)[part] for part in planes.pairs)
        for i, j, theta in zip(a.tolist(), b.tolist(), planes.theta.tolist(), strict=True):
            c, s = math.cos(delta * theta), math.sin(delta * theta)
            turn[i, i] = turn[j, j] = c * planes.amplitude**2
            turn[i, j], turn[j, i] = s * planes.amplitude**2, -s * planes.amplitude**2
    return torch.stack([form.left.dense(h) @ turn @ form.right.dense(h).T for h in range(form.left.n_heads)])


def brute(forms, offsets: Offsets | None) -> torch.Tensor:
    deltas = [0] if offsets is None else range(offsets.first, offsets.last + 1)  # left out is as at distance 0
    total = torch.zeros(1)
    for delta in deltas:
        for form in forms:
            a = written_out(form, delta).flatten(1)
            total = total + a @ a.T
    return total / len(deltas)


@pytest.mark.parametrize("offsets", [None, Offsets(0, 0), Offsets(5, 5), Offsets(0, 9), Offsets(3, 20)], ids=str)
def test_gram_equals_forms_written_out(build, attention, positions, offsets):
    if isinstance(attention, MLAConfig) and isinstance(positions, Rotary) and positions.width not in (None, 4):
        pytest.skip("MLA's rotary channel has a width of its own")
    factors = build(attention, positions).factors(0)
    for parts in factors.circuits.values():
        for forms in parts.values():
            expected = brute(forms, offsets)
            torch.testing.assert_close(gram(forms, offsets), expected, rtol=1e-9, atol=1e-12 * float(expected.max()))


def test_the_closed_form_agrees_with_the_sum_over_256_offsets(build):
    forms = build(GroupedConfig(n_heads=5, d_head=8), Rotary(base=1e4)).factors(0).circuits["qk"]["all"]
    closed, summed = gram(forms, Offsets(0, 255)), brute(forms, Offsets(0, 255))
    assert ((closed - summed).abs() / summed.diagonal().max()).max() < 4e-14


def test_phase_mean_is_the_mean_of_phases():
    omega = torch.tensor([0.0, 1e-14, 1e-9, 0.3, 1.0, 2.0, 2 * math.pi, 3.5], dtype=torch.float64)
    for first, last in ((0, 0), (7, 7), (0, 255), (10, 12)):
        steps = torch.arange(first, last + 1, dtype=torch.float64)
        expected = torch.exp(1j * steps[:, None] * omega).mean(0)
        torch.testing.assert_close(phase_mean(omega, Offsets(first, last)), expected, rtol=0, atol=1e-9)


def test_averaging_operators_would_lose_half_of_the_norm(build):
    forms = build(GroupedConfig(n_heads=5, d_head=16), Rotary(base=1e4), d_model=48).factors(0).circuits["qk"]["all"]
    averaged = torch.stack([written_out(forms[0], d) for d in range(256)]).mean(0).flatten(1)
    kept = (averaged**2).sum(1) / gram(forms, Offsets(0, 255)).diagonal()
    assert kept.min() > 0.3
    assert kept.max() < 0.6


def test_a_form_is_the_score_of_the_forward_pass(build):
    """score(i, j) = x_i A(i - j) x_j^T * scale on normalised inputs, for plain heads and for LRKV."""
    for attention in (GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6), LRKVConfig(n_heads=4, d_head=6, rank=2)):
        model = build(attention, Rotary(base=50.0, width=4))
        _, cache = model.run_with_cache(torch.arange(7))
        block = model.layers[0]
        x = cache["blocks.0.ln1.hook_normalized"][0]  # before the gain, which the forms have folded in
        scores = cache["blocks.0.attn.hook_attn_scores"][0]
        (form,) = model.factors(0).circuits["qk"]["all"]
        for i in range(7):
            for j in range(i + 1):
                a = written_out(form, i - j)
                expected = torch.einsum("d,hde,e->h", x[i], a, x[j]) * block.attn.scale
                torch.testing.assert_close(scores[:, i, j], expected, rtol=1e-5, atol=1e-7)


def test_mla_parts_are_the_score_of_the_forward_pass(build):
    model = build(MLAConfig(n_heads=3, d_latent=9, d_nope=5, d_rope=4, d_value_head=3, d_q_latent=8), Rotary(base=50.0))
    _, cache = model.run_with_cache(torch.arange(6))
    x = cache["blocks.0.ln1.hook_normalized"][0]
    latent = cache["blocks.0.attn.latent_norm.hook_normalized"][0]
    q_latent = cache["blocks.0.attn.q_latent_norm.hook_normalized"][0]
    parts = model.factors(0).circuits["qk"]
    (content,), (position,) = parts["content"], parts["position"]
    assert parts["joint"] == (content, position)
    for i in range(6):
        for j in range(i + 1):
            total = torch.einsum("d,hde,e->h", q_latent[i], written_out(content, None), latent[j])
            total = total + torch.einsum("d,hde,e->h", q_latent[i], written_out(position, i - j), x[j])
            scores = cache["blocks.0.attn.hook_attn_scores"][0, :, i, j]
            torch.testing.assert_close(scores, total * model.attention(0).scale, rtol=1e-5, atol=1e-7)


def test_content_between_residual_streams_is_the_latent_form_folded(build):
    model = build(MLAConfig(n_heads=3, d_latent=9, d_nope=5, d_rope=4, d_value_head=3, d_q_latent=8), Rotary())
    attn, g = model.attention(0), model.layers[0].ln1.w
    q = (attn.W_Q * g[:, None])[..., :5]
    k = (attn.W_K * g[:, None])[..., :5]
    a = (q @ k.transpose(1, 2)).flatten(1)
    torch.testing.assert_close(gram(model.factors(0).circuits["qk"]["content_d_model"], None), a @ a.T)


@pytest.mark.parametrize("offsets", [None, Offsets(3, 20)], ids=str)
def test_every_way_gives_the_same_whatever_its_tiles(build, attention, positions, offsets, monkeypatch):
    if isinstance(attention, MLAConfig) and isinstance(positions, Rotary) and positions.width not in (None, 4):
        pytest.skip("MLA's rotary channel has a width of its own")
    for name, size in (("TILE_BYTES", 2 * 9 * 8 * 36), ("GROUP_COLUMNS", 5), ("STRIP_ROWS", 3)):
        monkeypatch.setattr(f"headscope.diversity.forms.{name}", size)
    factors = build(attention, positions).factors(0)
    for parts in factors.circuits.values():
        for forms in parts.values():
            for form in forms:
                expected = brute((form,), offsets).triu()
                for way in ways(form):
                    torch.testing.assert_close(way(form, offsets).triu(), expected, rtol=1e-9, atol=1e-10)


def test_shared_keys_and_narrow_latents_take_a_way_of_their_own(build):
    def names(attention, circuit: str, part: str) -> list[str]:
        (form,) = build(attention, d_model=64).factors(0).circuits[circuit][part]
        found = ways(form)
        return [getattr(way, "func", way).__name__ for way in sorted(found, key=lambda way: found[way])]

    shared = GroupedConfig(n_heads=8, n_kv_heads=2, d_head=8)
    latent = MLAConfig(n_heads=16, d_latent=8, d_nope=8, d_rope=4, d_value_head=8)
    apart, low_rank = GroupedConfig(n_heads=8, d_head=4), LRKVConfig(n_heads=8, d_head=4, rank=2)
    assert names(shared, "qk", "all") == ["by_groups", "by_pairs"]
    assert names(shared, "ov", "all")[0] == "by_groups"
    assert names(latent, "ov", "all")[0] == "by_strips"
    assert names(latent, "qk", "position")[0] == "by_groups"
    assert names(apart, "ov", "all")[0] == "by_pairs"
    assert names(low_rank, "qk", "all") == ["by_pairs"]


def one(left: torch.Tensor, right: torch.Tensor, template: BilinearForm) -> tuple[BilinearForm]:
    heads = torch.arange(len(left))
    stacks = (Separate(x.transpose(1, 2).contiguous(), heads) for x in (left, right))
    return (BilinearForm(*stacks, template.planes),)


def dense(stack) -> torch.Tensor:
    return torch.stack([stack.dense(h) for h in range(stack.n_heads)])


def test_any_invertible_gauge_is_free_without_positions_and_not_under_rope(build):
    (form,) = build(GroupedConfig(n_heads=4, d_head=6)).factors(0).circuits["qk"]["all"]
    m = torch.randn(4, 6, 6, dtype=torch.float64) + 3 * torch.eye(6)
    moved = one(dense(form.left) @ m, dense(form.right) @ torch.linalg.inv(m).transpose(1, 2), form)
    torch.testing.assert_close(gram(moved, None), gram((form,), None), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(gram(moved, Offsets(0, 20)), gram((form,), Offsets(0, 20)), rtol=1e-3)


@pytest.mark.parametrize("interleaved", [False, True])
def test_plane_scalings_and_rotations_are_free_under_rope(build, interleaved):
    (form,) = (
        build(GroupedConfig(n_heads=4, d_head=6), Rotary(base=100.0, interleaved=interleaved))
        .factors(0)
        .circuits["qk"]["all"]
    )
    z = torch.randn(4, 3, dtype=torch.complex128) + 1
    a, b = form.planes.pairs

    def turn(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        c = torch.complex(x[..., a], x[..., b]) * by[:, None]
        out[..., a], out[..., b] = c.real, c.imag
        return out

    # Re(q conj(k)) is kept when q turns by z and k by 1 / conj(z).
    moved = one(turn(dense(form.left), z), turn(dense(form.right), 1 / z.conj()), form)
    for offsets in (None, Offsets(4, 4), Offsets(0, 31)):
        torch.testing.assert_close(gram(moved, offsets), gram((form,), offsets), rtol=1e-9, atol=1e-9)


def test_the_value_side_keeps_every_gauge(build):
    (form,) = build(GroupedConfig(n_heads=4, d_head=6)).factors(0).circuits["ov"]["all"]
    m = torch.randn(4, 6, 6, dtype=torch.float64) + 3 * torch.eye(6)
    moved = one(dense(form.left) @ m, dense(form.right) @ torch.linalg.inv(m).transpose(1, 2), form)
    torch.testing.assert_close(gram(moved, Offsets(0, 20)), gram((form,), Offsets(0, 20)), rtol=1e-9, atol=1e-9)


def test_the_rotation_of_the_forms_is_the_rotation_of_the_model():
    rotary = Rotary(base=100.0)
    q, k = torch.randn(1, 1, 1, 6, dtype=torch.float64), torch.randn(1, 1, 1, 6, dtype=torch.float64)
    theta = rotary.frequencies(6).double()
    at = lambda x, p: rotate(x, torch.tensor([[p]]), rotary)[0, 0, 0]  # noqa: E731
    cq, ck = (torch.complex(x[..., :3], x[..., 3:])[0, 0, 0] for x in (q, k))
    expected = (cq * torch.exp(1j * 4 * theta) * ck.conj()).real.sum()
    torch.testing.assert_close(at(q, 9) @ at(k, 5), expected, rtol=1e-5, atol=1e-6)


def test_gqa_has_one_form_a_query_head_and_names_a_head_that_is_not(build):
    """H=4, G=2: four forms, query head -> group [0, 0, 1, 1]; head 3 is W_Q[3] W_K[1]^T."""
    model = build(GroupedConfig(n_heads=4, n_kv_heads=2, d_head=4), "none", d_model=16)
    attn = model.attention(0)
    assert attn.head_to_group == [0, 0, 1, 1]
    torch.testing.assert_close(attn.QK(3).AB, attn.W_Q[3] @ attn.W_K[1].T)
    (form,) = model.factors(0, fold_norm=False).circuits["qk"]["all"]
    torch.testing.assert_close(form.left.dense(3) @ form.right.dense(3).T, attn.QK(3).AB)
    with pytest.raises(IndexError, match="0–3"):
        attn.QK(4)


def test_qk_norm_after_the_rotation_is_taken_at_key_position_0(build):
    model = build(GroupedConfig(n_heads=3, d_head=6, qk_norm=QKNorm("after")), Rotary(base=50.0))
    attn = model.attention(0)
    factors = model.factors(0)
    assert any("key at position 0" in note for note in factors.notes)
    (form,) = factors.circuits["qk"]["all"]
    x = torch.randn(2, 16, dtype=torch.float64)
    normed = x * model.layers[0].ln1.w
    q, k = normed[:1] @ attn.W_Q, normed[1:] @ attn.W_K
    q = rotate(q[None], torch.tensor([[5, 5, 5]]), attn.rotary)[0] * attn.q_norm.w
    score = (q[:, 0] * (k[:, 0] * attn.k_norm.w)).sum(-1)
    expected = torch.einsum("d,hde,e->h", x[0], written_out(form, 5), x[1])
    torch.testing.assert_close(score, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", ["-1", "5:2", "a", "0:b", "1.5", ""])
def test_impossible_offsets_are_refused(text):
    with pytest.raises(ValueError, match="offsets should be"):
        Offsets.parse(text)


def test_offsets_read_what_they_print():
    for given in ("0", "3", "0:255"):
        assert str(Offsets.parse(given)) == given
    assert Offsets.parse(7) == Offsets(7, 7)
    assert Offsets.parse((1, 4)) == Offsets(1, 4)
    assert Offsets.parse("none") is None
