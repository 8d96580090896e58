"""What reports of heads show."""

from __future__ import annotations

import math

import pandas as pd
from rich.table import Table

from .cells import new_table, number, span


def effective_rank_table(table: pd.DataFrame) -> Table:
    """Return a report's table for a terminal of 100 columns.

    Parameters
    ----------
    table
        A report's table: one row per layer, circuit and part.
    """
    heads = "/".join(str(n) for n in sorted(set(table["n_heads"])))
    headers = ("layer", "circuit", "erank", "% H", "null range", "centred", "% H", "% of H-1", "null")
    shown = new_table(f"Effective rank of {heads} heads, by layer", headers, left=("circuit",))
    if set(table["status"]) - {"ok"}:
        shown.add_column("status", overflow="fold")
    for row in table.to_dict("records"):
        other = row.get("keys_of", row["layer"])
        cells = [
            f"{row['layer']}" if other == row["layer"] else f"{row['layer']} (keys of {other})",
            f"{str(row['circuit']).upper()} {'' if row['part'] == 'all' else row['part']}".strip(),
            number(row["erank"], 3),
            number(row["erank_pct_heads"], 1),
            span(row["null_low"], row["null_high"]),
            number(row["erank_centred"], 3),
            number(row["erank_centred_pct_heads"], 1),
            number(row["erank_centred_pct_cap"], 1),
            number(row["null_centred_mean"], 3),
        ]
        shown.add_row(*cells, *([str(row["status"])] if len(shown.columns) > len(cells) else []))
    return shown


def behaviour_table(table: pd.DataFrame) -> Table:
    """Return a row a head: where it looks, how like the others it is, and what an edit changes.

    Parameters
    ----------
    table
        A behaviour's table; with an edit, each measure stands before and after it.
    """
    names = {
        "entropy": ("entropy", 1, 2),
        "distance": ("back", 1, 1),
        "previous": ("previous", 100, 0),
        "duplicate": ("duplicate", 100, 0),
        "induction": ("induction", 100, 0),
        "agreement": ("agree", 100, 0),
        "cka": ("CKA", 100, 0),
    }
    edited = "where" in table.columns
    headers = ["layer", "head", *(header for header, _, _ in names.values()), *(("where", "what") if edited else ())]
    said = "entropy in nats, tokens back, all others in %" + ("; before → after the edit" if edited else "")
    shown = new_table(f"What heads do ({said})", headers)
    for row in table.to_dict("records"):
        cells = [
            number(unit * row[name], digits) + (f"→{number(unit * row[f'{name}_edited'], digits)}" if edited else "")
            for name, (_, unit, digits) in names.items()
        ]
        changes = [number(100 * row[name], 0) for name in ("where", "what")] if edited else []
        shown.add_row(str(row["layer"]), str(row["head"]), *cells, *changes)
    return shown


def conversion_table(table: pd.DataFrame) -> Table:
    """Return a row a layer: the error of keys and of values after each step.

    Parameters
    ----------
    table
        A conversion's table: one row per layer, side and step.
    """
    columns = list(dict.fromkeys(zip(table["side"], table["step"], strict=True)))
    errors = {(row["layer"], row["side"], row["step"]): row["error"] for row in table.to_dict("records")}
    headers = ["layer", *(f"{side.upper()} {step}" for side, step in columns)]
    shown = new_table("Squared error on the calibration inputs over the squared size, by layer", headers)
    for layer in dict.fromkeys(table["layer"]):
        shown.add_row(str(layer), *(number(errors.get((layer, *column), math.nan), 4) for column in columns))
    return shown
