"""What a decode step is made of, whatever the variant: parts of the score, parts of the value, and where rows lie.

Every variant's score is a sum of products of a query with cached rows, and its output a sum of weighted rows:

==========  =================================================  ==================================
variant     key parts (rows, shared by)                        value parts
==========  =================================================  ==================================
MHA, GQA    keys (a group)                                     values (a group)
MQA         keys (all heads)                                   values (all heads)
MLA         latents, rotated position channel (all heads)      the same latents
LRKV        shared rows (all heads), coordinates (one head)    shared rows, coordinates
==========  =================================================  ==================================

Queries come absorbed: MLA's went through ``W_UK``, LRKV's second one through ``B_K``; reduced values are expanded by
the caller, once. So one decode serves all, and a further variant needs none of its own.

References
----------
O'Neill et al. (arXiv 2601.11471v3), equations 6-7; DeepSeek-V2 (arXiv 2405.04434), section 2.1; Kwon et al.,
PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pages:
    """Where each request's tokens lie.

    Parameters
    ----------
    table
        Page of each block of tokens, in order; entries behind a request's last page are not read.
    lengths
        Tokens of each request, at least 1. The query stands at position ``length - 1`` and sees all of them.
    """

    table: Int[Tensor, "batch block"]
    lengths: Int[Tensor, " batch"]

    def __post_init__(self) -> None:
        if self.lengths.numel() and int(self.lengths.min()) < 1:
            raise ValueError(f"a query needs a token to look at, but lengths are {self.lengths.tolist()}")


@dataclass(frozen=True, eq=False)
class Turn:
    """Rows are coordinates, restored to keys and rotated by their position while they are read.

    The key of head h at position j is ``(rows[j] @ up[h]^T) R_j``: exact for any `up`. Rotating the coordinates
    themselves beforehand would be exact only where the span of `up` is closed under rotation.

    Parameters
    ----------
    up
        Way from coordinates to keys.
    theta
        Frequency of each rotary plane, radians a position.
    first, second
        Columns of a key that each plane turns: ``(a, b) -> (a cos - b sin, b cos + a sin)``. Other columns stay.
    amplitude
        Factor on the turned columns.
    """

    up: Float[Tensor, "head d_key rank"]
    theta: Float[Tensor, " plane"]
    first: Int[Tensor, " plane"]
    second: Int[Tensor, " plane"]
    amplitude: float = 1.0


@dataclass(frozen=True, eq=False)
class KeyPart:
    """One summand of the scores.

    Parameters
    ----------
    name
        For probes: ``"shared"``, ``"private"``, ``"content"``, ``"position"`` or ``"all"``.
    q
        What rows are multiplied with; as wide as `rows`, or with `turn` as a key.
    rows
        Cached rows by group (1: shared by all heads; otherwise heads share in order), page and slot.
    turn
        Set if rows are coordinates to be restored and rotated on reading; one group a head then.
    """

    name: str
    q: Float[Tensor, "batch head width"]
    rows: Float[Tensor, "group page slot row_width"]
    turn: Turn | None = None

    def __post_init__(self) -> None:
        heads, width, stored = self.q.shape[1], self.q.shape[2], self.rows.shape[3]
        if heads % self.rows.shape[0]:
            raise ValueError(
                f"key part {self.name!r}: {heads} heads cannot share the rows of {self.rows.shape[0]} groups"
            )
        if self.turn is None:
            if width != stored:
                raise ValueError(f"key part {self.name!r}: queries are {width} wide and rows {stored}")
        elif tuple(self.turn.up.shape) != (heads, width, stored) or self.rows.shape[0] != heads:
            raise ValueError(
                f"key part {self.name!r}: the way up should be {(heads, width, stored)} with one group a head "
                f"but is {tuple(self.turn.up.shape)} with {self.rows.shape[0]}"
            )


@dataclass(frozen=True, eq=False)
class ValuePart:
    """One summand of the output: rows by group, page and slot, reduced with the one set of weights.

    Parameters
    ----------
    name
        As for `KeyPart`.
    rows
        Cached rows; the very tensor of a key part where both are the same.
    """

    name: str
    rows: Float[Tensor, "group page slot row_width"]


@dataclass(frozen=True, eq=False)
class Problem:
    """One decode step of one layer.

    Parameters
    ----------
    keys, values
        The parts.
    pages
        Where rows lie; the same for every part.
    scale
        Factor on the scores: ``1 / sqrt(key width)`` as a rule, never of a rank.
    row_scale
        Further factor of each head at each cached position: one over the norm of the joint key, where keys are
        normalised after their parts are added.

    Raises
    ------
    ValueError
        If the parts do not fit together; names the part.
    """

    keys: tuple[KeyPart, ...]
    values: tuple[ValuePart, ...]
    pages: Pages
    scale: float
    row_scale: Float[Tensor, "head page slot"] | None = None

    def __post_init__(self) -> None:
        if not self.keys or not self.values:
            raise ValueError("a decode step needs at least one part of keys and one of values")
        frame, batch, heads = self.keys[0].rows.shape[1:3], *self.keys[0].q.shape[:2]
        for part in (*self.keys, *self.values):
            if part.rows.shape[1:3] != frame:
                raise ValueError(
                    f"part {part.name!r} has {tuple(part.rows.shape[1:3])} pages and slots, others {tuple(frame)}"
                )
            if heads % part.rows.shape[0]:
                raise ValueError(f"part {part.name!r}: {heads} heads cannot share {part.rows.shape[0]} groups")
        for part in self.keys:
            if part.q.shape[:2] != (batch, heads):
                raise ValueError(
                    f"key part {part.name!r} has {tuple(part.q.shape[:2])} requests and heads, not {(batch, heads)}"
                )
        if self.pages.table.shape[0] != batch or len(self.pages.lengths) != batch:
            raise ValueError(f"the page table should have {batch} rows but has {self.pages.table.shape[0]}")
        blocks = self.pages.table.shape[1]
        longest = int(self.pages.lengths.max()) if batch else 0
        if longest > blocks * frame[1]:
            raise ValueError(f"{longest} tokens do not lie on {blocks} pages of {frame[1]}")
        if self.row_scale is not None and self.row_scale.shape != (heads, *frame):
            raise ValueError(f"row_scale should be {(heads, *frame)} but is {tuple(self.row_scale.shape)}")

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.keys[0].q.shape[1]

    @property
    def page_size(self) -> int:
        """Tokens on a page."""
        return self.keys[0].rows.shape[2]

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.keys[0].rows.device
