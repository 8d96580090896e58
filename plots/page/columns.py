"""A table's columns as a page shows them: what kind they are, rounded for the eye, whole for sorting."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Literal

import numpy as np
import pandas as pd

Kind = Literal["number", "text", "bool"]
MISSING = "–"
LONGEST = 300
"""Characters of a cell that are shown."""
SIGNIFICANT = 4
"""Digits of the largest value of a column."""
MOST_DECIMALS = 6
_UNSEEN = re.compile(r"\A\Z|\A[ \xa0]|[ \xa0]\Z|[\x00-\x1f]")
"""What the eye would miss: no text, spaces at its ends, new lines. Such texts are shown in quotes, with escapes."""
GROUPED, SCIENTIFIC = 10_000, 1e9
"""From where on digits are grouped, and from where on a power of ten is written."""
EXACT = 2**53
"""The largest whole number below which a double holds every one."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name
        Its name.
    kind
        What its values are; decides alignment, order and filters.
    decimals
        How many a number is shown with.
    values
        Plain values in full precision, None where there is none.
    """

    name: str
    kind: Kind
    decimals: int
    values: tuple[Any, ...]

    @classmethod
    def of(cls, name: Any, series: pd.Series) -> Column:
        """Read a column of a data frame."""
        values = tuple(_plain(value) for value in series.tolist())
        known = [value for value in values if value is not None]
        if all(isinstance(value, bool) for value in known):
            kind: Kind = "bool" if known else "text"
        else:
            kind = "number" if all(_is_number(value) for value in known) else "text"
        if kind == "text":
            values = tuple(None if value is None else str(value) for value in values)
        return cls(str(name), kind, _decimals(known) if kind == "number" else 0, values)

    def shown(self, row: int) -> str:
        """Return the text of a cell; page.js writes the same."""
        value = self.values[row]
        if value is None:
            return MISSING
        if self.kind == "number":
            return number(value, self.decimals)
        if self.kind == "bool":
            return "yes" if value else "no"
        text = value[:LONGEST]
        text = json.dumps(text, ensure_ascii=False) if _UNSEEN.search(text) else text
        return text if len(value) <= LONGEST else f"{text}… ({len(value):,} characters)"

    def to_dict(self) -> dict[str, Any]:
        """Return the column for strict JSON: infinities are written out, since JSON has none."""
        return {"name": self.name, "kind": self.kind, "decimals": self.decimals, "values": [*map(_json, self.values)]}


def columns_of(table: pd.DataFrame) -> list[Column]:
    """Return a table's columns, two of the same name too."""
    return [Column.of(name, table.iloc[:, place]) for place, name in enumerate(table.columns)]


def number(value: float, decimals: int) -> str:
    """Return a number with so many decimals, or as a power of ten where these would show nothing of it.

    Halves are rounded away from zero, as JavaScript does.

    Examples
    --------
    >>> number(12345.678, 1), number(0.00042, 3), number(0.125, 2), number(-3, 0)
    ('12,345.7', '4.2e-4', '0.13', '-3')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    with localcontext(rounding=ROUND_HALF_UP):
        exact = Decimal(value)
        whole = decimals == 0 and size < EXACT and float(value).is_integer()
        if value and (size < 10.0**-decimals or size >= SCIENTIFIC) and not whole:
            mantissa, power = f"{exact:.1e}".split("e")
            return f"{mantissa}e{int(power)}"
        grouping = "," if size >= GROUPED else ""
        return format(abs(exact) if not value else exact, f"{grouping}.{decimals}f")


def _decimals(known: list[Any]) -> int:
    """Return how many decimals show `SIGNIFICANT` digits of the largest value; none where all are whole."""
    sizes = [abs(value) for value in known if math.isfinite(value)]
    if not sizes or all(isinstance(value, int) or float(value).is_integer() for value in sizes):
        return 0
    return min(MOST_DECIMALS, max(0, SIGNIFICANT - 1 - math.floor(math.log10(max(sizes)))))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    # A whole number that a double cannot hold would come out as another one: it is kept as text.
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < EXACT)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def _json(value: Any) -> Any:
    return ("inf" if value > 0 else "-inf") if isinstance(value, float) and math.isinf(value) else value
