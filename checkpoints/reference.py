"""The small trained models that ship: one a variant, trained alike, opened by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from ..models.config import ModelConfig
from ..models.variant import ELEMENT_BYTES, RANK_MULTIPLE
from .store import read_json

ROOT = Path(__file__).parent / "reference"
DEFAULT = "lrkv"
"""What a verb runs on if no checkpoint is named."""
WITHOUT_NETWORK = ("bigram", "gzip", "xz")
"""What the models' test text was measured with, too."""


def reference_models() -> dict[str, Path]:
    """Return name -> directory of the models that ship."""
    return {path.parent.name: path.parent for path in sorted(ROOT.glob("*/config.json"))}


def reference_table() -> pd.DataFrame:
    """Return one row a model that ships: what it is, how it was trained, what it can do.

    Columns: model, n_layers, n_heads, parameters, cache_bytes and cache_bytes_physical (a token, over all layers; ranks
    as they are, and as stored), loss (nats a token), bits_per_byte, induction (best head's score), repeated_first_loss
    and repeated_loss (nats a token on the two copies of a random block), seed, tokens, seconds, corpus, train_bytes,
    test_bytes; bigram_bits_per_byte, gzip_bits_per_byte and xz_bits_per_byte of the same test text; command.
    """
    return pd.DataFrame([_row(name, read_json(path / "config.json")) for name, path in reference_models().items()])


def reference_legend(table: pd.DataFrame) -> list[str]:
    """Return how the table is read: what the models have in common, what columns hold, what needs no network."""
    first = table.iloc[0]
    train, test = (f"{first[f'{split}_bytes'] / 1e6:.1f} MB" for split in ("train", "test"))
    bits = ", ".join(f"{name} {first[f'{name}_bits_per_byte']:.3f}" for name in WITHOUT_NETWORK)
    return [
        f"Each: {_each(table['n_layers'])} layers of {_each(table['n_heads'])} heads, seed {_each(table['seed'])}, "
        f"{_each(table['tokens'])} tokens of the {first['corpus']}; minutes: by the clock.",
        f"cache B/token: what a token leaves in all layers' caches, {ELEMENT_BYTES} bytes an element; in brackets as "
        f"stored, with ranks padded to a multiple of {RANK_MULTIPLE}.",
        "induction: the best head's attention to what followed the last time, on blocks of random tokens shown twice "
        "(chance: about 0.01). copy 1 → 2: loss on the two copies, nats/token.",
        f"The same test text without a network, bits/byte: {bits}. Models and bigram counts come from the train text "
        f"({train}); gzip and xz know the test text ({test}) alone.",
    ]


def _each(values: Iterable[int]) -> str:
    return "/".join(f"{value:,}" for value in sorted(set(values)))


def _row(name: str, config: dict[str, Any]) -> dict[str, Any]:
    model, record = ModelConfig.from_dict(config["model"]), config["record"]
    result, sizes = record["result"], record["corpus"]["bytes"]
    return {
        "model": name,
        "n_layers": model.n_layers,
        "n_heads": model.attention.n_heads,
        "parameters": record["parameters"],
        "cache_bytes": model.cache_bytes(),
        "cache_bytes_physical": model.cache_bytes(RANK_MULTIPLE),
        "loss": result["test"]["loss"],
        "bits_per_byte": result["test"]["bits_per_byte"],
        "induction": result["induction"]["best"],
        "repeated_first_loss": result["induction"]["first_loss"],
        "repeated_loss": result["induction"]["second_loss"],
        "seed": record["recipe"]["seed"],
        "tokens": result["tokens"],
        "seconds": result["seconds"],
        "corpus": record["corpus"]["source"],
        "train_bytes": sizes["train"],
        "test_bytes": sizes["test"],
        **{f"{way}_bits_per_byte": result["baselines"][way] for way in WITHOUT_NETWORK},
        "command": record["command"],
    }
