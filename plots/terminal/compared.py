"""What a comparison of runs shows."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from rich.table import Table

from .cells import cache, chance, new_table, number, with_interval


def comparison_tables(table: pd.DataFrame, reach: pd.DataFrame, differences: pd.DataFrame) -> list[Table]:
    """Return for each control: sizes and losses; diversity against the null; steps saved; differences in loss.

    Parameters
    ----------
    table
        One row per control and model.
    reach
        One row per control, model and baseline.
    differences
        One row per control, measure and pair of models.
    """
    found = []
    for control in dict.fromkeys(table["control"]):
        rows, steps, pairs = (
            pd.DataFrame(frame[frame["control"] == control]).to_dict("records")
            for frame in (table, reach, differences[differences["measure"] == "loss"])
        )
        name = f"Same {control}"
        found += [_sizes(name, rows), _diversity(name, rows), _reach(name, steps), _pairs(name, pairs)]
    return [table for table in found if table.row_count]


def _sizes(name: str, rows: list[dict[str, Any]]) -> Table:
    shown = new_table(
        f"{name}: sizes and losses (± half of the 95 % interval over seeds)",
        ("model", "seeds", "params", "K/V", "cache B/token", "nats/token", "bits/byte", "induction", "minutes"),
    )
    for row in rows:
        minutes = {key: row[f"seconds_{key}"] / 60 for key in ("mean", "high")}
        shown.add_row(
            row["model"],
            str(row["seeds"]),
            f"{row['parameters']:,}",
            f"{row['kv_parameters']:,}",
            cache(row),
            with_interval(row, "loss", 4),
            with_interval(row, "bits_per_byte", 4),
            with_interval(row, "induction", 2),
            with_interval({f"minutes_{key}": value for key, value in minutes.items()}, "minutes", 0),
        )
    return shown


def _diversity(name: str, rows: list[dict[str, Any]]) -> Table:
    shown = new_table(
        f"{name}: effective rank, mean over layers, last step",
        ("model", "circuit", "% of H", "null", "centred, % of H-1", "null", "layers below"),
        left=("model", "circuit"),
    )
    for circuit in ("qk", "ov"):
        for row in rows:
            below = row[f"{circuit}_below_null_mean"]
            shown.add_row(
                row["model"],
                circuit.upper(),
                with_interval(row, f"{circuit}_erank_pct_heads", 2),
                number(row[f"{circuit}_null_pct_heads"], 2),
                with_interval(row, f"{circuit}_centred_pct_cap", 2),
                number(row[f"{circuit}_null_centred_pct_cap"], 2),
                "–" if math.isnan(below) else f"{below:.1f} of {row['n_layers']}",
            )
    return shown


def _reach(name: str, rows: list[dict[str, Any]]) -> Table:
    baselines = list(dict.fromkeys(row["baseline"] for row in rows))
    shown = new_table(
        f"{name}: % of the steps saved until the last loss of … is reached (seeds)", ("model", *baselines)
    )
    cells = {(row["model"], row["baseline"]): row for row in rows}
    for model in dict.fromkeys(row["model"] for row in rows):
        shown.add_row(str(model), *(_saved(cells.get((model, baseline))) for baseline in baselines))
    return shown


def _saved(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if not row["seeds"]:
        return "–"
    if row["reached"] < row["seeds"]:  # a mean over some seeds would hide the others
        return f"{row['reached']} of {row['seeds']}"
    return f"{with_interval(row, 'saved_pct', 0)} ({row['seeds']})"


def _pairs(name: str, rows: list[dict[str, Any]]) -> Table:
    shown = new_table(
        f"{name}: difference in test loss (nats), paired by seed",
        ("model", "minus", "seeds", "difference", "95 % interval", "p", "p (Holm)", "takes"),
        left=("model", "minus"),
    )
    for row in rows:
        known = not math.isnan(row["low"])
        shown.add_row(
            row["model"],
            row["other"],
            str(row["seeds"]),
            f"{row['difference']:+.4f}",
            f"{row['low']:+.4f} … {row['high']:+.4f}" if known else "–",
            chance(row["p"]),
            chance(row["p_holm"]),
            number(row["detectable"], 4),
        )
    return shown
