"""Effective rank over the saved steps of a training run, beside its loss and its induction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.optimize import isotonic_regression

from . import style
from .panels import OnAxes, add_legend, as_drawn, figure_of, given_panels, legend_entries, new_panels

UNCENTRED_COLUMNS = ("erank", "null_mean", "null_low", "null_high")
CENTRED_COLUMNS = ("erank_centred", "null_centred_mean")
RANK_COLUMNS = (*UNCENTRED_COLUMNS, *CENTRED_COLUMNS)
NULL_COLUMNS = ("null_mean", "null_low", "null_high", "null_centred_mean")
COLUMNS = ("step", "layer", "circuit", "part", "n_heads", *RANK_COLUMNS, "status")
LOG_COLUMNS = ("step", "validation_loss", "induction")

# Two more of Okabe and Ito's colours: what the log says is no rank.
LOSS, INDUCTION = "#009E73", "#CC79A7"

PANEL_INCHES = (4.6, 3.2)
MAX_COLUMNS = 3
HIGHEST = 102.0  # per cent: a marker at the cap is seen whole

MAX_LABELLED_LAYERS = 6
LABEL_POINTS = 7
# The least height of a panel's data area, and of a line of text in it.
AXES_POINTS, LINE_POINTS = 160.0, 8.5

MEANS: dict[str, dict[str, Any]] = {
    "erank": {"color": style.UNCENTRED, "marker": "o", "label": "uncentred (% of H): mean over layers"},
    "erank_centred": {"color": style.CENTRED, "marker": "s", "label": "centred (% of H − 1): mean over layers"},
}
EACH = {"erank": "uncentred: each layer", "erank_centred": "centred: each layer"}


def over_training(table: pd.DataFrame, log: pd.DataFrame | None = None, *, ax: OnAxes = None) -> Axes | np.ndarray:
    """Draw how the effective rank of the heads moves over the saved steps of a training run.

    There is one panel for each (circuit, part). Each rank is in per cent of its own cap, `H` heads uncentred and
    `H - 1` centred, so that both can be compared. Thick lines are means over the layers that have a value, thin ones
    the layers, named at their end where there are at most six. The null's means are thick grey lines and its range
    (uncentred) a grey band. A step at which the status of a layer is not "ok", or at which a layer lacks a value, is
    marked with a cross at the bottom of its panel.

    Parameters
    ----------
    table
        The run's reports, one row for each saved step, layer, circuit and part. Used are the columns `step`,
        `layer`, `circuit`, `part`, `n_heads`, `erank`, `erank_centred`, `null_mean`, `null_low`, `null_high`,
        `null_centred_mean` (all four null columns may be missing values; the null is one for all steps) and `status`.
        Ranks are in heads.
    log
        The run's log, one row a logged step: `step`, `validation_loss` in nats per token and `induction`, the best
        head's score from 0 to 1, both missing where they were not measured. It has the last panel; a curve without
        any value is left out, and so is the panel without a curve.
    ax
        Axes to draw on, one for each (circuit, part), then one for the log. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes or numpy.ndarray
        The panels (QK's parts, then OV's), then the log's; an array unless there is only one. Where the log has a
        right axis, that is the figure's last axes.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, a layer appears twice at a step of a panel, a number of heads
        is missing, or the number of axes is not the number of panels.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"step": [0, 100], "layer": 0, "circuit": "ov", "part": "all", "n_heads": 4})
    >>> table[["erank", "erank_centred", "status"]] = [[3.9, 2.9, "ok"], [3.1, 2.4, "ok"]]
    >>> table[["null_mean", "null_low", "null_high", "null_centred_mean"]] = None
    >>> log = pd.DataFrame({"step": [50, 100], "validation_loss": [4.1, 3.2], "induction": [None, 0.4]})
    >>> [ax.get_title() for ax in over_training(table, log)]
    ['OV', 'Validation loss and induction']
    """
    rows = _in_percent(_checked(table))
    curves = _log_curves(log)
    blocks = style.in_order(zip(rows["circuit"], rows["part"], strict=True))
    count = len(blocks) + bool(curves)
    each = "circuit and part" + (" and for the log" if curves else "")
    panels = _new(count) if ax is None else given_panels(ax, count, each)
    reasons = style.degenerate_label(rows)
    for panel, (circuit, part) in zip(panels, blocks, strict=False):
        _draw_panel(panel, rows.loc[(rows["circuit"] == circuit) & (rows["part"] == part)], reasons)
        panel.set_title(style.block_title(circuit, part), fontsize=11)
    right = _draw_log(panels[-1], curves) if curves else []
    _set_steps(panels, np.concatenate([rows["step"], *(curve.index for curve in curves.values())]))
    entries, note = legend_entries([*panels, *right]), _note(rows, n_panels=len(blocks))
    if ax is None:
        _make_room(figure_of(panels[0]), len(entries), note)
    add_legend(panels, entries, note, own=ax is None)
    return as_drawn(panels)


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    """Check the table; return the rows by step and layer, with numbers as floats (None becomes NaN)."""
    style.require(table, COLUMNS, row="step")
    twice = table[table.duplicated(["step", "layer", "circuit", "part"])]
    if len(twice):
        first = twice.iloc[0]
        raise ValueError(
            f"layer {first['layer']} appears more than once at step {first['step']} for circuit {first['circuit']!r}, "
            f"part {first['part']!r}: give the table of one run"
        )
    unknown = table["n_heads"].isna().to_numpy()
    if unknown.any():
        step, layer = table[["step", "layer"]].to_numpy()[unknown][0]
        raise ValueError(f"n_heads is missing for step {step}, layer {layer}")
    rows = table.loc[:, list(COLUMNS)].astype({column: float for column in ("n_heads", *RANK_COLUMNS)})
    rows["status"] = rows["status"].fillna("no status")
    return rows.sort_values(["step", "layer"], kind="stable")


def _in_percent(rows: pd.DataFrame) -> pd.DataFrame:
    """Turn heads into per cent of the cap of each row; a single head has no centred cap."""
    heads = rows["n_heads"]
    for columns, cap in ((UNCENTRED_COLUMNS, heads), (CENTRED_COLUMNS, (heads - 1).where(heads > 1))):
        rows[list(columns)] = 100 * rows[list(columns)].div(cap, axis=0)
    return rows


def _log_curves(log: pd.DataFrame | None) -> dict[str, pd.Series]:
    """Return the log's curves by name, each by step without its gaps; none that has no value."""
    if log is None or log.empty:
        return {}
    style.require(log, LOG_COLUMNS, name="log")
    numbers = log.loc[:, list(LOG_COLUMNS)].astype(float).sort_values("step", kind="stable").set_index("step")
    finite = {name: numbers.loc[np.isfinite(numbers[name]), name] for name in LOG_COLUMNS[1:]}
    return {name: curve for name, curve in finite.items() if len(curve)}


def _new(n_panels: int) -> list[Axes]:
    columns = 2 if n_panels == 4 else min(n_panels, MAX_COLUMNS)
    # The title takes half an inch; the legend needs some width.
    size = (max(6.4, PANEL_INCHES[0] * columns), PANEL_INCHES[1] * math.ceil(n_panels / columns) + 0.7)
    return new_panels(n_panels, columns=columns, size=size, title="Effective rank over training")


def _draw_panel(ax: Axes, rows: pd.DataFrame, reasons: str) -> None:
    ax.set_ylim(_limits(rows))
    _draw_ranks(ax, rows)
    _draw_null(ax, rows)
    if ax.get_ylim()[1] >= 100:
        ax.axhline(100, linestyle="--", color=style.MARK, linewidth=0.8, label="cap: 100 %", zorder=1.5)
    marked = np.unique(rows["step"].to_numpy()[style.degenerate(rows)])
    if len(marked):
        low = ax.get_xaxis_transform()  # x in steps, y as a fraction of the panel
        heights = np.full(len(marked), 0.04)
        ax.plot(marked, heights, "x", color=style.MARK, markersize=6, transform=low, label=reasons, zorder=4)
    ax.set_ylabel("effective rank (% of its cap)")
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_ranks(ax: Axes, rows: pd.DataFrame) -> None:
    ends = []
    named = len(np.unique(rows["layer"])) <= MAX_LABELLED_LAYERS
    for column, options in MEANS.items():
        layers = rows.pivot(index="step", columns="layer", values=column)
        steps = layers.index.to_numpy()
        size = 4.5 if len(steps) <= 40 else 2
        ax.plot(steps, layers.mean(axis=1), linewidth=2.2, markersize=size, zorder=3, **options)
        thin = {"color": options["color"], "linewidth": 0.8, "alpha": 0.45 if layers.shape[1] < 12 else 0.25}
        for layer in layers:
            values = layers[layer].to_numpy()
            alone = _isolated(values)
            # A line shows nothing of a value with no value beside it.
            dots = {"marker": ".", "markersize": 4, "markevery": alone.tolist()} if alone.any() else {}
            ax.plot(steps, values, label=EACH[column] + (" (L0, L1, …)" if named else ""), zorder=2.5, **thin, **dots)
            if np.isfinite(values[-1]):
                ends.append((values[-1], f"L{layer}", options["color"]))
    if named:
        _label_ends(ax, float(rows["step"].to_numpy().max()), ends)


def _isolated(values: np.ndarray) -> np.ndarray:
    finite = np.pad(np.isfinite(values), 1)
    return finite[1:-1] & ~finite[:-2] & ~finite[2:]


def _label_ends(ax: Axes, step: float, ends: list[tuple[float, str, str]]) -> None:
    """Name the lines right of their ends, moved apart as little as is needed, each with a dotted leader to its end."""
    if not ends:
        return
    ends = sorted(ends)
    low, high = ax.get_ylim()
    offsets = LINE_POINTS / AXES_POINTS * (high - low) * np.arange(len(ends))
    # Least squares under "each at least a line of text above the one before" is an isotonic regression.
    moved = isotonic_regression(np.array([value for value, _, _ in ends]) - offsets).x
    heights = np.clip(moved, low, high - offsets[-1]) + offsets
    leader = {"arrowstyle": "-", "color": style.NULL, "linewidth": 0.6, "linestyle": ":", "shrinkA": 0, "shrinkB": 0}
    for (value, text, colour), height in zip(ends, heights, strict=True):
        place = {"xy": (step, value), "xytext": (14, height), "textcoords": ("offset points", "data")}
        label = ax.annotate(text, color=colour, fontsize=LABEL_POINTS, va="center", arrowprops=leader, **place)
        # The null may lie behind a label: with a single step all labels are inside the panel.
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4})


def _draw_null(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the null over the whole width, since it is one for all steps; over layers, its mean and full range."""
    null = {column: rows[column].dropna().to_numpy() for column in NULL_COLUMNS}
    if null["null_low"].size and null["null_high"].size:
        band = {"color": style.NULL, "alpha": 0.25, "linewidth": 0}
        ax.axhspan(null["null_low"].min(), null["null_high"].max(), label="null: range, low to high", **band)
    for column, dash, label in (
        ("null_mean", "-", "null: mean"),
        ("null_centred_mean", (0, (1, 1)), "null: mean, centred"),
    ):
        if null[column].size:
            mean = null[column].mean()
            ax.axhline(mean, linestyle=dash, color=style.NULL, alpha=0.5, linewidth=3.5, label=label)


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Limits around all that is drawn, not from zero: ranks near the cap must be told apart."""
    drawn = rows[list(RANK_COLUMNS)].to_numpy()
    if np.isnan(drawn).all():
        return 0.0, HIGHEST
    low, high = float(np.nanmin(drawn)), float(np.nanmax(drawn))
    span = max(high - low, 1.0)
    below = 0.16 if style.degenerate(rows).any() else 0.08  # room for the marks
    # No rank passes its cap; should one do so all the same, it is to be seen.
    return max(low - below * span, -0.1 * span), max(high, min(high + 0.08 * span, HIGHEST))


def _draw_log(ax: Axes, curves: dict[str, pd.Series]) -> list[Axes]:
    """Draw the log's curves; return the right axis, if there is one."""
    names = {"validation_loss": "validation loss", "induction": "induction"}
    ax.set_title(" and ".join(names[name] for name in curves).capitalize(), fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)
    if "validation_loss" in curves:
        loss = curves["validation_loss"]
        dots = {"marker": "o", "markersize": 3 if len(loss) <= 40 else 0}
        ax.plot(loss.index, loss, color=LOSS, linewidth=1.6, label="validation loss (left axis)", **dots)
        _colour_axis(ax, "left", "validation loss (nats per token)", LOSS)
        ax.ticklabel_format(axis="y", useOffset=False)
    else:
        ax.yaxis.set_visible(False)
        ax.spines["left"].set_visible(False)
    if "induction" not in curves:
        return []
    right = ax.twinx()
    score = curves["induction"]
    # Unclipped: scores of nearly 0 or 1 lie on the edge.
    size = 3.5 if len(score) <= 40 else 0
    options = {"color": INDUCTION, "marker": "D", "markersize": size, "linewidth": 1.6, "clip_on": False}
    label = "best head's induction score (right axis)"
    right.plot(score.index, score, linestyle=(0, (4, 1.5)), label=label, **options)
    right.set_ylim(0, 1)
    right.spines[["top", "left"]].set_visible(False)
    _colour_axis(right, "right", "induction score of the best head", INDUCTION)
    return [right]


def _colour_axis(ax: Axes, side: str, label: str, colour: str) -> None:
    ax.set_ylabel(label, color=colour)
    ax.tick_params(axis="y", colors=colour)
    ax.spines[side].set_color(colour)


def _set_steps(panels: list[Axes], steps: np.ndarray) -> None:
    """Give all panels the same steps, so that they can be read across."""
    first, last = float(steps.min()), float(steps.max())
    margin = 0.03 * (last - first) or 1.0
    for ax in panels:
        ax.set_xlim(first - margin, last + margin)
        ax.set_xlabel("step")
        ax.ticklabel_format(axis="x", useOffset=False, style="plain")
        if first == last:
            ax.set_xticks([first])
        else:
            ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        ax.grid(axis="y", color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)


def _note(rows: pd.DataFrame, *, n_panels: int) -> str:
    notes = []
    if rows[list(NULL_COLUMNS)].isna().to_numpy().all():
        notes.append("The table has no null.")
    if rows[["erank", "erank_centred"]].isna().to_numpy().any():
        notes.append("Means leave out missing values.")
    if n_panels > 1:
        notes.append("Each panel has its own vertical scale.")
    return " ".join(notes)


def _make_room(figure: Figure, entries: int, note: str) -> None:
    """Let a page grow by the height of its legend."""
    lines = math.ceil(entries / (3 if figure.get_figwidth() > 7 else 2)) + bool(note)
    figure.set_figheight(figure.get_figheight() + 0.2 * lines)
