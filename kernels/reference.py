"""The decode step straight from the formulas, in float64: what every faster path is measured against.

One request and one head at a time, keys written out, no trick. Scores of all parts meet *before* the one softmax, and
all value parts use the same weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .operands import KeyPart, Problem, Turn
from .probes import Probes, ProbeValues
from .result import Decoded


def decode_reference(problem: Problem, probes: Probes | None = None) -> Decoded:
    """Attend in float64 on the CPU.

    ``score[h, j] = sum over parts of (q_h . row_j) * scale * row_scale[h, j]``, ``p = softmax(score)``,
    ``out[h] = sum_j p[h, j] row_j`` for every value part.
    """
    heads = problem.n_heads
    batch = len(problem.pages.lengths)
    found = [[_one(problem, probes, request, head) for head in range(heads)] for request in range(batch)]

    def gather(pick: int) -> Tensor:
        return torch.stack([torch.stack([head[pick] for head in row]) for row in found])

    n_values = len(problem.values)
    values = tuple(gather(part) for part in range(n_values))
    lse = gather(n_values)
    looked = None if probes is None else ProbeValues(*(gather(n_values + 1 + i) for i in range(7)))
    return Decoded(values, lse, looked, "reference")


def _one(problem: Problem, probes: Probes | None, request: int, head: int) -> tuple[Tensor, ...]:
    """Return one head's reduced values, log-sum-exp, and what probes ask for, in the order of `ProbeValues`."""
    where = _slots(problem, request)
    parts = torch.stack([_scores(part, where, request, head) for part in problem.keys]) * problem.scale
    if problem.row_scale is not None:
        parts = parts * problem.row_scale[head].flatten()[where].cpu().double()
    scores = parts.sum(0)
    lse = scores.logsumexp(0)
    p = (scores - lse).exp()
    values = tuple(p @ _rows(part.rows, where, head, problem.n_heads) for part in problem.values)
    if probes is None:
        return (*values, lse)
    position = torch.arange(len(where)).double()
    top = p.sort(descending=True, stable=True)
    kept = min(probes.top, len(where))
    places = torch.full((probes.top,), -1)
    weights = torch.zeros(probes.top, dtype=torch.float64)
    places[:kept], weights[:kept] = top.indices[:kept], top.values[:kept]
    spans = [] if probes.spans is None else probes.spans[request].tolist()
    mass = torch.stack([p[first:last].sum() for first, last in spans]) if spans else p.new_zeros(0)
    return (
        *values,
        lse,
        -torch.special.xlogy(p, p).sum(),
        p @ (len(where) - 1 - position),
        parts @ p,
        parts.mean(1),
        places,
        weights,
        mass,
    )


def _slots(problem: Problem, request: int) -> Int[Tensor, " pos"]:
    """Return where a request's tokens lie, counted in slots over all pages."""
    length = int(problem.pages.lengths[request])
    position = torch.arange(length)
    pages = problem.pages.table[request].cpu()[position // problem.page_size]
    return pages * problem.page_size + position % problem.page_size


def _rows(
    rows: Float[Tensor, "group page slot width"], where: Int[Tensor, " pos"], head: int, n_heads: int
) -> Float[Tensor, "pos width"]:
    group = head // (n_heads // rows.shape[0])
    return rows[group].flatten(0, 1)[where.to(rows.device)].cpu().double()


def _scores(part: KeyPart, where: Int[Tensor, " pos"], request: int, head: int) -> Float[Tensor, " pos"]:
    q = part.q[request, head].cpu().double()
    rows = _rows(part.rows, where, head, part.q.shape[1])
    if part.turn is None:
        return rows @ q
    return turned(rows @ part.turn.up[head].cpu().double().T, part.turn) @ q


def turned(keys: Float[Tensor, "pos d_key"], turn: Turn) -> Float[Tensor, "pos d_key"]:
    """Return keys rotated by their positions 0, 1, 2 …, with angles in float32 as models have them."""
    first, second = turn.first.cpu(), turn.second.cpu()
    angle = torch.arange(len(keys))[:, None].float() * turn.theta.cpu().float()
    cos, sin = angle.cos().double() * turn.amplitude, angle.sin().double() * turn.amplitude
    out = keys.clone()
    out[:, first] = keys[:, first] * cos - keys[:, second] * sin
    out[:, second] = keys[:, second] * cos + keys[:, first] * sin
    return out
