"""Tables for a terminal, from the same tables that are saved; only what is shown here is rounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .style import block_title

WIDTH = 100
"""Columns where output is no terminal."""


class _Console(Console):
    """A console that leaves a broken pipe to the caller, who knows what status to leave with."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(tables: Sequence[Table], lines: Sequence[str]) -> None:
    """Print tables, then lines. No number is ever cut off: a table wider than the terminal wraps there."""
    console = _Console(highlight=False)
    if not console.is_terminal:
        console = _Console(highlight=False, width=WIDTH)
    for table in tables:
        # Printed apart: a table breaks its own title at the width of its columns.
        console.print(table.title, style="italic")
        table.title = None
        needed = Console(width=10_000).measure(table).maximum
        wide = console if needed <= console.width else _Console(highlight=False, width=needed)
        wide.print(table)
    for line in lines:
        console.print(line, markup=False)


def effective_rank_table(table: pd.DataFrame) -> Table:
    """Return a report's table for a terminal of 100 columns.

    Parameters
    ----------
    table
        A report's table: one row per layer, circuit and part.
    """
    heads = "/".join(str(n) for n in sorted(set(table["n_heads"])))
    headers = ("layer", "circuit", "erank", "% H", "null range", "centred", "% H", "% of H-1", "null")
    shown = _table(f"Effective rank of {heads} heads, by layer", headers, left=("circuit",))
    if set(table["status"]) - {"ok"}:
        shown.add_column("status", overflow="fold")
    for row in table.to_dict("records"):
        other = row.get("keys_of", row["layer"])
        cells = [
            f"{row['layer']}" if other == row["layer"] else f"{row['layer']} (keys of {other})",
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
    shown = _table("Effective rank over training, mean over layers", headers)
    logged = {row["step"]: row for row in log.to_dict("records")}
    values = {(row["step"], row["circuit"], row["part"]): row for row in means.to_dict("records")}
    for step in dict.fromkeys(means["step"]):
        seen = logged.get(step, {})
        cells = [
            str(step),
            _number(seen.get("validation_loss", math.nan), 3),
            _number(seen.get("induction", math.nan), 2),
        ]
        for block in blocks:
            row = values[(step, *block)]
            cells += [_number(row["erank_pct_heads"], 2), _number(row["erank_centred_pct_cap"], 2)]
        shown.add_row(*cells)
    return shown


def comparison_tables(table: pd.DataFrame, reach: pd.DataFrame) -> list[Table]:
    """Return for each control: sizes and losses; diversity against the null; steps to the others' final loss.

    Parameters
    ----------
    table
        One row per control and model.
    reach
        One row per control, model and baseline.
    """
    found = []
    for control in dict.fromkeys(table["control"]):
        here = pd.DataFrame(table[table["control"] == control]).to_dict("records")
        name = f"Same {control}"
        quality = _table(
            f"{name}: sizes and losses (± half of the 95 % interval over seeds)",
            ("model", "seeds", "params", "K/V", "cache B/token", "nats/token", "bits/byte", "induction", "minutes"),
        )
        diversity = _table(
            f"{name}: effective rank, mean over layers, last step",
            ("model", "QK % H", "null", "centred % H-1", "null", "OV % H", "null", "centred % H-1", "null"),
        )
        for row in here:
            quality.add_row(
                row["model"],
                str(row["seeds"]),
                f"{row['parameters']:,}",
                f"{row['kv_parameters']:,}",
                _cache(row),
                _with_interval(row, "loss", 4),
                _with_interval(row, "bits_per_byte", 4),
                _with_interval(row, "induction", 2),
                _number(row["seconds_mean"] / 60, 1),
            )
            cells = [
                cell
                for circuit in ("qk", "ov")
                for value, null in (("erank_pct_heads", "null_pct_heads"), ("centred_pct_cap", "null_centred_pct_cap"))
                for cell in (
                    _with_interval(row, f"{circuit}_{value}", 2),
                    _number(row[f"{circuit}_{null}"], 1),
                )
            ]
            diversity.add_row(row["model"], *cells)
        found += [quality, diversity, _reach_table(name, pd.DataFrame(reach[reach["control"] == control]))]
    return [table for table in found if table.row_count]


def _reach_table(name: str, reach: pd.DataFrame) -> Table:
    baselines = list(dict.fromkeys(reach["baseline"]))
    shown = _table(f"{name}: step at which the loss that … ends with is reached", ("model", *baselines))
    rows = {(row["model"], row["baseline"]): row for row in reach.to_dict("records")}
    for model in dict.fromkeys(reach["model"]):
        shown.add_row(str(model), *(_reached(rows.get((model, baseline))) for baseline in baselines))
    return shown


def _reached(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if not row["seeds"]:
        return "–"
    if row["reached"] < row["seeds"]:
        return f"{row['reached']} of {row['seeds']}"
    return f"{row['step_mean']:.0f} ({row['saved_pct']:.0f} % saved)"


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
    shown = _table("Effect on the score (nats; below zero: the edit hurts)", headers)
    for row in table.to_dict("records"):
        low, high = row["low"], row["high"]
        shown.add_row(
            str(row["layer"]),
            "all" if row["head"] == -1 else str(row["head"]),
            _signed(row["effect"]),
            "–" if math.isnan(low) else f"{low:+.3f} … {high:+.3f}",
            _chance(row["p"]),
            _chance(row["q"]),
            _signed(row["random_effect"]),
            _chance(row["beyond_q"]),
            _signed(row["shared_effect"]),
            f"{100 * row['accuracy']:.1f} %",
            "*" if row["significant"] else "",
        )
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
    shown = _table(f"What heads do ({said})", headers)
    for row in table.to_dict("records"):
        cells = [
            _number(unit * row[name], digits) + (f"→{_number(unit * row[f'{name}_edited'], digits)}" if edited else "")
            for name, (_, unit, digits) in names.items()
        ]
        changes = [_number(100 * row[name], 0) for name in ("where", "what")] if edited else []
        shown.add_row(str(row["layer"]), str(row["head"]), *cells, *changes)
    return shown


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
    shown = _table(
        f"{title}; entropy and lifts in nats",
        [*headers, *(["looks most at"] if looks else [])],
        left=("head", "looks most at"),
    )
    for row in table.to_dict("records"):
        cells = [f"L{row['layer']}H{row['head']}", _number(row["entropy"], 2), _number(row["distance"], 1)]
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
    shown = _table(title, ["head", *(f"{d} back" for d in distances)])
    for layer, head in heads[:count]:
        cells = [rows[d, layer, head] for d in distances]
        marked = [f"{100 * row['mass']:.0f} %{'*' if row['significant'] else ' '}" for row in cells]
        shown.add_row(f"L{layer}H{head}", *marked)
    even = [rows[d, *heads[0]]["even"] for d in distances]
    shown.add_row("even attention", *(f"{100 * share:.0f} % " for share in even), style="dim")
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
    shown = _table("Squared error on the calibration inputs over the squared size, by layer", headers)
    for layer in dict.fromkeys(table["layer"]):
        shown.add_row(str(layer), *(_number(errors.get((layer, *column), math.nan), 4) for column in columns))
    return shown


def shipped_table(table: pd.DataFrame) -> Table:
    """Return a row a model that ships.

    Parameters
    ----------
    table
        One row a model; cache in bytes a token, losses in nats a token.
    """
    headers = ("model", "params", "cache B/token", "nats/token", "bits/byte", "induction", "copy 1 → 2", "minutes")
    shown = _table("Models that ship: headscope report NAME", headers)
    for row in table.to_dict("records"):
        shown.add_row(
            row["model"],
            f"{row['parameters']:,}",
            _cache(row),
            _number(row["loss"], 3),
            _number(row["bits_per_byte"], 3),
            _number(row["induction"], 2),
            f"{row['repeated_first_loss']:.2f} → {row['repeated_loss']:.2f}",
            _number(row["seconds"] / 60, 1),
        )
    return shown


def _table(title: str, headers: Sequence[str], left: Sequence[str] = ("model",)) -> Table:
    table = Table(
        title=title,
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for header in headers:
        table.add_column(header, justify="left" if header in left else "right", no_wrap=True)
    return table


def _cache(row: dict[str, Any]) -> str:
    logical, physical = row["cache_bytes"], row["cache_bytes_physical"]
    return f"{logical:,}" if logical == physical else f"{logical:,} ({physical:,})"


def _with_interval(row: dict[str, Any], name: str, digits: int) -> str:
    mean, half = row[f"{name}_mean"], row[f"{name}_high"] - row[f"{name}_mean"]
    return _number(mean, digits) + ("" if math.isnan(half) else f" ±{half:.{digits}f}")


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _chance(value: float) -> str:
    return "<0.0001" if value < 1e-4 else _number(value, 4)


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.3f}"


def _range(low: float, high: float) -> str:
    return "–" if math.isnan(low) else f"{low:.3f}–{high:.3f}"
