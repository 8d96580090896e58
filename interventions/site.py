"""What an edit is told about where it acts: which sample each row is, which positions are tokens, and which tokens."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Site:
    """A batch, as an edit sees it.

    Parameters
    ----------
    layer
        Layer of the path.
    samples
        Number of each row's sample: what random choices depend on, so that they do not depend on the batch.
    valid
        Positions that hold a token and not a pad.
    positions
        Position of each token, for the rotation.
    tokens
        The tokens; None where only a residual stream was given.
    past
        Each row's tokens before these, where a history is gone on with; None: there are none.
    reference
        What the path held on the edit's reference rows, ``[row, held, ...]``, and which of its positions are valid;
        None for edits that need none.
    """

    layer: int
    samples: tuple[int, ...]
    valid: Bool[Tensor, "batch pos"]
    positions: Int[Tensor, "batch pos"]
    tokens: Int[Tensor, "batch pos"] | None = None
    past: tuple[tuple[int, ...], ...] | None = None
    reference: tuple[Tensor, Bool[Tensor, "row held"]] | None = None

    def row_positions(self, row: int) -> np.ndarray:
        """Return the indices of a row's tokens, in order."""
        return torch.nonzero(self.valid[row])[:, 0].cpu().numpy()

    def first_position(self, row: int) -> int:
        """Return how many tokens a row had before these."""
        return 0 if self.past is None else len(self.past[row])

    def all_tokens(self, row: int) -> tuple[int, ...]:
        """Return a row's tokens, those before included; empty where only a residual stream was given."""
        if self.tokens is None:
            return ()
        new = tuple(self.tokens[row].cpu()[self.row_positions(row)].tolist())
        return new if self.past is None else (*self.past[row], *new)


def generator(purpose: str, seed: int, *keys: int) -> np.random.Generator:
    """Return a generator that depends on what it is for and a seed, and on no device and no order of calls.

    The purpose keeps an edit's choices and its control's apart where seed and sample are the same.
    """
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, len(keys), *keys])


def derangement(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random permutation without a fixed point (uniform over all of them); for one item, itself.

    Drawn by rejection: a random permutation has none with probability 1/e.
    """
    while count > 1:
        order = rng.permutation(count)
        if not (order == np.arange(count)).any():
            return order
    return np.arange(count)


def earlier(keys: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Return for each place a random earlier one with the same key, or itself where there is none."""
    source = np.arange(len(keys))
    seen: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        before = seen.setdefault(int(key), [])
        if before:
            source[place] = before[rng.integers(len(before))]
        before.append(place)
    return source
