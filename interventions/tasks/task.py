"""What a task is: independent samples, what is scored in each, and the scores of a model on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .making import check_at_least

COLUMNS = ("sample", "score", "accuracy")
"""Columns of every table of scores; a sample's factors follow."""

Run = Callable[[Tensor, list[int], list[int]], Tensor]
"""``(tokens [batch, pos], lengths, sample_ids) -> logits [batch, pos, d_vocab]``."""


@dataclass(frozen=True)
class Row:
    """One sequence that a model reads, and which of its predictions are scored.

    Parameters
    ----------
    tokens
        What is read.
    scored
        Positions whose next token is scored. It need not be ``tokens[position + 1]``, nor stand in the row at all.
    answers
        The right token after each scored position.
    foils
        The token that each answer is contrasted with; None: the answer alone is scored.

    Raises
    ------
    ValueError
        If nothing is scored, a position is outside the row, or answers or foils are not one a position.
    """

    tokens: tuple[int, ...]
    scored: tuple[int, ...]
    answers: tuple[int, ...]
    foils: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.scored:
            raise ValueError("scored should name at least one position but is empty")
        for position in self.scored:
            if not 0 <= position < len(self.tokens):
                raise ValueError(f"scored positions should be in 0–{len(self.tokens) - 1} but got {position}")
        for name, tokens in (("answers", self.answers), ("foils", self.foils)):
            if tokens is not None and len(tokens) != len(self.scored):
                raise ValueError(f"{name} should be one for each of {len(self.scored)} positions but got {len(tokens)}")


@dataclass(frozen=True)
class Sample:
    """One independent unit of a task.

    Parameters
    ----------
    right
        The row with the right answers.
    wrong
        The contrasted continuation, where answer and foil are several tokens; it takes the place of foils.
    factors
        What the sample is like: distance, document, …

    Raises
    ------
    ValueError
        If there is a wrong row and foils besides, or a factor is called like a column of every table.
    """

    right: Row
    wrong: Row | None = None
    factors: Mapping[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.wrong is not None and (self.right.foils is not None or self.wrong.foils is not None):
            raise ValueError("a sample should have foils or a wrong row but got both")
        taken = sorted(set(self.factors) & set(COLUMNS))
        if taken:
            raise ValueError(f"factors should not be called {', '.join(COLUMNS)} but got {', '.join(taken)}")

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that a model reads for this sample, the right one first."""
        return (self.right,) if self.wrong is None else (self.right, self.wrong)


@dataclass(frozen=True)
class Task:
    """Samples and what their scores mean.

    Parameters
    ----------
    name
        What is asked of the model.
    unit
        What the samples are, and whether they are independent.
    score
        What a sample's score is, with its unit.
    samples
        At least one.
    note
        What was left out, how much and why.

    Raises
    ------
    ValueError
        If there is no sample, or the samples have different factors.
    """

    name: str
    unit: str
    score: str
    samples: tuple[Sample, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"task {self.name!r} should have at least one sample but has none")
        first = set(self.samples[0].factors)
        for i, sample in enumerate(self.samples):
            if set(sample.factors) != first:
                raise ValueError(
                    f"every sample of {self.name!r} should have the factors {sorted(first)} "
                    f"but sample {i} has {sorted(sample.factors)}"
                )


def log_probabilities(logits: Float[Tensor, "scored d_vocab"], tokens: Sequence[int]) -> Float[Tensor, " scored"]:
    """Return each token's log-probability in nats, in float64; the softmax is in float32 at least.

    Raises
    ------
    ValueError
        If tokens and logits differ in number, or a token is outside the vocabulary.
    """
    index = _index(logits, tokens)
    return upcast(logits).log_softmax(-1).gather(-1, index)[:, 0].double()


def row_scores(logits: Float[Tensor, "scored d_vocab"], row: Row) -> tuple[float, float]:
    """Return a row's score and accuracy from the logits at its scored positions.

    Parameters
    ----------
    logits
        At the scored positions only, in their order.
    row
        With foils, the score is the mean of ``log p(answer) - log p(foil)``; without, of ``log p(answer)``.

    Returns
    -------
    tuple
        Score in nats, higher is better; share of positions where the answer's logit is larger than the foil's or,
        without foils, than every other. A tie is a miss.

    Examples
    --------
    >>> import torch
    >>> row = Row(tokens=(4, 2), scored=(1,), answers=(0,), foils=(1,))
    >>> row_scores(torch.tensor([[3.0, 1.0, 5.0]]), row)
    (2.0, 1.0)
    """
    wide = upcast(logits)
    answers = wide.gather(-1, _index(logits, row.answers))
    if row.foils is None:
        score = log_probabilities(logits, row.answers)
        hit = (wide >= answers).sum(-1) == 1
    else:
        # The softmax's normaliser is the same for both and falls out.
        margin = (answers.double() - wide.gather(-1, _index(logits, row.foils)).double())[:, 0]
        score, hit = margin, margin > 0
    return float(score.mean()), float(hit.double().mean())


def pair_scores(
    right: Float[Tensor, "scored d_vocab"], wrong: Float[Tensor, "other d_vocab"], sample: Sample
) -> tuple[float, float]:
    """Return the score and accuracy of a sample with a wrong row from the logits at the scored positions of both.

    Returns
    -------
    tuple
        ``log p`` of the right continuation, summed over its tokens, minus that of the wrong one, in nats; 1 if that is
        above zero, else 0.
    """
    if sample.wrong is None:
        raise ValueError("the sample should have a wrong row but has none: see row_scores")
    score = log_probabilities(right, sample.right.answers).sum() - log_probabilities(wrong, sample.wrong.answers).sum()
    return float(score), float(score > 0)


def chance(task: Task, d_vocab: int) -> tuple[float, float]:
    """Return the mean score and accuracy of a model for which all tokens are alike.

    Parameters
    ----------
    task
        What is scored.
    d_vocab
        Tokens that a model chooses from.

    Returns
    -------
    tuple
        Score in nats: ``-log d_vocab`` a token, 0 against a foil. Accuracy is that of a guess: one in `d_vocab`, or one
        in two where the answer is contrasted with another.

    Examples
    --------
    >>> row = Row(tokens=(4, 2), scored=(1,), answers=(0,))
    >>> chance(Task("one", "row", "log p", (Sample(row),)), d_vocab=4)
    (-1.3862943611198906, 0.25)
    """
    nats = math.log(d_vocab)
    scores, right = [], []
    for sample in task.samples:
        if sample.wrong is not None:
            scores.append(nats * (len(sample.wrong.scored) - len(sample.right.scored)))
            right.append(0.5)
        elif sample.right.foils is not None:
            scores.append(0.0)
            right.append(0.5)
        else:
            scores.append(-nats)
            right.append(1 / d_vocab)
    return fmean(scores), fmean(right)


@torch.no_grad()
def evaluate(task: Task, run: Run, batch_size: int = 16) -> pd.DataFrame:
    """Score every sample of a task.

    Parameters
    ----------
    task
        What to score.
    run
        Gives the logits ``[batch, pos, d_vocab]`` of a batch: normally a model. It is called with tokens
        ``[batch, pos]`` on the CPU, padded with token 0 on the right, where causal attention never sees them; with the
        rows' lengths without pads; and with the index of each row's sample (a sample with a wrong row has two rows).
    batch_size
        Rows a batch; the scores do not depend on it.

    Returns
    -------
    pandas.DataFrame
        A row a sample, in order: sample, score (nats), accuracy, then a column a factor.

    Raises
    ------
    ValueError
        If what `run` returns has another shape, or a scored token is outside its vocabulary.
    """
    check_at_least("batch_size", batch_size, 1)
    rows = [(i, row) for i, sample in enumerate(task.samples) for row in sample.rows]
    records: list[dict[str, Any]] = []
    held: list[Tensor] = []
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        for (i, row), logits in zip(chunk, _scored_logits(run, chunk), strict=True):
            sample = task.samples[i]
            held.append(logits)
            if len(held) < len(sample.rows):
                continue
            score, accuracy = row_scores(logits, row) if sample.wrong is None else pair_scores(held[0], held[1], sample)
            records.append({"sample": i, "score": score, "accuracy": accuracy, **sample.factors})
            held = []
    return pd.DataFrame.from_records(records)


def _scored_logits(run: Run, chunk: list[tuple[int, Row]]) -> Iterator[Tensor]:
    lengths = [len(row.tokens) for _, row in chunk]
    tokens = torch.zeros(len(chunk), max(lengths), dtype=torch.long)
    for i, (_, row) in enumerate(chunk):
        tokens[i, : lengths[i]] = torch.tensor(row.tokens)
    logits = run(tokens, lengths, [sample for sample, _ in chunk])
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"run should return logits [{tokens.shape[0]}, {tokens.shape[1]}, d_vocab] but got {tuple(logits.shape)}"
        )
    for i, (_, row) in enumerate(chunk):
        yield logits[i, list(row.scored)]  # a copy, so that a held row does not hold its batch


def upcast(logits: Tensor) -> Tensor:
    """Return logits in float32 at least."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _index(logits: Tensor, tokens: Sequence[int]) -> Int[Tensor, "scored 1"]:
    count, d_vocab = logits.shape
    if len(tokens) != count:
        raise ValueError(f"logits should be one row for each of {len(tokens)} scored positions but are {count}")
    outside = [token for token in tokens if not 0 <= token < d_vocab]
    if outside:
        raise ValueError(f"scored tokens should be in 0–{d_vocab - 1} but got {outside[0]}")
    return torch.tensor(tokens, device=logits.device)[:, None]
