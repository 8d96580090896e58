"""The short view that a notebook shows: no script, no style sheet, at most twenty rows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .columns import Column, columns_of
from .templates import render

ROWS = 20
"""Rows that are shown."""


def short(title: str, lines: Sequence[str], table: pd.DataFrame, *, order: str = "") -> str:
    """Return a title, lines and the main rows of a table as HTML for a notebook.

    Parameters
    ----------
    title, lines
        Plain text.
    table
        The rows; of more than `ROWS` the first ones are shown if they stand in an order that matters, otherwise the
        first and the last. What is left out is said.
    order
        How they are ordered, in words; empty: as they come.

    Examples
    --------
    >>> import pandas as pd
    >>> text = short("Numbers", ["a < b"], pd.DataFrame({"n": range(100)}))
    >>> "a &lt; b" in text, "80 rows between" in text
    (True, True)
    """
    count = len(table)
    top = count if count <= ROWS else ROWS if order else ROWS // 2
    bottom = 0 if order or count <= ROWS else ROWS // 2
    # Rounded as one column, whichever rows are shown.
    columns = columns_of(pd.concat([table.head(top), table.tail(bottom)]))
    return render(
        "short.html.j2",
        title=title,
        lines=lines,
        columns=columns,
        top=_cells(columns, 0, top),
        bottom=_cells(columns, top, top + bottom),
        hidden=count - top - bottom,
        count=count,
        order=order,
    )


def _cells(columns: list[Column], start: int, stop: int) -> list[list[tuple[str, bool]]]:
    """Return the rows' texts, and whether each is a number."""
    return [[(column.shown(row), column.kind == "number") for column in columns] for row in range(start, stop)]
