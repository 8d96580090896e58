"""The decode step by the kernels: what they are given, and what is made of what they leave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from ..operands import KeyPart, Problem, ValuePart
from ..probes import Probes, ProbeValues
from ..result import Decoded
from .combine import Summed, combine
from .layout import Layout, heads_a_group, layout_of, padded, unsupported
from .plan import TILE, Plan, plan_for
from .score import Keys
from .split import Looked, Partials, Share, split
from .strongest import rescore
from .tile import Factor, Rows
from .turning import along, planes_of

INTERPRETED_WORKERS = 3
"""Where there are no multiprocessors to fill: enough for requests to be split and workers to hold several."""


def decode_triton(problem: Problem, probes: Probes | None = None, plan: Plan | None = None) -> Decoded:
    """Attend with the kernels: one pass over the cache, one over what it leaves, one more for the strongest positions.

    Parameters
    ----------
    plan
        For these lengths, or None: the one kept for ``problem.pages``.

    Raises
    ------
    ValueError
        If the kernels cannot take the step, or the plan is for another number of requests.
    """
    if (why := unsupported(problem)) is not None:
        raise ValueError(f"the Triton path cannot take this step: {why}")
    layout = layout_of(problem, probes is not None)
    plan = plan_step(problem, probes) if plan is None else plan
    if len(plan.of_request) != len(problem.pages.lengths) + 1:
        raise ValueError(f"the plan is for {len(plan.of_request) - 1} requests, not {len(problem.pages.lengths)}")
    pages = problem.pages
    table, lengths = pages.table.to(problem.device).contiguous(), pages.lengths.to(problem.device)
    return _Step(problem, table, lengths, probes, plan, layout).run()


def plan_step(problem: Problem, probes: Probes | None = None) -> Plan:
    """Return the plan kept for ``problem.pages`` and such a step: all programs run at once, none waits.

    To replay a step under a CUDA graph for other lengths, change them in place and refill this plan.
    """
    workers = INTERPRETED_WORKERS
    if problem.device.type == "cuda":
        workers = _workers(problem, layout_of(problem, probes is not None))
    return plan_for(problem.pages, workers, problem.device)


def _workers(problem: Problem, layout: Layout) -> int:
    processors = torch.cuda.get_device_properties(problem.device).multi_processor_count
    return max(1, processors * layout.programs // (problem.n_heads // layout.tile_heads))


def room(*shape: int, device: torch.device) -> Float[Tensor, "..."]:
    """Return memory for what a kernel writes."""
    return torch.empty(shape, dtype=torch.float32, device=device)


def rows_of(part: KeyPart | ValuePart, problem: Problem, tile_heads: int) -> Rows:
    """Return a part's rows for programs that serve `tile_heads` heads."""
    heads = heads_a_group(part, problem)
    group, page, slot, _ = part.rows.stride()
    width = part.rows.shape[3]
    met = max(1, tile_heads // heads)
    return Rows(part.rows, group, page, met, *map(tl.constexpr, (met == 1, slot, width, padded(width), heads)))


def keys_of(part: KeyPart, problem: Problem, tile_heads: int) -> Keys:
    """Return a part of the keys, with what a query brings to rows that turn worked out."""
    rows = rows_of(part, problem, tile_heads)
    if part.turn is None:
        q = part.q.contiguous()
        return Keys(rows, q, q, tl.constexpr(0), tl.constexpr(0))  # Triton 3.6 takes no None within a tuple
    planes = padded(planes_of(part.turn))
    meets, theta = along(part.q, part.turn, planes, rows.padded.value)
    return Keys(rows, meets, theta, tl.constexpr(planes), meets.stride(0))


@dataclass(frozen=True, eq=False)
class _Step:
    problem: Problem
    table: Tensor
    lengths: Tensor
    probes: Probes | None
    plan: Plan
    layout: Layout

    def run(self) -> Decoded:
        problem, plan, heads = self.problem, self.plan, self.problem.n_heads
        batch, items = len(self.lengths), len(plan.request)
        widths = [part.rows.shape[3] for part in problem.values]
        partials = Partials(
            self._room(items, heads),
            self._room(items, heads),
            tuple(self._room(items, heads, width) for width in widths),
        )
        looked = self._looked(items)
        self._split(partials, looked)
        sums = [Summed(p, self._room(batch, heads, p.shape[2]), *_fixed(p, True)) for p in partials.reduced]
        if looked is not None:
            for partial, weighted in ((looked.weighted, True), (looked.plain, False)):
                out = self._room(batch, heads, partial.shape[2])
                sums.append(Summed(partial, out, *_fixed(partial, weighted)))
        lse = self._room(batch, heads)
        combine[(heads, batch)](
            tuple(sums),
            partials.largest,
            partials.total,
            plan.of_request,
            plan.last,
            self.lengths,
            lse,
            HEADS=heads,
            TILE=TILE,
        )
        values = tuple(found.out for found in sums[: len(widths)])
        if looked is None:
            return Decoded(values, lse, None, "triton")
        return Decoded(values, lse, self._probed(looked, sums[-2].out, sums[-1].out, lse), "triton")

    def _room(self, *shape: int) -> Float[Tensor, "..."]:
        return room(*shape, device=self.problem.device)

    def _keys(self, tile_heads: int) -> tuple[Keys, ...]:
        return tuple(keys_of(part, self.problem, tile_heads) for part in self.problem.keys)

    def _factor(self) -> Factor | None:
        scale = self.problem.row_scale
        return None if scale is None else Factor(scale, *scale.stride())

    def _split(self, partials: Partials, looked: Looked | None) -> None:
        problem, layout, plan = self.problem, self.layout, self.plan
        values = tuple(rows_of(part, problem, layout.tile_heads) for part in problem.values)
        same = problem.values[0].rows is problem.keys[0].rows and values[0].alone.value
        split[(problem.n_heads // layout.tile_heads, plan.workers)](
            self._keys(layout.tile_heads),
            values,
            self._factor(),
            self.table,
            self.table.stride(0),
            self.lengths,
            Share(plan.bounds, plan.request, plan.first, plan.last),
            partials,
            looked,
            problem.scale,
            HEADS=problem.n_heads,
            TILE_HEADS=layout.tile_heads,
            PADDED_HEADS=layout.padded_heads,
            PAGE=problem.page_size,
            TILE=TILE,
            SAME=same,
            **layout.compiled_for(),
        )

    def _looked(self, items: int) -> Looked | None:
        if self.probes is None:
            return None
        problem, heads, spans = self.problem, self.problem.n_heads, self.probes.spans
        batch, parts = len(self.lengths), len(problem.keys)
        spans = self.lengths.new_zeros(batch, 0, 2) if spans is None else spans
        n_spans = spans.shape[1]
        n_tiles = -(-self.table.shape[1] * problem.page_size // TILE)
        return Looked(
            self._room(items, heads, parts + 1 + n_spans),
            self._room(items, heads, parts),
            torch.full((batch, heads, n_tiles), -torch.inf, device=problem.device),
            n_tiles,
            spans.to(problem.device, torch.int32).contiguous(),
            tl.constexpr(n_spans),
            tl.constexpr(padded(max(1, n_spans), 1)),
        )

    def _probed(self, looked: Looked, weighted: Tensor, plain: Tensor, lse: Tensor) -> ProbeValues:
        parts = len(self.problem.keys)
        score = weighted[..., :parts]
        places, weights = self._strongest(looked.tile_peaks, lse)
        return ProbeValues(
            entropy=lse - score.sum(-1),
            distance=weighted[..., parts],
            score=score,
            score_everywhere=plain / self.lengths[:, None, None],
            top_positions=places,
            top_weights=weights,
            span_mass=weighted[..., parts + 1 :],
        )

    def _strongest(self, peaks: Float[Tensor, "batch head tile"], lse: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions and weights of the strongest, strongest first and among equals the earliest first."""
        problem, top = self.problem, 0 if self.probes is None else self.probes.top
        batch, heads, n_tiles = peaks.shape
        places = torch.full((batch, heads, top), -1, device=peaks.device)
        weights = torch.zeros(batch, heads, top, device=peaks.device)
        if top == 0:
            return places, weights
        best = peaks.sort(dim=-1, descending=True, stable=True).indices[..., : min(top, n_tiles)]
        tiles = best.sort(-1).values.to(torch.int32).contiguous()
        choices = tiles.shape[2]
        scores = self._room(batch, heads, choices, TILE)
        rescore[(choices, heads, batch)](
            self._keys(1),
            self._factor(),
            self.table,
            self.table.stride(0),
            self.lengths,
            tiles,
            scores,
            problem.scale,
            HEADS=heads,
            PADDED_HEADS=8,
            PAGE=problem.page_size,
            TILE=TILE,
        )
        kept = min(top, choices * TILE)
        found = scores.flatten(2).sort(dim=-1, descending=True, stable=True)
        strongest, index = found.values[..., :kept], found.indices[..., :kept]
        position = tiles.gather(-1, index // TILE) * TILE + index % TILE
        there = strongest > -torch.inf
        places[..., :kept] = position.where(there, -1)
        weights[..., :kept] = (strongest - lse[..., None]).exp()
        return places, weights


def _fixed(partial: Tensor, weighted: bool) -> tuple[tl.constexpr, tl.constexpr, tl.constexpr]:
    width = partial.shape[2]
    return tl.constexpr(width), tl.constexpr(padded(width, 1)), tl.constexpr(weighted)
