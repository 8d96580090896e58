"""A map of cells: rows by columns in colour, with what stands on its sides, and no cell dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh

from . import style

SEQUENTIAL = "cividis"  # told apart with any of the common colour vision deficiencies, and in grey
HATCH = "//////"
MOST_EDGED = 64
STRIDES = (1, 2, 4, 5, 8)
"""Of labels, and ten, a hundred times as many."""
BAR_WIDTH, BAR_LENGTH = 0.16, 6.0
"""Inches."""


def heat_map(
    ax: Axes,
    values: np.ndarray,
    *,
    limits: tuple[float, float],
    label: str,
    cmap: str = SEQUENTIAL,
    hatched: bool = True,
    bar: bool = True,
    edged: bool = True,
) -> QuadMesh:
    """Draw a matrix, first row at the top; cell (row, column) has its middle at (column + ½, row + ½).

    Parameters
    ----------
    ax
        Panel to draw on.
    values
        ``[row, column]``; cells that are NaN have no colour.
    limits
        Lower and upper end of the colour scale.
    label
        What the colour is, with its unit.
    cmap
        Name of the colour map.
    hatched
        Whether cells without a value are hatched (there should be one), or left white (there is none to have).
    bar
        Whether to draw the colour bar, which takes its room from the panel.
    edged
        Whether to draw lines between cells, unless these are so small that lines would be all there is to see.
    """
    lines: dict[str, Any] = (
        {"linewidths": 0.6, "linecolor": "white"} if edged and max(values.shape) <= MOST_EDGED else {}
    )
    sides: dict[str, Any] = {"xticklabels": False, "yticklabels": False}
    bars: dict[str, Any] = {"cbar_kws": {"label": label, **_bar_size(ax)}} if bar else {}
    scale: dict[str, Any] = {"vmin": limits[0], "vmax": limits[1], "cmap": cmap}
    sns.heatmap(values, ax=ax, cbar=bar, rasterized=True, **scale, **bars, **lines, **sides)
    ax.set_facecolor(style.UNDEFINED_FACE if hatched else "white")
    if hatched and np.isnan(values).any():
        ax.patch.set(hatch=HATCH, edgecolor=style.UNDEFINED_HATCH, linewidth=0)
    ax.tick_params(length=2, width=0.6)
    return [found for found in ax.collections if isinstance(found, QuadMesh)][-1]


def _bar_size(ax: Axes) -> dict[str, float]:
    """Size of a colour bar: of one width, however large the map, and no longer than one reads at a glance."""
    height = ax.get_position().height * ax.figure.bbox.height / ax.figure.dpi
    length = min(height, BAR_LENGTH)
    return {"fraction": 0.06, "pad": 0.02, "shrink": length / height, "aspect": max(length / BAR_WIDTH, 4.0)}


def name_cells(axis: Axis, names: Sequence[str], most: int, **options: Any) -> int:
    """Name rows or columns at their middles, at most so many; return the stride at which they are named."""
    needed = math.ceil(len(names) / most)
    stride = next(step * scale for scale in (1, 10, 100, 1000, 10_000) for step in STRIDES if step * scale >= needed)
    places = np.arange(0, len(names), stride)
    axis.set_ticks(places + 0.5, [names[int(place)] for place in places], **options)
    return stride


def every(stride: int, what: str = "") -> str:
    """Say a stride of labels: nothing for 1, else ", every 2nd labelled" (or ", every 2nd head labelled")."""
    if stride == 1:
        return ""
    ending = "th" if stride % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(stride % 10, "th")
    return f", every {stride}{ending} {what + ' ' if what else ''}labelled"
