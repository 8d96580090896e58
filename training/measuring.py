"""One finished run as a row of a comparison."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import pandas as pd

from ..checkpoints.runs import TrainingRun
from ..models.config import ModelConfig
from ..models.factors import comparable_part
from ..models.hooked import n_parameters
from ..models.variant import RANK_MULTIPLE
from .kept import finished, last_report


def measure(run: TrainingRun, model: str, offsets: Any, null: int) -> dict[str, Any]:
    """Return sizes, what the run's result says, and what a report of its last step says."""
    record, result = run.record, finished(run)
    config = ModelConfig.from_dict(record["model"])
    report = last_report(run, offsets, null)
    row = {
        "model": model,
        "seed": record["recipe"]["seed"],
        "path": str(run.path),
        "d_mlp": record["model"]["mlp"]["d_mlp"],
        "n_layers": config.n_layers,
        "parameters": n_parameters(config),
        "kv_parameters": config.n_layers * config.attention.kv_parameters(config.d_model),
        "cache_bytes": config.cache_bytes(),
        "cache_bytes_physical": config.cache_bytes(RANK_MULTIPLE),
        "loss": result["test"]["loss"],
        "bits_per_byte": result["test"]["bits_per_byte"],
        "induction": result["induction"]["best"],
        "repeated_loss": result["induction"]["second_loss"],
        "seconds": result["seconds"],
        "tokens": result["tokens"],
        "steps": record["recipe"]["steps"],
    }
    for circuit in ("qk", "ov"):
        row |= _diversity(report.table, circuit)
    return row


def _diversity(table: pd.DataFrame, circuit: str) -> dict[str, Any]:
    """Return a circuit's effective rank and null, means over layers, and the layers that lie below the null."""
    here = [row for row in table.to_dict("records") if row["circuit"] == circuit]
    part = comparable_part({row["part"] for row in here})
    layers = [row for row in here if row["part"] == part]
    drawn = all(not math.isnan(row["null_low"]) for row in layers)
    return {
        f"{circuit}_part": part,
        f"{circuit}_erank_pct_heads": fmean(row["erank_pct_heads"] for row in layers),
        f"{circuit}_centred_pct_cap": fmean(row["erank_centred_pct_cap"] for row in layers),
        f"{circuit}_null_pct_heads": fmean(100 * row["null_mean"] / row["n_heads"] for row in layers),
        f"{circuit}_null_centred_pct_cap": fmean(_of_cap(row) for row in layers),
        f"{circuit}_below_null": sum(row["erank"] < row["null_low"] for row in layers) if drawn else math.nan,
    }


def _of_cap(row: dict[str, Any]) -> float:
    """Return the null's centred effective rank in percent of its cap; a single head has none."""
    return 100 * row["null_centred_mean"] / (row["n_heads"] - 1) if row["n_heads"] > 1 else math.nan
