"""Tables for a terminal, from the same tables that are saved; only what is shown here is rounded."""

from __future__ import annotations

import math

import pandas as pd
from rich import box
from rich.table import Table


def effective_rank_table(table: pd.DataFrame) -> Table:
    """Return a report's table for a terminal of 100 columns.

    Parameters
    ----------
    table
        A report's table: one row per layer, circuit and part.
    """
    heads = "/".join(str(n) for n in sorted(set(table["n_heads"])))
    title = f"Effective rank of {heads} heads, by layer"
    shown = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for header in ("layer", "circuit", "erank", "% H", "null range", "centred", "% H", "% of H-1", "null"):
        shown.add_column(header, justify="left" if header == "circuit" else "right", no_wrap=True)
    if set(table["status"]) - {"ok"}:
        shown.add_column("status", overflow="fold")
    for row in table.to_dict("records"):
        cells = [
            str(row["layer"]),
            f"{str(row['circuit']).upper()} {'' if row['part'] == 'all' else row['part']}".strip(),
            _number(row["erank"], 3),
            _number(row["erank_pct_heads"], 1),
            _range(row["null_low"], row["null_high"]),
            _number(row["erank_centred"], 3),
            _number(row["erank_centred_pct_heads"], 1),
            _number(row["erank_centred_pct_cap"], 1),
            _number(row["null_centred_mean"], 3),
        ]
        shown.add_row(*cells, *([str(row["status"])] if len(shown.columns) > len(cells) else []))
    return shown


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _range(low: float, high: float) -> str:
    return "–" if math.isnan(low) else f"{low:.3f}–{high:.3f}"
