"""Reading a table of printed figures: each number with the room that its last digit leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from ..models.grouped import GroupedConfig
from ..models.lrkv import LRKVConfig
from ..models.mla import MLAConfig
from ..models.variant import AttentionConfig

BACKBONE = ("layers", "heads", "d_head", "d_model", "vocabulary")
OWN = ("groups", "rank", "latent", "rotary")
CIRCUMSTANCES = {"length": None, "requests": 1, "element_bytes": 2}
"""What a figure is about besides the model, and what is taken where it is not said."""
FIGURES = ("bytes", "dense_bytes", "ratio", "parameters", "loss", "bits_per_byte", "centred_rank")
REQUIRED = ("name", "variant", "source")
VARIANTS = ("mha", "gqa", "mqa", "mla", "lrkv")

_SCALES = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_COUNTS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Figure:
    """A number as printed.

    Parameters
    ----------
    text
        How it is printed.
    low, high
        What it can stand for: half a unit of the last digit to either side; ``>5`` is above 5, however far.
    unit
        What it was read as, where print leaves it open (MB for MiB).
    """

    text: str
    low: float
    high: float
    unit: str = ""

    def agrees(self, value: float) -> bool:
        """Return whether a computed value can have been printed so."""
        return self.low <= value <= self.high

    @property
    def value(self) -> float:
        """The middle (of ``>5``: 5)."""
        return self.low if self.high == float("inf") else (self.low + self.high) / 2


@dataclass(frozen=True)
class Row:
    """What one place prints of one model.

    Parameters
    ----------
    name, variant, source
        Whose figures these are, of which variant, and where they stand. Rows of one name share a backbone.
    settings
        Field -> integer: those printed here, then those filled in.
    filled
        Field -> the source it was filled in from.
    figures
        Column -> readings of what is printed, more than one where the unit is open.
    """

    name: str
    variant: str
    source: str
    settings: dict[str, int]
    figures: dict[str, tuple[Figure, ...]]
    filled: dict[str, str] = field(default_factory=dict)

    def missing(self, *names: str) -> list[str]:
        """Return which of these settings are not known."""
        return [name for name in names if name not in self.settings]

    def needs(self) -> list[str]:
        """Return the setting of its own that the row's variant needs (none for MHA and MQA)."""
        return {"gqa": ["groups"], "mla": ["latent"], "lrkv": ["rank"]}.get(self.variant, [])

    def attention(self, **changes: int) -> AttentionConfig:
        """Return the variant's configuration, with some settings changed.

        Raises
        ------
        ValueError
            If it cannot be.
        """
        s = self.settings | changes
        heads, width = s["heads"], s["d_head"]
        if self.variant == "lrkv":
            return LRKVConfig(n_heads=heads, d_head=width, rank=s["rank"])
        if self.variant == "mla":
            channel = s.get("rotary", 0)
            return MLAConfig(n_heads=heads, d_latent=s["latent"], d_nope=width, d_rope=channel, d_value_head=width)
        groups = {"mqa": 1, "gqa": s.get("groups")}.get(self.variant)
        return GroupedConfig(n_heads=heads, d_head=width, n_kv_heads=groups)


def read_table(path: Path) -> list[Row]:
    """Read a CSV of printed figures, and fill in settings that stand elsewhere in it.

    A row that leaves out a setting takes it from the first row that prints it: of the same name for the backbone, of
    the same name and variant for groups, rank and latent.

    Raises
    ------
    ValueError
        If a column is unknown or missing, or a cell cannot be read; names file, line and column.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (ValueError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV that can be read: {error}") from error
    known = (*REQUIRED, *BACKBONE, *OWN, *CIRCUMSTANCES, *FIGURES, "note")
    if unknown := [str(column) for column in table.columns if column not in known]:
        raise ValueError(f"{path} has columns {', '.join(unknown)} that no check reads: known are {', '.join(known)}")
    if missing := [column for column in REQUIRED if column not in table.columns]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    rows = [_row(f"{path}, line {line}", cells) for line, cells in enumerate(table.to_dict("records"), start=2)]
    return [_filled(row, rows) for row in rows]


def _row(place: str, cells: dict[str, str]) -> Row:
    text = {str(name): str(value).strip() for name, value in cells.items()}
    variant = text["variant"].lower()
    if variant and variant not in VARIANTS:
        raise ValueError(f"{place}: variant should be one of {', '.join(VARIANTS)} or empty but is {variant!r}")
    settings: dict[str, int] = {}
    for name in (*BACKBONE, *OWN, *CIRCUMSTANCES):
        if value := text.get(name, ""):
            if not value.isdecimal() or not (int(value) or name == "rotary"):
                raise ValueError(f"{place}: {name} should be an integer > 0 or empty but is {value!r}")
            settings[name] = int(value)
    figures = {name: _figure(f"{place}: {name}", name, text[name]) for name in FIGURES if text.get(name)}
    return Row(text["name"], variant, text["source"], settings, figures)


def _figure(place: str, name: str, text: str) -> tuple[Figure, ...]:
    found = re.fullmatch(r"(>?)\s*(\d[\d,]*\.?\d*)\s*%?\s*([A-Za-z]*)", text)
    scales = _SCALES if name.endswith("bytes") else _COUNTS if name == "parameters" else {"": 1}
    if found is None or found[3].upper() not in scales:
        units = ", ".join(filter(None, scales)) or "none"
        raise ValueError(f"{place} should be a number (units: {units}) but is {text!r}")
    number, unit = found[2].replace(",", ""), found[3].upper()
    value, half = float(number), 0.5 * 10.0 ** -len(number.partition(".")[2])
    # Many print MB for MiB: either reading is allowed, and the one that fits is named.
    units = [unit, f"{unit[0]}IB"] if unit in ("KB", "MB", "GB") and scales is _SCALES else [unit]
    if found[1]:
        return (Figure(text, float(value), float("inf")),)
    return tuple(
        Figure(text, (value - half) * scales[u], (value + half) * scales[u], u.replace("IB", "iB")) for u in units
    )


def _filled(row: Row, rows: list[Row]) -> Row:
    settings, filled = dict(row.settings), {}
    for name in (*BACKBONE, *OWN):
        if name not in settings:
            for other in _others(row, rows, same_variant=name in OWN):
                if name in other.settings:
                    settings[name], filled[name] = other.settings[name], other.source
                    break
    for name, default in CIRCUMSTANCES.items():
        if default is not None:
            settings.setdefault(name, default)
    return replace(row, settings=settings, filled=filled)


def _others(row: Row, rows: list[Row], *, same_variant: bool) -> Iterator[Row]:
    for other in rows:
        if other is not row and other.name == row.name and (other.variant == row.variant or not same_variant):
            yield other
