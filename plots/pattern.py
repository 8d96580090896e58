"""Where one head looks on one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from . import style
from .generation import LOOKED, visible
from .maps import every, heat_map, name_cells
from .panels import OnAxes, given_panels, new_panels
from .routing import FUTURE

MAX_NAMES = 60
TOKEN_INCHES = 0.17
SIDE_INCHES = (3.4, 9.0)
"""Side of the map, at least and at most."""


def attention_pattern(pattern: Any, tokens: Sequence[str], *, title: str = "", ax: OnAxes = None) -> Axes:
    """Draw a head's attention: queries down, keys across; each row sums to one, and a query's future is grey.

    Parameters
    ----------
    pattern
        Weights ``[query_pos, key_pos]``, as NumPy array or torch tensor.
    tokens
        Text at each position. Each is named where there are at most 60, else every so many.
    title
        Over the map.
    ax
        Axes to draw on, which gives room to the colour bar. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes
        The map; the colour bar is the figure's last axes.

    Raises
    ------
    ValueError
        If the pattern is not square and as large as there are tokens, or `ax` holds several.

    Examples
    --------
    >>> attention_pattern([[1.0, 0.0], [0.3, 0.7]], ["a", "b"]).get_ylabel()
    'query: looks from'
    """
    weights = style.as_array(pattern)
    count = len(tokens)
    if weights.shape != (count, count):
        raise ValueError(f"the pattern of {count} tokens should be ({count}, {count}) but is {weights.shape}")
    side = float(np.clip(TOKEN_INCHES * count, *SIDE_INCHES))
    if ax is None:
        (panel,) = new_panels(1, columns=1, size=(side + 2.4, side + 1.5), title=title)
    else:
        (panel,) = given_panels(ax, 1, "map")
        panel.set_title(style.no_formula(title), fontsize=10, wrap=True)
    shown = np.where(np.tri(count, dtype=bool), weights, np.nan)
    heat_map(panel, shown, limits=(0.0, 1.0), label="attention weight", cmap=LOOKED, hatched=False)
    panel.set_facecolor(FUTURE)
    names = [visible(token) for token in tokens]
    font = {"fontsize": 7, "family": "monospace"}
    stride = name_cells(panel.yaxis, names, MAX_NAMES, rotation=0, **font)
    name_cells(panel.xaxis, names, MAX_NAMES, rotation=90, **font)
    panel.set_ylabel(f"query: looks from{every(stride)}")
    panel.set_xlabel(f"key: looks at{every(stride)}")
    return panel
