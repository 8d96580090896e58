"""What heads looked at while tokens were generated: maps of heads and steps, and of heads and positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from . import style
from .maps import SEQUENTIAL, every, heat_map, name_cells
from .panels import OnAxes, panels_for

MAX_NAMED_HEADS = 48
MAX_NAMES = 60
PAGE_ROWS = 640
"""Heads on a page: at 150 dots an inch each is still some four dots high."""
MAX_STEPS = 600
"""Columns that a map of steps has; more are drawn as means over several."""
LOOKED = "mako_r"  # from nearly white to nearly black, so that a weight near zero is nearly nothing

Heads = Sequence[tuple[int, int]]


def head_pages(heads: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Deal layers out to as few pages as hold all their heads at a legible height, evenly.

    Parameters
    ----------
    heads
        (layer, head) of every row that there is to draw.

    Returns
    -------
    list[list[int]]
        The layers of each page, for the `layers` of `step_map` and `looked_map`.

    Examples
    --------
    >>> head_pages((layer, head) for layer in range(7) for head in range(128))
    [[0, 1, 2, 3], [4, 5, 6]]
    """
    counts: dict[int, int] = {}
    for layer, _ in sorted(set(heads)):
        counts[layer] = counts.get(layer, 0) + 1
    layers = list(counts)
    a_page = max(1, PAGE_ROWS // max(counts.values(), default=1))
    pages = math.ceil(len(layers) / a_page) or 1
    return [part.tolist() for part in np.array_split(np.array(layers, dtype=int), pages)]


def step_map(
    table: pd.DataFrame,
    column: str,
    *,
    label: str,
    tokens: Sequence[str],
    title: str = "",
    top: float | None = None,
    layers: Sequence[int] | None = None,
    ax: OnAxes = None,
) -> Axes:
    """Draw a value of every head at every step, heads down (layer by layer) and new tokens across.

    Every head is a row. Where there are too many to name each, the first of every layer, or of every so many, is named;
    more than 600 steps are drawn as means over as many as needed. The axes say both.

    Parameters
    ----------
    table
        One row per step, layer and head: `step`, `layer`, `head` and `column`.
    column
        What to draw.
    label
        What it is, with its unit.
    tokens
        Text of each step's token.
    title
        Over the figure.
    top
        Upper end of the scale, which begins at zero; None: the largest value in the table, drawn or not, so that pages
        have one scale.
    layers
        Layers to draw; None: all. `head_pages` deals them out.
    ax
        Axes to draw on, which gives room to the colour bar. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes
        The map; the colour bar is the figure's last axes.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty or has none of the layers, or `ax` holds several.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"step": [0, 0], "layer": [0, 0], "head": [0, 1], "entropy": [0.5, 1.5]})
    >>> ax = step_map(table, "entropy", label="entropy (nats)", tokens=["the"])
    >>> ax.figure.axes[-1].get_ylabel()
    'entropy (nats)'
    """
    style.require(table, ("step", "layer", "head", column), row="head")
    known = table[column].to_numpy(dtype=float)
    known = known[np.isfinite(known)]
    limit = top if top is not None else float(known.max()) if known.size and known.max() > 0 else 1.0
    grid = _of_layers(table, layers).pivot(index=["layer", "head"], columns="step", values=column)
    values, together = _fewer(grid.to_numpy(dtype=float))
    heads = _heads(grid)
    panel = _panel(ax, title, heads, table, values.shape[1])
    heat_map(panel, values, limits=(0.0, limit), label=label, cmap=SEQUENTIAL)
    _name_heads(panel, heads)
    said = f" (means of {together} steps)" if together > 1 else ""
    _name_tokens(panel, [tokens[int(step)] for step in grid.columns][::together], f"new token{said}", together)
    return panel


def looked_map(
    strongest: pd.DataFrame,
    tokens: Sequence[str],
    *,
    title: str = "",
    layers: Sequence[int] | None = None,
    ax: OnAxes = None,
) -> Axes:
    """Draw the strongest positions of every head at one step: heads down, and across the positions that are looked at.

    A position has a column if it is among the strongest of any head, at most 60 of them, those with most weight over
    all heads; what heads give to other positions among their strongest stands in a last column, so that nothing is
    lost. The axis says how many positions there are in all. A cell is white where the position is not among the head's
    strongest.

    Parameters
    ----------
    strongest
        One row a head and position: `layer`, `head`, `key_pos`, `weight`.
    tokens
        Text at each position.
    title
        Over the figure.
    layers
        Layers to draw; None: all. `head_pages` deals them out.
    ax
        Axes to draw on, which gives room to the colour bar. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes
        The map; the colour bar is the figure's last axes.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty or has none of the layers, or `ax` holds several.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"layer": [0], "head": [0], "key_pos": [1], "weight": [0.9]})
    >>> [label.get_text() for label in looked_map(rows, ["a", "b"]).get_xticklabels()]
    ['b 1']
    """
    style.require(strongest, ("layer", "head", "key_pos", "weight"), row="position")
    weight = pd.Series(strongest.groupby("key_pos")["weight"].sum()).sort_values(ascending=False, kind="stable")
    shown = sorted(weight.index[:MAX_NAMES])
    rows = _of_layers(strongest, layers)
    # Behind the last position stands the sum of what is not shown.
    rows = rows.assign(column=rows["key_pos"].where(rows["key_pos"].isin(shown), len(tokens)))
    grid = rows.pivot_table(index=["layer", "head"], columns="column", values="weight", aggfunc="sum")
    left_out = len(weight) - len(shown)
    grid = grid.reindex(columns=[*shown, len(tokens)] if left_out else shown)
    heads = _heads(grid)
    panel = _panel(ax, title, heads, strongest, grid.shape[1])
    values = grid.to_numpy(dtype=float)
    heat_map(panel, values, limits=(0.0, 1.0), label="attention weight", cmap=LOOKED, hatched=False)
    _name_heads(panel, heads)
    if len(heads) <= MAX_NAMED_HEADS:  # lines to follow a head along
        panel.hlines(np.arange(1, len(heads)), 0, grid.shape[1], color="0.85", linewidth=0.6, zorder=0)
    if left_out:
        panel.axvline(len(shown), color="0.35", linewidth=0.5)
    names = [f"{visible(str(tokens[int(place)]))} {place}" for place in shown] + [f"{left_out} others"] * bool(left_out)
    name_cells(panel.xaxis, names, len(names), fontsize=7, rotation=90, family="monospace")
    panel.set_xlabel(_looked_label(len(shown), left_out, len(tokens)))
    return panel


def _looked_label(shown: int, left_out: int, total: int) -> str:
    if left_out:
        return f"the {shown} positions with most weight of {shown + left_out} that are looked at, of {total}"
    return "position" if shown == total else f"the {shown} positions of {total} that are among a head's strongest"


def _of_layers(table: pd.DataFrame, layers: Sequence[int] | None) -> pd.DataFrame:
    if layers is None:
        return table
    found = pd.DataFrame(table[table["layer"].isin(list(layers))])
    if found.empty:
        raise ValueError(f"the table has none of the layers {list(layers)}: it has {sorted(set(table['layer']))}")
    return found


def _heads(grid: pd.DataFrame) -> list[tuple[int, int]]:
    return [(int(layer), int(head)) for layer, head in grid.index]


def _fewer(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Average columns, as many together as it takes to have at most `MAX_STEPS`; return also how many that is."""
    together = math.ceil(values.shape[1] / MAX_STEPS)
    if together == 1:
        return values, 1
    edges = np.arange(0, values.shape[1], together)
    known = np.isfinite(values)
    sums, counts = (np.add.reduceat(part, edges, axis=1) for part in (np.where(known, values, 0.0), known.astype(int)))
    return np.where(counts > 0, sums / np.maximum(counts, 1), math.nan), together


def _panel(ax: OnAxes, title: str, heads: Heads, table: pd.DataFrame, columns: int) -> Axes:
    """Make a figure, or take the caller's axes; the title says which layers, where these are not all."""
    here, there = sorted({layer for layer, _ in heads}), sorted(set(table["layer"].astype(int)))
    if here != there:
        some = f"layers {here[0]}–{here[-1]}" if len(here) > 1 else f"layer {here[0]}"
        title = f"{title} ({some} of {there[0]}–{there[-1]})".strip()
    size = min(max(6.0, 0.2 * columns + 2.6), 18), min(max(3.2, 0.19 * len(heads) + 2.2), 18)
    return panels_for(ax, 1, "map", columns=1, size=size, title=title)[0]


def _name_heads(ax: Axes, heads: Heads) -> None:
    """Name every head, or the first of every so many layers where there are too many, and draw lines between layers."""
    firsts = [i for i, head in enumerate(heads) if i == 0 or head[0] != heads[i - 1][0]]
    for edge in firsts[1:]:
        ax.axhline(edge, color="white", linewidth=1.4)
        ax.axhline(edge, color="0.35", linewidth=0.5)
    if len(heads) <= MAX_NAMED_HEADS:
        name_cells(ax.yaxis, [f"L{layer}H{head}" for layer, head in heads], len(heads), fontsize=7, rotation=0)
        ax.set_ylabel("head")
        return
    stride = math.ceil(len(firsts) / MAX_NAMED_HEADS)
    places = firsts[::stride]
    ax.set_yticks([place + 0.5 for place in places], [f"L{heads[i][0]}H{heads[i][1]}" for i in places], fontsize=7)
    which = "each layer" if stride == 1 else f"every {stride} layers"
    ax.set_ylabel(f"head, a row each; the first of {which} is named")


def _name_tokens(ax: Axes, tokens: Sequence[str], what: str, together: int) -> None:
    """Write tokens under their columns, or every so many's number where there are too many."""
    if len(tokens) <= MAX_NAMES and together == 1:
        texts = [visible(token) for token in tokens]
        name_cells(ax.xaxis, texts, MAX_NAMES, fontsize=7, rotation=90, family="monospace")
        ax.set_xlabel(what)
        return
    numbers = [str(place * together) for place in range(len(tokens))]
    stride = name_cells(ax.xaxis, numbers, MAX_NAMES, fontsize=7, rotation=90)
    ax.set_xlabel(f"number of the {what}{every(stride * together)}")


def visible(token: str) -> str:
    """Return a token's text with its white space to be seen, and no character that a font takes for a formula."""
    shown = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return style.no_formula(shown if len(shown) <= 14 else f"{shown[:13]}…")
