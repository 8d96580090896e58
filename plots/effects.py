"""Effects by layer and head, with what is significant marked."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle

from . import style

COLUMNS = ("layer", "head", "effect", "significant")
CELL = 0.34
MAX_TICKS = 32


def effect_map(
    table: pd.DataFrame,
    *,
    title: str = "",
    unit: str = "nats",
    name: str = "effect",
    cell: str = "head",
    marked: bool = True,
) -> Figure:
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

    Returns
    -------
    matplotlib.figure.Figure
        Its axes are the map and the colour bar.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, or a cell appears twice.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"layer": [0, 0], "head": [0, 1], "effect": [-0.5, 0.1], "significant": [True, False]})
    >>> figure = effect_map(table)
    >>> figure.axes[0].get_xlabel(), figure.axes[1].get_ylabel()
    ('head', 'effect (nats)')
    """
    layers, heads, values, marks = _grid(table)
    # A map of few cells still needs room for its words.
    size = max(5.2, CELL * len(heads) + 2.6), max(2.6, CELL * len(layers) + 1.7)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    if title:
        figure.suptitle(title, fontsize=11, wrap=True)
    ax = figure.add_subplot()
    image = _draw(ax, values, marks)
    _label(ax, layers, heads, cell)
    bar = figure.colorbar(image, ax=ax, fraction=0.08, pad=0.03)
    bar.set_label(f"{name} ({unit})")
    if not (values < 0).any():
        bar.ax.set_ylim(0, None)  # shares: there is nothing below zero to show
    if marked:
        known = int(np.isfinite(values).sum())
        figure.supxlabel(f"dot: significant ({int(marks.sum())} of {known})", fontsize=9)
    return figure


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


def _draw(ax: Axes, values: np.ndarray, marks: np.ndarray) -> AxesImage:
    ax.set_facecolor(style.UNDEFINED_FACE)
    known = np.abs(values[np.isfinite(values)])
    limit = float(known.max()) if known.size and known.max() > 0 else 1.0
    norm = TwoSlopeNorm(0.0, -limit, limit)
    image = ax.imshow(np.ma.masked_invalid(values), cmap=style.DIVERGING, norm=norm, aspect="auto", origin="upper")
    rows, columns = np.nonzero(marks)
    # White rim, black core: seen on the darkest red and blue and on white.
    ax.plot(columns, rows, "o", color=style.MARK, markersize=5, markeredgecolor="white", markeredgewidth=0.9)
    for row, column in zip(*np.nonzero(~np.isfinite(values)), strict=True):
        ax.add_patch(_hatched(int(row), int(column)))
    ax.set_xticks(np.arange(values.shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(values.shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=0.8)
    ax.tick_params(which="minor", length=0)
    return image


def _hatched(row: int, column: int) -> Rectangle:
    box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", linewidth=0)
    box.set_edgecolor(style.UNDEFINED_HATCH)
    return box


def _label(ax: Axes, layers: list[int], heads: list[int], cell: str) -> None:
    ax.set_ylabel("layer")
    ax.set_xlabel(cell if heads != [-1] else "all heads together")
    for axis, names in ((ax.yaxis, layers), (ax.xaxis, heads)):
        stride = math.ceil(len(names) / MAX_TICKS)
        places = list(range(0, len(names), stride))
        axis.set_ticks(places, ["all" if names[p] == -1 else str(names[p]) for p in places])
