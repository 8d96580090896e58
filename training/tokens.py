"""From text to tokens: a byte-level BPE trained on the train split, and each split as one long row of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
"""Stands between documents; token 0, also the pad."""


def train_tokenizer(texts: Sequence[str], d_vocab: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with `d_vocab` tokens (256 bytes, `END`, and merges).

    Parameters
    ----------
    texts
        Documents of the train split.
    d_vocab
        Tokens, at least 257.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if d_vocab < 257:
        raise ValueError(f"d_vocab should be at least 257 (every byte and the end of text) but got {d_vocab}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=d_vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Int[Tensor, " token"]:
    """Return the documents as one row of tokens, `END` before each."""
    end = tokenizer.backend_tokenizer.token_to_id(END)
    if end is None:
        raise ValueError(f"the tokenizer has no token {END!r}")
    row: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False):
        row.append(end)
        row.extend(encoding.ids)
    return torch.tensor(row, dtype=torch.long)


def batch(row: Int[Tensor, " token"], size: int, length: int, seed: int, step: int) -> Int[Tensor, "batch pos"]:
    """Return the windows of one training step: a function of seed and step alone, so that a run resumes exactly.

    Parameters
    ----------
    row
        Tokens of the train split.
    size, length
        Windows in the batch, tokens in a window.
    seed, step
        Which batch. Runs with one seed see the same batches in the same order, whatever the model.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(row) - length + 1, (size,), generator=generator)
    return torch.stack([row[start : start + length] for start in starts.tolist()])
