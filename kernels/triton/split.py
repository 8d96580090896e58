"""The pass over the cache: each worker attends to its share of tiles and leaves a partial result an item.

A softmax over a run of tiles is kept as its largest score m, the sum of ``2^(score - m)`` and values weighted alike;
when m rises, what was summed before is scaled down by ``2^(m_before - m)``. Everything is summed in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from .score import AHEAD, met_by, queries, score
from .tile import place, read, rounded

LOG2E = tl.constexpr(1.4426950408889634)


class Share(NamedTuple):
    """`Plan`'s arrays that a worker reads."""

    bounds: Any
    request: Any
    first: Any
    last: Any


class Partials(NamedTuple):
    """What items leave, each ``[item, head, ...]``: largest score (as a power of two), sum, and values reduced."""

    largest: Any
    total: Any
    reduced: Any


class Looked(NamedTuple):
    """What probes leave besides.

    `weighted` ``[item, head, part + 1 + span]`` sums, by weight, each part's score, the distance and whether a position
    is in a span; `plain` ``[item, head, part]`` sums scores as they are; `tile_peaks` ``[request, head, tile]`` holds
    the largest score of each tile. `spans` ``[request, span, 2]`` has `n_spans` of each request (compiled in, as is
    their `padded` number).
    """

    weighted: Any
    plain: Any
    tile_peaks: Any
    n_tiles: Any
    spans: Any
    n_spans: Any
    padded: Any


@triton.jit
@no_type_check
def reduce(total, part, p, known, first_head, page, slot, live, member):
    """Add a tile's rows, weighted by p ``[token, head]``, to ``[padded, head]``; `known`: they were read before."""
    weight = rounded(p, part.rows)
    if known is not None:
        return tl.dot(tl.trans(known), weight, total, input_precision="ieee")
    elif part.alone:
        rows = read(part, met_by(part, first_head, 0), page, slot, live)
        return tl.dot(tl.trans(rows), weight, total, input_precision="ieee")
    else:
        for k in tl.range(0, part.met, num_stages=AHEAD):
            rows = read(part, met_by(part, first_head, k), page, slot, live)
            own = (member // part.heads == k)[None, :]
            total = tl.where(own, total + tl.dot(tl.trans(rows), weight, input_precision="ieee"), total)
        return total


@triton.jit
@no_type_check
def keep(out, found, row, member, inside, width, padded):
    """Store ``[padded, head]`` as ``[item, head, width]``."""
    column = tl.arange(0, padded)
    at = out + ((row + member) * width)[None, :] + column[:, None]
    tl.store(at, found, (column < width)[:, None] & inside[None, :])


@triton.jit
@no_type_check
def keep_looked(looked, weighted, plain, distance, mass, row, member, inside):
    """Store an item's sums for probes."""
    n_parts: tl.constexpr = len(plain)
    n_sums: tl.constexpr = n_parts + 1 + looked.n_spans
    for i in tl.static_range(n_parts):
        tl.store(looked.plain + (row + member) * n_parts + i, plain[i], inside)
        tl.store(looked.weighted + (row + member) * n_sums + i, weighted[i], inside)
    tl.store(looked.weighted + (row + member) * n_sums + n_parts, distance, inside)
    if looked.n_spans > 0:
        span = tl.arange(0, looked.padded)
        at = looked.weighted + ((row + member) * n_sums)[:, None] + (n_parts + 1 + span)[None, :]
        tl.store(at, mass, inside[:, None] & (span < looked.n_spans)[None, :])


@triton.jit
@no_type_check
def split(
    keys,
    values,
    factor,
    table,
    table_stride,
    lengths,
    share,
    out,
    looked,
    scale,
    HEADS: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SAME: tl.constexpr,
):
    """Attend with `TILE_HEADS` heads to one worker's share; `SAME`: the first values are the first keys' rows."""
    first_head = tl.program_id(0) * TILE_HEADS
    worker = tl.program_id(1)
    member = tl.arange(0, PADDED_HEADS)
    inside = member < TILE_HEADS
    for item in tl.range(tl.load(share.bounds + worker), tl.load(share.bounds + worker + 1), disable_licm=True):
        request = tl.load(share.request + item)
        length = tl.load(lengths + request).to(tl.int32)
        asked = ()
        for i in tl.static_range(len(keys)):
            asked = asked + (queries(keys[i], request, first_head, member, HEADS, TILE_HEADS),)
        largest = tl.full([PADDED_HEADS], float("-inf"), tl.float32)
        total = tl.zeros([PADDED_HEADS], tl.float32)
        reduced = ()
        for i in tl.static_range(len(values)):
            reduced = reduced + (tl.zeros([values[i].padded, PADDED_HEADS], tl.float32),)
        if looked is not None:
            weighted = ()
            plain = ()
            for _ in tl.static_range(len(keys)):
                weighted = weighted + (tl.zeros([PADDED_HEADS], tl.float32),)
                plain = plain + (tl.zeros([PADDED_HEADS], tl.float32),)
            distance = tl.zeros([PADDED_HEADS], tl.float32)
            mass = tl.zeros([PADDED_HEADS, looked.padded], tl.float32)
        for tile in range(tl.load(share.first + item), tl.load(share.last + item)):
            page, slot, position, live = place(table, table_stride, request, tile, length, PAGE, TILE)
            both = None  # rows that are keys and values are read once
            if SAME:
                both = read(keys[0].rows, met_by(keys[0].rows, first_head, 0), page, slot, live)
            parts = score(keys, asked, both, factor, scale, first_head, page, slot, position, live, member, TILE_HEADS)
            scores = parts[0]
            for i in tl.static_range(1, len(keys)):
                scores = scores + parts[i]
            scores = tl.where(live[:, None], scores * LOG2E, float("-inf"))
            here = tl.max(scores, 0)
            risen = tl.maximum(largest, here)
            fade = tl.exp2(largest - risen)
            p = tl.exp2(scores - risen[None, :])
            largest = risen
            total = total * fade + tl.sum(p, 0)
            added = ()
            for i in tl.static_range(len(values)):
                known = both if i == 0 else None
                faded = reduced[i] * fade[None, :]
                added = added + (reduce(faded, values[i], p, known, first_head, page, slot, live, member),)
            reduced = added
            if looked is not None:
                # Rows of tokens that are not there are read as zeros, so their scores add nothing here.
                seen = ()
                summed = ()
                for i in tl.static_range(len(keys)):
                    seen = seen + (weighted[i] * fade + tl.sum(p * parts[i], 0),)
                    summed = summed + (plain[i] + tl.sum(parts[i], 0),)
                weighted = seen
                plain = summed
                distance = distance * fade + tl.sum(p * (length - 1 - position).to(tl.float32)[:, None], 0)
                if looked.n_spans > 0:
                    mass = mass * fade[:, None] + in_spans(looked, request, position, p)
                at = (request.to(tl.int64) * HEADS + first_head + member) * looked.n_tiles + tile
                tl.store(looked.tile_peaks + at, here, inside)
        row = first_head.to(tl.int64) + item * HEADS
        tl.store(out.largest + row + member, largest, inside)
        tl.store(out.total + row + member, total, inside)
        for i in tl.static_range(len(values)):
            keep(out.reduced[i], reduced[i], row, member, inside, values[i].width, values[i].padded)
        if looked is not None:
            keep_looked(looked, weighted, plain, distance, mass, row, member, inside)


@triton.jit
@no_type_check
def in_spans(looked, request, position, p):
    """Return the weight ``[head, span]`` of a tile's tokens in each of the request's spans."""
    span = tl.arange(0, looked.padded)
    there = span < looked.n_spans
    at = looked.spans + (request.to(tl.int64) * looked.n_spans + span) * 2
    first = tl.load(at, there, other=0)
    last = tl.load(at + 1, there, other=0)
    inside = (position[:, None] >= first[None, :]) & (position[:, None] < last[None, :])
    return tl.sum(tl.where(inside[:, None, :], p[:, :, None], 0.0), 0)
