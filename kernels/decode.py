"""One decode step, by whichever implementation is asked for; which one ran stands in the result."""

from __future__ import annotations

import os
from typing import Literal, get_args

from .associative import decode_torch
from .operands import Problem
from .probes import Probes
from .reference import decode_reference
from .result import Decoded, Path
from .triton.layout import unsupported

Asked = Literal["auto", "reference", "torch", "triton"]


def decode(problem: Problem, probes: Probes | None = None, path: Asked = "auto") -> Decoded:
    """Attend with one query a head over a paged cache.

    Parameters
    ----------
    problem
        Queries, rows, and where they lie.
    probes
        What to look at besides; None: nothing.
    path
        ``"reference"`` (float64, on the CPU), ``"torch"`` (any device), ``"triton"`` (rows on a CUDA device; elsewhere
        only in Triton's interpreter, with TRITON_INTERPRET=1), or ``"auto"``: Triton for rows on a CUDA device that its
        kernels can read (not float64), torch for others.

    Raises
    ------
    ValueError
        If there is no such path, or Triton is asked for and cannot read the rows.
    RuntimeError
        If Triton is asked for and there is nothing for it to run on.
    """
    if path not in get_args(Asked):
        raise ValueError(f"path should be one of {get_args(Asked)} but got {path!r}")
    if path == "auto":
        path = _fastest(problem)
    if path == "reference":
        return decode_reference(problem, probes)
    if path == "torch":
        return decode_torch(problem, probes)
    if problem.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            f"the Triton path needs rows on a CUDA device, but they are on {problem.device}; move them, ask for path "
            "'torch', or set TRITON_INTERPRET=1 before Triton is imported to try the kernels without a GPU (slowly)"
        )
    from .triton.launch import decode_triton

    return decode_triton(problem, probes)


def _fastest(problem: Problem) -> Path:
    return "triton" if problem.device.type == "cuda" and unsupported(problem) is None else "torch"
