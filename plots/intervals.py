"""The strongest effects with their intervals, beside what controls do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from . import style
from .panels import OnAxes, add_legend, legend_entries, panels_for

COLUMNS = (
    "layer",
    "head",
    *("effect", "low", "high"),
    *("random_effect", "random_low", "random_high"),
    *("shared_effect", "shared_low", "shared_high"),
    "significant",
)
ROW_INCHES = 0.3
# What is drawn of a row, from above: columns, offset from the row's middle, look and name.
MADE: tuple[tuple[str, float, dict[str, Any], str], ...] = (
    ("", -0.24, {"color": style.UNCENTRED, "marker": "o"}, "the edit"),
    ("random_", 0.0, {"color": style.CENTRED, "marker": "s"}, "a random direction of the same norm"),
    ("shared_", 0.24, {"color": style.NULL, "marker": "D"}, "the same edit on what the layer's heads share"),
)


def effect_intervals(
    table: pd.DataFrame,
    *,
    top: int = 20,
    title: str = "",
    unit: str = "nats",
    cell: str = "head",
    ax: OnAxes = None,
) -> Axes:
    """Draw the strongest effects with their intervals, each beside its controls, strongest first.

    What is significant has a filled marker and a bold name. How many of how many are drawn stands on the axis.

    Parameters
    ----------
    table
        One row a cell. Used are `layer`, `head` (-1 where all heads are one cell), `effect`, `low`, `high` and the same
        with ``random_`` and ``shared_`` before them (NaN where there is no such control, or no interval), and
        `significant`.
    top
        Cells to draw, by the size of their effect.
    title, unit
        What the effects are of, and their unit.
    cell
        What `head` counts: heads, or key/value groups.
    ax
        Axes to draw on. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes
        The panel.

    Raises
    ------
    ValueError
        If a column is missing, the table has no effect, `top` is not positive, or `ax` holds several.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"layer": [2, 0], "head": [5, 1], "effect": [-1.3, 0.1], "significant": [True, False]})
    >>> table[["low", "high"]] = [[-1.4, -1.2], [0.0, 0.2]]
    >>> table[[f"{of}_{what}" for of in ("random", "shared") for what in ("effect", "low", "high")]] = float("nan")
    >>> [name.get_text() for name in effect_intervals(table, top=1).get_yticklabels()]
    ['L2H5']
    """
    rows, left_out = _strongest(table, top)
    size = (8.2, ROW_INCHES * len(rows) + 2.2)
    (panel,) = panels_for(ax, 1, "table", columns=1, size=size, title=title)
    panel.axvline(0, color=style.MARK, linewidth=0.8)
    for row in range(0, len(rows), 2):
        panel.axhspan(row - 0.5, row + 0.5, color="0.955", linewidth=0, zorder=0)
    marks = rows["significant"].to_numpy(dtype=bool)
    for name, offset, look, label in MADE:
        _draw(panel, rows, name, offset, look, label, marks)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    names = panel.set_yticks(range(len(rows)), [_name(row) for row in rows.to_dict("records")])
    for tick, marked in zip(names, marks, strict=True):
        tick.label1.set_fontweight("bold" if marked else "normal")
    panel.tick_params(axis="y", length=0, labelsize=8)
    panel.set_ylabel(_which(rows, left_out, cell))
    panel.set_xlabel(f"change of the score ({unit}; below zero: it hurts), with 95 % intervals")
    panel.grid(axis="x", color="0.88", linewidth=0.6)
    panel.set_axisbelow(True)
    sns.despine(ax=panel, left=True)
    note = f"Bold and filled: significant ({int(marks.sum())} of the {len(rows)} drawn)."
    add_legend([panel], legend_entries([panel]), note, own=ax is None)
    return panel


def _strongest(table: pd.DataFrame, top: int) -> tuple[pd.DataFrame, int]:
    """Return the rows to draw, the largest effect first, and how many others have one."""
    style.require(table, COLUMNS, row="cell")
    if top < 1:
        raise ValueError(f"top should be at least 1 but got {top}")
    rows = table.loc[:, list(COLUMNS)].astype({name: float for name in COLUMNS[2:-1]})
    known = pd.DataFrame(rows[np.isfinite(rows["effect"])])
    if known.empty:
        raise ValueError("the table has no effect: there is nothing to draw")
    order = pd.Series(-known["effect"].abs()).sort_values(kind="stable").index
    return pd.DataFrame(known.loc[order[:top]]), max(0, len(known) - top)


def _draw(
    ax: Axes, rows: pd.DataFrame, name: str, offset: float, look: dict[str, Any], label: str, filled: np.ndarray
) -> None:
    """Draw one kind of point with its intervals; only the edit's own are filled, where they are significant."""
    values, low, high = (rows[f"{name}{column}"].to_numpy() for column in ("effect", "low", "high"))
    there = np.isfinite(values)
    if not there.any():
        return
    places = np.arange(len(rows)) + offset
    # An effect of one sample has no interval: its point stands alone.
    spans = there & np.isfinite(low) & np.isfinite(high)
    ax.hlines(places[spans], low[spans], high[spans], color=look["color"], linewidth=1.5, zorder=2)
    marker = {"linestyle": "none", "markersize": 5.5, "markeredgewidth": 1.2, **look}
    kinds = ((~filled, "white"), (filled, look["color"])) if not name else ((np.ones_like(filled), "white"),)
    for kind, face in kinds:
        chosen = there & kind
        if chosen.any():
            ax.plot(values[chosen], places[chosen], markerfacecolor=face, zorder=3, label=label, **marker)


def _name(row: dict[Any, Any]) -> str:
    layer, head = int(row["layer"]), int(row["head"])
    return f"layer {layer}" if head == -1 else f"L{layer}H{head}"


def _which(rows: pd.DataFrame, left_out: int, cell: str) -> str:
    cells = "layer" if bool((rows["head"] == -1).all()) else cell
    if not left_out:
        return f"{cells}, by size of effect"
    return f"{cells}: the {len(rows)} largest effects of {len(rows) + left_out}"
