"""The split against NumPy's and SciPy's own factorisations and least squares; errors that never rise; planted splits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from headscope.conversion.fitting import RIDGE, alternate, pool, split, whitener
from headscope.conversion.spans import strongest, whole_planes
from headscope.models.gauge import FreeTurns
from hypothesis import given, settings
from hypothesis import strategies as st

D_MODEL, WIDTH = 11, 6
DENSE = FreeTurns(tuple(range(WIDTH)))
PLANES = FreeTurns((), (0, 1, 2), (3, 4, 5))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(seed: int = 1) -> torch.Tensor:
    """Inputs with strong and weak directions, more of them than there are weights in a column."""
    return draw(40, D_MODEL, seed=seed) @ torch.diag(torch.linspace(0.1, 3, D_MODEL, dtype=torch.float64))


def relative(x: np.ndarray, wanted: np.ndarray, found: np.ndarray) -> float:
    return float(
        sum(np.sum((x @ (a - b)) ** 2) for a, b in zip(wanted, found, strict=True)) / np.sum((x @ wanted) ** 2)
    )


def test_whitener_is_the_moments_root():
    x = inputs()
    white = whitener(x.T @ x)
    ridge = RIDGE * float((x**2).sum()) / D_MODEL
    np.testing.assert_allclose(
        white.T @ white, x.T @ x + ridge * torch.eye(D_MODEL, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )
    assert torch.equal(white, white.triu())
    with pytest.raises(ValueError, match="above zero"):
        whitener(torch.zeros(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_first_two_steps_are_truncated_svds_without_and_with_inputs(rank):
    weights, x = draw(4, D_MODEL, WIDTH), inputs()
    white = whitener(x.T @ x)
    found = split(weights, white, strongest(rank), FreeTurns())
    w, root = weights.numpy(), np.linalg.cholesky((white.T @ white).numpy())
    mean = w.mean(0)

    def truncated(matrix: np.ndarray) -> np.ndarray:
        u, s, v = scipy.linalg.svd(matrix, full_matrices=False)
        return (u[:, :rank] * s[:rank]) @ v[:rank]

    plain = np.stack([mean + truncated(each - mean) for each in w])
    whitened = np.stack([mean + np.linalg.solve(root.T, truncated(root.T @ (each - mean))) for each in w])
    assert found.errors["svd"] == pytest.approx(relative(x.numpy(), w, plain), rel=1e-3)  # the ridge is in ours alone
    assert found.errors["svd"] == pytest.approx(relative(root.T, w, plain), rel=1e-9)
    assert found.errors["whitened"] == pytest.approx(relative(root.T, w, whitened), rel=1e-9)


@pytest.mark.parametrize("free", [FreeTurns(), DENSE, PLANES], ids=["fixed", "dense", "planes"])
def test_the_factors_have_the_error_that_is_said(free):
    weights, x = draw(3, D_MODEL, WIDTH), inputs()
    white = whitener(x.T @ x)
    found = split(weights, white, strongest(2), free)
    made = found.shared + found.down @ found.up.mT
    said = list(found.errors.values())[-1]
    assert said == pytest.approx(relative(white.numpy(), (weights @ found.turns).numpy(), made.numpy()), rel=1e-9)
    one = torch.eye(WIDTH, dtype=torch.float64).expand(3, -1, -1)
    torch.testing.assert_close(found.turns @ found.turns.mT, one)
    assert torch.equal(found.turns, one) is not bool(free)


def test_the_shared_step_is_the_least_squares_solution_for_given_spans():
    seen, rank = draw(3, D_MODEL, WIDTH), 2
    spans = torch.linalg.qr(draw(3, WIDTH, rank, seed=5))[0]
    one = torch.eye(WIDTH, dtype=torch.float64).expand(3, -1, -1)
    found = alternate(seen, lambda energy: spans, one, seen.mean(0), sweeps=2)
    # Unknown in one row of the matrices: the shared row, and each head's coordinates.
    system = np.zeros((3 * WIDTH, WIDTH + 3 * rank))
    for head in range(3):
        rows = slice(head * WIDTH, (head + 1) * WIDTH)
        system[rows, :WIDTH] = np.eye(WIDTH)
        system[rows, WIDTH + head * rank : WIDTH + (head + 1) * rank] = spans[head]
    aims = seen.transpose(1, 2).reshape(3 * WIDTH, D_MODEL).numpy()
    best = np.linalg.lstsq(system, aims, rcond=None)[0]
    assert found.error == pytest.approx(float(np.sum((system @ best - aims) ** 2)), rel=1e-9)


def test_alternation_ends_where_no_small_change_of_all_factors_helps():
    """An independent descent over shared part and both factors, from where the alternation ends, gains next to nothing."""
    seen = draw(3, D_MODEL, WIDTH)
    one = torch.eye(WIDTH, dtype=torch.float64).expand(3, -1, -1)
    found = alternate(seen, strongest(2), one, seen.mean(0))
    parts = [
        p.clone(memory_format=torch.contiguous_format)
        for p in (found.shared, (seen - found.shared) @ found.basis, found.basis)
    ]
    for part in parts:
        part.requires_grad_()

    def error() -> torch.Tensor:
        loss = ((seen - parts[0] - parts[1] @ parts[2].mT) ** 2).sum()
        optimiser.zero_grad()
        loss.backward()
        return loss

    optimiser = torch.optim.LBFGS(parts, max_iter=20, line_search_fn="strong_wolfe")
    optimiser.step(error)
    assert error().item() > 0.97 * found.error


@settings(max_examples=12, deadline=None)
@given(
    heads=st.integers(2, 5),
    d_model=st.integers(3, 9),
    rank=st.integers(1, 3),
    seed=st.integers(0, 999),
    free=st.sampled_from(
        [FreeTurns(), FreeTurns((0, 1, 2, 3)), FreeTurns((), (0, 1), (2, 3)), FreeTurns((3,), (0,), (1,))]
    ),
    closed=st.booleans(),
)
def test_no_step_and_no_sweep_lifts_the_error(heads, d_model, rank, seed, free, closed):
    weights = draw(heads, d_model, 4, seed=seed)
    x = draw(2 * d_model, d_model, seed=seed + 1)
    white = whitener(x.T @ x)
    choose = whole_planes(2 * ((rank + 1) // 2), (0, 1), (2, 3), 4) if closed else strongest(rank)
    errors = list(split(weights, white, choose, free).errors.values())
    if closed:
        errors = [max(errors[:2]), *errors[2:]]  # planes of most energy on inputs need not be so without them
    assert all(after <= before * (1 + 1e-9) + 1e-14 for before, after in zip(errors, errors[1:], strict=False))
    seen = white @ weights
    one = torch.eye(4, dtype=torch.float64).expand(heads, -1, -1)
    falling = [alternate(seen, choose, one, seen.mean(0), free, sweeps=n).error for n in range(1, 6)]
    assert all(after <= before for before, after in zip(falling, falling[1:], strict=False))


@pytest.mark.parametrize("heads", [4, 7])
def test_a_planted_split_is_found_again(heads):
    rank = 2
    planted = draw(D_MODEL, WIDTH) + draw(heads, D_MODEL, rank, seed=1) @ draw(heads, rank, WIDTH, seed=2)
    x = inputs()
    white = whitener(x.T @ x)
    found = split(planted, white, strongest(rank), FreeTurns())
    made = found.shared + found.down @ found.up.mT
    assert float((made - planted).norm() / planted.norm()) < 1e-6
    assert found.errors["whitened"] > 1e-2
    assert split(planted, white, strongest(rank - 1), FreeTurns()).errors["alternated"] > 1e-3


@pytest.mark.parametrize("free", [FreeTurns(), DENSE, PLANES], ids=["fixed", "dense", "planes"])
def test_full_rank_loses_nothing(free):
    weights, x = draw(3, D_MODEL, WIDTH), inputs()[:4]  # fewer inputs than directions: the ridge stands in
    found = split(weights, whitener(x.T @ x), strongest(WIDTH), free)
    torch.testing.assert_close(found.shared + found.down @ found.up.mT, weights @ found.turns, rtol=1e-10, atol=1e-10)


def test_where_the_cache_is_as_large_as_mhas_nothing_is_lost():
    """The shared matrix can agree with each of 3 heads in 2 of 6 directions, so a residual of rank 4 will do."""
    weights = draw(3, D_MODEL, WIDTH)
    one = torch.eye(D_MODEL, dtype=torch.float64)
    assert split(weights, one, strongest(4), FreeTurns()).errors["alternated"] < 1e-9
    assert split(weights, one, strongest(3), FreeTurns()).errors["alternated"] > 1e-3


@pytest.mark.parametrize("free", [FreeTurns(), DENSE, PLANES], ids=["fixed", "dense", "planes"])
def test_pooling_takes_the_least_squares_matrix_of_each_group(free):
    weights, x = draw(6, D_MODEL, WIDTH), inputs()
    white = whitener(x.T @ x)
    turns, pooled, errors = pool(weights, white, 2, free)
    turned = (weights @ turns).numpy()
    for group in range(2):
        members = turned[3 * group : 3 * group + 3]
        stacked = np.concatenate([white.numpy()] * 3)
        best = np.linalg.lstsq(stacked, np.concatenate(white.numpy() @ members), rcond=None)[0]
        np.testing.assert_allclose(pooled[group], best, atol=1e-8)
    said = list(errors.values())
    assert said[-1] == pytest.approx(relative(white.numpy(), turned, pooled.repeat_interleave(3, 0).numpy()), rel=1e-9)
    assert said == sorted(said, reverse=True)
