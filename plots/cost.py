"""Loss against the size of the cache, one point a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.legend_handler import HandlerLine2D
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator
from scipy import stats

from . import style
from .labels import name_points
from .panels import OnAxes, add_legend, as_drawn, figure_of, given_panels, new_panels
from .variants import VARIANTS, Look, display_name, looks, tint, variant_of

COLUMNS = ("model", "control", "seed", "loss", "cache_bytes", "cache_bytes_physical")
CONTROLS = {"backbone": "same backbone", "parameters": "same parameters"}

NEUTRAL = "0.35"

CONFIDENCE = 0.95
# A bar this many times the span of all dots does not set the scale: that of two seeds is 12.7 times their distance.
LONGEST_BAR = 3.0
MAX_CACHE_TICKS = 8
PANEL_INCHES = (4.8, 3.9)


def loss_against_cache(runs: pd.DataFrame, *, ax: OnAxes = None) -> Axes | np.ndarray:
    """Draw test loss against cache size, one panel for each control.

    Small dots are runs; a larger marker with a vertical bar is the mean over a model's seeds with its 95 %
    t-interval (no bar for one seed). A thin horizontal line leads from the cache as stored to the cache with ranks
    padded for kernels, where the two differ. Panels share both axes. The vertical scale follows all of this, except
    that a bar longer than three times the span of all dots is cut off; it ends in arrows and the figure says so.

    Parameters
    ----------
    runs
        One row a run. Used are the columns `model` (such as "mha" or "lrkv-r4"), `control` (what the models have in
        common, "backbone" or "parameters"; a run that belongs to both has a row for each), `seed`, `loss` (test
        cross-entropy, nats a token), `cache_bytes` (bytes a token over all layers) and `cache_bytes_physical`
        (the same with ranks padded for kernels).
    ax
        Axes to draw on, one for each control. A new figure where not given. Models' names are placed for the layout
        that the figure has when they are drawn.

    Returns
    -------
    matplotlib.axes.Axes or numpy.ndarray
        The panel, or an array of both, "same backbone" first.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, a loss is not finite, a cache is not positive or differs between
        the seeds of a model, a control is unknown, a (model, control, seed) appears twice, or the number of axes is
        not the number of panels.

    Examples
    --------
    >>> import pandas as pd
    >>> runs = pd.DataFrame({"model": ["mha", "mqa"], "control": "backbone", "seed": 0, "loss": [2.62, 2.71]})
    >>> runs["cache_bytes"] = runs["cache_bytes_physical"] = [2048, 256]
    >>> [text.get_text() for text in loss_against_cache(runs).texts]
    ['MHA', 'MQA']
    """
    rows = _checked(runs)
    look_of = looks(rows["model"])
    by_control = _by_control(rows)
    points = {control: _points(here) for control, here in by_control.items()}
    every = [point for panel in points.values() for point in panel]
    limits = _loss_limits(every)
    panels = _new(len(points)) if ax is None else given_panels(ax, len(points), "control")
    for panel, control in zip(panels, points, strict=True):
        panel.set_ylim(limits)
        _scale_cache(panel, every)
        panel.set_title(CONTROLS[control], fontsize=11)
        _finish(panel)
        # The longest bar first: where two models have the same cache, the shorter lies on the longer.
        for point in sorted(points[control], key=lambda point: -point.length):
            _draw_point(panel, point, look_of[point.model])
    panels[0].set_ylabel("test loss (nats a token)")
    _add_legend(panels, every, _notes(by_control, every, *limits), own=ax is None)
    # Labels are placed by what is drawn where, which is known only once the panels have their places.
    figure_of(panels[0]).draw_without_rendering()
    for panel, control in zip(panels, points, strict=True):
        name_points(panel, [(p.cache, p.mean, display_name(p.model), look_of[p.model][0]) for p in points[control]])
    return as_drawn(panels)


def _new(n_panels: int) -> list[Axes]:
    width, height = PANEL_INCHES
    # Below the panels stand the legend and its notes, above them the title: about an inch and a half.
    size = (max(6.4, width * n_panels), height + 1.5)
    panels = new_panels(n_panels, columns=n_panels, size=size, title="Loss against cache", shared=True)
    for panel in panels[1:]:
        panel.tick_params(labelleft=False)
    return panels


@dataclass(frozen=True)
class _Point:
    """The runs of a model under one control; `half` is half the interval, NaN for one seed."""

    model: str
    losses: np.ndarray
    mean: float
    half: float
    cache: float
    physical: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.mean - self.half, self.mean + self.half

    @property
    def length(self) -> float:
        """Length of the bar: zero for one seed."""
        return 0.0 if math.isnan(self.half) else 2 * self.half

    def cut_off(self, low: float, high: float) -> bool:
        """Whether the interval goes on beyond limits (never for one seed)."""
        return self.interval[0] < low or self.interval[1] > high


def _checked(runs: pd.DataFrame) -> pd.DataFrame:
    """Check the table; return the columns that are used, with numbers as floats."""
    style.require(runs, COLUMNS, row="run")
    rows = runs.loc[:, list(COLUMNS)].astype({column: float for column in COLUMNS[3:]})
    _refuse(rows, ~np.isfinite(rows["loss"]), "the loss of model {model!r}, seed {seed} is {loss}: leave the run out")
    unknown = ~rows["control"].isin(list(CONTROLS))
    expected = " or ".join(CONTROLS)
    _refuse(rows, unknown, f"control should be {expected} but model {{model!r}} has {{control!r}}")
    for column in ("cache_bytes", "cache_bytes_physical"):
        not_positive = ~(np.isfinite(rows[column]) & (rows[column] > 0))
        named = f"{column} of model {{model!r}}"
        _refuse(rows, not_positive, f"{named} should be positive but seed {{seed}} has {{{column}}}")
        differs = rows.groupby(["model", "control"])[column].transform("nunique") > 1
        _refuse(rows, differs, f"{named}, control {{control!r}}, differs between its seeds")
    twice = rows.duplicated(["model", "control", "seed"])
    _refuse(rows, twice, "model {model!r}, control {control!r}, seed {seed} appears more than once")
    return rows


def _refuse(rows: pd.DataFrame, wrong: pd.Series, message: str) -> None:
    """Raise a message about the first wrong row, if there is one."""
    if wrong.any():
        raise ValueError(message.format(**rows[wrong].iloc[0].to_dict()))


def _by_control(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    panels = {control: pd.DataFrame(rows[rows["control"] == control]) for control in CONTROLS}
    return {control: here for control, here in panels.items() if len(here)}


def _points(rows: pd.DataFrame) -> list[_Point]:
    """Summarise each model: variants in their fixed order, then by cache."""
    points = []
    for model, here in rows.groupby("model", sort=False):
        losses = here["loss"].to_numpy()
        n = len(losses)
        half = math.nan
        if n > 1:
            half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * losses.std(ddof=1) / math.sqrt(n))
        sizes = (float(here[column].iloc[0]) for column in ("cache_bytes", "cache_bytes_physical"))
        points.append(_Point(str(model), losses, float(losses.mean()), half, *sizes))
    order = list(VARIANTS)
    ranks = {point.model: (*order, variant_of(point.model)).index(variant_of(point.model)) for point in points}
    return sorted(points, key=lambda point: (ranks[point.model], point.cache))


def _loss_limits(points: Sequence[_Point]) -> tuple[float, float]:
    """Limits around dots and bars, but for bars so long that the dots could not be told apart."""
    losses = np.concatenate([point.losses for point in points])
    spread = float(np.ptp(losses))
    ends = [end for point in points if 0 < point.length <= LONGEST_BAR * spread for end in point.interval]
    drawn = np.concatenate([losses, ends])
    low, high = float(drawn.min()), float(drawn.max())
    # A single loss has no span: show it to about a hundredth.
    margin = 0.08 * (high - low) or 0.01
    return low - margin, high + margin


def _scale_cache(ax: Axes, points: Sequence[_Point]) -> None:
    sizes = np.log2([[point.cache, point.physical] for point in points])
    low, high = float(sizes.min()), float(sizes.max())
    # Room for labels beside the outermost models; at least two octaves, so that two powers of two are ticks.
    margin = max(0.09 * (high - low), 0.4, 1 - (high - low) / 2)
    ax.set_xscale("log", base=2)
    ax.set_xlim(2 ** (low - margin), 2 ** (high + margin))
    exponents = np.arange(math.ceil(low - margin), math.floor(high + margin) + 1)
    ticks = 2.0 ** exponents[:: math.ceil(len(exponents) / MAX_CACHE_TICKS)]
    ax.xaxis.set_major_locator(FixedLocator(ticks.tolist()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda size, _: f"{size:,.10g}")


def _finish(ax: Axes) -> None:
    ax.set_xlabel("cache (bytes a token, all layers)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)


def _draw_point(ax: Axes, point: _Point, look: Look) -> None:
    colour, marker, size = look
    name = display_name(point.model)
    if point.physical != point.cache:
        padded: dict[str, Any] = {"linewidth": 0.9, "marker": "|", "markersize": 7, "markevery": [1]}
        sizes = [point.cache, point.physical]
        ax.plot(sizes, [point.mean] * 2, color=colour, label=f"{name}: padded cache", zorder=2.5, **padded)
    if point.length:
        _draw_bar(ax, point, colour, f"{name}: interval")
    shape = {"marker": marker, "markersize": size, "markerfacecolor": tint(colour), "markeredgecolor": colour}
    ax.plot(point.cache, point.mean, linestyle="none", label=f"{name}: mean", zorder=4, **shape)
    dots = {"marker": "o", "markersize": 3.6, "markeredgecolor": "white", "markeredgewidth": 0.5}
    caches = np.full(len(point.losses), point.cache)
    ax.plot(caches, point.losses, linestyle="none", color=colour, label=f"{name}: runs", zorder=5, **dots)


def _draw_bar(ax: Axes, point: _Point, colour: str, label: str) -> None:
    """Draw the interval as far as the panel goes: a cap at an end that is there, an arrow at one that is cut off."""
    low, high = ax.get_ylim()
    ends = max(point.interval[0], low), min(point.interval[1], high)
    there = [index for index in (0, 1) if ends[index] == point.interval[index]]
    cap: dict[str, Any] = {"marker": "_", "markersize": 9, "markeredgewidth": 1.5, "markevery": there}
    ax.plot([point.cache] * 2, ends, color=colour, linewidth=1.5, label=label, zorder=3, solid_capstyle="butt", **cap)
    for index in {0, 1} - set(there):
        arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
        place = {"xytext": (0, (12, -12)[index]), "textcoords": "offset points"}
        ax.annotate("", (point.cache, ends[index]), arrowprops=arrow, zorder=3, **place)


def _notes(panels: dict[str, pd.DataFrame], points: Sequence[_Point], low: float, high: float) -> list[str]:
    notes = []
    runs = [set(zip(here["model"], here["seed"], here["loss"], strict=True)) for here in panels.values()]
    if len(runs) > 1 and (shared := sorted({display_name(model) for model, _, _ in set.intersection(*runs)})):
        notes.append(f"In both panels are the same runs of {', '.join(shared)}.")
    if any(point.cut_off(low, high) for point in points):
        notes.append("Bars that end in an arrow are cut off: their intervals go on beyond the panel.")
    if len({len(point.losses) > 1 for point in points}) > 1:
        notes.append("A model without a bar has one seed.")
    return notes


def _add_legend(panels: Sequence[Axes], points: Sequence[_Point], notes: Sequence[str], *, own: bool) -> None:
    """Say below the panels what dots, bars and thin lines are, in no model's colour."""
    shape: dict[str, Any] = {"color": NEUTRAL, "linestyle": "none"}
    dot = Line2D([], [], marker="o", markersize=3.6, **shape)
    mean = Line2D([], [], marker="s", markersize=8, markerfacecolor=tint(NEUTRAL), **shape)
    bar = Line2D([], [], marker="|", markersize=18, markeredgewidth=1.5, **shape)
    counts = sorted({len(point.losses) for point in points if len(point.losses) > 1})
    entries: list[tuple[Any, str]] = [(dot, "one run (seed)")]
    if counts:
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        entries.append(((bar, mean), f"mean and {100 * CONFIDENCE:.0f} % t-interval over {seeds} seeds"))
    else:
        entries.append((mean, "mean (of one seed: no interval)"))
    if any(point.physical != point.cache for point in points):
        tick = Line2D([], [], color=NEUTRAL, linewidth=0.9, marker="|", markersize=7)
        entries.append((tick, "line to the tick: cache with ranks padded for kernels"))
    handlers = {handle: HandlerLine2D(numpoints=2, update_func=_tick_at_end) for handle, _ in entries[2:]}
    columns = len(entries) if figure_of(panels[0]).get_figwidth() > 7 or len(entries) < 3 else 1
    named = {label: handle for handle, label in entries}
    add_legend(panels, named, "\n".join(notes), own=own, ncols=columns, handler_map=handlers)


def _tick_at_end(legend_line: Any, line: Any) -> None:
    """Copy a line into the legend, which forgets which of its points have the marker."""
    legend_line.update_from(line)
    legend_line.set_markevery([1])
