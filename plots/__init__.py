"""Figures from tables and arrays.

The plots are a leaf: they import nothing else of headscope. Every picture is a function that

- takes tables or arrays (of any float type, bfloat16 tensors included), never a result;
- takes ``ax=``: one Axes or, where it has several panels, as many as it has, in order;
- without it makes a `matplotlib.figure.Figure` of its own, of which pyplot knows nothing (no backend is chosen, nothing
  is shown, no setting is changed);
- returns what it drew on: an Axes or, where it has several panels, an array of them. The figure is their ``.figure``,
  and a colour bar its last axes;
- names every row and column, or every so many and says so, or deals them out to pages (`similarity_pages`,
  `head_pages`); a cell without a value never sets the scale, and nothing that does not fit is dropped in silence.

A result's own methods (`report.plot()`) give the figure instead, since that is what a notebook shows at the end of a
cell, also where nothing has set matplotlib up for it (`notebook`).
"""

from .capacity import cache_against_rank, paper_loss
from .cost import loss_against_cache
from .effective_rank import effective_rank
from .effects import effect_map
from .generation import head_pages, looked_map, step_map
from .intervals import effect_intervals
from .notebook import show_figures
from .one_layer import one_layer
from .over_training import over_training
from .pattern import attention_pattern
from .routing import routing_maps
from .similarity import head_similarity, similarity_pages
from .spectra import spectra

__all__ = [
    "attention_pattern",
    "cache_against_rank",
    "effect_intervals",
    "effect_map",
    "effective_rank",
    "head_pages",
    "head_similarity",
    "looked_map",
    "loss_against_cache",
    "one_layer",
    "over_training",
    "paper_loss",
    "routing_maps",
    "similarity_pages",
    "spectra",
    "step_map",
]

show_figures()
