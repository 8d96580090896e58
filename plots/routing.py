"""Where one head looks on one text, before and after an edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from . import style
from .generation import LOOKED
from .maps import every, heat_map
from .panels import OnAxes, given_panels, new_panels
from .pattern import FUTURE, name_tokens, past_of

TOKEN_INCHES = 0.115
"""So much does a token's name need."""
PANEL_INCHES = (3.0, 7.0)
"""Side of a panel, at least and at most."""
TITLES = ("before", "after", "change: after − before")
BAR = (1.03, 0.0, 0.04, 1.0)
"""Place of a colour bar beside its panel, in its width and height."""


def routing_maps(before: Any, after: Any, tokens: Sequence[str], *, title: str = "", ax: OnAxes = None) -> np.ndarray:
    """Draw a head's attention pattern before and after an edit, and the difference: queries down, keys across.

    Before and after have one scale, which ends at the largest weight of either; the change has its own, even about
    zero. What lies in the future of a query is grey and no part of any of them.

    Parameters
    ----------
    before, after
        Weights ``[query_pos, key_pos]``, as NumPy arrays or torch tensors; NaN where a query has no weights.
    tokens
        Text at each position. Each is named where there are at most 60, else every so many.
    title
        Over all panels.
    ax
        Three axes to draw on; colour bars stand right of each. A new figure where not given.

    Returns
    -------
    numpy.ndarray
        The three panels: before, after, change.

    Raises
    ------
    ValueError
        If the two are not square and as large as there are tokens, or the number of axes is not three.

    Examples
    --------
    >>> import numpy as np
    >>> panels = routing_maps(np.eye(2), np.array([[1.0, 0.0], [0.5, 0.5]]), ["a", "b"])
    >>> panels[2].collections[0].get_array().compressed().tolist()
    [0.0, 0.5, -0.5]
    """
    weights = [past_of(name, values, len(tokens)) for name, values in (("before", before), ("after", after))]
    side = float(np.clip(TOKEN_INCHES * len(tokens), *PANEL_INCHES))
    if ax is None:
        panels = new_panels(3, columns=3, size=(3 * side + 4.2, side + 1.2), title=title)
    else:
        panels = given_panels(ax, 3, "of before, after and change")
        panels[1].set_title(style.no_formula(title), fontsize=10, wrap=True)
    top = _largest(np.stack(weights))
    change = weights[1] - weights[0]
    widest = _largest(np.abs(change))
    weight = {"limits": (0.0, top), "label": "attention weight", "cmap": LOOKED}
    moved = {"limits": (-widest, widest), "label": "change of the weight", "cmap": style.DIVERGING}
    for panel, values, name, look in zip(panels, (*weights, change), TITLES, (weight, weight, moved), strict=True):
        mesh = heat_map(panel, values, hatched=False, bar=False, **look)
        panel.set_facecolor(FUTURE)
        panel.set_box_aspect(1)
        panel.figure.colorbar(mesh, cax=panel.inset_axes(BAR), label=look["label"])
        _label(panel, tokens, name, titled=ax is None)
    return np.array(panels, dtype=object)


def _largest(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if known.size and known.max() > 0 else 1.0


def _label(ax: Axes, tokens: Sequence[str], name: str, *, titled: bool) -> None:
    if titled:
        ax.set_title(name, fontsize=11)
    stride = name_tokens(ax, tokens, points=6.5)
    ax.set_ylabel(f"query{every(stride)}")
    ax.set_xlabel(f"key{every(stride)}" if titled else f"key{every(stride)}: {name}")
