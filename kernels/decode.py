"""One decode step, by whichever implementation is asked for; which one ran stands in the result."""

from __future__ import annotations

from typing import Literal, get_args

from .associative import decode_torch
from .operands import Problem
from .probes import Probes
from .reference import decode_reference
from .result import Decoded

Asked = Literal["auto", "reference", "torch"]


def decode(problem: Problem, probes: Probes | None = None, path: Asked = "auto") -> Decoded:
    """Attend with one query a head over a paged cache.

    Parameters
    ----------
    problem
        Queries, rows, and where they lie.
    probes
        What to look at besides; None: nothing.
    path
        ``"reference"`` (float64, on the CPU), ``"torch"`` (any device) or ``"auto"``, which is torch.

    Raises
    ------
    ValueError
        If there is no such path.
    """
    if path not in get_args(Asked):
        raise ValueError(f"path should be one of {get_args(Asked)} but got {path!r}")
    if path == "reference":
        return decode_reference(problem, probes)
    return decode_torch(problem, probes)
