"""Printing tables and lines on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 100
"""Columns where output is no terminal."""


class _Console(Console):
    """A console that leaves a broken pipe to the caller, who knows what status to leave with."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(tables: Sequence[Table], lines: Sequence[str]) -> None:
    """Print tables, then lines. No number is ever cut off: a table wider than the terminal wraps there."""
    console = _Console(highlight=False)
    if not console.is_terminal:
        console = _Console(highlight=False, width=WIDTH)
    for table in tables:
        # Printed apart: a table breaks its own title at the width of its columns.
        console.print(table.title, style="italic")
        table.title = None
        needed = Console(width=10_000).measure(table).maximum
        wide = console if needed <= console.width else _Console(highlight=False, width=needed)
        wide.print(table)
    for line in lines:
        console.print(line, markup=False)
