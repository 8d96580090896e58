"""LRKV against the dense heads that it stands for, and the paper's toys and gradients."""

from __future__ import annotations

import pytest
import torch
from headscope.models import GroupedConfig, HookedModel, LRKVConfig, ModelConfig
from headscope.models.lrkv import SharedAndPrivate, rank_for
from torch import Tensor


def effective(side: SharedAndPrivate) -> Tensor:
    """Return ``W_S + U_h B_h^T`` of each head, from the raw parameters, ``[head, d_model, d_head]``."""
    heads, _, rank = side.B.shape
    down = side.down.weight.T  # [d_model, heads * rank]
    return torch.stack([side.shared.weight.T + down[:, h * rank : (h + 1) * rank] @ side.B[h].T for h in range(heads)])


def densified(model: HookedModel) -> HookedModel:
    """Return an MHA model with every head's key and value projection written out."""
    cfg = model.config.attention
    attention = GroupedConfig(
        n_heads=cfg.n_heads,
        d_head=cfg.d_head,
        bias=cfg.bias,
        output_bias=cfg.output_bias,
        qk_norm=cfg.qk_norm,
        scale=cfg.scale,
    )
    dense = HookedModel(model.config.with_(attention=attention)).double()
    state = {name: value for name, value in model.state_dict().items() if name in dense.state_dict()}
    for layer in range(model.config.n_layers):
        for side in ("k", "v"):
            module = getattr(model.blocks[layer].attn, side)
            state[f"blocks.{layer}.attn.{side}.weight"] = effective(module).transpose(1, 2).flatten(0, 1)
            if cfg.bias:
                state[f"blocks.{layer}.attn.{side}.bias"] = module.bias.flatten()
    dense.load_state_dict(state)
    return dense


def test_equals_its_densified_form(lrkv_config, build, tokens, close):
    model = build(lrkv_config)
    with torch.no_grad():
        dense = densified(model)
        close(model(tokens), dense(tokens), 1e-12)
        for layer in range(2):
            close(model.attention(layer).W_K, dense.attention(layer).W_K, 1e-12)
            close(model.attention(layer).W_V, dense.attention(layer).W_V, 1e-12)


@pytest.mark.parametrize("side", ["k", "v"])
def test_hooked_parts_add_up(lrkv_config, build, tokens, run_all, close, side: str):
    model = build(lrkv_config)
    _, cache = run_all(model, tokens)
    for layer in range(2):
        module = getattr(model.attention(layer), side)
        got = {name: cache[f"blocks.{layer}.attn.hook_{side}{name}"] for name in ("", "_shared", "_private", "_coords")}
        bias = 0 if module.bias is None else module.bias
        close(got[""], got["_shared"][:, :, None] + got["_private"] + bias, 1e-12)
        x = cache[f"blocks.{layer}.ln1.hook_normalized"] * model.blocks[layer].ln1.w
        if model.blocks[layer].ln1.b is not None:
            x = x + model.blocks[layer].ln1.b
        close(got["_shared"], x @ module.shared.weight.T, 1e-12)
        rank = lrkv_config.attention.rank
        for head in range(4):
            close(got["_private"][:, :, head], got["_coords"][:, :, head] @ module.B[head].T, 1e-12)
            close(got["_coords"][:, :, head], x @ module.down.weight[head * rank : (head + 1) * rank].T, 1e-12)


@pytest.mark.parametrize("side", ["k", "v"])
def test_editing_the_shared_row_moves_every_head(matrix, build, tokens, run_all, side: str):
    model = build(matrix["lrkv"])
    _, before = run_all(model, tokens)

    def shift_shared(row, hook):
        return row + 1

    def shift_private(rows, hook):
        return torch.cat((rows[:, :, :2], rows[:, :, 2:3] + 1, rows[:, :, 3:]), dim=2)

    for point, hook, expected in (
        (f"hook_{side}_shared", shift_shared, [True] * 4),
        (f"hook_{side}_private", shift_private, [False, False, True, False]),
        (f"hook_{side}_coords", shift_private, [False, False, True, False]),
    ):
        with model.hooks([(f"blocks.0.attn.{point}", hook)]):
            _, after = run_all(model, tokens)
        name = f"blocks.0.attn.hook_{side}"
        moved = (before[name] - after[name]).abs().amax((0, 1, 3)) > 1e-9
        assert moved.tolist() == expected


def test_initial_residuals_are_a_tenth_of_the_base():
    torch.manual_seed(0)
    config = LRKVConfig(n_heads=8, d_head=64, rank=16)
    side = SharedAndPrivate(512, config)
    residual = (effective(side) - side.shared.weight.T).detach()
    ratios = residual.flatten(1).norm(dim=1) / side.shared.weight.detach().norm()
    assert float(ratios.mean()) == pytest.approx(0.1, rel=0.1)
    assert ratios.min() > 0.08
    assert ratios.max() < 0.12


# -- gradients ------------------------------------------------------------------------------------------------------------


def test_gradients_follow_from_the_dense_ones(lrkv_config, build, tokens, close):
    """Section 1 of the mathematics: ``dW_S = sum G_h``, ``dU_h = G_h B_h``, ``dB_h = G_h^T U_h``."""
    model = build(lrkv_config)
    with torch.no_grad():
        dense = densified(model)
    weights = torch.randn(2, 7, 19, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (model(tokens) * weights).sum().backward()
    (dense(tokens) * weights).sum().backward()
    d_head, rank = lrkv_config.attention.d_head, lrkv_config.attention.rank
    for layer in range(2):
        for name in ("k", "v"):
            side = getattr(model.attention(layer), name)
            full = getattr(dense.attention(layer), name).weight.grad
            per_head = [full[h * d_head : (h + 1) * d_head].T for h in range(4)]
            assert min(float(gradient.norm()) for gradient in per_head) > 1e-6
            close(side.shared.weight.grad.T, sum(per_head))
            for h, gradient in enumerate(per_head):
                rows = slice(h * rank, (h + 1) * rank)
                close(side.down.weight.grad[rows].T, gradient @ side.B[h])
                close(side.B.grad[h], gradient.T @ side.down.weight[rows].T)


@pytest.mark.parametrize(
    ("zero_u", "zero_b", "u_learns", "b_learns"),
    [(True, True, False, False), (True, False, True, False), (False, True, False, True)],
)
def test_a_zero_factor_stops_the_other(matrix, build, tokens, zero_u, zero_b, u_learns, b_learns):
    """Both zero: a saddle that training cannot leave, which is why neither starts at zero."""
    model = build(matrix["lrkv"])
    sides = [getattr(model.attention(layer), name) for layer in range(2) for name in ("k", "v")]
    with torch.no_grad():
        for side in sides:
            side.down.weight.mul_(0 if zero_u else 1)
            side.B.mul_(0 if zero_b else 1)
    model(tokens, "loss").backward()
    for side in sides:
        assert bool(side.down.weight.grad.abs().max() > 0) == u_learns
        assert bool(side.B.grad.abs().max() > 0) == b_learns
        assert side.shared.weight.grad.abs().max() > 0


def test_full_rank_expresses_any_heads(matrix, build, tokens, close):
    """Any base: ``U_h = W_h - W_S`` with ``B_h`` the identity gives the heads of any MHA model."""
    config = matrix["lrkv-full_rank"]
    dense = build(config.with_(attention=GroupedConfig(n_heads=4, d_head=4)))
    model = build(config, seed=1)
    with torch.no_grad():
        shared = {k: v for k, v in dense.state_dict().items() if k in model.state_dict()}
        model.load_state_dict(shared, strict=False)
        for layer in range(2):
            for name in ("k", "v"):
                side = getattr(model.attention(layer), name)
                target = getattr(dense.attention(layer), name).weight
                base = side.shared.weight.repeat(4, 1)
                side.down.weight.copy_(target - base)
                side.B.copy_(torch.eye(4).expand(4, 4, 4))
        close(model(tokens), dense(tokens), 1e-12)


# -- the paper's toys --------------------------------------------------------------------------------------------------------


def toy_side(shared: list[list[float]], down: list[float], up: list[float]) -> SharedAndPrivate:
    """One head of width 2 and rank 1; rows of `shared` and `down` belong to the inputs' entries."""
    side = SharedAndPrivate(len(down), LRKVConfig(n_heads=1, d_head=2, rank=1)).double()
    with torch.no_grad():
        side.shared.weight.copy_(torch.tensor(shared, dtype=torch.float64).T)
        side.down.weight.copy_(torch.tensor([down], dtype=torch.float64))
        side.B.copy_(torch.tensor([up], dtype=torch.float64)[..., None])
    return side


def test_key_toy():
    side = toy_side(shared=[[1.0, 3.0]], down=[4.0], up=[1.0, -1.0])
    x = torch.ones(1, 1, 1, dtype=torch.float64)
    coords = side.coordinates(x)
    key = side.join(side.shared(x), side.expand(coords))[0, 0, 0]
    assert coords.flatten().tolist() == [4.0]
    assert key.tolist() == [5.0, -1.0]
    assert torch.tensor([2.0, 1.0], dtype=torch.float64) @ key == 9.0


def test_value_toy():
    """Reduce first, expand once: weights 1/4 and 3/4 over coordinates 2 and 6 give 5, and (5, -5)."""
    side = toy_side(shared=[[0.0, 0.0], [0.0, 0.0]], down=[2.0, 6.0], up=[1.0, -1.0])
    x = torch.eye(2, dtype=torch.float64)[None]
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    coords = side.coordinates(x)
    reduced = torch.einsum("j,bjhr->bhr", weights, coords)[:, None]
    assert reduced.flatten().tolist() == [5.0]
    assert side.expand(reduced).flatten().tolist() == [5.0, -5.0]
    each = torch.einsum("j,bjhd->bhd", weights, side.expand(coords))
    assert each.flatten().tolist() == [5.0, -5.0]


def test_branches_meet_before_the_softmax():
    """Shared logits (2, 0) and private ones (0, 2): (0.5, 0.5) together, (0.881, 0.119) and its mirror apart."""
    config = ModelConfig(
        d_model=2,
        n_layers=1,
        d_vocab=2,
        n_ctx=2,
        positions="none",
        attention=LRKVConfig(n_heads=1, d_head=2, rank=1, scale=1.0),
    )
    model = HookedModel(config).double()
    attn = model.attention(0)
    attn.k = toy_side(shared=[[2.0, 0.0], [0.0, 0.0]], down=[0.0, 2.0], up=[1.0, 0.0])
    with torch.no_grad():
        attn.q.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    patterns = {}
    for case, zero in (("both", None), ("shared", "hook_k_private"), ("private", "hook_k_shared")):
        seen = {}
        hooks = [("blocks.0.attn.hook_pattern", lambda p, hook, seen=seen: seen.update(p=p))]
        hooks += [(f"blocks.0.attn.{zero}", lambda t, hook: t * 0)] if zero else []
        with model.hooks(hooks), torch.no_grad():
            attn(
                torch.eye(2, dtype=torch.float64)[None],
                torch.arange(2)[None],
                torch.ones(2, 2, dtype=torch.bool).tril()[None, None],
            )
        patterns[case] = [round(float(v), 3) for v in seen["p"][0, 0, 1]]
    assert patterns == {"both": [0.5, 0.5], "shared": [0.881, 0.119], "private": [0.119, 0.881]}


def test_qk_norm_acts_on_the_joint_key(matrix, build, tokens, run_all, close):
    """Normalising the parts apart would change the direction (section 4)."""
    config = matrix["lrkv-qk_norm"]
    model = build(config)
    _, cache = run_all(model, tokens)
    shared, private = (cache[f"blocks.0.attn.hook_k_{name}"] for name in ("shared", "private"))
    shared = shared[:, :, None].expand_as(private)
    gain, eps = model.attention(0).k_norm.w, config.attention.qk_norm.eps

    def rms(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain

    normed = cache["blocks.0.attn.hook_k_normed"]
    close(normed, rms(shared + private), 1e-12)
    apart = rms(shared) + rms(private)
    assert torch.cosine_similarity(apart, normed, dim=-1).min() < 0.99


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
