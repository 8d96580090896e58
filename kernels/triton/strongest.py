"""The strongest positions, exactly, from the largest score of each tile.

The k strongest of all positions lie in the k tiles whose largest scores are largest: a position elsewhere has k
stronger ones before it, one in each of those tiles. So only k tiles a head are scored a second time and sorted.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from .score import queries, score
from .tile import place


@triton.jit
@no_type_check
def rescore(
    keys,
    factor,
    table,
    table_stride,
    lengths,
    tiles,
    out,
    scale,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Store the scores ``[request, head, choice, token]`` of the tiles ``[request, head, choice]``, in nats."""
    choice = tl.program_id(0)
    head = tl.program_id(1)
    request = tl.program_id(2)
    at = (request.to(tl.int64) * HEADS + head) * tl.num_programs(0) + choice
    tile = tl.load(tiles + at)
    length = tl.load(lengths + request).to(tl.int32)
    member = tl.arange(0, PADDED_HEADS)
    asked = ()
    for i in tl.static_range(len(keys)):
        asked = asked + (queries(keys[i], request, head, member, HEADS, 1),)
    page, slot, position, live = place(table, table_stride, request, tile, length, PAGE, TILE)
    parts = score(keys, asked, None, factor, scale, head, page, slot, position, live, member, 1)
    scores = parts[0]
    for i in tl.static_range(1, len(keys)):
        scores = scores + parts[i]
    own = tl.sum(tl.where((member == 0)[None, :], scores, 0.0), 1)
    tl.store(out + at * TILE + tl.arange(0, TILE), tl.where(live, own, float("-inf")))
