"""Effective rank by layer, with its caps and its null."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from . import style
from .panels import OnAxes, add_legend, as_drawn, given_panels, legend_entries, new_panels

NULL_COLUMNS = ("null_mean", "null_low", "null_high", "null_centred_mean")
NUMBER_COLUMNS = ("n_heads", "erank", "erank_centred", *NULL_COLUMNS)
COLUMNS = ("layer", "circuit", "part", *NUMBER_COLUMNS, "status")

PANEL_INCHES = (4.6, 3.2)
MAX_LAYER_TICKS = 12


def effective_rank(table: pd.DataFrame, *, ax: OnAxes = None) -> Axes | np.ndarray:
    """Draw the effective rank of the heads by layer, one panel for each (circuit, part).

    Uncentred and centred effective rank are solid lines, their caps `H` and `H - 1` dashed in the same two colours; the
    null's means are thick grey lines and its range (uncentred) a grey band. A layer whose status is not
    "ok", or that lacks a value, is marked with a cross at the bottom of its panel.

    Parameters
    ----------
    table
        The report's table, one row for each layer, circuit and part. Used are the columns `layer`, `circuit`,
        `part`, `n_heads`, `erank`, `erank_centred`, `null_mean`, `null_low`, `null_high`, `null_centred_mean`
        (all four null columns may be missing values) and `status`. Ranks are in heads.
    ax
        Axes to draw on, one for each (circuit, part): QK's parts, then OV's. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes or numpy.ndarray
        The panel, or an array of several.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, a layer appears twice in a panel, or the number of axes is
        not the number of panels.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"layer": [0, 1], "circuit": "qk", "part": "all", "n_heads": 4, "status": "ok"})
    >>> table[["erank", "erank_centred"]] = [[3.1, 2.6], [2.7, 2.2]]
    >>> table[["null_mean", "null_low", "null_high", "null_centred_mean"]] = None
    >>> effective_rank(table).get_title()
    'QK'
    """
    rows = _checked(table)
    blocks = style.in_order(zip(rows["circuit"], rows["part"], strict=True))
    panels = _new(len(blocks)) if ax is None else given_panels(ax, len(blocks), "circuit and part")
    reasons = style.degenerate_label(rows)
    limits = []
    for panel, (circuit, part) in zip(panels, blocks, strict=True):
        here = rows.loc[(rows["circuit"] == circuit) & (rows["part"] == part)]
        _draw_panel(panel, here, reasons)
        panel.set_title(style.block_title(circuit, part), fontsize=11)
        limits.append(_limits(here))
    own_scales = _set_limits(panels, limits)
    add_legend(panels, legend_entries(panels), _note(rows, own_scales=own_scales), own=ax is None)
    return as_drawn(panels)


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    """Check the table; return the rows by layer, with numbers as floats (None becomes NaN)."""
    style.require(table, COLUMNS, row="layer")
    twice = table[table.duplicated(["circuit", "part", "layer"])]
    if len(twice):
        first = twice.iloc[0]
        raise ValueError(
            f"layer {first['layer']} appears more than once for circuit {first['circuit']!r}, "
            f"part {first['part']!r}: give the table of one checkpoint"
        )
    unknown = table["n_heads"].isna().to_numpy()
    if unknown.any():
        raise ValueError(f"n_heads is missing for layer {table['layer'].to_numpy()[unknown][0]}")
    rows = table.loc[:, list(COLUMNS)].astype({column: float for column in NUMBER_COLUMNS})
    rows["status"] = rows["status"].fillna("no status")
    return rows.sort_values("layer", kind="stable")


def _new(n_panels: int) -> list[Axes]:
    columns = n_panels if n_panels < 4 else math.ceil(n_panels / 2) if n_panels < 7 else 3
    width, height = PANEL_INCHES
    # The legend under the panels and the title take about an inch and a half; it needs some width, too.
    size = (max(6.4, width * columns), height * math.ceil(n_panels / columns) + 1.5)
    return new_panels(n_panels, columns=columns, size=size, title="Effective rank of the heads, by layer")


def _draw_panel(ax: Axes, rows: pd.DataFrame, reasons: str) -> None:
    layers = rows["layer"].to_numpy(dtype=int)
    _draw_ranks(ax, layers, rows)
    _draw_caps(ax, layers, rows["n_heads"].to_numpy())
    _draw_null(ax, layers, rows)
    marked = layers[style.degenerate(rows)]
    if len(marked):
        low = ax.get_xaxis_transform()  # x in layers, y as a fraction of the panel
        heights = np.full(len(marked), 0.04)
        ax.plot(marked, heights, "x", color=style.MARK, markersize=6, transform=low, label=reasons, zorder=4)
    ax.set_xlim(layers.min() - 0.5, layers.max() + 0.5)
    ax.set_xticks(_layer_ticks(layers))
    ax.set_xlabel("layer")
    ax.set_ylabel("effective rank (heads)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)


def _draw_ranks(ax: Axes, layers: np.ndarray, rows: pd.DataFrame) -> None:
    size = 5 if len(layers) <= 40 else 3
    for column, colour, marker, label, side in (
        ("erank", style.UNCENTRED, "o", "effective rank", "right"),
        ("erank_centred", style.CENTRED, "s", "effective rank, centred", "left"),
    ):
        values = rows[column].to_numpy()
        options = {"color": colour, "marker": marker, "markersize": size, "linewidth": 1.6, "zorder": 3}
        ax.plot(layers, values, label=label, **options)
        if len(layers) == 1 and np.isfinite(values[0]):
            # A single point has its number beside it, one left and one right: they may be close.
            place = {"xytext": (-10 if side == "right" else 10, 0), "textcoords": "offset points"}
            background = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            text = ax.annotate(f"{values[0]:.2f}", (layers[0], values[0]), ha=side, va="center", **place)
            text.set(bbox=background, zorder=3)


def _draw_null(ax: Axes, layers: np.ndarray, rows: pd.DataFrame) -> None:
    """Draw the null over the whole width of each layer, so that it shows for one layer, or between gaps."""
    edges = np.stack([layers - 0.5, layers + 0.5], axis=1).ravel()
    null = {column: np.repeat(rows[column].to_numpy(), 2) for column in NULL_COLUMNS}
    if np.isfinite(null["null_low"] + null["null_high"]).any():
        band = {"color": style.NULL, "alpha": 0.25, "linewidth": 0}
        ax.fill_between(edges, null["null_low"], null["null_high"], label="null: range, low to high", **band)
    # Neutral and thick: at a random model's rank the caps' thin dashes lie on top and both can be seen.
    for column, dash, label in (
        ("null_mean", "-", "null: mean"),
        ("null_centred_mean", (0, (1, 1)), "null: mean, centred"),
    ):
        if np.isfinite(null[column]).any():
            ax.plot(edges, null[column], linestyle=dash, color=style.NULL, alpha=0.5, linewidth=3.5, label=label)


def _draw_caps(ax: Axes, layers: np.ndarray, n_heads: np.ndarray) -> None:
    edges = np.stack([layers - 0.5, layers + 0.5], axis=1).ravel()
    low, high = int(n_heads.min()), int(n_heads.max())
    for name, less, colour, label, align in (
        ("H", 0, style.UNCENTRED, "cap: number of heads H", "bottom"),
        ("H − 1", 1, style.CENTRED, "cap, centred: H − 1", "top"),
    ):
        ax.plot(edges, np.repeat(n_heads - less, 2), "--", color=colour, linewidth=1.1, label=label)
        text = f"{name} = {low - less}" + (f" to {high - less}" if high > low else "")
        place = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
        # One label above its line, one below: with many heads the lines lie closer than a line of text.
        ax.annotate(text, (1.0, n_heads[-1] - less), color=colour, fontsize=8, va=align, ha="left", **place)


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Limits around all that is drawn, not from zero: ranks near the cap must be told apart."""
    drawn = rows[list(NUMBER_COLUMNS)].to_numpy()
    values = np.concatenate([drawn.ravel(), rows["n_heads"].to_numpy() - 1])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    span = max(high - low, 0.5)
    below = 0.16 if style.degenerate(rows).any() else 0.08  # room for the marks
    return max(low - below * span, -0.1 * span), high + 0.08 * span


def _set_limits(panels: list[Axes], limits: list[tuple[float, float]]) -> bool:
    """Set each panel's limits, the same for those that a caller made share them; say if each has its own."""
    own_scales = len(panels) > 1
    for ax in panels:
        joined = [own for other, own in zip(panels, limits, strict=True) if _share_y(ax, other)]
        ax.set_ylim(min(low for low, _ in joined), max(high for _, high in joined))
        own_scales &= len(joined) == 1
    return own_scales


def _share_y(ax: Axes, other: Axes) -> bool:
    return ax is other or other in ax.get_shared_y_axes().get_siblings(ax)


def _layer_ticks(layers: np.ndarray) -> np.ndarray:
    first, last = int(layers.min()), int(layers.max())
    if len(layers) == 1 or np.diff(layers).min() * MAX_LAYER_TICKS >= last - first:
        return layers
    strides = (scale * step for scale in (1, 10, 100, 1000) for step in (1, 2, 5))
    stride = next(step for step in strides if last // step - math.ceil(first / step) < MAX_LAYER_TICKS)
    return np.arange(math.ceil(first / stride) * stride, last + 1, stride)


def _note(rows: pd.DataFrame, *, own_scales: bool) -> str:
    notes = []
    if rows[list(NULL_COLUMNS)].isna().to_numpy().all():
        notes.append("The table has no null.")
    if own_scales:
        notes.append("Each panel has its own vertical scale.")
    return " ".join(notes)
