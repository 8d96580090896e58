"""What a verb gives back: a labelled table with a record of how it came about, its words, its pictures, its files."""

from __future__ import annotations

import io
import json
import math
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from .plots.page import Drawn


@dataclass(frozen=True)
class Picture:
    """A picture that a result can draw of itself.

    Parameters
    ----------
    draw
        Draws it, anew at each call.
    caption
        How to read it: plain text, one to three sentences.
    """

    draw: Callable[[], Figure]
    caption: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(ABC):
    """A table, its record, and what can be done with them.

    Parameters
    ----------
    table
        The values, unrounded; NaN where one does not exist.
    record
        What was measured and how, ready for strict JSON.
    source
        What a further verb measures that is given the result: the path, name, checkpoint or model that this one was
        measured on; of a conversion, what came out; of a trajectory, its run. None where there is no one source.
    """

    table: pd.DataFrame
    record: dict[str, Any]
    source: Any = None

    stem: ClassVar[str]
    """File name of the tables, without suffix."""

    def __repr__(self) -> str:
        return f"{self.title()}\n{self.summary()}"

    def _repr_html_(self) -> str:
        from .plots.page import short

        rows, order = self.main_rows()
        return short(self.title(), self.summary().splitlines(), rows, order=order)

    @abstractmethod
    def title(self) -> str:
        """Return what this is a result of, in a few words."""

    def measured(self) -> list[str]:
        """Return what was measured and how, in a line or a few."""
        return []

    @abstractmethod
    def summary(self) -> str:
        """Return the main numbers, a line each."""

    @abstractmethod
    def reading(self) -> str:
        """Return what the numbers do and do not show."""

    @abstractmethod
    def pictures(self) -> dict[str, Picture]:
        """Return file name -> picture."""

    @abstractmethod
    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return what a terminal shows: tables, then lines."""

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return file stem -> table."""
        return {self.stem: self.table}

    def meaning(self) -> dict[str, str]:
        """Return column -> what it holds, in a line, for the columns of all tables that need it."""
        return {}

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return what a short view begins with: rows with the columns that matter, and how they are ordered.

        Without an order, in words, rows stand as in the table.
        """
        return self.table, ""

    def to_dict(self) -> dict[str, Any]:
        """Return the record and the rows, ready for strict JSON: None where a value does not exist."""
        main, *others = self.tables().items()
        extra = {name: rows(table) for name, table in others}
        words = {"summary": self.summary(), "reading": self.reading()}
        return {"record": self.record, "rows": rows(main[1]), **extra, **words}

    def to_json(self) -> str:
        """Return `to_dict` as strict JSON (no NaN), floats in full precision."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)

    def save(self, directory: str | os.PathLike[str], *, pictures: bool = True) -> list[Path]:
        """Write the JSON, each table as CSV and parquet, and (if wanted) the pictures; return what was written.

        The three forms of a table hold the same values in full precision. Existing files of these names are replaced,
        each in one step; nothing else in the directory is touched.
        """
        target = Path(directory).expanduser()
        target.mkdir(parents=True, exist_ok=True)
        return [_written_whole(target / name, write) for name, write in self._writers(pictures).items()]

    def to_html(self) -> str:
        """Return a page that holds everything: words, pictures, tables that sort and filter, the record.

        It fetches nothing, and shows whatever text a name or a cell holds as text.
        """
        return html_page([self])

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write `to_html` to a file, replaced in one step if it exists; return where it is."""
        return save_html_page([self], path)

    def files(self) -> list[str]:
        """Return the names of the files that `save` writes."""
        return list(self._writers(pictures=True))

    def _writers(self, pictures: bool) -> dict[str, Callable[[Path], Any]]:
        writers: dict[str, Callable[[Path], Any]] = {
            f"{self.stem}.json": lambda path: path.write_text(self.to_json() + "\n", encoding="utf-8")
        }
        for name, table in self.tables().items():
            writers[f"{name}.csv"] = lambda path, table=table: table.to_csv(path, index=False)
            writers[f"{name}.parquet"] = lambda path, table=table: table.to_parquet(path, index=False)
        for name, picture in self.pictures().items() if pictures else ():
            writers[name] = lambda path, draw=picture.draw: draw().savefig(path, dpi=150, format="png")
        return writers


def versions(*names: str) -> dict[str, str]:
    """Return, for a record, the versions of Python, of headscope and of the packages that a result hangs on."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("headscope", *names)}}


def source_of(given: Any) -> Any:
    """Return what to measure: what was given or, of a result, what that was measured on.

    Raises
    ------
    ValueError
        If a result has no one source.
    """
    if not isinstance(given, Result):
        return given
    if given.source is None:
        raise ValueError(
            f"{given.title()}: behind a {type(given).__name__} stands no single model; give a path or a model"
        )
    return given.source


def html_page(results: Sequence[Result]) -> str:
    """Return one page of several results, as `Result.to_html` makes of one."""
    from .plots.page import Part, Table, page

    parts = [
        Part(
            title=result.title(),
            measured=result.measured(),
            summary=result.summary().splitlines(),
            reading=result.reading().splitlines(),
            pictures=[_drawn(name, picture) for name, picture in result.pictures().items()],
            tables=[Table(name, table, result.meaning()) for name, table in result.tables().items()],
            record=result.record,
        )
        for result in results
    ]
    return page(parts)


def save_html_page(results: Sequence[Result], path: str | os.PathLike[str]) -> Path:
    """Write `html_page` to a file, replaced in one step if it exists; return where it is.

    Raises
    ------
    ValueError
        If the path is a directory.
    """
    if Path(path).expanduser().is_dir():
        raise ValueError(f"the page should be a file but {path} is a directory: try {Path(path) / 'page.html'}")
    text = html_page(results)
    return _written_whole(Path(path).expanduser(), lambda part: part.write_text(text, encoding="utf-8"))


def _drawn(name: str, picture: Picture) -> Drawn:
    """Draw a picture for a page; what cannot be drawn says so in its place."""
    from .plots.page import DPI, Drawn

    heading = Path(name).stem.replace("-", " ")
    file = io.BytesIO()
    try:
        picture.draw().savefig(file, dpi=DPI, format="png")
    except ValueError as error:
        return Drawn(heading, picture.caption, None, str(error))
    return Drawn(heading, picture.caption, file.getvalue())


def _written_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Write a file beside its place and move it there, so that nobody ever reads half of it."""
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def paged(
    name: str, pages: Sequence[list[int]], draw: Callable[[list[int]], Figure], caption: str
) -> dict[str, Picture]:
    """Return a picture for each page of layers: NAME.png, or where there are several NAME-1.png, NAME-2.png and on."""
    files = [f"{name}.png"] if len(pages) == 1 else [f"{name}-{number}.png" for number in range(1, len(pages) + 1)]
    return {
        file: Picture(lambda layers=layers: draw(layers), caption) for file, layers in zip(files, pages, strict=True)
    }


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows for strict JSON."""
    return [{str(key): plain(value) for key, value in row.items()} for row in table.to_dict("records")]


def plain(value: Any) -> Any:
    """Return a value for strict JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
