"""One head's attention pattern on a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from . import style
from .generation import CMAP, MAX_COLUMNS, visible

CELL = 0.17
"""Inches of a token."""


def attention_pattern(pattern: Any, tokens: Sequence[str], *, title: str = "") -> Figure:
    """Draw where a head looks: queries down, keys across, each row sums to one.

    Parameters
    ----------
    pattern
        ``[query_pos, key_pos]``.
    tokens
        Text at each position.
    title
        Over the figure.

    Raises
    ------
    ValueError
        If the pattern does not fit the tokens.

    Examples
    --------
    >>> attention_pattern([[1.0, 0.0], [0.3, 0.7]], ["a", "b"]).axes[0].get_ylabel()
    'looks from (query)'
    """
    weights = style.as_array(pattern)
    if weights.shape != (len(tokens), len(tokens)):
        raise ValueError(f"the pattern of {len(tokens)} tokens should be square of that size but is {weights.shape}")
    side = min(max(4.6, CELL * len(tokens) + 1.9), 12.0)
    figure = Figure(figsize=(side + 0.8, side), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    if title:
        figure.suptitle(title, fontsize=11, wrap=True)
    ax = figure.add_subplot()
    shown = np.ma.masked_array(weights, mask=np.triu(np.ones_like(weights, dtype=bool), 1))
    image = ax.imshow(shown, cmap=CMAP, vmin=0.0, vmax=1.0, interpolation="nearest")
    places = range(0, len(tokens), -(-len(tokens) // MAX_COLUMNS))
    names = [visible(tokens[place]) for place in places]
    ax.set_xticks(places, names, fontsize=7, rotation=90, family="monospace")
    ax.set_yticks(places, names, fontsize=7, family="monospace")
    ax.set_xlabel("looks at (key)")
    ax.set_ylabel("looks from (query)")
    ax.spines[["top", "right"]].set_visible(False)
    figure.colorbar(image, ax=ax, fraction=0.045, pad=0.02).set_label("attention")
    return figure
