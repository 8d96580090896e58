"""Inner products of bilinear forms from their factors; no ``d_model x d_model`` matrix is ever formed.

With ``A_h = L_h R_h^T`` and ``M^L_ij = L_i^T L_j``, ``M^R_ij = R_i^T R_j``: ``<A_i, A_j>_F = sum(M^L_ij * M^R_ij)``,
and under rotary positions the same with ``M^R`` turned (`rotation`). There are three ways to work that out, and `gram`
takes the one with the fewest operations:

- `by_pairs`: both sides' small products, a pair of heads each, as it stands above;
- `by_groups`, where few groups share a side: ``<A_i, A_j> = <L_i, L_j (turned M^R_ij)^T>`` needs ``M^R`` for pairs of
  groups alone, and of ``L`` a product a head and group instead of a head and head;
- `by_strips`, where the forms are small beside their factors (between MLA's latents): the forms written out, a strip of
  their rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..models.factors import BilinearForm, PerGroup
from .offsets import Offsets
from .rotation import turned

TILE_BYTES = 16 * 2**20
"""Size that one tile of small products is held to: small enough that tiles leave the lower triangle out."""
GROUP_COLUMNS = 256
"""Columns of the factors that `by_groups` takes at a time: what it makes of a group's stays in the cache."""
STRIP_ROWS = 128
"""Rows of the forms that `by_strips` writes out at a time."""


def gram(forms: Sequence[BilinearForm], offsets: Offsets | None) -> Float[Tensor, "head head"]:
    """Return the Frobenius inner products of every pair of heads' forms, float64.

    Parameters
    ----------
    forms
        One form a head each; several are one form on stacked inputs, and their inner products add up.
    offsets
        Distances to average over under rotary positions; None leaves positions out, which has the value of distance 0.

    Raises
    ------
    ValueError
        If `forms` is empty.
    """
    if not forms:
        raise ValueError("a layer's part needs at least one form")
    upper = torch.stack([_cheapest(form)(form, offsets) for form in forms]).sum(0).triu()
    return upper + upper.triu(1).T


Way = Callable[[BilinearForm, Offsets | None], Float[Tensor, "head head"]]
"""How the upper triangle of one form's inner products comes about; what stands below the diagonal is not used."""


def _cheapest(form: BilinearForm) -> Way:
    found = ways(form)
    return min(found, key=lambda way: found[way])


def ways(form: BilinearForm) -> dict[Way, int]:
    """Return the ways that a form's inner products can go, and the multiply-adds that each of them takes."""
    left, right, heads, width = form.left, form.right, form.left.n_heads, form.left.width
    found: dict[Way, int] = {by_pairs: left.pairs_cost + right.pairs_cost}
    if not (isinstance(left, PerGroup) and isinstance(right, PerGroup)):
        return found
    for few, many in ((right, left), (left, right)):
        # What is turned stands on the right.
        if (few is right or form.planes is None) and few.is_even and many.n_groups == heads > few.n_groups:
            earlier = heads * (few.n_groups + 1) // 2
            once = width**2 + width * heads // few.n_groups
            way = partial(by_groups, few=few, many=many)
            found[way] = few.pairs_cost + earlier * once * many.inner_width
    if form.planes is None:
        strips = heads * left.inner_width * right.inner_width
        written = 1 if left.is_plain and right.is_plain else 2
        found[partial(by_strips, left=left, right=right)] = strips * (written * width + heads)
    return found


def by_pairs(form: BilinearForm, offsets: Offsets | None) -> Float[Tensor, "head head"]:
    """Multiply out both sides' products of every pair of heads, tile by tile."""
    heads = form.left.n_heads
    total = torch.zeros(heads, heads, dtype=torch.float64)
    step = max(1, TILE_BYTES // (heads * 8 * form.left.width**2))
    for start in range(0, heads, step):
        rows, cols = slice(start, start + step), slice(start, heads)
        right = turned(form.right.cross(rows, cols), form.planes, offsets)
        total[rows, cols] = torch.einsum("ijmn,ijmn->ij", form.left.cross(rows, cols), right)
    return total


def by_groups(
    form: BilinearForm, offsets: Offsets | None, *, few: PerGroup, many: PerGroup
) -> Float[Tensor, "head head"]:
    """Multiply the factors of one side by the products of the other, which even groups of heads share."""
    heads, groups, width = many.n_heads, few.n_groups, many.width
    each = heads // groups
    between = turned(few.cross(slice(0, heads, each), slice(0, heads, each)), form.planes, offsets)
    total = torch.zeros(groups, each, groups, each, dtype=torch.float64)
    room = torch.empty(3, heads * width * GROUP_COLUMNS, dtype=torch.float64)  # fresh memory would cost as much again
    for start in range(0, many.inner_width, GROUP_COLUMNS):
        columns = slice(start, start + GROUP_COLUMNS)
        weight = _gathered(many.weight[..., columns], room[0]).view(groups, each, width, -1)
        dual = weight
        if not many.is_plain:
            dual = _gathered(many.dual[..., columns], room[1]).view(groups, each, width, -1)
        product = room[2, : dual[0].numel()].view(dual[0].shape)
        for group, earlier in ((g, e) for g in range(groups) for e in range(g + 1)):
            torch.bmm(between[earlier, group].expand(each, -1, -1), dual[group], out=product)
            total[earlier, :, group].addmm_(weight[earlier].flatten(1), product.flatten(1).T)
    return total.view(heads, heads)


def _gathered(columns: Float[Tensor, "head width columns"], room: Float[Tensor, " room"]) -> Float[Tensor, " part"]:
    """Copy some columns of a matrix to where they stand side by side."""
    return room[: columns.numel()].view(columns.shape).copy_(columns).view(-1)


def by_strips(
    form: BilinearForm, offsets: Offsets | None, *, left: PerGroup, right: PerGroup
) -> Float[Tensor, "head head"]:
    """Write the forms out, a strip of the longer side at a time, and multiply strips; nothing turns here."""
    long, wide = (left, right) if left.inner_width > right.inner_width else (right, left)
    plain = long.is_plain and wide.is_plain
    across = _per_head(wide.weight, wide)
    across_dual = across if plain else _per_head(wide.dual, wide)
    total = np.zeros((long.n_heads, long.n_heads))
    size = long.n_heads * min(STRIP_ROWS, long.inner_width) * wide.inner_width
    room = torch.empty(1 if plain else 2, size, dtype=torch.float64)  # fresh memory would cost half as much again
    for start in range(0, long.inner_width, STRIP_ROWS):
        rows = slice(start, start + STRIP_ROWS)
        strip = other = _strip(_per_head(long.weight[..., rows], long), across, room[0])
        if not plain:
            other = _strip(_per_head(long.dual[..., rows], long), across_dual, room[1])
        total += strip @ other.T
    return torch.from_numpy(total)


def _per_head(weight: Float[Tensor, "group width inner"], stack: PerGroup) -> Float[Tensor, "head width inner"]:
    return weight if stack.n_groups == stack.n_heads and stack.is_even else weight[stack.of_head]


def _strip(
    long: Float[Tensor, "head width rows"], across: Float[Tensor, "head width columns"], room: Float[Tensor, " room"]
) -> Float[np.ndarray, "head strip"]:
    heads, _, rows = long.shape
    strip = room[: heads * rows * across.shape[2]].view(heads, rows, -1)
    return torch.bmm(long.transpose(1, 2), across, out=strip).flatten(1).numpy()
