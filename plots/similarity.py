"""Maps of how similar the heads of a layer are, for all layers on one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from . import style
from .grid import HEADER, LEFT, TICK_POINTS, Page, choose_page, tick_stride

# A cosine may pass 1 by rounding (bfloat16 has 8 bits); anything above is not a cosine.
TOLERANCE = 0.01
QUANTILE = 0.99
# The scale never shrinks below this: rounding noise between orthogonal heads must not look like structure.
MIN_LIMIT = 0.01
# The largest size sets the scale unless it is this many times the quantile: then few would fade all others.
OUTLIER = 1.25

ANNOTATED_HEADS, ANNOTATED_PANELS = 4, 8

Key = tuple[str, str, int]


def head_similarity(
    similarity: Mapping[Key, Any], *, max_columns: int | None = None, annotate: bool | None = None
) -> Figure:
    """Draw the cosine similarity between the heads of each layer, one panel a layer.

    Panels stand in blocks, one for each (circuit, part). All have one colour scale, symmetric about zero and
    set by the off-diagonal cells alone: their largest size or, where a few cells are far larger than the
    rest, the 99th percentile (the figure says which, and how many cells lie beyond). The diagonal is grey,
    cells without a value (NaN, from a degenerate head) are hatched.

    Parameters
    ----------
    similarity
        `(circuit, part, layer)` to a `[head, head]` matrix of cosines, as NumPy array or torch tensor.
    max_columns
        At most this many panels side by side. Chosen from the number of panels where None.
    annotate
        Whether to write the value into every cell, the diagonal included ("–" where there is none). By
        default for at most 4 heads and 8 panels.

    Returns
    -------
    matplotlib.figure.Figure
        The figure; its axes are the panels in order (QK before OV, then by part and layer), then the colour
        bar. At 150 dots per inch it has at most 3900 x 5850 pixels.

    Raises
    ------
    ValueError
        If the mapping is empty, a key or matrix has the wrong shape, a value is not a cosine, `max_columns`
        is not positive, or the panels do not fit on the page.

    Examples
    --------
    >>> import numpy as np
    >>> figure = head_similarity({("qk", "all", 0): np.eye(4), ("ov", "all", 0): np.eye(4)})
    >>> [ax.get_title() for ax in figure.axes[:-1]]
    ['layer 0', 'layer 0']
    """
    if max_columns is not None and max_columns < 1:
        raise ValueError(f"max_columns should be at least 1 but got {max_columns}")
    matrices = _checked(similarity)
    blocks = _blocks(matrices)
    n_heads = max(len(matrix) for matrix in matrices.values())
    if annotate is None:
        annotate = n_heads <= ANNOTATED_HEADS and len(matrices) <= ANNOTATED_PANELS
    counts = [len(keys) for keys in blocks.values()]
    page = choose_page(counts, n_heads, annotated=annotate, max_columns=max_columns)
    scale = _Scale.of(matrices.values())
    stride = tick_stride(n_heads, page.panel)
    figure = Figure(figsize=(page.width, page.height))
    for block, (name, keys) in enumerate(blocks.items()):
        _draw_block_title(figure, page, block, style.block_title(*name))
        for index, key in enumerate(keys):
            ax = figure.add_axes(page.box(block, index), title=f"layer {key[2]}")
            image = _draw_map(ax, matrices[key], scale)
            if annotate:
                _annotate(ax, matrices[key], image, page.panel, decimals=3 if scale.limit < 0.1 else 2)
            _label_heads(ax, len(matrices[key]), stride, page.is_outer(block, index))
    undefined = any(np.isnan(matrix).any() for matrix in matrices.values())
    _draw_header(figure, page, scale, stride, undefined=undefined)
    return figure


@dataclass(frozen=True)
class _Scale:
    """The colour scale -limit to limit, why it is that, and how many off-diagonal cells lie beyond it."""

    limit: float
    reason: str
    beyond: int
    cells: int

    @classmethod
    def of(cls, matrices: Iterable[np.ndarray]) -> _Scale:
        sizes = np.concatenate([np.abs(matrix[~np.eye(len(matrix), dtype=bool)]) for matrix in matrices])
        # Rounding may carry a cosine past 1, which is not beyond any scale.
        sizes = np.minimum(sizes[~np.isnan(sizes)], 1.0)
        if not sizes.size:
            return cls(1.0, "no off-diagonal cell has a value", 0, 0)
        largest, robust = float(sizes.max()), float(np.quantile(sizes, QUANTILE))
        no_outliers = largest <= OUTLIER * robust
        limit = _rounded_up(max(MIN_LIMIT, largest if no_outliers else robust))
        if limit == MIN_LIMIT:
            reason = "the narrowest that is drawn"
        elif no_outliers:
            reason = "the largest off-diagonal size, rounded up"
        else:
            reason = "the 99th percentile of off-diagonal sizes, rounded up"
        return cls(limit, reason, int((sizes > limit).sum()), sizes.size)


def _rounded_up(value: float) -> float:
    """Round up to two significant digits, at most 1."""
    places = 1 - math.floor(math.log10(value))
    return min(1.0, round(math.ceil(value * 10**places - 1e-6) / 10**places, places))


def _checked(similarity: Mapping[Key, Any]) -> dict[Key, np.ndarray]:
    if not similarity:
        raise ValueError("similarity is empty: there is no layer to draw")
    matrices = {}
    for key, values in similarity.items():
        if not isinstance(key, tuple) or len(key) != 3:
            raise ValueError(f"keys of similarity should be (circuit, part, layer) but got {key!r}")
        matrix = style.as_array(values)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
            raise ValueError(f"similarity{list(key)} should be a square [head, head] matrix but is {matrix.shape}")
        largest = float(np.max(np.abs(matrix), initial=0.0, where=~np.isnan(matrix)))
        if largest > 1 + TOLERANCE:
            raise ValueError(
                f"similarity{list(key)} should hold cosines in [-1, 1] but has a value of size {largest:g}"
            )
        matrices[key] = matrix
    return matrices


def _blocks(matrices: Mapping[Key, np.ndarray]) -> dict[tuple[str, str], list[Key]]:
    """Group the keys by (circuit, part), each group by layer."""
    names = style.in_order((circuit, part) for circuit, part, _ in matrices)
    return {name: sorted((key for key in matrices if key[:2] == name), key=lambda key: key[2]) for name in names}


def _draw_map(ax: Axes, matrix: np.ndarray, scale: _Scale) -> AxesImage:
    diagonal = np.eye(len(matrix), dtype=bool)
    undefined = np.isnan(matrix)
    # What no image covers shows the panel's own hatched background.
    ax.patch.set(facecolor=style.UNDEFINED_FACE, edgecolor=style.UNDEFINED_HATCH, hatch="//////", linewidth=0)
    shown = np.ma.masked_array(matrix, mask=diagonal | undefined)
    image = ax.imshow(shown, cmap=style.DIVERGING, vmin=-scale.limit, vmax=scale.limit)
    grey = np.ma.masked_array(np.ones_like(matrix), mask=~diagonal | undefined)
    ax.imshow(grey, cmap=ListedColormap([style.DIAGONAL]))
    ax.spines[:].set(linewidth=0.5, color="0.4")
    return image


def _annotate(ax: Axes, matrix: np.ndarray, image: AxesImage, panel: float, *, decimals: int) -> None:
    """Write a number in every cell, as large as five or six characters allow."""
    size = min(9.0, panel * 72 / len(matrix) / (0.66 * (decimals + 3)))
    for (row, column), value in np.ndenumerate(matrix):
        if np.isnan(value):
            text, colour = "–", "black"
        else:
            # Adding zero turns a rounded -0.0 into 0.0.
            text = f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")
            luminance = np.dot(image.to_rgba(value)[:3], (0.299, 0.587, 0.114))
            colour = "white" if row != column and luminance < 0.5 else "black"
        ax.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def _label_heads(ax: Axes, n_heads: int, stride: int, outer: tuple[bool, bool]) -> None:
    heads = np.arange(0, n_heads, stride)
    labels = [str(head) for head in heads]
    ax.set_xticks(heads, labels, fontsize=TICK_POINTS)
    ax.set_yticks(heads, labels, fontsize=TICK_POINTS)
    ax.tick_params(length=1.5, width=0.5, pad=1.5)
    ax.set_title(ax.get_title(), fontsize=8, pad=3)
    leftmost, lowest = outer
    if leftmost:
        ax.set_ylabel("head", fontsize=8, labelpad=2)
    if lowest:
        ax.set_xlabel("head", fontsize=8, labelpad=2)


def _draw_block_title(figure: Figure, page: Page, block: int, title: str) -> None:
    left, top = page.block_corner(block)
    place = (left / page.width, 1 - (top + 0.1) / page.height)
    figure.text(*place, title, ha="left", va="top", fontsize=12, fontweight="bold")


def _draw_header(figure: Figure, page: Page, scale: _Scale, stride: int, *, undefined: bool) -> None:
    """Draw title, caption, colour bar and key; the colour bar is the figure's last axes."""

    def at(left: float, top: float) -> tuple[float, float]:
        return left / page.width, 1 - top / page.height

    figure.text(*at(LEFT, 0.15), "Cosine similarity between the heads of a layer", va="top", fontsize=12)
    suffix = "nd" if stride % 10 == 2 else "th"  # strides are powers of two
    labelled = f"; every {stride}{suffix} head labelled" if stride > 1 else ""
    caption = [
        f"Rows and columns are heads{labelled}.",
        f"One colour scale for all panels, ±{scale.limit:g}: {scale.reason}.",
    ]
    if scale.beyond:
        cells = f"{scale.beyond} of {scale.cells} off-diagonal cells"
        caption.append(f"{cells} lie beyond and are drawn in the end colours.")
    figure.text(*at(LEFT, 0.45), "\n".join(caption), va="top", fontsize=8.5, linespacing=1.35)
    left, bottom = at(LEFT, HEADER - 0.48)
    bar = figure.add_axes((left, bottom, 2.6 / page.width, 0.14 / page.height))
    extend = "both" if scale.beyond else "neither"
    ticks = np.linspace(-scale.limit, scale.limit, 5)
    figure.colorbar(figure.axes[0].images[0], cax=bar, orientation="horizontal", extend=extend)
    bar.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    bar.tick_params(labelsize=7.5, length=2)
    bar.set_xlabel("cosine similarity", fontsize=8.5, labelpad=2)
    key = [Patch(facecolor=style.DIAGONAL, label="diagonal (always 1), not on the scale")]
    if undefined:
        face, lines = style.UNDEFINED_FACE, style.UNDEFINED_HATCH
        key.append(Patch(facecolor=face, edgecolor=lines, hatch="//////", label="no value (degenerate head)"))
    place = at(LEFT + 2.9, HEADER - 0.7)
    figure.legend(handles=key, loc="upper left", bbox_to_anchor=place, frameon=False, fontsize=8.5, borderaxespad=0)
