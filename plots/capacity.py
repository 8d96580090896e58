"""Cache against rank and heads, and a paper's losses against the cache of its settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from . import style
from .labels import name_points
from .panels import OnAxes, as_drawn, figure_of, given_panels, new_panels
from .variants import VARIANTS, display_name, tint

HEADS = (4, 8, 64)
SHARES = (1 / 16, 1 / 4, 1 / 2)
MARGIN = 1.16
"""Room for names right of the ends, in ranks."""
TOP = 132
"""Percent: a little above four heads at full rank."""
KEY = "dotted: caches of the other models · tick: rank padded for kernels"
MODEL_COLUMNS = ("model", "variant", "n_heads", "d_head", "setting", "value", "cache_pct_mha", "cache_physical_pct_mha")
LOSS_COLUMNS = ("size", "model", "loss", "cache_pct_mha", "series")


def cache_against_rank(models: pd.DataFrame, *, ax: OnAxes = None) -> np.ndarray:
    """Draw LRKV's cache as a share of MHA's: left against the rank, right against the number of heads.

    ``1 / H + r / d_head``: the rank sets the slope, the heads the intercept. The models of a budget stand in both
    panels: LRKV as points (a tick above: with its rank padded), the others as the level of their cache.

    Parameters
    ----------
    models
        One row a model. Used are `model`, `variant`, `n_heads`, `d_head`, `setting`, `value`, `cache_pct_mha` and
        `cache_physical_pct_mha` (percent).
    ax
        Two axes to draw on. A new figure where not given. Names are placed for the layout that the figure has then.

    Returns
    -------
    numpy.ndarray
        The two panels.

    Raises
    ------
    ValueError
        If a column is missing, there is no model, or the number of axes is not two.

    Examples
    --------
    >>> import pandas as pd
    >>> row = {"model": "lrkv", "variant": "lrkv", "n_heads": 18, "d_head": 128, "setting": "rank", "value": 55}
    >>> models = pd.DataFrame([row | {"cache_pct_mha": 48.52, "cache_physical_pct_mha": 49.31}])
    >>> [ax.get_xlabel() for ax in cache_against_rank(models)]
    ['rank r', 'heads H']
    """
    style.require(models, MODEL_COLUMNS, row="model")
    rows = models.to_dict("records")
    width, heads = int(rows[0]["d_head"]), int(rows[0]["n_heads"])
    title = f"Cache of LRKV as a share of MHA's: 1/H + r/d_head, heads {width} wide"
    if ax is None:
        left, right = new_panels(2, columns=2, size=(10.4, 4.9), title=title)
        figure_of(left).supxlabel(KEY, fontsize=9)
        right.tick_params(labelleft=False)  # the scale is the left one's
    else:
        left, right = given_panels(ax, 2, "of rank and heads")
        left.set_title(title, fontsize=9, loc="left", wrap=True)
    _against_rank(left, width, heads)
    ranks = [int(row["value"]) for row in rows if row["variant"] == "lrkv"]
    _against_heads(right, width, heads, ranks)
    if ax is not None:
        right.set_xlabel(f"{right.get_xlabel()}\n{KEY}")
    places = {left: [], right: []}
    for row in rows:
        for panel, x in ((left, row["value"]), (right, row["n_heads"])):
            places[panel] += [_point(panel, row, x)] if row["variant"] == "lrkv" else []
            if row["variant"] != "lrkv":
                _level(panel, row, 1 / MARGIN if panel is left else 1.0)
    for panel in (left, right):
        panel.set_ylim(0, TOP)
        panel.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("cache (% of MHA's, same heads)")
    _name_levels(right, rows)
    figure_of(left).draw_without_rendering()
    for panel, points in places.items():
        name_points(panel, points)
    return np.array([left, right], dtype=object)


def _against_rank(ax: Axes, width: int, heads: int) -> None:
    lowest = 0.0
    # A line beside the models' own could not be told from it.
    others = {count for count in HEADS if not 2 / 3 < count / heads < 3 / 2}
    for count in sorted({*others, heads}, reverse=True):
        own = count == heads
        share = [100 / count, 100 / count + 100]
        ax.plot([0, width], share, color="0.1" if own else "0.65", linewidth=1.6 if own else 0.9, label=f"H = {count}")
        # The ends of many heads lie close together: names keep a line's height apart.
        y = max(share[1], lowest)
        lowest = y + 5
        name = {"fontsize": 9, "color": "0.1" if own else "0.45", "va": "center"}
        ax.text(1.02 * width, y, f"H = {count}", **name)
    ax.set_xlim(0, MARGIN * width)
    ax.set_xticks(np.linspace(0, width, 5))
    ax.set_xlabel("rank r")


def _against_heads(ax: Axes, width: int, heads: int, ranks: list[int]) -> None:
    counts = np.geomspace(2, 128, 200)
    for rank in sorted({*(round(share * width) for share in SHARES), *ranks}):
        own = rank in ranks
        ax.plot(
            counts,
            100 * (1 / counts + rank / width),
            color="0.1" if own else "0.65",
            linewidth=1.6 if own else 0.9,
            label=f"r = {rank}",
        )
        name = {"fontsize": 9, "color": "0.1" if own else "0.45", "va": "center"}
        ax.text(counts[-1] * 1.04, 100 * (1 / counts[-1] + rank / width), f"r = {rank}", **name)
    ax.set_xscale("log", base=2)
    ax.set_xlim(2, 128)
    ticks = [2, 4, 8, 16, 32, 64, 128]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    ax.axvline(heads, color="0.85", linewidth=0.9, zorder=0)
    ax.set_xlabel("heads H")


def _point(ax: Axes, row: dict[str, Any], x: float) -> tuple[float, float, str, str]:
    colour, marker, size = VARIANTS["lrkv"]
    logical, physical = row["cache_pct_mha"], row["cache_physical_pct_mha"]
    if physical != logical:
        ax.plot(
            [x, x], [logical, physical], color=colour, linewidth=0.9, marker="_", markersize=11, markevery=[1], zorder=5
        )
    ax.plot(
        x,
        logical,
        linestyle="none",
        marker=marker,
        markersize=size,
        markerfacecolor=tint(colour),
        markeredgecolor=colour,
        zorder=4,
    )
    return x, logical, f"{row['model']}: {logical:.1f} %", colour


def _level(ax: Axes, row: dict[str, Any], ends: float) -> None:
    ax.axhline(
        row["cache_pct_mha"], xmax=ends, color=VARIANTS[row["variant"]][0], linewidth=1.1, linestyle=":", zorder=1
    )


def _name_levels(ax: Axes, rows: list[dict[str, Any]]) -> None:
    """Name the levels inside the right panel, where curves leave room; names keep a line's height apart."""
    levels = sorted((row for row in rows if row["variant"] != "lrkv"), key=lambda row: row["cache_pct_mha"])
    lowest = 0.0
    for row in levels:
        y = max(row["cache_pct_mha"], lowest)
        lowest = y + 4.5
        name = f"{row['model']} {row['cache_pct_mha']:.1f} %"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
        text = ax.text(2.1, y, name, fontsize=8.5, color=VARIANTS[row["variant"]][0], va="center", bbox=box)
        text.set_zorder(5)


def paper_loss(losses: pd.DataFrame, *, ax: OnAxes = None) -> Axes | np.ndarray:
    """Draw printed losses against the cache of the printed settings, one panel a size.

    Parameters
    ----------
    losses
        One row a model: `size`, `model`, `loss` (nats a token), `cache_pct_mha` (percent), `series`. Rows of a series
        ``"rank ablation"`` are joined by a line.
    ax
        Axes to draw on, one for each size. A new figure where not given. Names are placed for the layout that the
        figure has then.

    Returns
    -------
    matplotlib.axes.Axes or numpy.ndarray
        The panel, or an array of several, in the order in which sizes come.

    Raises
    ------
    ValueError
        If a column is missing, there is no row, or the number of axes is not the number of sizes.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [("1B", "mha", 2.5, 100.0, "table"), ("1B", "lrkv", 2.4, 48.5, "table")]
    >>> ax = paper_loss(pd.DataFrame(rows, columns=["size", "model", "loss", "cache_pct_mha", "series"]))
    >>> [text.get_text() for text in ax.texts]
    ['MHA', 'LRKV']
    """
    style.require(losses, LOSS_COLUMNS, row="model")
    sizes = list(dict.fromkeys(losses["size"]))
    panels = _new(len(sizes)) if ax is None else given_panels(ax, len(sizes), "size")
    drawn = [(panel, pd.DataFrame(losses[losses["size"] == size])) for panel, size in zip(panels, sizes, strict=True)]
    for panel, here in drawn:
        _loss_panel(panel, here)
    note = "line: LRKV at ranks 8 to 128 (Table 8) · " if "rank ablation" in set(losses["series"]) else ""
    note += "one run a model: the paper gives no spread over seeds"
    if ax is None:
        figure_of(panels[0]).supxlabel(note, fontsize=9)
    else:
        panels[-1].set_xlabel(f"{panels[-1].get_xlabel()}\n{note}")
    figure_of(panels[0]).draw_without_rendering()
    for panel, here in drawn:
        named = [row for row in here.to_dict("records") if row["series"] != "rank ablation"]
        joined = [row for row in here.to_dict("records") if row["series"] == "rank ablation"]
        points = [(r["cache_pct_mha"], r["loss"], display_name(r["model"]), VARIANTS[_variant(r)][0]) for r in named]
        points += [
            (r["cache_pct_mha"], r["loss"], r["model"].split("-")[1].replace("r", "r "), VARIANTS["lrkv"][0])
            for r in joined
        ]
        name_points(panel, points)
    return as_drawn(panels)


def _new(n_panels: int) -> list[Axes]:
    columns = min(2, n_panels)
    size = (5.2 * columns, 3.3 * math.ceil(n_panels / columns) + 1.0)
    title = "Loss that the LRKV paper prints against the cache of its settings"
    return new_panels(n_panels, columns=columns, size=size, title=title)


def _variant(row: dict[str, Any]) -> str:
    return str(row["model"]).split("-")[0]


def _loss_panel(ax: Axes, here: pd.DataFrame) -> None:
    rows = here.to_dict("records")
    joined = [row for row in rows if row["series"] == "rank ablation"]
    if joined:
        x, y = ([row[name] for row in joined] for name in ("cache_pct_mha", "loss"))
        for index in range(len(x) - 1):  # piece by piece, so that names know where the line is not
            ax.plot(x[index : index + 2], y[index : index + 2], color=VARIANTS["lrkv"][0], linewidth=0.9)
        ax.plot(x, y, color=VARIANTS["lrkv"][0], linestyle="none", marker="o", markersize=3.6, label="rank ablation")
    for row in rows:
        if row["series"] == "rank ablation":
            continue
        colour, marker, size = VARIANTS[_variant(row)]
        shape = {"marker": marker, "markersize": size, "markerfacecolor": tint(colour), "markeredgecolor": colour}
        ax.plot(row["cache_pct_mha"], row["loss"], linestyle="none", zorder=4, label=row["model"], **shape)
    ax.set_title(str(rows[0]["size"]), fontsize=11)
    ax.set_xscale("log", base=2)
    low, high = min(row["cache_pct_mha"] for row in rows), max(row["cache_pct_mha"] for row in rows)
    ax.set_xlim(low / 1.35, high * 1.6)
    ax.margins(y=0.16)
    ticks = [100 / 2**power for power in range(7) if low / 1.35 <= 100 / 2**power]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda size, _: f"{size:.4g}")
    ax.set_xlabel("cache (% of MHA's)")
    ax.set_ylabel("test loss (nats a token)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
