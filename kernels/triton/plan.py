"""Who reads what: the tiles of all requests, dealt out to a fixed number of workers in equal shares.

Requests are laid end to end as a line of tiles and the line is cut into equal shares. A worker's share may hold the end
of one request and the beginning of the next, so it comes in *items*: runs of tiles of one request each. Every item
leaves one partial result, and a request's items follow one another, so that putting a request together is reading a
run.

How many items there can be is known before any length is (`workers + batch - 1`), so arrays and grids keep their shape
from step to step: a plan can be refilled in place under a captured CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import ArrayLike
from torch import Tensor

from ..operands import Pages

TILE = 64
"""Tokens that are scored together."""


class Division(NamedTuple):
    """A division of tiles among workers, as arrays.

    Item i is tiles ``first[i]`` to ``last[i] - 1`` of request ``request[i]``. Worker w has the items from ``bounds[w]``
    to ``bounds[w + 1] - 1``; request b is in those from ``of_request[b]`` to ``of_request[b + 1] - 1``.
    """

    bounds: np.ndarray
    of_request: np.ndarray
    request: np.ndarray
    first: np.ndarray
    last: np.ndarray


def divide(lengths: ArrayLike, workers: int, tile: int = TILE) -> Division:
    """Cut the tiles of all requests into shares that differ by one tile at most.

    Parameters
    ----------
    lengths
        Tokens of each request, at least 1.
    workers
        Number of shares, at least 1. Where there are fewer tiles than workers, some get nothing.
    tile
        Tokens in a tile.

    Raises
    ------
    ValueError
        If there is no request, no worker, or a request without tokens.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    if workers < 1 or tokens.size == 0 or tokens.min() < 1:
        raise ValueError(f"a plan needs workers and requests with tokens, not {workers} and lengths {tokens.tolist()}")
    ends = np.cumsum(-(-tokens // tile))
    starts = np.concatenate([[0], ends])
    shares = np.arange(workers + 1) * ends[-1] // workers
    cuts = np.unique(np.concatenate([shares, ends]))
    request = np.searchsorted(ends, cuts[:-1], side="right")
    return Division(
        bounds=np.searchsorted(cuts, shares),
        of_request=np.searchsorted(cuts, starts),
        request=request,
        first=cuts[:-1] - starts[request],
        last=cuts[1:] - starts[request],
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """A division where the kernels can read it: `Division`'s arrays, with room for as many items as there can be.

    A plan holds for every layer, and as long as no request grows into its next tile. What was computed with a plan that
    does not reach the end of a request is NaN, never a number that leaves tokens out.
    """

    bounds: Int[Tensor, " bound"]
    of_request: Int[Tensor, " start"]
    request: Int[Tensor, " item"]
    first: Int[Tensor, " item"]
    last: Int[Tensor, " item"]

    @property
    def workers(self) -> int:
        """Number of shares."""
        return len(self.bounds) - 1

    def refill(self, lengths: Int[Tensor, " batch"]) -> None:
        """Divide anew for other lengths of as many requests, in place."""
        if len(lengths) != len(self.of_request) - 1:
            raise ValueError(f"the plan is for {len(self.of_request) - 1} requests but got {len(lengths)} lengths")
        for name, found in divide(lengths.cpu().numpy(), self.workers)._asdict().items():
            getattr(self, name)[: len(found)] = torch.from_numpy(found)


def make_plan(lengths: Int[Tensor, " batch"], workers: int, device: torch.device) -> Plan:
    """Divide requests of these lengths among `workers`."""
    sizes = (workers + 1, len(lengths) + 1, *[workers + len(lengths)] * 3)
    plan = Plan(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))
    plan.refill(lengths)
    return plan


_made: WeakKeyDictionary[Pages, dict[int, Plan]] = WeakKeyDictionary()


def plan_for(pages: Pages, workers: int, device: torch.device) -> Plan:
    """Return the plan for these pages, made once: all layers of a step that share `pages` share it."""
    known = _made.setdefault(pages, {})
    if workers not in known:
        known[workers] = make_plan(pages.lengths, workers, device)
    return known[workers]
