"""One tile of cached tokens: where it lies, and its rows."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl
from triton import knobs

# Interpreted, bfloat16 is stored as bare 16-bit integers and computed with as such: widened there after every rounding.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))

# `no_type_check` keeps shape checkers, which wrap every annotated function, away from what Triton reads as source.


# Fields of what kernels take are not called `values` or `type`: compiled, a tuple has those of its own.


class Rows(NamedTuple):
    """One part's cached rows, as seen by a program that serves a tile of heads.

    Pointers, the strides of groups and pages, and `met` (the number of groups among the program's heads) come with the
    launch: loops over groups whose number the compiler knew would be unrolled until registers spill. Compiled in are
    `alone` (whether there is but one), `slot_stride`, `width`, `padded` (to a power of two) and `heads` (that share a
    row).
    """

    rows: Any
    group_stride: Any
    page_stride: Any
    met: Any
    alone: Any
    slot_stride: Any
    width: Any
    padded: Any
    heads: Any


class Factor(NamedTuple):
    """A factor of each head at each cached position."""

    factors: Any
    head_stride: Any
    page_stride: Any
    slot_stride: Any


@triton.jit
@no_type_check
def rounded(x, like):
    """Return x as the tensor cores will take it beside the rows `like`."""
    if not INTERPRETED:
        return x.to(like.dtype.element_ty)
    elif like.dtype.element_ty == tl.bfloat16:  # the interpreter would cut bits off where a device rounds to even
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit
@no_type_check
def place(table, table_stride, request, tile, length, PAGE: tl.constexpr, TILE: tl.constexpr):
    """Return page, slot, position and whether there is such a token, for each token of a tile."""
    position = tile * TILE + tl.arange(0, TILE)
    live = position < length
    entries = table + request.to(tl.int64) * table_stride
    if PAGE % TILE == 0:  # one page to look up a tile, not one a token
        page = tl.load(entries + tile * TILE // PAGE).to(tl.int64)
    else:
        page = tl.load(entries + position // PAGE, live, other=0).to(tl.int64)
    return page, position % PAGE, position, live


@triton.jit
@no_type_check
def spread(start):
    """Return where rows start, one for all tokens or one a token, along the first of two axes."""
    if len(start.shape) == 0:
        return start
    else:
        return start[:, None]


@triton.jit
@no_type_check
def read(part, group, page, slot, live):
    """Return one group's rows of a tile, ``[token, padded]``, zeros where there is no token or no column."""
    column = tl.arange(0, part.padded)
    start = part.rows + group.to(tl.int64) * part.group_stride + page * part.page_stride
    # Within a page 32 bits are enough, and the same for every page: long addresses a number would not fit in registers.
    at = spread(start) + ((slot * part.slot_stride)[:, None] + column[None, :])
    mask = live[:, None]
    if part.padded != part.width:
        mask = mask & (column < part.width)[None, :]
    found = tl.load(at, mask, other=0.0)
    if INTERPRETED:
        return found.to(tl.float32)
    else:
        return found
