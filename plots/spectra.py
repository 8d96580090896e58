"""Spectra of a layer's heads: what each component is worth, and how many it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import MaxNLocator

from . import style
from .maps import every, heat_map, name_cells
from .panels import OnAxes, add_legend, given_panels, legend_entries, new_panels

COLUMNS = ("layer", "circuit", "part", "component", "share", "null_share")
MAX_LINES = 6
"""Layers that are drawn as lines; more are drawn as maps."""
SHARE = 90.0
"""Percent that is marked."""
MAX_LAYER_NAMES, MAX_COMPONENT_NAMES = 26, 12
PANEL_INCHES = (4.9, 3.1)
ROW_INCHES, TALLEST = 0.1, 36.0
LINES = "viridis"


def spectra(table: pd.DataFrame, *, title: str = "", ax: OnAxes = None) -> np.ndarray:
    """Draw the spectrum of the heads of each layer, and its running sum: two panels for each (circuit, part).

    The left one has each component's share in multiples of an even one, so that 1 is what every component would have
    if all heads were unlike; the right one the running sum in percent, with 90 % marked. At most six layers are lines,
    the null's mean over draws a thick grey one; more are rows of a map, in which a line leads through the components
    that reach 90 %, a dotted one through the null's.

    Parameters
    ----------
    table
        One row for each layer, circuit, part and component. Used are `layer`, `circuit`, `part`, `component` (from 1,
        largest first), `share` (of the sum, 0 to 1; NaN where the layer has no spectrum) and `null_share` (NaN where
        there is no null).
    title
        Over all panels.
    ax
        Axes to draw on, two for each (circuit, part); in maps they give room to their colour bars. A new figure where
        not given.

    Returns
    -------
    numpy.ndarray
        The panels: share and running sum of QK's parts, then of OV's.

    Raises
    ------
    ValueError
        If a column is missing, the table is empty, a component appears twice, or the number of axes is not the number
        of panels.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"layer": 0, "circuit": "ov", "part": "all", "component": [1, 2], "share": [0.75, 0.25]})
    >>> _, summed = spectra(table.assign(null_share=0.5))
    >>> summed.lines[0].get_ydata().tolist()
    [75.0, 100.0]
    """
    rows = _checked(table)
    blocks = style.in_order(zip(rows["circuit"], rows["part"], strict=True))
    layers = sorted(set(rows["layer"]))
    maps = len(layers) > MAX_LINES
    if ax is None:
        width, height = PANEL_INCHES
        height = min(max(height, ROW_INCHES * len(layers) + 0.9), TALLEST / len(blocks)) if maps else height
        size = (2 * width, height * len(blocks) + 1.2)
        panels = new_panels(2 * len(blocks), columns=2, size=size, title=title)
    else:
        panels = given_panels(ax, 2 * len(blocks), "of share and running sum of a circuit and part")
    for pair, (circuit, part) in zip(zip(panels[::2], panels[1::2], strict=True), blocks, strict=True):
        here = pd.DataFrame(rows[(rows["circuit"] == circuit) & (rows["part"] == part)])
        name = style.block_title(circuit, part)
        pair[0].set_title(f"{name}: spectrum", fontsize=11)
        pair[1].set_title(f"{name}: running sum", fontsize=11)
        (_draw_maps if maps else _draw_lines)(pair, here, layers)
    lacking = "A layer without a spectrum is hatched." if maps else "A layer without a spectrum has no line."
    add_legend(panels, legend_entries(panels), lacking if bool(rows["share"].isna().any()) else "", own=ax is None)
    return np.array(panels, dtype=object)


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    style.require(table, COLUMNS, row="component")
    twice = table[table.duplicated(["circuit", "part", "layer", "component"])]
    if len(twice):
        first = twice.iloc[0]
        raise ValueError(
            f"component {first['component']} of layer {first['layer']} appears more than once for circuit "
            f"{first['circuit']!r}, part {first['part']!r}: give one spectrum a layer"
        )
    return table.loc[:, list(COLUMNS)].astype({"share": float, "null_share": float})


def _grid(rows: pd.DataFrame, column: str, layers: Sequence[int]) -> np.ndarray:
    """Return ``[layer, component]``, NaN where a layer has no such component."""
    return rows.pivot(index="layer", columns="component", values=column).reindex(list(layers)).to_numpy(dtype=float)


def _even(shares: np.ndarray) -> np.ndarray:
    """Return shares in multiples of an even one; layers may have different numbers of components."""
    return shares * np.isfinite(shares).sum(axis=1, keepdims=True)


def _draw_lines(pair: Sequence[Axes], rows: pd.DataFrame, layers: Sequence[int]) -> None:
    colours = [to_hex(colour) for colour in sns.color_palette(LINES, len(layers) + 1)[:-1]]  # the last is too pale
    styles = ["o", "s", "^", "D", "v", "P"]
    null = _grid(rows, "null_share", layers)
    null = null[np.isfinite(null).any(axis=1)][:1] if len(np.unique(np.round(null, 12), axis=0)) == 1 else null
    for ax, convert in zip(pair, (_even, lambda shares: 100 * shares.cumsum(axis=1)), strict=True):
        values = convert(_grid(rows, "share", layers))
        places = np.arange(1, values.shape[1] + 1)
        marks = {"markersize": 4.5, "markevery": max(1, len(places) // 12)}
        for line, layer, colour, marker in zip(values, layers, colours, styles, strict=False):
            shown = np.where(line > 0, line, np.nan)
            if np.isfinite(shown).any():
                ax.plot(places, shown, color=colour, marker=marker, linewidth=1.5, label=f"layer {layer}", **marks)
        for line in convert(null):
            if np.isfinite(line).any():
                thick = {"color": style.NULL, "alpha": 0.4, "linewidth": 4, "zorder": 1}
                ax.plot(places, line, label="null: mean over draws", **thick)
        ax.set_xlim(0.5, len(places) + 0.5)
        ax.set_xlabel("component, largest first")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(axis="y", color="0.9", linewidth=0.6)
        sns.despine(ax=ax)
    share, summed = pair
    share.axhline(1, color=style.MARK, linewidth=0.8, linestyle=":", label="all components even")
    share.set_ylabel("share, × an even one")
    share.set_ylim(0, None)
    count = len(_grid(rows, "share", layers)[0])
    summed.plot([1, count], [100 / count, 100], color=style.MARK, linewidth=0.8, linestyle=":")
    summed.axhline(SHARE, color=style.MARK, linewidth=0.9, linestyle="--", label=f"{SHARE:g} %")
    summed.set_ylabel("running sum (%)")
    summed.set_ylim(0, 102)


def _draw_maps(pair: Sequence[Axes], rows: pd.DataFrame, layers: Sequence[int]) -> None:
    shares, null = _grid(rows, "share", layers), _grid(rows, "null_share", layers)
    even, summed = np.log2(np.where(shares > 0, _even(shares), np.nan)), 100 * shares.cumsum(axis=1)
    known = np.abs(even[np.isfinite(even)])
    # A component near zero would fade all others: beyond a sixteenth of an even share the colour stays.
    limit = min(float(known.max()), 4.0) if known.size and known.max() > 0 else 1.0
    bare: dict[str, Any] = {"edged": False}  # edges would hide the line through the components that reach 90 %
    look: dict[str, Any] = {"label": "share, × an even one", "cmap": style.DIVERGING}
    mesh = heat_map(pair[0], even, limits=(-limit, limit), **look, **bare)
    _say_powers(mesh.colorbar, limit)
    heat_map(pair[1], summed, limits=(0.0, 100.0), label="running sum (%)", **bare)
    for values, dash, whose in ((summed, "-", "the layer's"), (100 * null.cumsum(axis=1), ":", "the null's")):
        reached = _reaching(values)
        if np.isfinite(reached).any():
            # Black on white: seen on both ends of the colours.
            line = {
                "orientation": "horizontal",
                "baseline": None,
                "color": "black",
                "linestyle": dash,
                "linewidth": 1.3,
            }
            rim = [Stroke(linewidth=3.2, foreground="white"), Normal()]
            label = f"{SHARE:g} % reached: {whose} components up to here"
            pair[1].stairs(reached, np.arange(len(layers) + 1), label=label, path_effects=rim, clip_on=False, **line)
    for ax in pair:
        stride = name_cells(ax.yaxis, [str(layer) for layer in layers], MAX_LAYER_NAMES, rotation=0, fontsize=8)
        ax.set_ylabel(f"layer{every(stride)}")
        names = [str(component + 1) for component in range(shares.shape[1])]
        stride = name_cells(ax.xaxis, names, MAX_COMPONENT_NAMES, rotation=0, fontsize=8)
        ax.set_xlabel(f"component, largest first{every(stride)}")


def _say_powers(bar: object, limit: float) -> None:
    """Name the ends and the middle of a logarithmic colour bar by what they are: multiples of an even share."""
    powers = np.arange(-math.floor(limit), math.floor(limit) + 1) if limit >= 1 else np.array([-limit, 0.0, limit])
    bar.set_ticks(powers, labels=[f"{2.0**power:.3g}" for power in powers])  # pyright: ignore[reportAttributeAccessIssue]


def _reaching(summed: np.ndarray) -> np.ndarray:
    """Return for each row how many components it takes to reach the share; NaN where there is no sum."""
    # Reached to within rounding is reached, as in the table's `components_90`.
    reached = summed >= SHARE - 1e-10
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, math.nan)
