"""Edits of what a head reads, looks at or brings, as values that leave the model as it was."""

from ..checkpoints.bridge import load_bridge
from .ablation import Ablation, ablate
from .applying import apply
from .behaviour import Behaviour, behaviour
from .edits import Edit, Mean, Noise, Resample, SameNorm, Scale, Shuffle, Swap, Zero
from .paths import PATHS
from .routing import Routing, routing

__all__ = [
    "PATHS",
    "Ablation",
    "Behaviour",
    "Edit",
    "Mean",
    "Noise",
    "Resample",
    "Routing",
    "SameNorm",
    "Scale",
    "Shuffle",
    "Swap",
    "Zero",
    "ablate",
    "apply",
    "behaviour",
    "load_bridge",
    "routing",
]
