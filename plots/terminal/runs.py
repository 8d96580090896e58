"""What training runs show: one over its steps, and the models that ship."""

from __future__ import annotations

import math

import pandas as pd
from rich.table import Table

from ..style import block_title
from .cells import cache, new_table, number


def over_training_table(means: pd.DataFrame, log: pd.DataFrame) -> Table:
    """Return a row a saved step: loss and induction score, and each circuit's effective rank in % of its two caps.

    Parameters
    ----------
    means
        One row per step, circuit and part: means over layers.
    log
        step, validation_loss and induction; may be empty.
    """
    blocks = list(dict.fromkeys(zip(means["circuit"], means["part"], strict=True)))
    titles = [block_title(*block) for block in blocks]
    headers = ["step", "loss", "induction", *(f"{t} {unit}" for t in titles for unit in ("% H", "centred % H-1"))]
    shown = new_table("Effective rank over training, mean over layers", headers)
    logged = {row["step"]: row for row in log.to_dict("records")}
    values = {(row["step"], row["circuit"], row["part"]): row for row in means.to_dict("records")}
    for step in dict.fromkeys(means["step"]):
        seen = logged.get(step, {})
        cells = [
            str(step),
            number(seen.get("validation_loss", math.nan), 3),
            number(seen.get("induction", math.nan), 2),
        ]
        for block in blocks:
            row = values[(step, *block)]
            cells += [number(row["erank_pct_heads"], 2), number(row["erank_centred_pct_cap"], 2)]
        shown.add_row(*cells)
    return shown


def shipped_table(table: pd.DataFrame) -> Table:
    """Return a row a model that ships.

    Parameters
    ----------
    table
        One row a model; cache in bytes a token, losses in nats a token.
    """
    headers = ("model", "params", "cache B/token", "nats/token", "bits/byte", "induction", "copy 1 → 2", "minutes")
    shown = new_table("Models that ship: headscope report NAME", headers)
    for row in table.to_dict("records"):
        shown.add_row(
            row["model"],
            f"{row['parameters']:,}",
            cache(row),
            number(row["loss"], 3),
            number(row["bits_per_byte"], 3),
            number(row["induction"], 2),
            f"{row['repeated_first_loss']:.2f} → {row['repeated_loss']:.2f}",
            number(row["seconds"] / 60, 1),
        )
    return shown
