"""The small trained models that ship: one a variant, trained alike, opened by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from .store import read_json

ROOT = Path(__file__).parent / "reference"
DEFAULT = "lrkv"
"""What a verb runs on if no checkpoint is named."""


def reference_models() -> dict[str, Path]:
    """Return name -> directory of the models that ship."""
    return {path.parent.name: path.parent for path in sorted(ROOT.glob("*/config.json"))}


def reference_table() -> pd.DataFrame:
    """Return one row a model that ships: what it is, how it was trained, what it can do.

    Columns: model, n_layers, n_heads, parameters, loss (nats a token), bits_per_byte, induction (best head's score),
    repeated_loss (second copy of a random block), seed, tokens, seconds, command.
    """
    return pd.DataFrame([_row(name, read_json(path / "config.json")) for name, path in reference_models().items()])


def _row(name: str, config: dict[str, Any]) -> dict[str, Any]:
    model, record = config["model"], config["record"]
    result = record["result"]
    return {
        "model": name,
        "n_layers": model["n_layers"],
        "n_heads": model["attention"]["n_heads"],
        "parameters": record["parameters"],
        "loss": result["test"]["loss"],
        "bits_per_byte": result["test"]["bits_per_byte"],
        "induction": result["induction"]["best"],
        "repeated_loss": result["induction"]["second_loss"],
        "seed": record["recipe"]["seed"],
        "tokens": result["tokens"],
        "seconds": result["seconds"],
        "command": record["command"],
    }
