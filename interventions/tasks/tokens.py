"""Tasks made of tokens alone: next tokens of text, repeated blocks, keys and their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .making import check_at_least, fewer, take_turns, unit_of
from .task import Row, Sample, Task

FREQUENT = 256
"""Keys and values of `retrieval` are drawn from this many most frequent tokens of a row."""


def next_token(documents: Sequence[Sequence[int]], n_ctx: int, samples: int, seed: int) -> Task:
    """Return windows of text, in which every token after the first is scored.

    Parameters
    ----------
    documents
        Tokens of each document.
    n_ctx
        Tokens in a window, at most.
    samples
        Windows wanted. One a document while documents suffice; else windows that do not overlap, documents taking
        turns, and fewer than wanted if there are no more.
    seed
        Of the choice.

    Raises
    ------
    ValueError
        If no document has two tokens, or a window cannot have.
    """
    check_at_least("n_ctx", n_ctx, 2)
    check_at_least("samples", samples, 1)
    rng = np.random.default_rng(seed)
    usable = [i for i, document in enumerate(documents) if len(document) >= 2]
    if not usable:
        raise ValueError(f"documents should have two tokens at least but none of {len(documents)} has")
    order = rng.permutation(usable).tolist()
    if len(order) >= samples:
        chosen = [(i, int(rng.integers(max(len(documents[i]) - n_ctx, 0) + 1))) for i in order[:samples]]
    else:
        starts = [[(i, start) for start in _cuts(len(documents[i]), n_ctx)] for i in order]
        chosen = take_turns([[cuts[j] for j in rng.permutation(len(cuts))] for cuts in starts], samples)
    made = []
    for i, start in chosen:
        tokens = tuple(int(token) for token in documents[i][start : start + n_ctx])
        made.append(Sample(Row(tokens, tuple(range(len(tokens) - 1)), tokens[1:]), factors={"document": i}))
    short = len(documents) - len(usable)
    notes = [f"{short} documents of fewer than two tokens left out"] if short else []
    return Task(
        "next token",
        unit_of("window", [i for i, _ in chosen]),
        "mean log-probability of a window's tokens after its first (nats)",
        tuple(made),
        "; ".join(notes + fewer(len(made), samples)),
    )


def _cuts(length: int, n_ctx: int) -> list[int]:
    """Return where windows start; a rest shorter than half a window is no sample beside whole ones."""
    return [start for start in range(0, length, n_ctx) if start == 0 or length - start >= max(2, n_ctx // 2)]


def induction(row: Int[Tensor, " token"], n_ctx: int, samples: int, seed: int, block: int = 64) -> Task:
    """Return blocks of random tokens shown twice; the second copy is scored, but for its first token.

    Parameters
    ----------
    row
        Tokens of text. A block's tokens are drawn from it one by one: each is as frequent as there, and nothing but the
        first copy foretells the second.
    n_ctx
        Tokens in both copies, at most.
    samples, seed
        Blocks, and the seed of their draw.
    block
        Tokens in a block, or half of `n_ctx` if that is less.

    Raises
    ------
    ValueError
        If there is nothing to draw from, or no room for two copies of two tokens.
    """
    check_at_least("n_ctx", n_ctx, 4)
    check_at_least("samples", samples, 1)
    check_at_least("block", block, 2)
    check_at_least("tokens in the row", len(row), 1)
    n = min(block, n_ctx // 2)
    generator = torch.Generator().manual_seed(seed)
    drawn = row.cpu()[torch.randint(len(row), (samples, n), generator=generator)]
    scored = tuple(range(n, 2 * n - 1))
    made = [Sample(Row((*b, *b), scored, tuple(b[1:]))) for b in drawn.tolist()]
    note = f"blocks of {n} tokens: two of {block} do not fit n_ctx {n_ctx}" if n < block else ""
    score = "mean log-probability of the second copy's tokens after its first (nats)"
    return Task("induction", "independently drawn block", score, tuple(made), note)


def retrieval(
    row: Int[Tensor, " token"],
    n_ctx: int,
    samples: int,
    seed: int,
    distances: tuple[int, ...] = (8, 32, 96),
    distractors: tuple[int, ...] = (1, 4),
) -> Task:
    """Return sequences in which a key's value is asked for: pairs of key and value, filler, and one of the keys again.

    The answer is the value that followed the key, the foil the value of another pair. Keys and values are distinct
    tokens among the `FREQUENT` most frequent ones of the row, and the asked pair stands anywhere among the others. The
    filler is drawn token by token from the row and holds no key and no value, so nothing but the pair tells answer from
    foil.

    Parameters
    ----------
    row
        Tokens of text.
    n_ctx
        Tokens in a sequence, at most.
    samples, seed
        Sequences, spread evenly over the combinations that fit; the seed of their draw.
    distances
        Tokens between the asked pair and the repeated key. The pairs behind the asked one count among them, so that a
        distance holds at least ``2 * distractors``.
    distractors
        Other pairs, at least one.

    Raises
    ------
    ValueError
        If no combination fits, naming what each would need.
    """
    check_at_least("samples", samples, 1)
    for name, values, least in (("distances", distances, 0), ("distractors", distractors, 1)):
        check_at_least(f"number of {name}", len(values), 1)
        check_at_least(name, min(values), least)
    counts = torch.bincount(row.cpu())
    distinct = int((counts > 0).sum())
    pool = counts.argsort(descending=True, stable=True)[: min(FREQUENT, distinct)]
    fitting: list[tuple[int, int]] = []
    notes: list[str] = []
    for distance in distances:
        for others in distractors:
            why = _misfit(distance, others, n_ctx, len(pool), distinct)
            if why:
                notes.append(f"distance {distance} with {others} distractors left out: {why}")
            else:
                fitting.append((distance, others))
    if not fitting:
        raise ValueError(f"no distance fits with any number of distractors: {'; '.join(notes)}")
    if samples < len(fitting):
        notes.append(f"{samples} samples cover {samples} of {len(fitting)} combinations")
    generator = torch.Generator().manual_seed(seed)
    made = tuple(_retrieve(*fitting[i % len(fitting)], counts, pool, generator) for i in range(samples))
    score = "log-probability of the key's value minus that of another pair's value (nats)"
    return Task("retrieval", "independently drawn sequence", score, made, "; ".join(notes))


def _misfit(distance: int, others: int, n_ctx: int, frequent: int, distinct: int) -> str:
    pairs = 2 * (others + 1)
    if distance < 2 * others:
        return f"its pairs alone can take {2 * others} tokens"
    if pairs + distance + 1 > n_ctx:
        return f"it needs {pairs + distance + 1} tokens and n_ctx is {n_ctx}"
    if frequent < pairs or distinct <= pairs:
        return f"it needs {pairs} distinct tokens and filler besides, and the row has {distinct}"
    return ""


def _retrieve(distance: int, others: int, counts: Tensor, pool: Tensor, generator: torch.Generator) -> Sample:
    drawn = pool[torch.randperm(len(pool), generator=generator)[: 2 * (others + 1)]]
    pairs = drawn.view(-1, 2).tolist()
    asked = int(torch.randint(len(pairs), (), generator=generator))
    foil = int(torch.randint(others, (), generator=generator))
    foil += foil >= asked
    weights = counts.double()
    weights[drawn] = 0
    filler: list[int] = []
    free = distance - 2 * (len(pairs) - 1 - asked)
    if free:
        filler = torch.multinomial(weights, free, replacement=True, generator=generator).tolist()
    key, value = pairs[asked]
    tokens = (*(token for pair in pairs for token in pair), *filler, key)
    right = Row(tokens, (len(tokens) - 1,), (value,), (pairs[foil][1],))
    return Sample(right, factors={"distance": distance, "distractors": others})
