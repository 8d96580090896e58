"""Names beside points, placed where they cover least."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

# Where a label may stand: direction from the mean and distance in points, the first that fits is taken.
DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
DISTANCES = (8.0, 14.0, 22.0)


def name_points(ax: Axes, points: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names beside points, each where it covers least of what is drawn.

    Parameters
    ----------
    ax
        Panel whose lines are drawn and whose place in the figure is settled.
    points
        x, y, name and colour of each.
    """
    scale = ax.figure.dpi / 72
    frame = np.array(ax.get_window_extent().extents)
    drawn = np.concatenate([_boxes(line, scale) for line in ax.lines])
    texts: list[Annotation] = []
    for x, y, name, colour in points:
        place = {"textcoords": "offset points", "xytext": (0, 0), "zorder": 6}
        text = ax.annotate(name, (x, y), fontsize=9, **place)
        text.set_color(colour)
        text.set_in_layout(False)  # or the panels would move once more
        texts.append(text)
    # Once one after another, then again: the first could not know where the others would go.
    taken: dict[int, np.ndarray] = {}
    for index in (*range(len(texts)), *range(len(texts))):
        others = np.array([box for other, box in taken.items() if other != index]).reshape(-1, 4)
        taken[index] = _settle(texts[index], frame, np.concatenate([drawn, others]), scale)


def _boxes(line: Line2D, scale: float) -> np.ndarray:
    """List what a line covers, one row a box: one around each marker, or around the whole of a straight line.

    A box is its left, bottom, right and top in pixels, here and below.
    """
    places = line.get_transform().transform(np.column_stack(line.get_data()))
    if line.get_linestyle() == "None":
        radius = scale * (line.get_markersize() / 2 + 0.5)
        return np.hstack([places - radius, places + radius])
    return np.hstack([places.min(axis=0) - scale, places.max(axis=0) + scale])[None]


def _settle(text: Annotation, frame: np.ndarray, others: np.ndarray, scale: float) -> np.ndarray:
    """Move a label to the first of its places that covers least of the others; return its box."""
    best = math.inf, (0.0, 0.0), ("left", "center"), frame
    for distance in DISTANCES:
        for right, up in DIRECTIONS:
            reach = distance / (math.sqrt(2) if right and up else 1)
            offset = right * reach, up * reach
            sides = ("right", "center", "left")[right + 1], ("top", "center", "bottom")[up + 1]
            text.set(position=offset, ha=sides[0], va=sides[1])
            box = np.array(text.get_window_extent().extents)
            outside = np.prod(box[2:] - box[:2]) - _shared_area(box, frame[None])
            cost = _shared_area(box, others) + 4 * outside
            if cost < scale**2:  # a square point: nothing to be seen
                return box
            if cost < best[0] - scale**2:
                best = cost, offset, sides, box
    text.set(position=best[1], ha=best[2][0], va=best[2][1])
    return best[3]


def _shared_area(box: np.ndarray, others: np.ndarray) -> float:
    """Sum the areas that a box shares with each of the others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.prod(np.maximum(sides, 0.0), axis=1).sum())
