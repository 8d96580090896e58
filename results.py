"""What a verb gives back: a labelled table with a record of how it came about, its words, its pictures, its files."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


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
    """

    table: pd.DataFrame
    record: dict[str, Any]

    stem: ClassVar[str]
    """File name of the tables, without suffix."""

    def __repr__(self) -> str:
        return f"{self.title()}\n{self.summary()}"

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format="{:.4g}".format, index=False)

    @abstractmethod
    def title(self) -> str:
        """Return what this is a result of, in a few words."""

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
        writers = self._writers(pictures)
        for name, write in writers.items():
            part = target / f".{name}.part"
            try:
                write(part)
                part.replace(target / name)
            finally:
                part.unlink(missing_ok=True)
        return [target / name for name in writers]

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


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows for strict JSON."""
    return [{str(key): plain(value) for key, value in row.items()} for row in table.to_dict("records")]


def plain(value: Any) -> Any:
    """Return a value for strict JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
