"""Scores of one tile of cached tokens, part by part.

Tokens lie along the rows of every product (``[token, width] @ [width, head]``): a tile always has enough of them to
fill a tensor core's long side, and the few heads that share rows lie along its short one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from .tile import Rows, read, rounded

AHEAD = tl.constexpr(3)
"""Heads whose own rows are under way while one head's are computed with."""


class Keys(NamedTuple):
    """One part of the keys: rows, and what they meet.

    Queries lie as ``[request, head, width]``; for rows that turn with their positions as ``[2, request, head, plane,
    padded]``: what the cosine and the sine of each of `planes` frequencies `theta` bring (`turning.py`), `sine` numbers
    apart.
    """

    rows: Rows
    queries: Any
    theta: Any
    planes: Any
    sine: Any


@triton.jit
@no_type_check
def queries(key, request, first_head, member, HEADS: tl.constexpr, TILE_HEADS: tl.constexpr):
    """Return a part's queries ``[padded, head]``; for a part that turns, where the request's begin."""
    if key.planes > 0:
        return key.queries + request.to(tl.int64) * HEADS * key.planes * key.rows.padded
    else:
        column = tl.arange(0, key.rows.padded)
        at = key.queries + ((request * HEADS + first_head + member) * key.rows.width)[None, :] + column[:, None]
        found = tl.load(at, (column < key.rows.width)[:, None] & (member < TILE_HEADS)[None, :], other=0.0)
        return rounded(found, key.rows.rows)


@triton.jit
@no_type_check
def met_by(rows, first_head, k):
    """Return the k-th group among the program's heads."""
    return first_head // rows.heads + k


@triton.jit
@no_type_check
def meet(key, q, known, first_head, page, slot, live, member):
    """Return unscaled scores ``[token, head]`` of a part; `known` are its rows if they were read before."""
    if known is not None:
        return tl.dot(known, q, input_precision="ieee")
    elif key.rows.alone:
        rows = read(key.rows, met_by(key.rows, first_head, 0), page, slot, live)
        return tl.dot(rows, q, input_precision="ieee")
    else:
        scores = tl.zeros([slot.shape[0], member.shape[0]], tl.float32)
        for k in tl.range(0, key.rows.met, num_stages=AHEAD):
            rows = read(key.rows, met_by(key.rows, first_head, k), page, slot, live)
            own = (member // key.rows.heads == k)[None, :]
            scores = tl.where(own, tl.dot(rows, q, input_precision="ieee"), scores)
        return scores


@triton.jit
@no_type_check
def meet_turned(key, q, first_head, page, slot, position, live, member):
    """Return unscaled scores ``[token, head]`` of coordinates that are restored to keys and rotated by position.

    ``z . sum over planes (cos along[0] + sin along[1])`` with angles in float32; `turning.py` derives `along`.
    """
    plane = tl.arange(0, key.planes)
    column = tl.arange(0, key.rows.padded)
    angle = position.to(tl.float32)[:, None] * tl.load(key.theta + plane)[None, :]
    cos = rounded(tl.cos(angle), key.rows.rows)
    sin = rounded(tl.sin(angle), key.rows.rows)
    scores = tl.zeros([slot.shape[0], member.shape[0]], tl.float32)
    for k in tl.range(0, key.rows.met):
        rows = read(key.rows, met_by(key.rows, first_head, k), page, slot, live)
        at = q + (first_head + k) * key.planes * key.rows.padded
        at = at + plane[:, None] * key.rows.padded + column[None, :]
        along = tl.dot(cos, rounded(tl.load(at), key.rows.rows), input_precision="ieee")
        across = rounded(tl.load(at + key.sine), key.rows.rows)
        along = tl.dot(sin, across, along, input_precision="ieee")
        score = tl.sum(rows.to(tl.float32) * along, 1)
        scores = tl.where((member == k)[None, :], score[:, None], scores)
    return scores


@triton.jit
@no_type_check
def score(keys, asked, known, factor, scale, first_head, page, slot, position, live, member, TILE_HEADS: tl.constexpr):
    """Return scores ``[token, head]`` of each part in nats; `known` are the first part's rows, or None."""
    by = scale
    if factor is not None:
        at = factor.factors + ((first_head + member).to(tl.int64) * factor.head_stride)[None, :]
        at = at + (page * factor.page_stride + slot * factor.slot_stride)[:, None]
        by = scale * tl.load(at, live[:, None] & (member < TILE_HEADS)[None, :], other=0.0).to(tl.float32)
    parts = ()
    for i in tl.static_range(len(keys)):
        if keys[i].planes > 0:
            part = meet_turned(keys[i], asked[i], first_head, page, slot, position, live, member)
        else:
            rows = known if i == 0 else None
            part = meet(keys[i], asked[i], rows, first_head, page, slot, live, member)
        parts = parts + (part * by,)
    return parts
