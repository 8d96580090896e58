"""What a budget and an audit show in a terminal of 100 columns."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pandas as pd
from rich.table import Table

from .cells import new_table, number

MIB = 2**20


def model_table(table: pd.DataFrame, element_bytes: int, rank_multiple: int) -> Table:
    """Return a row a model: what a token leaves, as ranks are and as they are padded, and parameters.

    Parameters
    ----------
    table
        A budget's table.
    element_bytes, rank_multiple
        For the title.
    """
    first = table.to_dict("records")[0]
    backbone = f"{first['n_layers']} layers, {first['n_heads']} heads of {first['d_head']}, d_model {first['d_model']}"
    shown = new_table(
        f"{backbone}: elements that a token leaves in a layer, KiB in all\nlayers "
        f"({element_bytes} bytes an element; padded: ranks to a multiple of {rank_multiple}), and parameters",
        ("model", "setting", "elements", "KiB", "% MHA", "padded", "% MHA", "K/V params", "% MHA", "params"),
        left=("model", "setting"),
    )
    for row in table.to_dict("records"):
        shown.add_row(
            row["model"],
            _setting(row),
            f"{row['cache_elements']:,}",
            number(row["bytes_per_token"] / 1024, 3),
            number(row["cache_pct_mha"], 2),
            number(row["bytes_per_token_physical"] / 1024, 3),
            number(row["cache_physical_pct_mha"], 2),
            _count(row["kv_parameters"]),
            number(row["kv_parameters_pct_mha"], 2),
            _count(row["parameters"]),
        )
    return shown


def batch_table(batches: pd.DataFrame, page: int, device: str) -> Table:
    """Return a row a batch and model: bytes of the cache, arithmetic, and the floor under a decode step.

    Parameters
    ----------
    batches
        A budget's table of batches.
    page, device
        For the title.
    """
    shown = new_table(
        f"Cache of a batch in MiB (payload; ranks padded; whole pages of {page} tokens); of a decode step the\n"
        f"products over MHA's, the floor under its time on {device}, what sets it, and MHA's floor over it",
        ("batch", "model", "payload", "% MHA", "padded", "in pages", "products", "floor ms", "set by", "gain"),
        left=("model", "batch", "set by"),
    )
    for _, here in batches.groupby("batch", sort=False):
        for index, row in enumerate(here.to_dict("records")):
            shown.add_row(
                (row["batch"], f"{row['tokens']:,} tokens" if row["requests"] > 1 else "")[index] if index < 2 else "",
                row["model"],
                _mib(row["payload_bytes"]),
                number(row["payload_pct_mha"], 2),
                _mib(row["padded_bytes"]),
                _mib(row["allocated_bytes"]),
                f"× {row['arithmetic_ratio']:.4f}",
                f"{1e3 * row['floor_seconds']:.3g}",
                row["bound_by"],
                f"× {row['mha_over_floor']:.2f}",
                end_section=index == len(here) - 1,
            )
    return shown


def equal_table(equal: pd.DataFrame) -> Table:
    """Return a row a model: which settings of other variants fit into its cache, with how much of it they fill.

    Parameters
    ----------
    equal
        A budget's table of settings.
    """
    channel = max(int(width) for width in equal["rotary_key_elements"])
    columns = {
        "LRKV rank": ("lrkv", "within", 0),
        "GQA groups": ("gqa", "within", 0),
        "next above": ("gqa", "above", 0),
        "MLA latent": ("mla", "within", 0),
        f"with {channel} rotary": ("mla", "within", channel),
    }
    shown = new_table(
        "What fits into each model's cache, same heads (in brackets: % of it that is filled; one group: MQA)",
        ("model", "elements", *columns),
    )
    for model, here in equal.groupby("model", sort=False):
        rows = here.to_dict("records")
        cells = [_fit(_find(rows, *wanted), exact=name.startswith(("MLA", "with"))) for name, wanted in columns.items()]
        shown.add_row(str(model), f"{rows[0]['model_elements']:,}", *cells)
    return shown


def parallel_table(parallel: pd.DataFrame) -> Table:
    """Return a row a model and layout for the largest batch: bytes in all, on the fullest device, moved a step.

    Parameters
    ----------
    parallel
        A budget's table of devices.
    """
    largest = pd.DataFrame(parallel[parallel["tokens"] == parallel["tokens"].max()])
    first = largest.to_dict("records")[0]
    shown = new_table(
        f"Heads dealt out over {first['devices']} devices, batch {first['batch']}, MiB. "
        "Rows that several devices need are\nreplicated, or held once and moved at every step (% of MHA's whole cache)",
        ("model", "layout", "all devices", "% of MHA", "padded", "fullest device", "moved a step"),
        left=("model", "layout"),
    )
    moved = set(largest.loc[largest["moved_bytes"] > 0, "model"])
    for row in largest.to_dict("records"):
        first_line, split = row["layout"] == "replicated", row["model"] not in moved
        if split and not first_line:  # no row is needed twice: both layouts are the same
            continue
        shown.add_row(
            row["model"] if first_line else "",
            "by head" if split else row["layout"],
            _mib(row["total_bytes"]),
            number(row["total_pct_mha"], 4),
            _mib(row["total_bytes_physical"]),
            _mib(row["fullest_device_bytes"]),
            _mib(row["moved_bytes"]),
        )
    return shown


def _setting(row: dict[str, Any]) -> str:
    channel = f"+{row['rotary_key_elements']}" if row["rotary_key_elements"] else ""
    return f"{row['setting']} {row['value']}{channel}"


def _find(rows: list[dict[str, Any]], variant: str, fit: str, channel: int) -> dict[str, Any] | None:
    variants = ("gqa", "mqa", "mha") if variant == "gqa" else (variant,)
    for row in rows:
        if row["variant"] in variants and row["fit"] == fit and row["rotary_key_elements"] == channel:
            return row
    return None


def _fit(row: dict[str, Any] | None, *, exact: bool) -> str:
    if row is None:
        return "–"
    return f"{row['value']:,}" if exact else f"{row['value']} ({row['pct_of_model']:.1f})"


def _mib(n_bytes: int) -> str:
    """Write bytes in MiB, as many digits as a reader needs to check them by hand."""
    size = n_bytes / MIB
    return f"{size:,.{5 if size < 1000 else 1}f}".rstrip("0").rstrip(".")


def _count(number: float) -> str:
    if math.isnan(number):
        return "–"
    for unit, digits, name in ((1e9, 3, " B"), (1e6, 1, " M")):
        if number >= unit:
            return f"{number / unit:.{digits}f}{name}"
    return f"{number:,.0f}"


def findings_table(findings: pd.DataFrame) -> Table:
    """Return a row a check that does not agree, with what would fit.

    Parameters
    ----------
    findings
        Rows of an audit's table.
    """
    headers = ("figure", "printed", "computed", "what would fit")
    shown = new_table("Printed figures that cannot be true together, or cannot be checked", headers, left=headers)
    for row in findings.to_dict("records"):
        figure = f"{row['name']} {row['variant'].upper()}".strip() + f", {row['source']}: {row['check']}"
        cells = (figure, row["printed"], row["computed"], row["explanation"] or "–")
        lines = (textwrap.fill(str(cell), width) for cell, width in zip(cells, (27, 18, 14, 32), strict=True))
        shown.add_row(*lines, end_section=True)
    return shown
