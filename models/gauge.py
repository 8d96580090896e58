"""The basis a head happens to use inside, and how to bring several heads to a common one.

A head's values can be turned by any orthogonal matrix if its output projection is turned back, and its keys if its
queries are; under rotary positions only turns that commute with every rotation are free, which are turns of each
rotary plane by an angle of its own. A mean over heads depends on these bases, so they are aligned first.

References
----------
Gower, Generalized Procrustes analysis, Psychometrika 40 (1975). Singer, Angular synchronization by eigenvectors and
semidefinite programming, Applied and Computational Harmonic Analysis 30 (2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from .attention import Attention
from .rope import column_pairs

SWEEPS = 500
TOLERANCE = 1e-14


@dataclass(frozen=True)
class FreeTurns:
    """Which turns of a head's columns leave its form as it is.

    Parameters
    ----------
    dense
        Columns that any orthogonal matrix may mix.
    first, second
        Columns ``a`` and ``b`` of the planes that may only be turned each by an angle of its own.
    """

    dense: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    second: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether any turn is free."""
        return bool(self.dense or self.first)


def free_turns(attention: Attention, side: str) -> tuple[slice, FreeTurns, str]:
    """Return which columns of a layer's keys or values have a basis of their own, its free turns, and both in words."""
    if side == "v":
        return slice(0, attention.config.d_value), FreeTurns(tuple(range(attention.config.d_value))), "values aligned"
    width, turned = attention.config.d_key, attention.turned
    if attention.config.rotary_width is not None:  # MLA: content columns stand before the position channel
        content = slice(0, turned.start if attention.rotary is not None else width)
        return content, FreeTurns(tuple(range(content.stop))), "content keys aligned"
    if attention.qk_norm is not None and attention.qk_norm.gain:
        return slice(0, width), FreeTurns(), "keys not aligned: the q/k norm's gains tie their basis"
    dense = tuple(c for c in range(width) if not turned.start <= c < turned.stop)
    if attention.rotary is None:
        return slice(0, width), FreeTurns(dense), "keys aligned"
    first, second = column_pairs(turned.start, turned.stop, attention.rotary.interleaved)
    pairs = tuple(range(width)[first]), tuple(range(width)[second])
    return slice(0, width), FreeTurns(dense, *pairs), "keys aligned plane by plane"


def align(weights: Float[Tensor, "group d_model width"], free: FreeTurns) -> Float[Tensor, "group width width"]:
    """Return orthogonal ``R_g`` that bring the groups' ``W_g R_g`` near to their common mean by free turns.

    Their squared distance to it is lowest where ``sum_gh <W_g R_g, W_h R_h>`` is highest. The start is spectral (the
    leading eigenvectors of the inner products, made orthogonal), so that it does not depend on the bases the weights
    come in; from there one group after another is turned to its best place beside the others, and no step makes the
    sum smaller. The common basis is the first group's. Columns that no free turn reaches stay as they are. float64.
    """
    weights = weights.detach().double().cpu()
    dense = phase = None
    if free.dense:
        columns = weights[..., torch.tensor(free.dense)]
        dense = _synchronised(torch.einsum("gmi,hmj->ghij", columns, columns))
    if free.first:
        planes = _planes(weights, free)
        cross = torch.einsum("gmp,hmp->pgh", planes.conj(), planes)[..., None, None]
        phase = torch.stack([_synchronised(plane)[:, 0, 0] for plane in cross], dim=1)
    return _turns(weights, free, dense, phase)


def toward(
    weights: Float[Tensor, "group m width"], goals: Float[Tensor, "group m width"], free: FreeTurns
) -> Float[Tensor, "group width width"]:
    """Return the free turns ``R_g`` that bring each ``W_g R_g`` nearest to a goal of its own (Procrustes). float64."""
    dense = phase = None
    if free.dense:
        columns = torch.tensor(free.dense)
        dense = _orthogonal(weights[..., columns].mT @ goals[..., columns])
    if free.first:
        cross = (_planes(weights, free).conj() * _planes(goals, free)).sum(1)
        phase = torch.where(cross.abs() > 0, torch.sgn(cross), 1)
    return _turns(weights, free, dense, phase)


def _planes(weights: Float[Tensor, "group m width"], free: FreeTurns) -> Complex[Tensor, "group m plane"]:
    return torch.complex(weights[..., torch.tensor(free.first)], weights[..., torch.tensor(free.second)])


def _turns(
    weights: Float[Tensor, "group m width"],
    free: FreeTurns,
    dense: Float[Tensor, "group k k"] | None,
    phase: Complex[Tensor, "group plane"] | None,
) -> Float[Tensor, "group width width"]:
    """Write turns out: a matrix of the dense columns, a phase a plane, and the identity for what is not turned."""
    count, _, width = weights.shape
    turns = torch.eye(width, dtype=torch.float64).expand(count, width, width).clone()
    if dense is not None:
        columns = torch.tensor(free.dense)
        turns[:, columns[:, None], columns] = dense
    if phase is not None:
        a, b = torch.tensor(free.first), torch.tensor(free.second)
        turns[:, a, a], turns[:, b, b] = phase.real, phase.real
        turns[:, a, b], turns[:, b, a] = phase.imag, -phase.imag
    return turns


def _synchronised(
    cross: Float[Tensor, "group group k k"] | Complex[Tensor, "group group k k"],
) -> Float[Tensor, "group k k"] | Complex[Tensor, "group k k"]:
    """Return orthogonal (unitary) ``R_g``, the first one 1, with ``sum_gh tr(R_g^H C_gh R_h)`` as large as may be."""
    count, k = cross.shape[0], cross.shape[-1]
    leading = torch.linalg.eigh(cross.transpose(1, 2).reshape(count * k, count * k))[1][:, -k:]
    turns = _orthogonal(leading.view(count, k, k))
    reached = -1.0
    for _ in range(SWEEPS):
        size = float(torch.einsum("gij,ghik,hkj->", turns.conj(), cross, turns).real)
        if size - reached <= TOLERANCE * abs(size):
            break
        reached = size
        for g in range(count):
            beside = torch.einsum("hij,hjk->ik", cross[g], turns) - cross[g, g] @ turns[g]
            turns[g] = _orthogonal(beside) if float(beside.abs().max()) > 0 else turns[g]
    return turns @ turns[0].mH


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return the nearest orthogonal (unitary) matrix."""
    left, _, right = torch.linalg.svd(matrix)
    return left @ right
