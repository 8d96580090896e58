"""Tasks on which heads are ablated: independent samples, and a score for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import HeadscopeError
from .jsonl import from_jsonl
from .making import backend, leading
from .source import brackets, indentation
from .task import Row, Sample, Task, chance, evaluate, pair_scores, row_scores
from .tokens import induction, next_token, retrieval

NAMES = ("induction", "retrieval", "next-token", "brackets", "indentation")
"""Tasks that are made from text by name."""


def named(
    name: str | os.PathLike[str], tokenizer: Any, documents: Sequence[str], n_ctx: int, samples: int, seed: int
) -> Task:
    """Return a task by its name, or from a file of JSON lines.

    Parameters
    ----------
    name
        One of `NAMES`, or a path that ends in ``.jsonl``.
    tokenizer
        A fast Hugging Face tokenizer.
    documents
        Text to make samples from (``brackets`` and ``indentation``: Python source); a file of JSON lines needs none.
    n_ctx, samples, seed
        Tokens of a row at most, samples wanted (of a file: the first ones), seed of the choice.

    Raises
    ------
    ValueError
        If the name is unknown, or nothing can be made of the text.
    HeadscopeError
        If the file cannot be read, or a line is malformed.
    """
    if str(name).endswith(".jsonl"):
        task = from_jsonl(name, tokenizer)
        for sample in task.samples[:samples]:
            longest = max(len(row.tokens) for row in sample.rows)
            if longest > n_ctx:
                raise HeadscopeError(f"{name}, line {sample.factors['line']}: {longest} tokens do not fit {n_ctx}")
        left = len(task.samples) - samples
        note = "; ".join([task.note] * bool(task.note) + [f"the last {left} lines are left out"] * (left > 0))
        return replace(task, samples=task.samples[:samples], note=note)
    if name in ("brackets", "indentation"):
        make = brackets if name == "brackets" else indentation
        return make(tokenizer, documents, n_ctx, samples, seed)
    if name not in NAMES:
        raise ValueError(f"task should be one of {', '.join(NAMES)} or a .jsonl file but got {str(name)!r}")
    lead, encoder = leading(tokenizer), backend(tokenizer)
    encoded = [found.ids for found in encoder.encode_batch(list(documents), add_special_tokens=False)]
    if name == "next-token":
        return next_token([[*lead, *ids] for ids in encoded], n_ctx, samples, seed)
    row = torch.tensor([token for ids in encoded for token in ids], dtype=torch.long)
    made = (induction if name == "induction" else retrieval)(row, n_ctx - len(lead), samples, seed)
    return replace(made, samples=tuple(replace(sample, right=_behind(lead, sample.right)) for sample in made.samples))


def _behind(lead: tuple[int, ...], row: Row) -> Row:
    """Return a row behind what the tokenizer puts before every text."""
    return replace(row, tokens=(*lead, *row.tokens), scored=tuple(position + len(lead) for position in row.scored))


__all__ = [
    "NAMES",
    "Row",
    "Sample",
    "Task",
    "brackets",
    "chance",
    "evaluate",
    "from_jsonl",
    "indentation",
    "induction",
    "named",
    "next_token",
    "pair_scores",
    "retrieval",
    "row_scores",
]
