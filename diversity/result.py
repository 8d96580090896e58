"""What a report is: a table with a record, its reading, its pictures and its files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..plots import effective_rank as draw_effective_rank
from ..plots import head_similarity as draw_head_similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    "layer",
    "circuit",
    "part",
    "n_heads",
    "erank",
    "erank_centred",
    "erank_pct_heads",
    "erank_centred_pct_heads",
    "erank_centred_pct_cap",
    "null_mean",
    "null_low",
    "null_high",
    "null_centred_mean",
    "participation_ratio",
    "stable_rank",
    "components_90",
    "first_component",
    "mean_similarity",
    "status",
)
"""Columns of a report's table. Percentages are 0-100; ``null_*`` are in heads, as ``erank`` is."""


@dataclass(frozen=True, eq=False)
class Report:
    """Head diversity of a checkpoint.

    Parameters
    ----------
    table
        One row per layer, circuit and part; see `COLUMNS`. NaN where a measure does not exist (`status` says why).
    similarity
        ``(circuit, part, layer)`` -> cosine similarities ``[head, head]``.
    record
        What was measured and how: checkpoint hash, configuration, offsets, folding, definition, seeds, versions.
    """

    table: pd.DataFrame
    similarity: dict[tuple[str, str, int], np.ndarray]
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"Report of {self.record['checkpoint']['path'] or 'a model in memory'}\n{self.summary()}"

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format="{:.4g}".format, index=False)

    def means(self) -> pd.DataFrame:
        """Return each circuit's and part's mean over layers, leaving out what does not exist."""
        numeric = [name for name in COLUMNS if name not in ("layer", "circuit", "part", "status", "n_heads")]
        return pd.DataFrame(self.table.groupby(["circuit", "part"], sort=False)[numeric].mean()).reset_index()

    def summary(self) -> str:
        """Return one line a circuit and part: means over layers, in percent."""
        return "\n".join(_summary_line(self.table, circuit, part) for circuit, part in self._parts())

    def reading(self) -> str:
        """Return what the numbers do and do not show, given where they lie against the null."""
        draws = len(self.record["null"]["seeds"])
        if not draws:
            return "No null was drawn: without it a high effective rank is no evidence that heads specialise."
        if draws == 1:
            return "The null is a single draw, which has no range to lie in: ask for several."
        return "\n".join(_reading(self.table, circuit, part) for circuit, part in self._parts())

    def _parts(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys(zip(self.table["circuit"], self.table["part"], strict=True)))

    def plot(self) -> Figure:
        """Draw effective rank by layer against its bounds and null."""
        return draw_effective_rank(self.table)

    def plot_similarity(self) -> Figure:
        """Draw the heads' similarities, one panel a layer."""
        return draw_head_similarity(self.similarity)

    def to_dict(self) -> dict[str, Any]:
        """Return the record and the rows, ready for strict JSON: None where a value does not exist."""
        rows = [{key: plain(value) for key, value in row.items()} for row in self.table.to_dict("records")]
        return {"record": self.record, "rows": rows, "summary": self.summary(), "reading": self.reading()}

    def to_json(self) -> str:
        """Return `to_dict` as strict JSON (no NaN), floats in full precision."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``report.json``, ``report.csv``, ``report.parquet``, ``heatmap.png`` and ``effective-rank.png``.

        The three tables hold the same values in full precision. Existing files of these names are replaced, each in one
        step; nothing else in the directory is touched.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        writers: dict[str, Callable[[Path], Any]] = {
            "report.json": lambda path: path.write_text(self.to_json() + "\n", encoding="utf-8"),
            "report.csv": lambda path: self.table.to_csv(path, index=False),
            "report.parquet": lambda path: self.table.to_parquet(path, index=False),
            "heatmap.png": lambda path: self.plot_similarity().savefig(path, dpi=150, format="png"),
            "effective-rank.png": lambda path: self.plot().savefig(path, dpi=150, format="png"),
        }
        for name, write in writers.items():
            part = target / f".{name}.part"
            write(part)
            part.replace(target / name)
        return [target / name for name in writers]


def plain(value: Any) -> Any:
    """Return a value for strict JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _summary_line(table: pd.DataFrame, circuit: str, part: str) -> str:
    rows = pd.DataFrame(table[(table["circuit"] == circuit) & (table["part"] == part)])
    name = _title(circuit, part)
    erank = rows["erank_pct_heads"].dropna()
    centred = rows[["erank_centred_pct_heads", "erank_centred_pct_cap"]].dropna()
    if not len(erank):
        return f"{name}: no layer could be measured"
    text = f"{name}, mean of {_layers(len(erank))}: effective rank {erank.mean():.2f} % of H"
    if not len(centred):
        return f"{text}; centred: no layer has one"
    of_heads, of_cap = centred.mean().tolist()
    fewer = "" if len(centred) == len(erank) else f" (mean of {_layers(len(centred))})"
    return f"{text}, centred{fewer} {of_heads:.2f} % of H = {of_cap:.2f} % of its cap H-1"


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _title(circuit: str, part: str) -> str:
    return circuit.upper() if part == "all" else f"{circuit.upper()} {part}"


def _reading(table: pd.DataFrame, circuit: str, part: str) -> str:
    rows = table[(table["circuit"] == circuit) & (table["part"] == part) & table["erank"].notna()]
    name = _title(circuit, part)
    if rows.empty:
        return f"{name}: no layer could be measured."
    erank, low, high = (np.asarray(rows[name]) for name in ("erank", "null_low", "null_high"))
    places = (
        (
            (erank >= low) & (erank <= high),
            "inside the null's range, where the number shows no more than that random queries differ and "
            "is no evidence of specialised heads",
        ),
        (erank < low, "below the null, with heads more alike than random ones of the same shape"),
        (erank > high, "above the null, with heads less alike than random ones of the same shape"),
    )
    texts = [f"{int(there.sum())} of {_layers(len(rows))} {what}" for there, what in places if there.any()]
    return f"{name}: {'; '.join(texts)}."
