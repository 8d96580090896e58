"""What a decode step gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from .probes import ProbeValues

Path = Literal["reference", "torch", "triton"]


@dataclass(frozen=True, eq=False)
class Decoded:
    """One query a head, attended.

    Parameters
    ----------
    values
        For each value part its rows reduced with the attention weights, not yet expanded.
    lse
        Log of the sum of exponentiated scores, from which splits over the history are put together.
    probes
        What was asked for besides, None if nothing was.
    path
        Which implementation ran.
    """

    values: tuple[Float[Tensor, "batch head _width"], ...]
    lse: Float[Tensor, "batch head"]
    probes: ProbeValues | None
    path: Path
