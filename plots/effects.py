"""Effects by layer and head, with what is significant marked."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from . import style
from .maps import every, heat_map, name_cells
from .panels import OnAxes, panels_for

COLUMNS = ("layer", "head", "effect", "significant")
CELL = 0.34
MAX_NAMES = 32
WIDEST, TALLEST = 26.0, 20.0
"""Inches."""


def effect_map(
    table: pd.DataFrame,
    *,
    title: str = "",
    unit: str = "nats",
    name: str = "effect",
    cell: str = "head",
    marked: bool = True,
    ax: OnAxes = None,
) -> Axes:
    """Draw effects as a map, layers down and heads across.

    Colour is the effect, white at zero; a dot marks the significant ones, and cells without a value are hatched.
    The colour scale is that of the largest effect.

    Parameters
    ----------
    table
        One row a cell. Used are `layer`, `head` (-1 where all heads are one cell), `effect` and `significant`.
    title, unit, name
        What the values are of, their unit, and what they are called.
    cell
        What `head` counts: heads, or key/value groups.
    marked
        Whether to mark and count what is significant.
    ax
        Axes to draw on, which gives room to the colour bar. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes
        The map; the colour bar is the figure's last axes.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, a cell appears twice, or `ax` holds several.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"layer": [0, 0], "head": [0, 1], "effect": [-0.5, 0.1], "significant": [True, False]})
    >>> ax = effect_map(table)
    >>> ax.get_xlabel().splitlines()[0], ax.figure.axes[-1].get_ylabel()
    ('head', 'effect (nats)')
    """
    layers, heads, values, marks = _grid(table)
    # A map of few cells still needs room for its words.
    size = min(max(5.2, CELL * len(heads) + 2.6), WIDEST), min(max(2.8, CELL * len(layers) + 1.9), TALLEST)
    (drawn,) = panels_for(ax, 1, "map", columns=1, size=size, title=title)
    limits = _limits(values)
    heat_map(drawn, values, limits=limits, label=f"{name} ({unit})", cmap=style.DIVERGING)
    if not (values < 0).any():
        drawn.figure.axes[-1].set_ylim(0, None)  # shares: there is nothing below zero to show
    rows, columns = np.nonzero(marks)
    if marked:
        # White rim, black core: seen on the darkest red and blue and on white.
        rim = {"color": style.MARK, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.9}
        drawn.plot(columns + 0.5, rows + 0.5, "o", **rim)
    _label(drawn, layers, heads, cell, _notes(values, marks, marked=marked))
    return drawn


def _grid(table: pd.DataFrame) -> tuple[list[int], list[int], np.ndarray, np.ndarray]:
    style.require(table, COLUMNS, row="cell")
    twice = table[table.duplicated(["layer", "head"])]
    if len(twice):
        raise ValueError(f"layer {twice.iloc[0]['layer']}, head {twice.iloc[0]['head']} appears more than once")
    layers, heads = sorted(set(table["layer"].astype(int))), sorted(set(table["head"].astype(int)))
    values = np.full((len(layers), len(heads)), math.nan)
    marks = np.zeros_like(values, dtype=bool)
    for row in table.to_dict("records"):
        place = layers.index(int(row["layer"])), heads.index(int(row["head"]))
        values[place], marks[place] = float(row["effect"]), bool(row["significant"])
    return layers, heads, values, marks


def _limits(values: np.ndarray) -> tuple[float, float]:
    known = np.abs(values[np.isfinite(values)])
    limit = float(known.max()) if known.size and known.max() > 0 else 1.0
    return -limit, limit


def _notes(values: np.ndarray, marks: np.ndarray, *, marked: bool) -> str:
    known = int(np.isfinite(values).sum())
    notes = [f"dot: significant ({int(marks.sum())} of {known})"] if marked else []
    notes += ["hatched: no value"] if known < values.size else []
    return " · ".join(notes)


def _label(ax: Axes, layers: list[int], heads: list[int], cell: str, notes: str) -> None:
    stride = name_cells(ax.yaxis, [str(layer) for layer in layers], MAX_NAMES, rotation=0)
    ax.set_ylabel(f"layer{every(stride)}")
    stride = name_cells(ax.xaxis, ["all" if head == -1 else str(head) for head in heads], MAX_NAMES, rotation=0)
    across = f"{cell}{every(stride)}" if heads != [-1] else "all heads together"
    ax.set_xlabel(f"{across}\n{notes}" if notes else across)
