"""Matched small models of every variant: corpus, presets, runs that resume exactly, and what a trained model can do."""

from ..checkpoints.runs import saved_steps
from .corpus import Corpus, from_path, standard_library
from .presets import BACKBONES, PRESETS, build, matched
from .run import Recipe, TrainingError, train

__all__ = [
    "BACKBONES",
    "PRESETS",
    "Corpus",
    "Recipe",
    "TrainingError",
    "build",
    "from_path",
    "matched",
    "saved_steps",
    "standard_library",
    "train",
]
