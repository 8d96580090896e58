"""Putting the partial results of a request's items together: a softmax over runs of tiles, from theirs."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
ITEMS = tl.constexpr(16)
"""Items put together at a time."""


class Summed(NamedTuple):
    """Partial sums ``[item, head, width]`` and where their total ``[request, head, width]`` goes.

    Weighted sums are scaled to the request's largest score and divided by the sum of weights, others only added.
    """

    partial: Any
    out: Any
    width: Any
    padded: Any
    weighted: Any


@triton.jit
@no_type_check
def combine(sums, largest, total, of_request, last_tile, lengths, lse, HEADS: tl.constexpr, TILE: tl.constexpr):
    """Put one head of one request together.

    NaN if the items end before the request does, i.e. the plan was made for fewer tokens.
    """
    head = tl.program_id(0)
    request = tl.program_id(1)
    first = tl.load(of_request + request)
    end = tl.load(of_request + request + 1)
    peak, weight = overall(largest, total, first, end, head, HEADS)
    reached = tl.load(last_tile + end - 1) == tl.cdiv(tl.load(lengths + request).to(tl.int32), TILE)
    row = request.to(tl.int64) * HEADS + head
    tl.store(lse + row, tl.where(reached, (peak + tl.log2(weight)) * LN2, float("nan")))
    for i in tl.static_range(len(sums)):
        add_up(sums[i], largest, peak, weight, first, end, head, row, reached, HEADS)


@triton.jit
@no_type_check
def overall(largest, total, first, end, head, HEADS: tl.constexpr):
    """Return the largest score of a request's items and the sum of weights relative to it."""
    peak = tl.full([ITEMS], float("-inf"), tl.float32)
    weight = tl.zeros([ITEMS], tl.float32)
    for start in range(first, end, ITEMS):
        item = start + tl.arange(0, ITEMS)
        at = item.to(tl.int64) * HEADS + head
        here = tl.load(largest + at, item < end, other=float("-inf"))
        risen = tl.maximum(peak, here)
        weight = weight * relative(peak, risen) + tl.load(total + at, item < end, other=0.0) * relative(here, risen)
        peak = risen
    top = tl.max(peak, 0)
    return top, tl.sum(weight * relative(peak, top), 0)


@triton.jit
@no_type_check
def relative(score, peak):
    """Return ``2^(score - peak)``; 0 for a score of minus infinity, even if nothing is larger."""
    return tl.exp2(score - tl.where(peak == float("-inf"), 0.0, peak))


@triton.jit
@no_type_check
def add_up(sums, largest, peak, weight, first, end, head, row, reached, HEADS: tl.constexpr):
    """Store one array of partial sums, put together."""
    column = tl.arange(0, sums.padded)
    found = tl.zeros([sums.padded], tl.float32)
    for start in range(first, end, ITEMS):
        item = start + tl.arange(0, ITEMS)
        at = item.to(tl.int64) * HEADS + head
        mask = (item < end)[:, None] & (column < sums.width)[None, :]
        partial = tl.load(sums.partial + (at * sums.width)[:, None] + column[None, :], mask, other=0.0)
        if sums.weighted:
            share = relative(tl.load(largest + at, item < end, other=float("-inf")), peak) / weight
            partial = partial * share[:, None]
        found += tl.sum(partial, 0)
    tl.store(sums.out + row * sums.width + column, tl.where(reached, found, float("nan")), column < sums.width)
