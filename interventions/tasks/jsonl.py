"""A task of one's own, from a file of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import HeadscopeError
from .making import backend, leading
from .task import Row, Sample, Task


def from_jsonl(path: str | os.PathLike[str], tokenizer: Any) -> Task:
    """Return a task of one's own: a JSON object a line with strings ``prompt`` and ``answer``, in all or none ``foil``.

    Prompt and answer are tokenised as one text, as a model would meet them, and again the prompt alone. What is scored
    starts where the two first differ: normally the answer's first token, and earlier where the answer merges with the
    end of the prompt (prompt ``"cat"``, answer ``"s"``, and ``"cats"`` is one token). Answer and foil start at the
    same token, the earlier of the two, so that both are continuations of the same tokens. A beginning-of-sequence token
    stands in front if the tokenizer puts it there; no other special token is added.

    Without foils a sample's score is the mean log-probability of the answer's tokens; with foils it is the answer's
    log-probability minus the foil's, each summed over its tokens. Blank lines are skipped.

    Parameters
    ----------
    path
        UTF-8 file.
    tokenizer
        A fast Hugging Face tokenizer.

    Raises
    ------
    HeadscopeError
        If the file cannot be read or has no lines, or a line is malformed; names file, line and what is wrong.
    ValueError
        If the tokenizer is not a fast one.
    """
    place, lead = Path(path), leading(tokenizer)
    try:
        lines = place.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise HeadscopeError(f"{path} cannot be read: {error.strerror}") from error
    made: list[Sample] = []
    contrasted = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = _fields(line)
            if made and ("foil" in fields) != contrasted:
                raise ValueError("either every line has a foil or none has: their scores do not compare")
            contrasted = "foil" in fields
            made.append(_sample(fields, tokenizer, lead, number))
        except ValueError as error:
            raise HeadscopeError(f"{path}, line {number}: {error}") from error
    if not made:
        raise HeadscopeError(f"{path} is empty: expected a JSON object a line with prompt, answer and, if wanted, foil")
    score = "mean log-probability of the answer's tokens (nats)"
    if contrasted:
        score = "log-probability of the answer minus the foil's, each summed over its tokens (nats)"
    uneven = sum(s.wrong is not None and len(s.right.answers) != len(s.wrong.answers) for s in made)
    notes = [f"answer and foil differ in tokens in {uneven} lines, where the longer one's sum is lower"] * bool(uneven)
    merged = sum(bool(sample.factors["merged"]) for sample in made)
    if merged:
        notes.append(f"answer or foil merges with the end of the prompt, and is scored from there, in {merged} lines")
    return Task(place.stem, f"line of {place.name}", score, tuple(made), "; ".join(notes))


def _fields(line: bytes) -> dict[str, str]:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"the line should be UTF-8 but is not: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"the line should be JSON but is not: {error.msg} at column {error.colno}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"the line should be a JSON object but is {type(fields).__name__}")
    unknown = sorted(set(fields) - {"prompt", "answer", "foil"})
    if unknown:
        raise ValueError(f"fields should be prompt, answer and foil but got {', '.join(map(repr, unknown))}")
    for name in ("prompt", "answer"):
        if name not in fields:
            raise ValueError(f"field {name!r} is missing")
    for name, value in fields.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"field {name!r} should be a string that is not empty but got {value!r}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"field {name!r} has half of a surrogate pair, which is no text")
    if fields["answer"] == fields.get("foil"):
        raise ValueError(f"answer and foil should differ but both are {fields['foil']!r}")
    return fields


def _sample(fields: dict[str, str], tokenizer: Any, lead: tuple[int, ...], number: int) -> Sample:
    encode = backend(tokenizer).encode
    texts = [fields["prompt"], *(fields["prompt"] + fields[name] for name in ("answer", "foil") if name in fields)]
    prompt, *whole = ([*lead, *encode(text, add_special_tokens=False).ids] for text in texts)
    start = min(_shared(prompt, tokens) for tokens in whole)
    if start == 0:
        raise ValueError("nothing stands before the answer: it merges with the whole prompt")
    for tokens in whole:
        if len(tokens) <= start:
            raise ValueError("the tokenizer gives the answer or foil no token of its own")
    factors = {"line": number, "merged": int(start < len(prompt))}
    right, *others = (
        Row(tuple(tokens[:-1]), tuple(range(start - 1, len(tokens) - 1)), tuple(tokens[start:])) for tokens in whole
    )
    if not others:
        return Sample(right, factors=factors)
    wrong = others[0]
    if right.answers == wrong.answers:
        raise ValueError("answer and foil should differ but are the same tokens")
    if len(right.answers) == len(wrong.answers) == 1:  # one row says the same as two
        return Sample(Row(right.tokens, right.scored, right.answers, wrong.answers), factors=factors)
    return Sample(right, wrong, factors)


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences share at their start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
