"""What heads looked at while tokens were generated: maps of heads and steps, and of heads and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from . import style

MAX_ROWS = 40
MAX_COLUMNS = 60
CMAP = "cividis"  # told apart with any of the common colour vision deficiencies, and in grey


def step_map(
    table: pd.DataFrame,
    column: str,
    *,
    label: str,
    tokens: Sequence[str],
    title: str = "",
    top: float | None = None,
) -> Figure:
    """Draw a value of every head at every step, heads down (layer by layer) and new tokens across.

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
        Upper end of the scale, which begins at zero; None: the largest value.

    Returns
    -------
    matplotlib.figure.Figure
        Its axes are the map and the colour bar.

    Raises
    ------
    ValueError
        If a column is missing, or the table is empty.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"step": [0, 0], "layer": [0, 0], "head": [0, 1], "entropy": [0.5, 1.5]})
    >>> figure = step_map(table, "entropy", label="entropy (nats)", tokens=["the"])
    >>> figure.axes[1].get_ylabel()
    'entropy (nats)'
    """
    style.require(table, ("step", "layer", "head", column), row="head")
    grid = table.pivot(index=["layer", "head"], columns="step", values=column)
    values = grid.to_numpy(dtype=float)
    figure = _figure(title, len(grid), values.shape[1])
    ax = figure.add_subplot()
    known = values[np.isfinite(values)]
    limit = top if top is not None else float(known.max()) if known.size and known.max() > 0 else 1.0
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap=CMAP, vmin=0.0, vmax=limit, aspect="auto", interpolation="nearest"
    )
    ax.set_facecolor(style.UNDEFINED_FACE)
    heads = [(int(layer), int(head)) for layer, head in grid.index]
    _name_heads(ax, heads)
    for edge in _layer_edges(heads):
        ax.axhline(edge, color="white", linewidth=0.8)
    _name_tokens(ax, [tokens[int(step)] for step in grid.columns], "new token")
    figure.colorbar(image, ax=ax, fraction=0.05, pad=0.02).set_label(label)
    return figure


def looked_map(strongest: pd.DataFrame, tokens: Sequence[str], *, title: str = "") -> Figure:
    """Draw the strongest positions of every head at one step: heads down, positions across, area by weight.

    Parameters
    ----------
    strongest
        One row a head and position: `layer`, `head`, `key_pos`, `weight`.
    tokens
        Text at each position.
    title
        Over the figure.

    Raises
    ------
    ValueError
        If a column is missing, or the table is empty.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"layer": [0], "head": [0], "key_pos": [1], "weight": [0.9]})
    >>> looked_map(rows, ["a", "b"]).axes[0].get_xlabel()
    'position'
    """
    style.require(strongest, ("layer", "head", "key_pos", "weight"), row="position")
    heads = sorted({(int(row["layer"]), int(row["head"])) for row in strongest.to_dict("records")})
    figure = _figure(title, len(heads), len(tokens))
    ax = figure.add_subplot()
    place = {head: i for i, head in enumerate(heads)}
    down = [place[int(row["layer"]), int(row["head"])] for row in strongest.to_dict("records")]
    weights = strongest["weight"].to_numpy(dtype=float)
    points = ax.scatter(
        strongest["key_pos"], down, s=110 * weights, c=weights, cmap="viridis_r", vmin=0, vmax=1, linewidths=0
    )
    ax.set_ylim(len(heads) - 0.5, -0.5)
    ax.set_xlim(-0.8, len(tokens) - 0.2)
    ax.grid(axis="y", color="0.93", linewidth=0.6)
    ax.set_axisbelow(True)
    for edge in _layer_edges(heads):
        ax.axhline(edge, color="0.75", linewidth=0.8, zorder=0)
    _name_heads(ax, heads)
    _name_tokens(ax, list(tokens), "position")
    figure.colorbar(points, ax=ax, fraction=0.05, pad=0.02).set_label("attention weight")
    return figure


def _figure(title: str, rows: int, columns: int) -> Figure:
    size = min(max(5.5, 0.24 * columns + 2.6), 18), min(max(2.8, 0.19 * rows + 1.6), 16)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    if title:
        figure.suptitle(title, fontsize=11, wrap=True)
    return figure


def _layer_edges(heads: Sequence[tuple[int, int]]) -> list[float]:
    return [i - 0.5 for i in range(1, len(heads)) if heads[i][0] != heads[i - 1][0]]


def _name_heads(ax: Axes, heads: Sequence[tuple[int, int]]) -> None:
    """Name every head, or the first of every so many layers where there are too many."""
    ax.set_ylabel("head")
    firsts = [i for i, head in enumerate(heads) if i == 0 or head[0] != heads[i - 1][0]]
    few = len(heads) <= MAX_ROWS
    places = list(range(len(heads))) if few else firsts[:: math.ceil(len(firsts) / MAX_ROWS)]
    ax.set_yticks(places, [f"L{heads[i][0]}H{heads[i][1]}" for i in places], fontsize=7)


def _name_tokens(ax: Axes, tokens: Sequence[str], what: str) -> None:
    """Write tokens under their columns, or every so many's position where there are too many."""
    ax.set_xlabel(what)
    stride = math.ceil(len(tokens) / MAX_COLUMNS)
    places = list(range(0, len(tokens), stride))
    if stride > 1:
        ax.set_xticks(places, [str(i) for i in places], fontsize=7, rotation=90)
        ax.set_xlabel(f"{what} (every {stride}th)")
        return
    ax.set_xticks(places, [visible(tokens[i]) for i in places], fontsize=7, rotation=90, family="monospace")


def visible(token: str) -> str:
    """Return a token's text with its white space to be seen, and no character that a font takes for a formula."""
    shown = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣").replace("$", r"\$")
    return shown if len(shown) <= 14 else f"{shown[:13]}…"
