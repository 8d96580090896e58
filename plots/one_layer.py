"""One layer close up: how alike its heads are, and the spectrum that an effective rank sums up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from . import style

ANNOTATED_HEADS = 12
MAX_NAMES = 32
SIZE = (9.2, 4.3)
MIN_LIMIT = 0.01
"""Rounding between orthogonal heads must not look like structure."""


def one_layer(similarity: Any, spectra: Mapping[str, Any], *, title: str = "") -> Figure:
    """Draw the heads' similarities, and beside them how their variance spreads over directions.

    Parameters
    ----------
    similarity
        ``[head, head]`` cosines. The colour scale is that of the largest off-diagonal one; the diagonal is grey.
    spectra
        Name -> eigenvalues, largest first; drawn as shares of their sum. Even shares would be 1 / H each.
    title
        Over the figure.

    Raises
    ------
    ValueError
        If the matrix is not square, or a spectrum has no positive sum.

    Examples
    --------
    >>> import numpy as np
    >>> figure = one_layer(np.eye(4), {"uncentred": [1, 1, 1, 1], "centred": [1, 1, 1, 0]})
    >>> [ax.get_xlabel() for ax in figure.axes[:2]]
    ['head', 'direction, largest first']
    """
    matrix = style.as_array(similarity)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"similarity should be a square [head, head] matrix but is {matrix.shape}")
    figure = Figure(figsize=SIZE, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    if title:
        figure.suptitle(title, fontsize=11)
    left, right = figure.subplots(1, 2, width_ratios=(1.05, 1))
    _draw_map(left, matrix)
    _draw_spectra(right, spectra, len(matrix))
    return figure


def _draw_map(ax: Axes, matrix: np.ndarray) -> None:
    heads = len(matrix)
    off = np.abs(matrix[~np.eye(heads, dtype=bool)])
    limit = max(float(np.nanmax(off, initial=0.0)), MIN_LIMIT)
    ax.set_facecolor(style.DIAGONAL)
    shown = np.ma.masked_array(matrix, mask=np.eye(heads, dtype=bool) | np.isnan(matrix))
    image = ax.imshow(shown, cmap=style.DIVERGING, vmin=-limit, vmax=limit)
    if heads <= ANNOTATED_HEADS:
        for (row, column), value in np.ndenumerate(matrix):
            if row != column and not np.isnan(value):
                dark = abs(value) > 0.6 * limit
                text = f"{value + 0.0:.2f}".replace("-", "−").replace("0.", ".")
                ax.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    names = range(0, heads, -(-heads // MAX_NAMES))
    ax.set_xticks(names, [str(name) for name in names], fontsize=8)
    ax.set_yticks(names, [str(name) for name in names], fontsize=8)
    ax.set_xlabel("head")
    ax.set_ylabel("head")
    ax.figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03).set_label("cosine similarity")


def _draw_spectra(ax: Axes, spectra: Mapping[str, Any], heads: int) -> None:
    width = 0.8 / len(spectra)
    for index, ((name, values), colour) in enumerate(
        zip(spectra.items(), (style.UNCENTRED, style.CENTRED), strict=False)
    ):
        eigenvalues = np.asarray(values, dtype=float)
        if not eigenvalues.sum() > 0:
            raise ValueError(f"the spectrum {name!r} should have a positive sum but is {eigenvalues.tolist()}")
        places = np.arange(1, len(eigenvalues) + 1) + (index - (len(spectra) - 1) / 2) * width
        ax.bar(places, 100 * eigenvalues / eigenvalues.sum(), width=width, color=colour, label=name)
    ax.axhline(100 / heads, color=style.NULL, linewidth=1, linestyle="--", label="all heads orthogonal: 1 / H each")
    ax.set_xlim(0.3, heads + 0.7)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    ax.set_xlabel("direction, largest first")
    ax.set_ylabel("share of the spectrum (%)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False, loc="upper right")
    ax.margins(y=0.25)
