"""Cells and columns of tables, written one way everywhere; only what is shown is rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table


def new_table(title: str, headers: Sequence[str], left: Sequence[str] = ("model",)) -> Table:
    """Return an empty table; columns are aligned right but for those named `left`."""
    table = Table(
        title=title,
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for header in headers:
        table.add_column(header, justify="left" if header in left else "right", no_wrap=True)
    return table


def cache(row: dict[str, Any]) -> str:
    """Return the cache of a row; in brackets with ranks padded, where that is more."""
    logical, physical = row["cache_bytes"], row["cache_bytes_physical"]
    return f"{logical:,}" if logical == physical else f"{logical:,} ({physical:,})"


def with_interval(row: dict[str, Any], name: str, digits: int) -> str:
    """Return a mean and half of its interval, if it has one."""
    mean, half = row[f"{name}_mean"], row[f"{name}_high"] - row[f"{name}_mean"]
    return number(mean, digits) + ("" if math.isnan(half) else f" ±{half:.{digits}f}")


def number(value: float, digits: int) -> str:
    """Return a number with some digits; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def chance(value: float) -> str:
    """Return a p-value; none is shown as zero."""
    return "<0.0001" if value < 1e-4 else number(value, 4)


def signed(value: float) -> str:
    """Return a number with its sign; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:+.3f}"


def span(low: float, high: float) -> str:
    """Return both ends of a range; a dash for NaN."""
    return "–" if math.isnan(low) else f"{low:.3f}–{high:.3f}"
