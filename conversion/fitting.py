"""Heads as one shared matrix plus a low-rank residual each: the best such split on inputs, found by alternation.

Weights are measured where they act: `W` is whitened to ``A = L^T W`` with ``L L^T`` the second moment of the inputs, so
that ``|A|^2`` is the mean square of ``x W`` and every plain least-squares step below is one on inputs. In that space
the error of ``A_h ≈ T + P_h B_h^T`` (`B_h` with orthonormal columns) is ``sum_h |(A_h - T)(1 - B_h B_h^T)|^2``. It is
brought down by three steps in turn, each the best there is while the rest stands, so that it never rises:

- the spans `B_h` for the shared part: the leading right singular vectors of ``A_h - T`` (Eckart and Young);
- the shared part for the spans, residuals moving along: ``sum_h (A_h - T)(1 - B_h B_h^T) = 0``, a system as wide as a
  head (taking the mean of what the residuals leave comes to the same place, only slowly);
- where a head's basis is free, the turn of ``A_h`` toward ``T + P_h B_h^T`` (Procrustes).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.gauge import FreeTurns, align, toward
from .spans import Choose

RIDGE = 1e-6
"""Added to the second moment, as a share of its mean diagonal: directions that the text never showed still count."""
SWEEPS = 500
TOLERANCE = 5e-4
"""The alternation ends with a sweep that lowers the error by less than this share of it."""
NEGLIGIBLE = 1e-20
"""An error of this share of the squared size is none."""
KEPT_BY_ALL = 1e-2
"""Directions that nearly every head keeps as its own are left where they are in the shared part: there it could grow,
residuals against it, for next to no gain in error and at a loss of precision. A share of the least kept direction's
``sum_h |(1 - B_h B_h^T) v|^2``."""


def whitener(moment: Float[Tensor, "d_model d_model"]) -> Float[Tensor, "d_model d_model"]:
    """Return ``L^T``, upper triangular, of the Cholesky factor of an input second moment with a ridge.

    Raises
    ------
    ValueError
        If the moment is zero or not finite: no input was seen.
    """
    size = float(moment.diagonal().mean())
    if not 0 < size < float("inf"):
        raise ValueError(f"the inputs' second moment should be finite and above zero but its mean diagonal is {size}")
    return torch.linalg.cholesky(moment + RIDGE * size * torch.eye(len(moment), dtype=moment.dtype)).mT


@dataclass(frozen=True, eq=False)
class Split:
    """Heads as a shared matrix and a residual each: ``weights[h] @ turns[h] ≈ shared + down[h] @ up[h].T``.

    Parameters
    ----------
    turns
        ``[head, width, width]``, orthogonal.
    shared
        ``[d_model, width]``.
    down, up
        ``[head, d_model, rank]`` and ``[head, width, rank]``; `up` has orthonormal columns.
    errors
        Step -> squared error on inputs over the squared size, of all heads together.
    """

    turns: Float[Tensor, "head width width"]
    shared: Float[Tensor, "d_model width"]
    down: Float[Tensor, "head d_model rank"]
    up: Float[Tensor, "head width rank"]
    errors: dict[str, float]


@dataclass(frozen=True, eq=False)
class _State:
    turns: Float[Tensor, "head width width"]
    shared: Float[Tensor, "m width"]
    basis: Float[Tensor, "head width rank"]
    error: float


def split(
    weights: Float[Tensor, "head d_model width"],
    white: Float[Tensor, "d_model d_model"],
    choose: Choose,
    free: FreeTurns,
) -> Split:
    """Split heads into a shared matrix and low-rank residuals.

    Parameters
    ----------
    weights
        The heads' projections, float64.
    white
        ``L^T`` of the input second moment (`whitener`).
    choose
        Which directions a residual keeps.
    free
        Turns that a head may be given; none leaves every head in its basis.

    Returns
    -------
    Split
        With the errors of four steps: ``svd`` (the mean as the shared part, residuals truncated with no regard to
        inputs), ``whitened`` (truncated on inputs), ``alternated`` (residuals and shared part in turn) and, if turns
        are free, ``aligned`` (bases brought together first, and turned along). No step is worse than the one before.
    """
    heads, _, width = weights.shape
    # Everything below stays in the span of the heads' columns, which for few heads is much less than d_model wide.
    span, small = torch.linalg.qr((white @ weights).transpose(0, 1).flatten(1))
    seen = small.unflatten(1, (heads, width)).transpose(0, 1).contiguous()
    size = float((seen**2).sum())
    start = torch.eye(width, dtype=torch.float64).expand(heads, -1, -1)
    mean = weights.mean(0)
    gaps, seen_gaps = weights - mean, seen - seen.mean(0)
    found = alternate(seen, choose, start, seen.mean(0))
    errors = {
        "svd": lost(seen_gaps, choose(gaps.mT @ gaps)),
        "whitened": lost(seen_gaps, choose(seen_gaps.mT @ seen_gaps)),
        "alternated": found.error,
    }
    if free:
        turns = align(seen, free)
        aligned = alternate(seen, choose, turns, (seen @ turns).mean(0), free)
        # The aligned start is the better one as a rule, not by necessity; turning on from where we are never hurts.
        found = aligned if aligned.error <= found.error else alternate(seen, choose, start, found.shared, free)
        errors["aligned"] = found.error
    shared = torch.linalg.solve_triangular(white, span @ found.shared, upper=True)
    down = (weights @ found.turns - shared) @ found.basis
    relative = {step: error / size if size else 0.0 for step, error in errors.items()}
    return Split(found.turns, shared, down, found.basis, relative)


def alternate(
    seen: Float[Tensor, "head m width"],
    choose: Choose,
    turns: Float[Tensor, "head width width"],
    shared: Float[Tensor, "m width"],
    free: FreeTurns | None = None,
    sweeps: int = SWEEPS,
) -> _State:
    """Bring the error down from a start by the module's steps, until a sweep hardly helps.

    Steps of one kind in turn creep along valleys, so the shared part is carried on in the direction it moves in
    (Nesterov's momentum). A sweep that this makes worse is not taken: the plain step is, and momentum begins anew.
    """
    free = free or FreeTurns()
    one = torch.eye(seen.shape[2], dtype=seen.dtype)
    nothing = NEGLIGIBLE * float((seen**2).sum())
    best: _State | None = None
    plain, carried = (turns, shared), 0
    for _ in range(sweeps):
        turned = seen @ turns
        gaps = turned - shared
        basis = choose(gaps.mT @ gaps)
        error = lost(gaps, basis)
        if best is not None and error >= best.error:
            if not carried:
                break  # a plain step lifts no error but one that is as good as zero, by rounding
            (turns, shared), carried = plain, 0
            continue
        slow = best is not None and error >= (1 - TOLERANCE) * best.error
        best = _State(turns, shared, basis, error)
        if slow or error <= nothing:
            break
        left = one - basis @ basis.mT
        moved = shared + (gaps @ left).sum(0) @ torch.linalg.pinv(left.sum(0), hermitian=True, rtol=KEPT_BY_ALL)
        if free:
            goals = moved + (turned - moved) @ basis @ basis.mT
            turns = turns @ toward(turned, goals, free)
        shared = moved + carried / (carried + 3) * (moved - plain[1])
        plain, carried = (turns, moved), carried + 1
    if best is None:
        raise ValueError(f"sweeps should be at least 1 but got {sweeps}")
    return best


def lost(gaps: Float[Tensor, "head m width"], basis: Float[Tensor, "head width rank"]) -> float:
    """Return ``sum_h |D_h (1 - B_h B_h^T)|^2``."""
    return float(((gaps - gaps @ basis @ basis.mT) ** 2).sum())


def pool(
    weights: Float[Tensor, "head d_model width"],
    white: Float[Tensor, "d_model d_model"],
    groups: int,
    free: FreeTurns,
) -> tuple[Float[Tensor, "head width width"], Float[Tensor, "group d_model width"], dict[str, float]]:
    """Return turns, each group's mean of its turned heads, and the errors of ``mean`` and (turns free) ``aligned``.

    Neighbouring heads make a group. The mean is the best common matrix in every norm, and so on every input.
    """
    seen = (white @ weights).unflatten(0, (groups, -1))
    size = float((seen**2).sum())
    one = torch.eye(weights.shape[2], dtype=torch.float64)
    turns = one.expand(*seen.shape[:2], -1, -1)
    errors = {"mean": _spread(seen)}
    if free:
        aligned = torch.stack([align(group, free) for group in seen])
        error = _spread(seen @ aligned)
        if error < errors["mean"]:
            turns = aligned
        errors["aligned"] = min(error, errors["mean"])
    pooled = (weights.unflatten(0, (groups, -1)) @ turns).mean(1)
    return turns.flatten(0, 1), pooled, {step: error / size if size else 0.0 for step, error in errors.items()}


def _spread(grouped: Float[Tensor, "group member m width"]) -> float:
    return float(((grouped - grouped.mean(1, keepdim=True)) ** 2).sum())
