"""Where the panels of a figure with many small square maps go.

A page is laid out by arithmetic in inches rather than by matplotlib's layout engines: with a hundred square
panels these are slow and leave gaps, and the size of the page has to be known, since it is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# At 150 dots per inch below 4000 x 6000 pixels.
MAX_WIDTH, MAX_HEIGHT = 26.0, 39.0
# What one looks at without losing oneself, and the panels' side there, in inches a head and at least and at most.
READING_WIDTH, READING_HEIGHT = 20.0, 22.0
A_HEAD, COMFORTABLE = 0.03, (1.3, 2.56)
MIN_WIDTH = 6.6  # the header's text needs it
MIN_PANEL = 0.5
MIN_ANNOTATED_CELL, ANNOTATED_CELL = 0.30, 0.42

HEADER = 1.75  # title, caption, colour bar
LEFT, RIGHT = 0.6, 0.2
GAP_X, GAP_Y = 0.36, 0.46  # between panels: tick labels, and the title of the panel below
BLOCK_GAP_X = 0.35
BLOCK_TOP, BLOCK_BOTTOM = 0.60, 0.42  # block title and panel title; tick labels and axis label

TICK_POINTS = 6.5


@dataclass(frozen=True)
class Page:
    """A page of blocks of square panels.

    Parameters
    ----------
    counts
        Number of panels in each block.
    columns
        At most this many panels side by side.
    panel
        Side of a panel, in inches.
    """

    counts: tuple[int, ...]
    columns: int
    panel: float

    @property
    def block_columns(self) -> int:
        """Panels side by side within a block, such that its rows are about equally full."""
        most = max(self.counts)
        return math.ceil(most / math.ceil(most / self.columns))

    @property
    def blocks_in_line(self) -> int:
        """Blocks side by side: more than one only where whole blocks fit."""
        return min(len(self.counts), max(1, self.columns // max(self.counts)))

    @property
    def _block_width(self) -> float:
        return self.block_columns * (self.panel + GAP_X) + BLOCK_GAP_X

    def _line_height(self, line: int) -> float:
        blocks = self.counts[line * self.blocks_in_line : (line + 1) * self.blocks_in_line]
        rows = math.ceil(max(blocks) / self.block_columns)
        return BLOCK_TOP + rows * self.panel + (rows - 1) * GAP_Y + BLOCK_BOTTOM

    @property
    def width(self) -> float:
        """Width of the page in inches."""
        blocks = self.blocks_in_line * self._block_width - GAP_X - BLOCK_GAP_X
        return max(MIN_WIDTH, LEFT + blocks + RIGHT)

    @property
    def height(self) -> float:
        """Height of the page in inches."""
        lines = math.ceil(len(self.counts) / self.blocks_in_line)
        return HEADER + sum(self._line_height(line) for line in range(lines))

    def block_corner(self, block: int) -> tuple[float, float]:
        """Left and top edge of a block, in inches from the left and from the top of the page."""
        line, slot = divmod(block, self.blocks_in_line)
        top = HEADER + sum(self._line_height(above) for above in range(line))
        return LEFT + slot * self._block_width, top

    def box(self, block: int, index: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of a panel, as fractions of the page (for `Figure.add_axes`)."""
        left, top = self.block_corner(block)
        row, column = divmod(index, self.block_columns)
        left += column * (self.panel + GAP_X)
        top += BLOCK_TOP + row * (self.panel + GAP_Y)
        bottom = self.height - top - self.panel
        return left / self.width, bottom / self.height, self.panel / self.width, self.panel / self.height

    def is_outer(self, block: int, index: int) -> tuple[bool, bool]:
        """Say whether a panel is the leftmost of its row, and whether it is the lowest of its column."""
        return index % self.block_columns == 0, index + self.block_columns >= self.counts[block]


def layers_a_page(n_layers: int, n_blocks: int, n_heads: int) -> int:
    """Return how many layers, with a panel in each block, a page holds at a comfortable size: at least one."""
    panel = _comfortable(n_heads)
    for pages in range(1, n_layers):
        layers = math.ceil(n_layers / pages)
        for columns in range(1, layers * n_blocks + 1):
            page = Page((layers,) * n_blocks, columns, panel)
            if page.width <= READING_WIDTH and page.height <= READING_HEIGHT:
                return layers
    return 1


def _comfortable(n_heads: int) -> float:
    return float(np.clip(A_HEAD * n_heads, *COMFORTABLE))


def choose_page(counts: Sequence[int], n_heads: int, *, annotated: bool, max_columns: int | None) -> Page:
    """Choose columns and panel size: as large as a page allows, no taller than wide if possible.

    The page is one for reading, where panels of a comfortable size fit there; else as large as need be, up to a bound.

    Parameters
    ----------
    counts
        Number of panels in each block.
    n_heads
        The largest number of heads in a panel.
    annotated
        Whether each cell must have room for a number.
    max_columns
        Panels side by side; chosen here where None.

    Returns
    -------
    Page
        A page within the bounds.

    Raises
    ------
    ValueError
        If the panels do not fit within the bounds at a legible size.
    """
    total = sum(counts)
    most = len(counts) * max(counts)
    options = range(1, most + 1) if max_columns is None else [min(max_columns, most)]
    roomy = 1.6 if total <= 4 else 1.25 if total <= 16 else 1.0
    largest = roomy * min(3.6, max(1.5, 1.2 + 0.019 * n_heads))
    smallest = MIN_PANEL
    if annotated:
        largest, smallest = max(largest, ANNOTATED_CELL * n_heads), MIN_ANNOTATED_CELL * n_heads
    reading = READING_WIDTH, READING_HEIGHT, min(largest, max(smallest, _comfortable(n_heads)))
    for width, height, least in (reading, (MAX_WIDTH, MAX_HEIGHT, smallest)):
        for panel in np.linspace(largest, least, 16):
            pages = [Page(tuple(counts), columns, float(panel)) for columns in options]
            fitting = [page for page in pages if page.width <= width and page.height <= height]
            if fitting:
                return next((page for page in fitting if page.height <= page.width), fitting[-1])
    numbers = " with a number in every cell" if annotated else ""
    limited = f" with max_columns={max_columns}" if max_columns is not None else ""
    advice = ["draw fewer layers"]
    advice += ["allow more columns"] if max_columns is not None else []
    advice += ["set annotate=False"] if annotated else []
    raise ValueError(
        f"{total} panels of {n_heads} heads{numbers} do not fit on a page of {MAX_WIDTH:g} x {MAX_HEIGHT:g} "
        f"inches{limited}: {' or '.join(advice)}"
    )


def tick_stride(n_heads: int, panel: float) -> int:
    """Smallest power of two such that every so many-th head can be labelled without overlap."""
    cell = panel * 72 / n_heads
    digits = len(str(n_heads - 1))
    needed = max(1.25 * TICK_POINTS, (0.64 * digits + 0.35) * TICK_POINTS)
    return 2 ** max(0, math.ceil(math.log2(needed / cell)))
