"""Matched small models of every variant: corpus, presets, runs that resume exactly, and what a trained model can do."""

from ..checkpoints.runs import saved_steps
from .comparison import Comparison, compare
from .corpus import Corpus, from_path, standard_library
from .directory import TrainingError
from .kept import keep
from .presets import BACKBONES, PRESETS, build, matched
from .run import Recipe, train
from .ship import ship

__all__ = [
    "BACKBONES",
    "PRESETS",
    "Comparison",
    "Corpus",
    "Recipe",
    "TrainingError",
    "build",
    "compare",
    "from_path",
    "keep",
    "matched",
    "saved_steps",
    "ship",
    "standard_library",
    "train",
]
