"""One layer close up: how alike its heads are, and the spectrum that an effective rank sums up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.ticker import MaxNLocator

from . import style
from .maps import every, heat_map, name_cells
from .panels import OnAxes, panels_for
from .scale import Scale

ANNOTATED_HEADS = 12
MAX_NAMES = 32
SIZE = (9.4, 4.3)


def one_layer(similarity: Any, spectra: Mapping[str, Any], *, title: str = "", ax: OnAxes = None) -> np.ndarray:
    """Draw the heads' similarities, and beside them how their sum spreads over directions.

    Parameters
    ----------
    similarity
        ``[head, head]`` cosines. The colour scale is that of the largest off-diagonal one; the diagonal is grey.
    spectra
        Name -> shares of the sum, largest first (`diversity.spectra.shares`), for at most two spectra.
    title
        Over the figure.
    ax
        Two axes to draw on. A new figure where not given.

    Returns
    -------
    numpy.ndarray
        The two panels: similarities and spectra.

    Raises
    ------
    ValueError
        If the matrix is not square, or the number of axes is not two.

    Examples
    --------
    >>> import numpy as np
    >>> panels = one_layer(np.eye(4), {"uncentred": [0.25] * 4, "centred": [1 / 3] * 3})
    >>> [panel.get_xlabel() for panel in panels]
    ['head', 'component, largest first']
    """
    matrix = style.as_array(similarity)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"similarity should be a square [head, head] matrix but is {matrix.shape}")
    panels = panels_for(ax, 2, "of similarities and spectra", columns=2, size=SIZE, title=title)
    _draw_map(panels[0], matrix)
    _draw_spectra(panels[1], spectra, len(matrix))
    return np.array(panels, dtype=object)


def _draw_map(ax: Axes, matrix: np.ndarray) -> None:
    heads = len(matrix)
    limit = Scale.of([matrix]).limit
    shown = np.where(np.eye(heads, dtype=bool), np.nan, matrix)
    heat_map(ax, shown, limits=(-limit, limit), label="cosine similarity", cmap=style.DIVERGING)
    itself = np.ma.masked_array(np.ones_like(matrix), mask=~np.eye(heads, dtype=bool) | np.isnan(matrix))
    ax.pcolormesh(itself, cmap=ListedColormap([style.DIAGONAL]), edgecolors="white", linewidth=0.6)
    ax.set_box_aspect(1)
    if heads <= ANNOTATED_HEADS:
        for (row, column), value in np.ndenumerate(shown):
            if not np.isnan(value):
                text = f"{value + 0.0:.2f}".replace("-", "−").replace("0.", ".")
                colour = "white" if abs(value) > 0.6 * limit else "black"
                ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7, color=colour)
    names = [str(head) for head in range(heads)]
    stride = name_cells(ax.xaxis, names, MAX_NAMES, rotation=0, fontsize=8)
    name_cells(ax.yaxis, names, MAX_NAMES, rotation=0, fontsize=8)
    ax.set_xlabel(f"head{every(stride)}")
    ax.set_ylabel(f"head{every(stride)}")


def _draw_spectra(ax: Axes, spectra: Mapping[str, Any], heads: int) -> None:
    width = 0.8 / len(spectra)
    for index, (name, share) in enumerate(spectra.items()):
        percent = 100 * style.as_array(share)
        places = np.arange(1, len(percent) + 1) + (index - (len(spectra) - 1) / 2) * width
        ax.bar(places, percent, width=width, color=(style.UNCENTRED, style.CENTRED)[index], label=name)
    ax.axhline(100 / heads, color=style.NULL, linewidth=1, linestyle="--", label="all heads orthogonal: 1 / H each")
    ax.set_xlim(0.3, heads + 0.7)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    ax.set_xlabel("component, largest first")
    ax.set_ylabel("share of the sum (%)")
    ax.margins(y=0.25)
    sns.despine(ax=ax)
    ax.legend(fontsize=8, frameon=False, loc="upper right")
