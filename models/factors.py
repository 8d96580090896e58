"""What one attention layer looks like to a measure: bilinear forms in factored shape, what is shared kept shared.

A head's form is ``A_h = left[h] @ R @ right[h]^T`` with `R` a rotation of the head's columns (identity without rotary
positions). It is never multiplied out. A measure needs only inner products of forms, and for those only the small
products ``M_ij = F_i^T F_j`` of a side's factors (`HeadStack.cross`); each kind of stack forms them in the way that is
cheapest for what its heads share.

Everything here is float64. Nothing here knows a network, a file or a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .rope import column_pairs

ALL = "all"
"""The part that is a circuit's whole form."""
CONTENT_D_MODEL = "content_d_model"
"""The part of MLA's scores that is a form between residual streams, as other variants' whole form is."""


def comparable_part(parts: Collection[str]) -> str:
    """Return which of a circuit's parts compares with that of other variants.

    Parameters
    ----------
    parts
        Names of the parts that the circuit has.

    Raises
    ------
    ValueError
        If none does.

    Examples
    --------
    >>> from headscope.models.factors import comparable_part
    >>> comparable_part(["all"]), comparable_part(["content", "position", "joint", "content_d_model"])
    ('all', 'content_d_model')
    """
    for name in (CONTENT_D_MODEL, ALL):
        if name in parts:
            return name
    raise ValueError(f"a circuit that compares should have the part {CONTENT_D_MODEL} or {ALL} but has {list(parts)}")


class HeadStack(ABC):
    """One factor a head, ``[head, d_in, width]``, stored as its variant shares it."""

    n_heads: int
    d_in: int
    width: int

    @abstractmethod
    def cross(self, rows: slice, cols: slice) -> Float[Tensor, "rows cols width width"]:
        """Return ``M[i, j] = F_i^T F_j`` for the heads in `rows` and in `cols`."""

    pairs_cost: int
    """Multiply-adds that `cross` takes for every pair of heads, each pair once."""

    @abstractmethod
    def dense(self, head: int) -> Float[Tensor, "d_in width"]:
        """Return one head's factor written out."""

    @abstractmethod
    def scale_columns(self, gain: Float[Tensor, "*group width"]) -> HeadStack:
        """Return the stack with every head's columns multiplied by `gain` (separate factors: or by a gain each)."""


class PerGroup(HeadStack):
    """One matrix a group of heads, over an axis that may have a metric: ``F_i^T F_j = weight_i dual_j^T``."""

    of_head: Int[Tensor, " head"]
    """Group of each query head."""
    weight: Float[Tensor, "group width inner"]
    """Each group's matrix; row-major, so that stacking the groups is free."""
    dual: Float[Tensor, "group width inner"]
    """The same times the metric; the same tensor where there is none."""
    is_plain: bool
    """Whether there is no metric."""

    @property
    def n_heads(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of query heads."""
        return len(self.of_head)

    @property
    def width(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Columns of a head's factor."""
        return self.weight.shape[1]

    @property
    def n_groups(self) -> int:
        """Matrices apart."""
        return self.weight.shape[0]

    @property
    def inner_width(self) -> int:
        """Size of the axis that products run over."""
        return self.weight.shape[2]

    @property
    def is_even(self) -> bool:
        """Whether the heads stand in a row group by group, as many in each."""
        each = torch.arange(self.n_groups).repeat_interleave(self.n_heads // self.n_groups)
        return torch.equal(self.of_head, each)

    @property
    def pairs_cost(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Every pair of groups once."""
        return self.n_groups * (self.n_groups + 1) // 2 * self.width**2 * self.inner_width

    def cross(self, rows: slice, cols: slice) -> Float[Tensor, "rows cols width width"]:
        """One product over the distinct groups, then an index."""
        of_row, of_col = self.of_head[rows], self.of_head[cols]
        row_groups, row_index = of_row.unique(return_inverse=True)
        col_groups, col_index = of_col.unique(return_inverse=True)
        first = _take(self.weight, row_groups)
        if self.is_plain and torch.equal(row_groups, col_groups):
            product = torch.from_numpy(first.numpy() @ first.numpy().T)  # NumPy works out half of a Gram matrix
        else:
            product = first @ _take(self.dual, col_groups).T
        product = product.view(len(row_groups), self.width, len(col_groups), self.width).transpose(1, 2)
        if torch.equal(row_groups, of_row) and torch.equal(col_groups, of_col):
            return product
        return product[row_index][:, col_index]


@dataclass(frozen=True, eq=False)
class Separate(PerGroup):
    """One dense factor a group; query heads may share one (``of_head``: head -> group).

    Parameters
    ----------
    weight
        ``[group, width, d_in]``, float64; row-major, so that stacking the groups is free.
    of_head
        ``[head]`` group of each query head.
    """

    weight: Float[Tensor, "group width d_in"]
    of_head: Int[Tensor, " head"]

    is_plain: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def dual(self) -> Float[Tensor, "group width d_in"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The factors themselves."""
        return self.weight

    @property
    def d_in(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rows of a head's factor."""
        return self.weight.shape[2]

    def dense(self, head: int) -> Float[Tensor, "d_in width"]:
        """Return the factor of the head's group."""
        return self.weight[self.of_head[head]].T

    def scale_columns(self, gain: Float[Tensor, "*group width"]) -> Separate:
        """Scale every group's columns."""
        return Separate(self.weight * gain[..., None], self.of_head)


def _take(weight: Tensor, groups: Tensor) -> Tensor:
    """Rows of some groups as one matrix, without a copy where they stand in a row."""
    first = int(groups[0])
    if torch.equal(groups, torch.arange(first, first + len(groups))):
        return weight[first : first + len(groups)].flatten(0, 1)
    return weight[groups].flatten(0, 1)


@dataclass(frozen=True, eq=False)
class SharedPlusPrivate(HeadStack):
    """LRKV's factors, ``F_h = S + U_h B_h^T``: the base enters once, the residuals at their rank.

    Parameters
    ----------
    shared
        ``[d_in, width]``, the base S.
    down
        ``[head, d_in, rank]``, the factors U.
    up
        ``[head, width, rank]``, the factors B.
    """

    shared: Float[Tensor, "d_in width"]
    down: Float[Tensor, "head d_in rank"]
    up: Float[Tensor, "head width rank"]

    @property
    def n_heads(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of heads."""
        return self.down.shape[0]

    @property
    def d_in(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rows of a head's factor."""
        return self.shared.shape[0]

    @property
    def width(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Columns of a head's factor."""
        return self.shared.shape[1]

    @property
    def pairs_cost(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The residuals' pairs at their rank, and the way up on either side."""
        rank = self.down.shape[2]
        pairs = self.n_heads * (self.n_heads + 1) // 2
        base = self.d_in * self.width * (self.width + self.n_heads * rank) + self.n_heads * self.width**2 * rank
        return base + pairs * rank * (rank * self.d_in + self.width * rank + self.width**2)

    def cross(self, rows: slice, cols: slice) -> Float[Tensor, "rows cols width width"]:
        """``S^T S + (S^T U_j) B_j^T + B_i (U_i^T S) + B_i (U_i^T U_j) B_j^T``."""
        down_i, down_j, up_i, up_j = self.down[rows], self.down[cols], self.up[rows], self.up[cols]
        mixed = self._mixed
        rank = self.down.shape[2]
        flat_i = down_i.transpose(1, 2).reshape(-1, self.d_in)
        flat_j = down_j.transpose(1, 2).reshape(-1, self.d_in)
        inner = (flat_i @ flat_j.T).view(len(down_i), rank, len(down_j), rank).transpose(1, 2)
        both = (up_i[:, None] @ inner) @ up_j.transpose(1, 2)[None]
        return self._base_gram + mixed[rows].transpose(1, 2)[:, None] + mixed[cols][None] + both

    @cached_property
    def _base_gram(self) -> Float[Tensor, "width width"]:
        return self.shared.T @ self.shared

    @cached_property
    def _mixed(self) -> Float[Tensor, "head width width"]:
        return (self.shared.T @ self.down) @ self.up.transpose(1, 2)

    def dense(self, head: int) -> Float[Tensor, "d_in width"]:
        """Return ``S + U_h B_h^T``."""
        return self.shared + self.down[head] @ self.up[head].T

    def scale_columns(self, gain: Float[Tensor, " width"]) -> SharedPlusPrivate:
        """Scale the base's columns and the residuals' way up."""
        return SharedPlusPrivate(self.shared * gain, self.down, self.up * gain[:, None])


@dataclass(frozen=True, eq=False)
class Through(PerGroup):
    """Factors behind one map that all heads share, ``F_h = base @ inner[h]`` (MLA's down-projection).

    The map's Gram matrix, ``latent x latent``, is the metric of the inner factors.

    Parameters
    ----------
    base
        ``[d_in, latent]``.
    inner
        A stack over the latent.
    """

    base: Float[Tensor, "d_in latent"]
    inner: Separate

    is_plain: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def of_head(self) -> Int[Tensor, " head"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """``[head]`` group of each query head."""
        return self.inner.of_head

    @property
    def weight(self) -> Float[Tensor, "group width latent"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner factors."""
        return self.inner.weight

    @cached_property
    def dual(self) -> Float[Tensor, "group width latent"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner factors times ``base^T base``."""
        down = self.base.T.numpy()
        return self.inner.weight @ torch.from_numpy(down @ down.T)  # NumPy works out half of a Gram matrix

    @property
    def d_in(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rows of a head's factor."""
        return self.base.shape[0]

    def dense(self, head: int) -> Float[Tensor, "d_in width"]:
        """Return ``base @ inner[head]``."""
        return self.base @ self.inner.dense(head)

    def scale_columns(self, gain: Float[Tensor, " width"]) -> Through:
        """Scale the inner columns."""
        return Through(self.base, self.inner.scale_columns(gain))


@dataclass(frozen=True, eq=False)
class Planes:
    """Rotary planes of a head's columns: ``2 len(theta)`` columns from `start` on; the others do not turn.

    Parameters
    ----------
    start
        First column that turns.
    theta
        ``[plane]`` frequency, radians a position, float64.
    interleaved
        Pairs ``(a, b)`` are neighbours; otherwise all first columns stand before all second ones.
    amplitude
        Factor on the rotated columns of both sides (YaRN), 1 otherwise.
    """

    start: int
    theta: Float[Tensor, " plane"]
    interleaved: bool = False
    amplitude: float = 1.0

    @property
    def stop(self) -> int:
        """Column behind the last one that turns."""
        return self.start + 2 * len(self.theta)

    @property
    def pairs(self) -> tuple[slice, slice]:
        """Columns ``a`` and columns ``b`` of the planes."""
        return column_pairs(self.start, self.stop, self.interleaved)


@dataclass(frozen=True, eq=False)
class BilinearForm:
    """One form a head: ``A_h(delta) = left[h] @ R_delta @ right[h]^T``."""

    left: HeadStack
    right: HeadStack
    planes: Planes | None = None


@dataclass(frozen=True, eq=False)
class Factors:
    """The forms of one layer.

    Parameters
    ----------
    layer
        Index of the layer.
    n_heads
        Query heads.
    circuits
        ``circuits["qk"]`` and ``circuits["ov"]``: part -> forms whose inner products add up. Every variant has the
        part `ALL`, or, where the score is a sum of unlike things (MLA), parts apart, ``"joint"`` and
        `CONTENT_D_MODEL`; `comparable_part` says which of them compares with other variants.
    folded
        Whether the input norm's gain is folded into the factors.
    notes
        What a reader of a measure must know about these factors.
    """

    layer: int
    n_heads: int
    circuits: Mapping[str, Mapping[str, tuple[BilinearForm, ...]]]
    folded: bool
    notes: tuple[str, ...] = field(default=())
