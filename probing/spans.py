"""Named spans of a prompt, by token positions or by the text they cover."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..kernels import Probes


@dataclass(frozen=True)
class Span:
    """A stretch of the prompt.

    Parameters
    ----------
    name
        What to call it; part of a column's name.
    start, stop
        First position and one past the last.
    """

    name: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w-]*", self.name):
            raise ValueError(f"a span's name should be letters, digits, - and _ but got {self.name!r}")
        if not 0 <= self.start < self.stop:
            raise ValueError(
                f"span {self.name!r} should run from a position to a later one but got {self.start}:{self.stop}"
            )


def parse_spans(given: Sequence[str | Span], prompt: str | None, tokens: Sequence[int], tokenizer: Any) -> list[Span]:
    """Return spans from ``name=start:end`` (token positions) or ``name=text`` (which the prompt holds once).

    Raises
    ------
    ValueError
        If a span is malformed, runs beyond the prompt, or is named twice; or its text is not there, or there twice.
    """
    given = [given] if isinstance(given, str) else given
    spans = [one if isinstance(one, Span) else _parse(one, prompt, tokens, tokenizer) for one in given]
    for span in spans:
        if span.stop > len(tokens):
            raise ValueError(
                f"span {span.name!r} runs to position {span.stop}, but the prompt has {len(tokens)} tokens"
            )
        if [other.name for other in spans].count(span.name) > 1:
            raise ValueError(f"span {span.name!r} is named twice")
    return spans


def probes_for(spans: Sequence[Span], top: int) -> Probes:
    """Return what to ask of a decode step of one request: its spans' masses and the `top` strongest positions."""
    return Probes(top=top, spans=torch.tensor([[[span.start, span.stop] for span in spans]]) if spans else None)


def _parse(text: str, prompt: str | None, tokens: Sequence[int], tokenizer: Any) -> Span:
    name, equals, what = text.partition("=")
    if not equals or not what:
        raise ValueError(f"a span should be name=start:end or name=text but got {text!r}")
    if places := re.fullmatch(r"(\d+):(\d+)", what):
        return Span(name, int(places[1]), int(places[2]))
    if prompt is None:
        raise ValueError(f"span {name!r} is given by its text, but the prompt came as tokens: give name=start:end")
    count = prompt.count(what)
    if count != 1:
        raise ValueError(f"span {name!r}: the prompt should hold {what!r} once but holds it {count} times")
    begin = prompt.index(what)
    places = _places(prompt, tokens, tokenizer)
    inside = [i for i, (first, last) in enumerate(places) if first < begin + len(what) and last > begin]
    return Span(name, inside[0], inside[-1] + 1)


def _places(prompt: str, tokens: Sequence[int], tokenizer: Any) -> list[tuple[int, int]]:
    """Return the characters that each token covers; none for tokens that the tokenizer put around the prompt."""
    encoded = tokenizer(prompt, return_offsets_mapping=True)
    bare = list(encoded["input_ids"])
    for lead in range(len(tokens) - len(bare) + 1):
        if list(tokens[lead : lead + len(bare)]) == bare:
            return [(0, 0)] * lead + [tuple(place) for place in encoded["offset_mapping"]]
    raise ValueError("the prompt's tokens are not those of its text: give spans as name=start:end")
