"""Text in: the inputs that a conversion is fitted to, and the loss before and after."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..interventions.statistics import effects
from ..interventions.tasks import Task, evaluate, named
from ..interventions.tasks.tokens import next_token
from ..models.hooked import HookedModel
from ..results import plain
from ..training.corpus import documents

WINDOW = 512
"""Tokens in a window of text, or the model's context if that is shorter."""
CANDIDATES = 4
"""Documents looked at for each window wanted."""
Text = str | os.PathLike[str] | Int[Tensor, "batch pos"] | None


def windows(model: HookedModel, text: Text, split: str, count: int, seed: int) -> tuple[Task, dict[str, Any]]:
    """Return windows of a text as a next-token task, and what they are, for a record.

    Parameters
    ----------
    model
        Whose tokenizer and context.
    text
        A text file or folder; tokens ``[batch, pos]``, a document a row; None: a split of the standard library.
    split
        Which split that is.
    count, seed
        Windows wanted, and the seed of their choice.
    """
    length = min(model.config.n_ctx, WINDOW)
    if isinstance(text, Tensor):
        name, sha256 = "tokens", hashlib.sha256(text.cpu().long().numpy().tobytes()).hexdigest()
        task = next_token(text.tolist(), length, count, seed)
    else:
        texts = documents(text, split)
        name = f"standard library, {split} split" if text is None or str(text) == "stdlib" else str(text)
        sha256 = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        # One window a document while they suffice: a library of documents need not be tokenised for a few windows.
        few = np.random.default_rng(seed).permutation(len(texts))[: CANDIDATES * count]
        task = named("next-token", model.tokenizer, [texts[i] for i in few], length, count, seed)
    rows = [sample.right.tokens for sample in task.samples]
    tokens = sum(map(len, rows))
    return task, {"text": name, "sha256": sha256, "windows": len(rows), "tokens": tokens, "seed": seed}


@torch.no_grad()
def second_moments(
    model: HookedModel, rows: Sequence[Sequence[int]], tick: Callable[[int], None]
) -> list[Float[Tensor, "d_model d_model"]]:
    """Return ``X^T X`` over all tokens of `rows`, `X` the normed inputs of each layer's attention; float64, on the CPU.

    Parameters
    ----------
    model
        The model; left as it was.
    rows
        Tokens, a window a row.
    tick
        Called with the number of rows done.
    """
    width = model.config.d_model
    moments = [torch.zeros(width, width, dtype=torch.float64) for _ in model.layers]

    def watch(layer: int) -> Callable[[Any, tuple[Any, ...]], None]:
        def add(module: Any, inputs: tuple[Any, ...]) -> None:
            x = inputs[0].flatten(0, 1).double()
            moments[layer] += (x.T @ x).cpu()

        return add

    handles = [block.attn.register_forward_pre_hook(watch(i)) for i, block in enumerate(model.layers)]
    try:
        for done, row in enumerate(rows):
            model(torch.tensor([row], device=model.device), return_type=None)
            tick(done + 1)
    finally:
        for handle in handles:
            handle.remove()
    return moments


def window_losses(model: HookedModel, task: Task) -> Float[np.ndarray, " window"]:
    """Return each window's mean next-token loss, nats."""
    # A window a batch: with a large vocabulary the logits of more would need gigabytes.
    return -evaluate(task, lambda tokens, lengths, samples: model(tokens.to(model.device)).cpu(), 1)["score"].to_numpy()


def losses(
    task: Task, before: Float[np.ndarray, " window"], after: Float[np.ndarray, " window"]
) -> dict[str, float | str | None]:
    """Return the losses in nats a token, and the mean paired difference over windows with its 95 % interval."""
    scored = [len(sample.right.answers) for sample in task.samples]
    change = effects((after - before)[:, None]).iloc[0]
    found = {name: plain(change[name]) for name in ("effect", "low", "high", "status")}
    return {
        "before": float(np.average(before, weights=scored)),
        "after": float(np.average(after, weights=scored)),
        "difference": found["effect"],
        "low": found["low"],
        "high": found["high"],
        "status": found["status"],
    }
