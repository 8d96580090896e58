"""An audit of printed figures: what can be recomputed, what cannot be true together, what would explain it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from ..plots.terminal import findings_table
from ..results import Picture, Result, versions
from .between import SAME_TEXT, bytes_a_token, disagreements, twins
from .checks import NAME_TOLERANCE, check_row
from .finding import AGREES, CONTRADICTS, UNKNOWN
from .printed import read_table

if TYPE_CHECKING:
    from rich.table import Table

PAPER = Path(__file__).parent / "paper.csv"
"""What the LRKV paper (arXiv 2601.11471v3) prints of capacity, and what it ties it to."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Audit(Result):
    """Checks of printed figures.

    Parameters
    ----------
    table
        One row a check: name, variant, source, check, printed, computed, verdict (``agrees``, ``contradicts``,
        ``cannot be checked``), explanation.
    record
        The table that was audited, its hash, and the rules.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.audit()
    >>> sorted(set(found.table["verdict"]))
    ['agrees', 'contradicts']
    """

    stem: ClassVar[str] = "audit"

    @property
    def contradictions(self) -> pd.DataFrame:
        """The rows of what cannot be true together."""
        return pd.DataFrame(self.table[self.table["verdict"] == CONTRADICTS]).reset_index(drop=True)

    def title(self) -> str:
        """Return what was audited."""
        return f"Audit of {self.record['path']}"

    def summary(self) -> str:
        """Return how many checks came out how."""
        counts = self.table["verdict"].value_counts()
        return ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in (AGREES, CONTRADICTS, UNKNOWN))

    def reading(self) -> str:
        """Return what a contradiction is, and what it is not."""
        return (
            "A contradiction says that figures cannot hold together by the formulas, not which of them is wrong. "
            "What fits was searched by changing one setting, or two where one was not enough."
        )

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold."""
        return {
            "name": "whose figure it is",
            "variant": "of which attention",
            "source": "where it is printed",
            "check": "what was checked",
            "printed": "what is printed",
            "computed": "what comes out",
            "verdict": f"{AGREES}, {CONTRADICTS} or {UNKNOWN}",
            "explanation": "what would make it true, or what is missing",
        }

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return what does not agree."""
        return pd.DataFrame(self.table[self.table["verdict"] != AGREES]), "what does not agree"

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the contradictions, then how much else was checked."""
        lines = [f"{self.title()}: {self.summary()}.", self.reading()]
        shown = self.table[self.table["verdict"] != AGREES]
        return ([findings_table(pd.DataFrame(shown))] if len(shown) else []), lines

    def pictures(self) -> dict[str, Picture]:
        """Return nothing: an audit has no picture."""
        return {}


def audit(table: str | os.PathLike[str] | None = None, *, out: str | os.PathLike[str] | None = None) -> Audit:
    """Recompute what a table of printed figures allows, and find what cannot be true together.

    Parameters
    ----------
    table
        A CSV; its columns are in docs/budget.md. None: what the LRKV paper prints.
    out
        Directory to save to.

    Raises
    ------
    ValueError
        If a column is unknown or a cell cannot be read; names line and column.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.audit().contradictions
    >>> found[found["check"] == "MHA's cache"]["explanation"].iloc[-1]
    'fits 36 layers (not 32 of Table 5)'
    """
    path = PAPER if table is None else Path(table).expanduser()
    rows = read_table(path)
    findings = [finding for row in rows for finding in check_row(row, rows)]
    findings += [*disagreements(rows), *twins(rows), *bytes_a_token(rows)]
    if not findings:
        raise ValueError(f"{path} prints nothing that can be checked: no cache, ratio, parameters, loss or rank")
    result = Audit(
        table=pd.DataFrame([asdict(finding) for finding in findings]),
        record={
            "kind": "audit",
            "path": "the LRKV paper, arXiv 2601.11471v3 (ships as budgets/paper.csv)" if table is None else str(table),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "rules": {
                "printed": "half a unit of the last digit to either side; MB may mean MiB",
                "parameters": f"within {NAME_TOLERANCE:.0%} of the size, embeddings tied or not; plain MLP, 4 d_model",
                "bytes a token": f"alike within {SAME_TEXT:.0%} over the sources",
            },
            "versions": versions(),
        },
    )
    if out is not None:
        result.save(out)
    return result
