"""Where one head looks on one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from . import style
from .generation import LOOKED, visible
from .maps import every, heat_map, name_cells
from .panels import OnAxes, panels_for

MAX_NAMES = 60
FUTURE = "0.9"
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
    shown = past_of("pattern", pattern, len(tokens))
    side = float(np.clip(TOKEN_INCHES * len(tokens), *SIDE_INCHES))
    (panel,) = panels_for(ax, 1, "map", columns=1, size=(side + 2.4, side + 1.5), title=title)
    heat_map(panel, shown, limits=(0.0, 1.0), label="attention weight", cmap=LOOKED, hatched=False)
    panel.set_facecolor(FUTURE)
    stride = name_tokens(panel, tokens, points=7)
    panel.set_ylabel(f"query: looks from{every(stride)}")
    panel.set_xlabel(f"key: looks at{every(stride)}")
    return panel


def past_of(name: str, weights: Any, count: int) -> np.ndarray:
    """Return weights ``[query_pos, key_pos]`` with NaN in the future of each query.

    Raises
    ------
    ValueError
        If there is not a row and a column a token.
    """
    values = style.as_array(weights)
    if values.shape != (count, count):
        raise ValueError(
            f"{name} should be [query_pos, key_pos] for {count} tokens, ({count}, {count}), but is {values.shape}"
        )
    return np.where(np.tri(count, dtype=bool), values, np.nan)


def name_tokens(ax: Axes, tokens: Sequence[str], points: float) -> int:
    """Name queries and keys by their tokens, with numbers where there are many; return the stride of names."""
    names = [visible(token) for token in tokens]
    if len(tokens) > MAX_NAMES:
        names = [f"{text} {place}" for place, text in enumerate(names)]
    font: dict[str, Any] = {"fontsize": points, "family": "monospace"}
    name_cells(ax.xaxis, names, MAX_NAMES, rotation=90, **font)
    return name_cells(ax.yaxis, names, MAX_NAMES, rotation=0, **font)
