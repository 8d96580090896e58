"""Maps of how similar the heads of a layer are, for all layers on one scale."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from . import style
from .grid import HEADER, LEFT, TICK_POINTS, Page, choose_page, layers_a_page, tick_stride
from .maps import every
from .order import similarity_order
from .panels import OnAxes, as_drawn, figure_of, given_panels
from .scale import Scale

# A cosine may pass 1 by rounding (bfloat16 has 8 bits); anything above is not a cosine.
TOLERANCE = 0.01
ANNOTATED_HEADS, ANNOTATED_PANELS = 4, 8

Key = tuple[str, str, int]
Order = Literal["none", "similarity"]


def similarity_pages(similarity: Mapping[Key, Any]) -> list[list[int]]:
    """Deal layers out to as few pages as show them at a comfortable size, evenly.

    Parameters
    ----------
    similarity
        As for `head_similarity`.

    Returns
    -------
    list[list[int]]
        The layers of each page, for `layers` of `head_similarity`.

    Examples
    --------
    >>> pages = similarity_pages({("qk", "all", layer): np.eye(64) for layer in range(80)})
    >>> [(page[0], page[-1]) for page in pages]
    [(0, 39), (40, 79)]
    """
    layers = sorted({layer for _, _, layer in similarity})
    n_blocks = len({(circuit, part) for circuit, part, _ in similarity})
    n_heads = max(len(matrix) for matrix in similarity.values())
    a_page = layers_a_page(len(layers), n_blocks, n_heads)
    pages = -(-len(layers) // a_page)
    return [part.tolist() for part in np.array_split(np.array(layers), pages)]


def head_similarity(
    similarity: Mapping[Key, Any],
    *,
    layers: Sequence[int] | None = None,
    order: Order = "none",
    max_columns: int | None = None,
    annotate: bool | None = None,
    ax: OnAxes = None,
) -> Axes | np.ndarray:
    """Draw the cosine similarity between the heads of each layer, one panel a layer.

    Panels stand in blocks, one for each (circuit, part). All have one colour scale, symmetric about zero and
    set by the off-diagonal cells alone: their largest size or, where a few cells are far larger than the
    rest, the 99th percentile (the figure says which, and how many cells lie beyond). The diagonal is grey,
    cells without a value (NaN, from a degenerate head) are hatched.

    Parameters
    ----------
    similarity
        `(circuit, part, layer)` to a `[head, head]` matrix of cosines, as NumPy array or torch tensor.
    layers
        Layers to draw; None: all. The scale is that of all, so that pages (`similarity_pages`) can be compared.
    order
        ``"none"``: heads by number. ``"similarity"``: in each panel alike heads stand together (average linkage on
        ``1 - cosine``, so opposed heads are farthest; degenerate ones last), each with its own number.
    max_columns
        At most this many panels side by side. Chosen from the number of panels where None.
    annotate
        Whether to write the value into every cell, the diagonal included ("–" where there is none). By
        default for at most 4 heads and 8 panels.
    ax
        Axes to draw on, one for each panel in order; they give room to the colour bar. A new figure where not given.

    Returns
    -------
    matplotlib.axes.Axes or numpy.ndarray
        The panel, or an array of several (QK before OV, then by part and layer); the colour bar is the figure's last
        axes. At 150 dots per inch a figure of its own has at most 3900 x 5850 pixels.

    Raises
    ------
    ValueError
        If the mapping is empty, a key or matrix has the wrong shape, a value is not a cosine, a layer is not there,
        `order` or `max_columns` cannot be, the panels do not fit on the page, or the number of axes is not theirs.

    Examples
    --------
    >>> import numpy as np
    >>> panels = head_similarity({("qk", "all", 0): np.eye(4), ("ov", "all", 0): np.eye(4)})
    >>> [ax.get_title() for ax in panels]
    ['layer 0', 'layer 0']
    """
    if max_columns is not None and max_columns < 1:
        raise ValueError(f"max_columns should be at least 1 but got {max_columns}")
    if order not in get_args(Order):
        raise ValueError(f"order should be one of {get_args(Order)} but got {order!r}")
    every_layer = _checked(similarity)
    scale = Scale.of(every_layer.values())
    matrices = _of_layers(every_layer, layers)
    blocks = _blocks(matrices)
    n_heads = max(len(matrix) for matrix in matrices.values())
    if annotate is None:
        annotate = n_heads <= ANNOTATED_HEADS and len(matrices) <= ANNOTATED_PANELS
    keys = [key for block in blocks.values() for key in block]
    if ax is None:
        counts = [len(block) for block in blocks.values()]
        page = choose_page(counts, n_heads, annotated=annotate, max_columns=max_columns)
        panels, outer = _panels_on(page, blocks)
        side = page.panel
    else:
        page, panels, outer = None, given_panels(ax, len(keys), "circuit, part and layer"), [(True, True)] * len(keys)
        side = min(_side(panel) for panel in panels)
    stride = tick_stride(n_heads, side)
    for panel, key, edges in zip(panels, keys, outer, strict=True):
        heads = np.arange(len(matrices[key])) if order == "none" else similarity_order(matrices[key])
        matrix = matrices[key][np.ix_(heads, heads)]
        named = f"layer {key[2]}" if ax is None else f"{style.block_title(*key[:2])}, layer {key[2]}"
        panel.set_title(named, fontsize=8, pad=3)
        image = _draw_map(panel, matrix, scale)
        if annotate:
            _annotate(panel, matrix, image, side, decimals=3 if scale.limit < 0.1 else 2)
        _label_heads(panel, heads, stride, edges)
    caption = _caption(scale, stride, order, _shown(matrices, every_layer))
    if page is not None:
        undefined = any(np.isnan(matrix).any() for matrix in matrices.values())
        _draw_header(figure_of(panels[0]), page, scale, caption, undefined=undefined)
    else:
        _draw_bar(panels, scale, caption)
    return as_drawn(panels)


def _of_layers(matrices: dict[Key, np.ndarray], layers: Sequence[int] | None) -> dict[Key, np.ndarray]:
    if layers is None:
        return matrices
    known = sorted({layer for _, _, layer in matrices})
    missing = [layer for layer in layers if layer not in known]
    if missing or not len(layers):
        raise ValueError(f"layers should be among {known} but got {list(layers)}")
    return {key: matrix for key, matrix in matrices.items() if key[2] in layers}


def _shown(drawn: Mapping[Key, Any], there: Mapping[Key, Any]) -> str:
    """Say which layers a page shows, or nothing if these are all."""
    here, known = (sorted({layer for _, _, layer in keys}) for keys in (drawn, there))
    if here == known:
        return ""
    some = f"Layers {here[0]}–{here[-1]}" if len(here) > 1 else f"Layer {here[0]}"
    return f"{some} of {known[0]}–{known[-1]}"


def _panels_on(page: Page, blocks: Mapping[tuple[str, str], Sequence[Key]]) -> tuple[list[Axes], list]:
    """Make the panels of a page, with the blocks' titles; say of each whether it is leftmost, and lowest."""
    figure = Figure(figsize=(page.width, page.height))
    panels, outer = [], []
    for block, (name, keys) in enumerate(blocks.items()):
        _draw_block_title(figure, page, block, style.block_title(*name))
        panels += [figure.add_axes(page.box(block, index)) for index in range(len(keys))]
        outer += [page.is_outer(block, index) for index in range(len(keys))]
    return panels, outer


def _side(ax: Axes) -> float:
    """Return the side of the square that a map has on a caller's axes, in inches."""
    box = ax.get_window_extent()
    return min(box.width, box.height) / ax.figure.dpi


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


def _draw_map(ax: Axes, matrix: np.ndarray, scale: Scale) -> AxesImage:
    diagonal = np.eye(len(matrix), dtype=bool)
    undefined = np.isnan(matrix)
    # What no image covers shows the panel's own hatched background.
    ax.patch.set(facecolor=style.UNDEFINED_FACE, edgecolor=style.UNDEFINED_HATCH, hatch="//////", linewidth=0)
    shown = np.ma.masked_array(matrix, mask=diagonal | undefined)
    # Cells keep their edges: smoothed, a masked one would let the background through beside it.
    crisp: dict[str, Any] = {"interpolation": "nearest"}
    image = ax.imshow(shown, cmap=style.DIVERGING, vmin=-scale.limit, vmax=scale.limit, **crisp)
    grey = np.ma.masked_array(np.ones_like(matrix), mask=~diagonal | undefined)
    ax.imshow(grey, cmap=ListedColormap([style.DIAGONAL]), **crisp)
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


def _label_heads(ax: Axes, heads: np.ndarray, stride: int, outer: tuple[bool, bool]) -> None:
    places = np.arange(0, len(heads), stride)
    labels = [str(heads[place]) for place in places]
    ax.set_xticks(places, labels, fontsize=TICK_POINTS)
    ax.set_yticks(places, labels, fontsize=TICK_POINTS)
    ax.tick_params(length=1.5, width=0.5, pad=1.5)
    leftmost, lowest = outer
    if leftmost:
        ax.set_ylabel("head", fontsize=8, labelpad=2)
    if lowest:
        ax.set_xlabel("head", fontsize=8, labelpad=2)


def _draw_block_title(figure: Figure, page: Page, block: int, title: str) -> None:
    left, top = page.block_corner(block)
    place = (left / page.width, 1 - (top + 0.1) / page.height)
    figure.text(*place, title, ha="left", va="top", fontsize=12, fontweight="bold")


def _caption(scale: Scale, stride: int, order: Order, shown: str) -> list[str]:
    """Return how to read the maps, a line each."""
    where = f"{shown}. " if shown else ""
    arranged = "" if order == "none" else ", alike ones side by side (average linkage)"
    pages = " and pages" if shown else ""
    lines = [
        f"{where}Rows and columns are heads{arranged}{every(stride, 'head')}.",
        f"One colour scale for all panels{pages}, ±{scale.limit:g}: {scale.reason}.",
    ]
    if scale.beyond:
        cells = f"{scale.beyond} of {scale.cells} off-diagonal cells"
        lines.append(f"{cells} lie beyond and are drawn in the end colours.")
    return lines


def _draw_header(figure: Figure, page: Page, scale: Scale, caption: Sequence[str], *, undefined: bool) -> None:
    """Draw title, caption, colour bar and key; the colour bar is the figure's last axes."""

    def at(left: float, top: float) -> tuple[float, float]:
        return left / page.width, 1 - top / page.height

    figure.text(*at(LEFT, 0.15), "Cosine similarity between the heads of a layer", va="top", fontsize=12)
    figure.text(*at(LEFT, 0.45), "\n".join(caption), va="top", fontsize=8.5, linespacing=1.35)
    left, bottom = at(LEFT, HEADER - 0.48)
    bar = figure.add_axes((left, bottom, 2.6 / page.width, 0.14 / page.height))
    figure.colorbar(figure.axes[0].images[0], cax=bar, orientation="horizontal", extend=_extend(scale))
    bar.set_xticks(*_bar_ticks(scale))
    bar.tick_params(labelsize=7.5, length=2)
    bar.set_xlabel("cosine similarity", fontsize=8.5, labelpad=2)
    key = [Patch(facecolor=style.DIAGONAL, label="diagonal (always 1), not on the scale")]
    if undefined:
        face, lines = style.UNDEFINED_FACE, style.UNDEFINED_HATCH
        key.append(Patch(facecolor=face, edgecolor=lines, hatch="//////", label="no value (degenerate head)"))
    place = at(LEFT + 2.9, HEADER - 0.7)
    figure.legend(handles=key, loc="upper left", bbox_to_anchor=place, frameon=False, fontsize=8.5, borderaxespad=0)


def _draw_bar(panels: Sequence[Axes], scale: Scale, caption: Sequence[str]) -> None:
    """Draw the colour bar beside a caller's axes, with the caption as its label."""
    bar = panels[0].figure.colorbar(panels[0].images[0], ax=list(panels), extend=_extend(scale))
    ticks, names = _bar_ticks(scale)
    bar.ax.set_yticks(ticks, names)
    bar.ax.tick_params(labelsize=7.5, length=2)
    words = ["cosine similarity (grey: the diagonal; hatched: no value)", *caption]
    bar.set_label("\n".join(textwrap.fill(line, 55) for line in words), fontsize=7.5)


def _extend(scale: Scale) -> str:
    return "both" if scale.beyond else "neither"


def _bar_ticks(scale: Scale) -> tuple[np.ndarray, list[str]]:
    ticks = np.linspace(-scale.limit, scale.limit, 5)
    return ticks, [f"{tick:g}".replace("-", "−") for tick in ticks]
