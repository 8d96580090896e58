"""What a change of one head's routing shows in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from rich.markup import escape
from rich.table import Table

from .cells import new_table, number


def routing_table(moved: pd.DataFrame, texts: Sequence[str], title: str) -> Table:
    """Return a row a pair of query and key: its weight before and after.

    Parameters
    ----------
    moved
        `query_pos`, `key_pos`, `weight`, `weight_edited`, `change`.
    texts
        Text at each position.
    title
        Over the table.
    """
    headers = ("query", "token", "key", "token", "before %", "after %", "change")
    shown = new_table(f"{title} (attention of a query to a key)", headers, left=("token",))
    for row in moved.to_dict("records"):
        query, key = int(row["query_pos"]), int(row["key_pos"])
        percents = [number(100 * row[name], 1) for name in ("weight", "weight_edited", "change")]
        shown.add_row(str(query), escape(repr(texts[query])), str(key), escape(repr(texts[key])), *percents)
    return shown
