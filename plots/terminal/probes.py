"""What probes show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.markup import escape
from rich.table import Table

from .cells import new_table, number


def probe_table(table: pd.DataFrame, texts: Mapping[int, str], spans: Sequence[str], title: str) -> Table:
    """Return some heads' view of one step of a generation.

    Parameters
    ----------
    table
        Rows of a probe, one a head.
    texts
        Text at each position.
    spans
        Names of the spans whose masses it has.
    title
        Over the table.
    """
    lifts = [name for name in table.columns if name.startswith("lift_")]
    headers = ["head", "entropy", "distance", *(f"{name.removeprefix('lift_')} lift" for name in lifts)]
    private = "private_share" in table
    headers += [*(["private share"] if private else []), *(f"on {name}" for name in spans)]
    looks = "top_position" in table
    shown = new_table(
        f"{title}; entropy and lifts in nats",
        [*headers, *(["looks most at"] if looks else [])],
        left=("head", "looks most at"),
    )
    for row in table.to_dict("records"):
        cells = [f"L{row['layer']}H{row['head']}", number(row["entropy"], 2), number(row["distance"], 1)]
        cells += [f"{row[name]:+.2f}" for name in lifts]
        cells += [f"{100 * row['private_share']:.0f} %"] if private else []
        cells += [f"{100 * row[f'mass_{name}']:.0f} %" for name in spans]
        if looks:
            place = int(row["top_position"])
            cells.append(f"{100 * row['top_weight']:.0f} % {texts[place]!r} ({place})")
        shown.add_row(*(escape(cell) for cell in cells))
    return shown


def needle_table(table: pd.DataFrame, count: int) -> Table:
    """Return the heads that look at needles most, with their attention at each distance.

    Parameters
    ----------
    table
        Rows of a needle's table.
    count
        How many heads.
    """
    distances = sorted(set(table["distance"]))
    rows = {(row["distance"], row["layer"], row["head"]): row for row in table.to_dict("records")}
    heads = sorted({key[1:] for key in rows}, key=lambda head: -sum(rows[d, *head]["mass"] for d in distances))
    title = "Attention to the needle when the answer is chosen (*: surely more than even attention)"
    shown = new_table(title, ["head", *(f"{d} back" for d in distances)])
    for layer, head in heads[:count]:
        cells = [rows[d, layer, head] for d in distances]
        marked = [f"{100 * row['mass']:.0f} %{'*' if row['significant'] else ' '}" for row in cells]
        shown.add_row(f"L{layer}H{head}", *marked)
    even = [rows[d, *heads[0]]["even"] for d in distances]
    shown.add_row("even attention", *(f"{100 * share:.0f} % " for share in even), style="dim")
    return shown
