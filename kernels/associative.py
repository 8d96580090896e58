"""The decode step in torch, on any device: products regrouped so that history is read and never expanded.

Scores come as ``q . rows`` with queries absorbed beforehand, and values are reduced before anyone expands them. Rows of
half precision are computed with in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .operands import KeyPart, Problem, Turn
from .probes import Probes, ProbeValues
from .result import Decoded

TOGETHER = 512
"""Requests up to this many tokens are attended together, padded; longer ones one by one, in place and unpadded."""
TURNED_BLOCK = 512
"""Positions restored and rotated at a time where rows are coordinates."""


def decode_torch(problem: Problem, probes: Probes | None = None) -> Decoded:
    """Attend with plain tensor operations."""
    lengths = problem.pages.lengths
    if len(lengths) > 1 and int(lengths.max()) <= TOGETHER:
        return _attend(problem, probes, _Gathered(problem))
    parts = [_attend(problem, probes, _InPlace(problem, request)) for request in range(len(lengths))]
    values = tuple(torch.cat([part.values[i] for part in parts]) for i in range(len(problem.values)))
    lse = torch.cat([part.lse for part in parts])
    if probes is None:
        return Decoded(values, lse, None, "torch")
    looked = [part.probes for part in parts if part.probes is not None]
    names = ProbeValues.__dataclass_fields__
    together = ProbeValues(**{name: torch.cat([getattr(p, name) for p in looked]) for name in names})
    return Decoded(values, lse, together, "torch")


class _InPlace:
    """One request's history: a view where its pages follow one another, else a copy of its pages."""

    def __init__(self, problem: Problem, request: int) -> None:
        self.requests = slice(request, request + 1)
        self.length = int(problem.pages.lengths[request])
        self._pages = problem.pages.table[request, : -(-self.length // problem.page_size)]
        first, last = int(self._pages[0]), int(self._pages[-1])
        steps = self._pages.diff()
        self._run = slice(first, last + 1) if bool((steps == 1).all()) else None
        self.valid = None
        self.lengths = problem.pages.lengths[self.requests]

    def rows(self, rows: Float[Tensor, "group page slot width"]) -> Float[Tensor, "group 1 pos width"]:
        found = rows.index_select(1, self._pages) if self._run is None else rows[:, self._run]
        return _computable(found.flatten(1, 2)[:, None, : self.length])


class _Gathered:
    """Several requests' histories, copied side by side and padded to the longest."""

    def __init__(self, problem: Problem) -> None:
        self.requests = slice(None)
        self.lengths = problem.pages.lengths
        self.length = int(self.lengths.max())
        blocks = -(-self.length // problem.page_size)
        position = torch.arange(self.length, device=problem.device)
        self._written = position < self.lengths.to(problem.device)[:, None]
        self.valid: Bool[Tensor, "batch pos"] | None = self._written
        used = torch.arange(blocks, device=problem.device) * problem.page_size < self.lengths[:, None]
        self._pages = problem.pages.table[:, :blocks].where(used, problem.pages.table[:, :1])

    def rows(self, rows: Float[Tensor, "group page slot width"]) -> Float[Tensor, "group batch pos width"]:
        found = rows[:, self._pages].flatten(2, 3)[:, :, : self.length]
        # What a slot holds that no token was written to is nobody's business, not even if it is NaN.
        return _computable(found.masked_fill_(~self._written[None, :, :, None], 0))


def _attend(problem: Problem, probes: Probes | None, history: _InPlace | _Gathered) -> Decoded:
    parts = [_scores(part, history) * problem.scale for part in problem.keys]
    if problem.row_scale is not None:
        factor = history.rows(problem.row_scale[..., None])[..., 0].transpose(0, 1)
        parts = [part * factor for part in parts]
    scores = parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])
    if history.valid is not None:
        scores = scores.masked_fill(~history.valid[:, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    values = tuple(_reduce(weights, history.rows(part.rows)) for part in problem.values)
    looked = None if probes is None else _look(probes, parts, weights, lse, history)
    return Decoded(values, lse, looked, "torch")


def _scores(part: KeyPart, history: _InPlace | _Gathered) -> Float[Tensor, "batch head pos"]:
    rows = history.rows(part.rows)
    q = part.q[history.requests].to(rows.dtype)
    if part.turn is not None:
        return _turned_scores(q, rows, part.turn)
    grouped = q.unflatten(1, (len(rows), -1)).movedim(1, 0).contiguous()
    return (grouped @ rows.mT).movedim(0, 1).flatten(1, 2)


def _turned_scores(
    q: Float[Tensor, "batch head d_key"], rows: Float[Tensor, "head batch pos rank"], turn: Turn
) -> Float[Tensor, "batch head pos"]:
    """Return ``q . (z B^T) R_j`` for coordinates z.

    Written by planes, with c and s the cosine and sine of the position's angle:
    ``z . sum over planes (c (q_a B_a + q_b B_b) + s (q_b B_a - q_a B_b))``, so that the query meets `B` once, and
    positions only meet the outcome.
    """
    up = turn.up.to(q.dtype)
    first, second = up[:, turn.first], up[:, turn.second]
    q_a, q_b = q[:, :, turn.first, None], q[:, :, turn.second, None]
    amplitude = turn.amplitude
    along = amplitude * (q_a * first + q_b * second), amplitude * (q_b * first - q_a * second)
    still = _still(turn, q.shape[-1])
    constant = torch.einsum("bhd,hdr->bhr", q[:, :, still], up[:, still])
    scores = []
    for start in range(0, rows.shape[2], TURNED_BLOCK):
        block = rows[:, :, start : start + TURNED_BLOCK].transpose(0, 1)
        position = torch.arange(start, start + block.shape[2], device=q.device)
        angle = position[:, None].float() * turn.theta.float()
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        met = cos @ along[0] + sin @ along[1] + constant[:, :, None]
        scores.append((block * met).sum(-1))
    return torch.cat(scores, dim=-1)


def _still(turn: Turn, d_key: int) -> Int[Tensor, " column"]:
    """Return the columns that no plane turns."""
    free = torch.ones(d_key, dtype=torch.bool, device=turn.first.device)
    free[turn.first] = free[turn.second] = False
    return free.nonzero()[:, 0]


def _reduce(
    weights: Float[Tensor, "batch head pos"], rows: Float[Tensor, "group batch pos width"]
) -> Float[Tensor, "batch head width"]:
    grouped = weights.unflatten(1, (len(rows), -1)).movedim(1, 0).contiguous()
    return (grouped @ rows).movedim(0, 1).flatten(1, 2)


def _look(
    probes: Probes, parts: list[Tensor], weights: Tensor, lse: Tensor, history: _InPlace | _Gathered
) -> ProbeValues:
    """Return what was looked at. A padded position has a part of 0 and a weight of 0, so it is in no sum."""
    lengths = history.lengths.to(weights.device)
    score = torch.stack([(weights * part).sum(-1) for part in parts], dim=-1)
    everywhere = torch.stack([part.sum(-1) for part in parts], dim=-1) / lengths[:, None, None]
    seen = weights @ _places(probes, history, lengths, weights)
    top = weights.topk(min(probes.top, history.length))
    positions, strongest = top.indices, top.values
    if history.valid is not None or probes.top > history.length:
        positions, strongest = _pad(positions, probes.top, -1), _pad(strongest, probes.top, 0)
        absent = torch.arange(probes.top, device=weights.device) >= lengths[:, None, None]
        positions, strongest = positions.masked_fill(absent, -1), strongest.masked_fill(absent, 0)
    return ProbeValues(
        entropy=lse - score.sum(-1),
        distance=seen[..., 0],
        score=score,
        score_everywhere=everywhere,
        top_positions=positions,
        top_weights=strongest,
        span_mass=seen[..., 1:],
    )


def _places(
    probes: Probes, history: _InPlace | _Gathered, lengths: Tensor, weights: Tensor
) -> Float[Tensor, "batch pos number"]:
    """Return for each position how far behind the query it is, and whether it is in each span."""
    position = torch.arange(history.length, device=weights.device)
    distance = (lengths[:, None] - 1 - position).to(weights.dtype)[..., None]
    if probes.spans is None:
        return distance
    first, last = probes.spans[history.requests].to(weights.device)[:, None].unbind(-1)
    inside = (position[:, None] >= first) & (position[:, None] < last)
    return torch.cat((distance, inside.to(weights.dtype)), dim=-1)


def _pad(found: Tensor, width: int, value: int) -> Tensor:
    return F.pad(found, (0, width - found.shape[-1]), value=value)


def _computable(rows: Tensor) -> Tensor:
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
