"""Figures from tables and arrays.

The plots are a leaf: they import nothing else of headscope, build their `matplotlib.figure.Figure` directly
(nothing is registered with pyplot, no backend is chosen, nothing is shown) and return it.
"""

from .capacity import cache_against_rank, paper_loss
from .cost import loss_against_cache
from .effective_rank import effective_rank
from .effects import effect_map
from .generation import looked_map, step_map
from .one_layer import one_layer
from .over_training import over_training
from .pattern import attention_pattern
from .similarity import head_similarity

__all__ = [
    "attention_pattern",
    "cache_against_rank",
    "effect_map",
    "effective_rank",
    "head_similarity",
    "looked_map",
    "loss_against_cache",
    "one_layer",
    "over_training",
    "paper_loss",
    "step_map",
]
