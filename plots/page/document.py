"""The page: a self-contained HTML file of one or several results."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any

import pandas as pd

from .columns import Column, columns_of
from .templates import render

MOST_CELLS = 200_000
"""Cells of a table that a page holds, about four megabytes; later rows are left out, and the page says so."""
DPI, CSS_DPI = 150, 96
"""Pixels an inch of the pictures, and of a page."""
FIRST_ROWS = 20
"""Rows on a table's first leaf, and all that is seen where scripts are off."""


@dataclass(frozen=True)
class Drawn:
    """A picture.

    Parameters
    ----------
    name
        Its name, as a heading and for those who cannot see it.
    caption
        How to read it.
    png
        The file's bytes; None if it could not be drawn.
    problem
        Why it could not be drawn.
    """

    name: str
    caption: str
    png: bytes | None
    problem: str = ""

    @property
    def source(self) -> str:
        """The picture as an address that holds it."""
        return "data:image/png;base64," + base64.b64encode(self.png or b"").decode("ascii")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height on the page, from the PNG's header: its place is kept before it is decoded."""
        header = self.png or b""
        pixels = int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")
        return round(pixels[0] * CSS_DPI / DPI), round(pixels[1] * CSS_DPI / DPI)


@dataclass(frozen=True)
class Table:
    """A table.

    Parameters
    ----------
    name
        What it is called.
    rows
        Its rows, unrounded.
    meaning
        Column -> what it holds, in a line; columns may be missing.
    """

    name: str
    rows: pd.DataFrame
    meaning: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def columns(self) -> list[Column]:
        """The columns, with as many rows as a page holds."""
        return columns_of(self.rows.head(self.held))

    @property
    def held(self) -> int:
        """How many rows the page holds."""
        return min(len(self.rows), MOST_CELLS // max(1, self.rows.shape[1]))

    @property
    def first(self) -> range:
        """The rows on the first leaf."""
        return range(min(self.held, FIRST_ROWS))

    @property
    def explained(self) -> list[tuple[str, str]]:
        """Columns that are explained, in the table's order."""
        return [(c.name, self.meaning[c.name]) for c in self.columns if c.name in self.meaning]

    def data(self) -> dict[str, Any]:
        """Return what the script shows."""
        return {"columns": [column.to_dict() for column in self.columns]}


@dataclass(frozen=True)
class Part:
    """A result on a page.

    Parameters
    ----------
    title, measured, summary, reading
        What it is, what was measured, the main numbers, what they show: lines of plain text.
    pictures, tables
        In the order in which they are shown.
    record
        How it came about, ready for strict JSON.
    """

    title: str
    measured: Sequence[str]
    summary: Sequence[str]
    reading: Sequence[str]
    pictures: Sequence[Drawn]
    tables: Sequence[Table]
    record: Mapping[str, Any]

    @property
    def versions(self) -> str:
        """Which versions made it, in a line."""
        found = self.record.get("versions", {})
        return ", ".join(f"{name} {number}" for name, number in found.items())

    @property
    def record_text(self) -> str:
        """The record as JSON for people."""
        return json.dumps(self.record, indent=2, ensure_ascii=False, allow_nan=False)


def page(parts: Sequence[Part]) -> str:
    """Return a self-contained HTML page.

    Its style and script stand in it, and its security policy allows these two, by their hashes, and pictures that it
    holds itself: nothing is fetched, and nothing that a name or a cell smuggles in would run.

    Parameters
    ----------
    parts
        At least one; the first one's title is the page's.

    Examples
    --------
    >>> import pandas as pd
    >>> table = Table("heads", pd.DataFrame({"head": [0, 1], "effect": [-0.5, 0.25]}))
    >>> text = page([Part("a <b>", [], ["one line"], [], [], [table], {"seed": 0})])
    >>> text.startswith("<!doctype html>"), "a &lt;b&gt;" in text, "<b>" in text
    (True, True, False)
    """
    style, script = (
        files(__name__.rpartition(".")[0]).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    text = render("page.html.j2", parts=parts, style=style, script=script, policy=policy)
    # A path that is no text keeps half of a character pair, which no file can hold.
    return text.encode("utf-8", "replace").decode("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
