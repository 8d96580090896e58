"""What a trained model can do, beside what needs no model: bits per byte, induction, n-gram and compressor baselines.

Bits per byte are ``n_tokens * CE / (n_bytes * ln 2)`` on a whole held-out split, so that models with other tokenizers,
n-grams and compressors compare.
"""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models.hooked import HookedModel
from .corpus import Corpus
from .tokens import encode

REPEATED_BLOCK = 64
"""Tokens in the random block that is shown twice."""


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Return total nats over a text as bits a byte.

    Examples
    --------
    >>> round(bits_per_byte(1000 * 2.389, 4776), 3)
    0.722
    """
    if n_bytes <= 0:
        raise ValueError(f"n_bytes should be > 0 but got {n_bytes}")
    return nats / (n_bytes * math.log(2))


@torch.no_grad()
def token_losses(model: HookedModel, row: Int[Tensor, " token"], batch_size: int = 16) -> Float[Tensor, " scored"]:
    """Return the loss in nats of every token of a row but the first.

    The row is cut into windows of ``n_ctx`` tokens that overlap by half, and a token is scored in the first window that
    holds it: with at least half a window of context, except at the row's start.
    """
    length = min(model.config.n_ctx, len(row))
    stride = max(1, length // 2)
    starts = list(range(0, len(row) - length, stride)) + [len(row) - length]
    losses = torch.full((len(row),), math.nan)
    reached = 1
    for i in range(0, len(starts), batch_size):
        chunk = starts[i : i + batch_size]
        windows = torch.stack([row[s : s + length] for s in chunk])
        scored = model(windows, return_type="loss", loss_per_token=True)
        for start, values in zip(chunk, scored, strict=True):
            # Each token counts in the first window that holds it: never with less than half a window before it.
            losses[max(start + 1, reached) : start + length] = values[max(0, reached - start - 1) :]
            reached = start + length
    return losses[1:]


@torch.no_grad()
def split_loss(model: HookedModel, row: Int[Tensor, " token"], windows: int) -> float:
    """Return the mean loss over evenly spaced windows of a row, the same ones each time."""
    length = model.config.n_ctx
    count = min(windows, len(row) // length)
    starts = np.linspace(0, len(row) - length, count).astype(int)
    return float(model(torch.stack([row[s : s + length] for s in starts]), return_type="loss"))


@torch.no_grad()
def induction(model: HookedModel, row: Int[Tensor, " token"], seed: int, samples: int = 32) -> dict[str, Any]:
    """Measure induction on blocks of random tokens shown twice.

    The tokens are drawn one by one from a row of text, so each is as frequent as there and nothing but the first copy
    foretells the second. (Drawn evenly from the vocabulary, most would be bytes that a small model has hardly seen.)

    Parameters
    ----------
    model
        The model; blocks are of `REPEATED_BLOCK` tokens, or half its context if that is less.
    row
        Tokens of a held-out split.
    seed
        Of the draw.
    samples
        Blocks.

    Returns
    -------
    dict
        ``scores`` ``[layer][head]``: attention from each token of the second copy to the one behind its first
        occurrence (1 is a perfect induction head; chance is about 1 / position); ``best``: the largest;
        ``first_loss``, ``second_loss``: mean loss in nats on the two copies; ``second_accuracy``: share of the second
        copy's tokens that the model ranks first.
    """
    n = min(REPEATED_BLOCK, model.config.n_ctx // 2)
    generator = torch.Generator().manual_seed(seed)
    block = row[torch.randint(len(row), (samples, n), generator=generator)]
    tokens = torch.cat((block, block), dim=1)
    (logits, loss), cache = model.run_with_cache(
        tokens, return_type="both", loss_per_token=True, names_filter=lambda name: name.endswith("hook_pattern")
    )
    queries = torch.arange(n, 2 * n - 1)
    scores = [
        cache[f"blocks.{layer}.attn.hook_pattern"][:, :, queries, queries - n + 1].mean((0, 2)).tolist()
        for layer in range(model.config.n_layers)
    ]
    return {
        "scores": scores,
        "best": max(max(layer) for layer in scores),
        "first_loss": float(loss[:, : n - 1].mean()),
        "second_loss": float(loss[:, n:].mean()),
        "second_accuracy": float((logits[:, n:-1].argmax(-1) == tokens[:, n + 1 :]).float().mean()),
    }


def baselines(train: Sequence[str], held_out: Sequence[str], tokenizer: Any, d_vocab: int) -> dict[str, float]:
    """Return bits per byte of the held-out text without a network.

    ``bigram``: token bigrams counted on the train split, interpolated with unigrams (add-one), the weight chosen on the
    train split's last tenth; ``gzip``, ``xz``: the held-out text compressed by itself at the highest level.
    """
    text = "".join(held_out).encode()
    row, test = encode(tokenizer, train), encode(tokenizer, held_out)
    cut = len(row) * 9 // 10
    weights = np.linspace(0.05, 0.95, 19)
    tuned = min(weights, key=lambda w: _bigram_nats(row[:cut], row[cut:], d_vocab, w))
    return {
        "bigram": bits_per_byte(_bigram_nats(row, test, d_vocab, tuned), len(text)),
        "gzip": 8 * len(gzip.compress(text, 9)) / len(text),
        "xz": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
    }


def _bigram_nats(train: Tensor, test: Tensor, d_vocab: int, weight: float) -> float:
    pairs = np.bincount((train[:-1] * d_vocab + train[1:]).numpy(), minlength=d_vocab**2).reshape(d_vocab, d_vocab)
    single = np.bincount(train.numpy(), minlength=d_vocab) + 1.0
    before, after = test[:-1].numpy(), test[1:].numpy()
    bigram = pairs[before, after] / np.maximum(pairs.sum(1)[before], 1)
    p = weight * bigram + (1 - weight) * (single / single.sum())[after]
    return float(-np.log(p).sum())


def evaluate(model: HookedModel, corpus: Corpus, seed: int) -> dict[str, Any]:
    """Return a trained model's figures on the corpus's test split, beside the baselines."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer to read the held-out text with")
    held_out = corpus.texts("test")
    row = encode(model.tokenizer, held_out)
    n_bytes = sum(len(text.encode()) for text in held_out)
    losses = token_losses(model, row)
    nats = float(losses.double().sum())
    return {
        "test": {
            "tokens": len(losses),
            "bytes": n_bytes,
            "loss": nats / len(losses),
            "bits_per_byte": bits_per_byte(nats, n_bytes),
        },
        "induction": induction(model, row, seed),
        "baselines": baselines(corpus.texts("train"), held_out, model.tokenizer, model.config.d_vocab),
    }
