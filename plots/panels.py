"""The axes that a picture is drawn on: new ones on a figure of their own, or the caller's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .style import no_formula

OnAxes = Axes | Sequence[Axes] | np.ndarray | None
"""What `ax=` takes: nothing, one Axes, or several in the order of the panels."""


def new_panels(count: int, *, columns: int, size: tuple[float, float], title: str = "", shared: bool = False) -> list:
    """Make a figure that pyplot does not know, and its panels row by row.

    Parameters
    ----------
    count, columns
        How many panels, and how many side by side.
    size
        Width and height of the figure in inches.
    title
        Over all panels.
    shared
        Whether all panels have the same scales.
    """
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
    if title:
        figure.suptitle(no_formula(title), fontsize=12, wrap=True)
    rows = math.ceil(count / columns)
    panels: list[Axes] = []
    for index in range(count):
        same = {"sharex": panels[0], "sharey": panels[0]} if shared and panels else {}
        panels.append(figure.add_subplot(rows, columns, index + 1, **same))
    return panels


def given_panels(ax: Axes | Sequence[Axes] | np.ndarray, count: int, each: str) -> list[Axes]:
    """Return the caller's axes as a list, one a panel.

    Parameters
    ----------
    ax
        What the caller gave.
    count, each
        How many panels there are, and what there is one for: "circuit and part".

    Raises
    ------
    ValueError
        If there are more or fewer, or one of them is no Axes.
    """
    panels = [ax] if isinstance(ax, Axes) else list(np.asarray(ax, dtype=object).flat)
    for panel in panels:
        if not isinstance(panel, Axes):
            raise ValueError(f"ax should be one Axes or several but holds {panel!r}")
    if len(panels) != count:
        there = "is 1 panel" if count == 1 else f"are {count} panels"
        raise ValueError(f"there {there}, one for each {each}: ax should hold as many Axes but has {len(panels)}")
    return panels


def panels_for(
    ax: OnAxes, count: int, each: str, *, columns: int, size: tuple[float, float], title: str = ""
) -> list[Axes]:
    """Return the caller's axes or, without any, those of a new figure; with one title, over all or over the first.

    Parameters and errors are those of `new_panels` and `given_panels`.
    """
    if ax is None:
        return new_panels(count, columns=columns, size=size, title=title)
    panels = given_panels(ax, count, each)
    if title:
        panels[0].set_title(no_formula(title), fontsize=10, wrap=True)
    return panels


def as_drawn(panels: Sequence[Axes]) -> Axes | np.ndarray:
    """Return what a picture returns: its Axes, or where it has several panels an array of them."""
    if len(panels) == 1:
        return panels[0]
    found = np.empty(len(panels), dtype=object)
    found[:] = panels
    return found


def figure_of(drawn: Axes | np.ndarray) -> Figure:
    """Return the figure that axes stand on (of a subfigure: the whole one)."""
    figure = np.ravel(np.asarray(drawn, dtype=object))[0].figure
    return figure.figure if isinstance(figure, SubFigure) else figure


def legend_entries(panels: Sequence[Axes]) -> dict[str, Any]:
    """Return label -> handle over all panels, each label once."""
    entries: dict[str, Any] = {}
    for ax in panels:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    return entries


def add_legend(
    panels: Sequence[Axes], entries: Mapping[str, Any], note: str = "", *, own: bool, **options: Any
) -> None:
    """Put one legend for all panels outside the data: below them on a figure of our own, else beside the last.

    Parameters
    ----------
    panels
        In order.
    entries
        Label -> handle.
    note
        What else is to be said; stands over the entries.
    own
        Whether the figure is ours.
    options
        For matplotlib's legend.
    """
    options = {"title": note or None, "fontsize": 9, "title_fontsize": 9, "frameon": False} | options
    if own:
        figure = figure_of(panels[0])
        options.setdefault("ncols", 3 if figure.get_figwidth() > 7 else 2)
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", **options)
    else:
        place = {"loc": "upper left", "bbox_to_anchor": (1.18, 1.0), "borderaxespad": 0.0}
        options.pop("ncols", None)
        panels[-1].legend(list(entries.values()), list(entries), **place, **options)
