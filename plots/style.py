"""What the figures have in common: colours, names of panels, and reading an array from whatever came."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

# Okabe and Ito's palette: told apart by people with any of the common colour vision deficiencies. Line styles
# and markers differ too, so that a print in grey can be read.
UNCENTRED = "#0072B2"
CENTRED = "#D55E00"
MARK = "#000000"
NULL = "0.35"

# Blue to red through white: safe for red-green deficiencies, and zero is the absence of colour.
DIVERGING = "RdBu_r"
DIAGONAL = "0.62"
UNDEFINED_FACE = "0.95"
UNDEFINED_HATCH = "0.6"

CIRCUITS = ("qk", "ov")


def as_array(values: Any) -> np.ndarray:
    """Turn an array or a tensor of any float type into float64.

    Parameters
    ----------
    values
        Anything that NumPy reads, or a torch tensor. NumPy has no bfloat16, so tensors are widened first.

    Returns
    -------
    numpy.ndarray
        A float64 array of the same shape.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def in_order(blocks: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """List each (circuit, part) once: QK first, then OV, then others; parts in the order they came in."""
    ranks = {circuit: rank for rank, circuit in enumerate(CIRCUITS)}
    return sorted(dict.fromkeys(blocks), key=lambda block: ranks.get(block[0], len(ranks)))


def block_title(circuit: str, part: str) -> str:
    """Name a (circuit, part) as a reader says it: "QK", or "QK · position" where the circuit has parts."""
    return circuit.upper() if part == "all" else f"{circuit.upper()} · {part}"


def no_formula(text: str) -> str:
    """Return text as matplotlib is to be given it: a dollar sign of a path or a token begins no formula."""
    return text.replace("$", r"\$")


def require(frame: pd.DataFrame, columns: Sequence[str], *, name: str = "table", row: str | None = None) -> None:
    """Raise ValueError unless a table has these columns and, if it is said what its rows are, at least one row."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"the {name} lacks the column(s) {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}"
        )
    if row is not None and frame.empty:
        raise ValueError(f"the {name} is empty: there is no {row} to draw")


def degenerate(rows: pd.DataFrame) -> np.ndarray:
    """Return which rows of a report's table have a status other than "ok", or lack an effective rank."""
    no_value = rows[["erank", "erank_centred"]].isna().any(axis=1)
    return ((rows["status"] != "ok") | no_value).to_numpy()


def degenerate_label(rows: pd.DataFrame) -> str:
    """Say in a legend why those rows are what they are."""
    reasons = sorted({str(status) for status in rows["status"][degenerate(rows)]})
    if len(reasons) > 2:
        return "degenerate layer (reasons: column status)"
    said = "; ".join("value missing" if reason == "ok" else reason.removeprefix("degenerate: ") for reason in reasons)
    return textwrap.fill(f"degenerate layer: {said}", 45)
