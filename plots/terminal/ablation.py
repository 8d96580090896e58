"""What a sweep of edits shows."""

from __future__ import annotations

import math

import pandas as pd
from rich.table import Table

from .cells import chance, new_table, signed


def ablation_table(table: pd.DataFrame, cell: str = "head") -> Table:
    """Return a row a cell: effect with interval, p and q, and both controls.

    Parameters
    ----------
    table
        An ablation's table; effects in nats.
    cell
        What its ``head`` counts: heads or key/value groups.
    """
    headers = ("layer", cell, "effect", "95 % interval", "p", "q", "random", "beyond q", "shared", "accuracy", "")
    shown = new_table("Effect on the score (nats; below zero: the edit hurts)", headers)
    for row in table.to_dict("records"):
        low, high = row["low"], row["high"]
        shown.add_row(
            str(row["layer"]),
            "all" if row["head"] == -1 else str(row["head"]),
            signed(row["effect"]),
            "–" if math.isnan(low) else f"{low:+.3f} … {high:+.3f}",
            chance(row["p"]),
            chance(row["q"]),
            signed(row["random_effect"]),
            chance(row["beyond_q"]),
            signed(row["shared_effect"]),
            f"{100 * row['accuracy']:.1f} %",
            "*" if row["significant"] else "",
        )
    return shown
