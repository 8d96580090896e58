"""Tasks made of Python source, where the text itself says what is right: closing brackets and indentation."""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from .making import backend, check_at_least, fewer, leading, take_turns, unit_of
from .task import Row, Sample, Task

BRACKETS = {")": "(", "]": "[", "}": "{"}
"""Closing bracket -> opening bracket."""
LEVEL = 4
"""Spaces in a level of indentation."""


@dataclass(frozen=True)
class _Place:
    """A token of a document that is to be foretold; kinds take turns within a document."""

    index: int
    foils: tuple[int, ...]
    kind: str
    factors: dict[str, int | float | str]


Find = Callable[[str, list[int], list[int], int], tuple[list[_Place], Counter[str]]]
"""``(text, its tokens, the character each starts at, tokens of context) -> places, and what was left out and why``."""


def brackets(tokenizer: Any, documents: Sequence[str], n_ctx: int, samples: int, seed: int) -> Task:
    r"""Return places in Python source where the next token is a closing bracket, with another closing one as foil.

    A place counts if the token is the bracket alone, Python's own tokenizer says that it closes the innermost open
    bracket (so it is in no string and no comment), and that one's opening is in the window. The three kinds of bracket
    take turns within a document: most are round, and always closing a round one would otherwise go a long way.

    Parameters
    ----------
    tokenizer
        A fast Hugging Face tokenizer.
    documents
        Python source; what does not tokenize is left out.
    n_ctx
        Tokens in a window, at most; it ends before the bracket.
    samples
        Places wanted. One a document while documents suffice, else documents take turns.
    seed
        Of the choice of documents, places and foils.

    Returns
    -------
    Task
        Factors: ``document`` and ``place`` (which token of which document is foretold), ``bracket``, ``distance``
        (tokens from the opening to the closing one).

    Raises
    ------
    ValueError
        If there is no such place, or the tokenizer lacks a closing bracket as a token of its own.
    """
    ids = {bracket: backend(tokenizer).token_to_id(bracket) for bracket in BRACKETS}
    lacking = [bracket for bracket, token in ids.items() if token is None]
    if lacking:
        raise ValueError(f"the tokenizer should have a token for each closing bracket but lacks {' '.join(lacking)}")

    def find(text: str, tokens: list[int], starts: list[int], room: int) -> tuple[list[_Place], Counter[str]]:
        places: list[_Place] = []
        left_out: Counter[str] = Counter()
        try:
            opened = closing_brackets(text)
        except ValueError:
            return places, Counter({"documents that do not tokenize as Python": 1})
        alone = {starts[i]: i for i, token in enumerate(tokens) if token in ids.values()}
        for closing, opening in opened.items():
            if closing not in alone:
                left_out["brackets that share a token with other text"] += 1
                continue
            index = alone[closing]
            distance = index - (bisect_right(starts, opening) - 1)
            if distance > room:
                left_out["brackets opened before the window"] += 1
                continue
            bracket = text[closing]
            foils = tuple(token for other, token in ids.items() if other != bracket)
            places.append(_Place(index, foils, bracket, {"bracket": bracket, "distance": distance}))
        return places, left_out

    score = "log-probability of the right closing bracket minus that of another closing one (nats)"
    return _task("brackets", score, tokenizer, documents, n_ctx, samples, seed, find)


def closing_brackets(source: str) -> dict[int, int]:
    """Return the place of each closing bracket of Python source -> the place of its opening one, both in characters.

    Raises
    ------
    ValueError
        If the source does not tokenize, or its brackets do not match.

    Examples
    --------
    >>> closing_brackets("f([1, ')'])")
    {9: 2, 10: 1}
    """
    lines = [0, *accumulate(len(line) for line in io.StringIO(source))]
    opened: list[int] = []
    closed: dict[int, int] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.ERRORTOKEN:
                raise ValueError(f"line {token.start[0]}: {token.string!r} is no token of Python")
            if token.type != tokenize.OP or token.string not in "()[]{}":
                continue
            place = lines[token.start[0] - 1] + token.start[1]
            if token.string not in BRACKETS:
                opened.append(place)
            elif not opened or source[opened[-1]] != BRACKETS[token.string] or source[place] != token.string:
                raise ValueError(f"line {token.start[0]}: {token.string} closes nothing")
            else:
                closed[place] = opened.pop()
    except (tokenize.TokenError, SyntaxError) as error:
        raise ValueError(f"the source does not tokenize: {error}") from error
    return closed


def indentation(tokenizer: Any, documents: Sequence[str], n_ctx: int, samples: int, seed: int) -> Task:
    r"""Return places where the next token ends a line and indents the one that follows, with another level as foil.

    A place counts if the token is newlines followed by spaces and is the whole indentation. Byte-level BPE with GPT-2's
    pattern leaves a line's last space to its first word: ``"\n    def"`` is ``"\n   "`` and ``" def"``, and a token
    ``"\n    "`` stands before column 5, or is the first part of an indentation that the vocabulary has only in parts.
    Where the indentation is in parts, the first does not say how deep it is, and the place is left out.

    The foil is the token with as many newlines for a line that starts `LEVEL` columns further right or left, as the
    tokenizer itself would write it. Column 0 is never a foil: its token, the bare newline, is also how most blank lines
    begin.

    Parameters
    ----------
    tokenizer
        A fast Hugging Face tokenizer.
    documents
        Texts.
    n_ctx
        Tokens in a window, at most; it ends before the newline.
    samples
        Places wanted. One a document while documents suffice, else documents take turns.
    seed
        Of the choice of documents, places and foils.

    Returns
    -------
    Task
        Factors: ``document`` and ``place`` (which token of which document is foretold), ``column`` (of the line's first
        character, from 0).

    Raises
    ------
    ValueError
        If there is no such place; says what was left out.
    """
    inner = backend(tokenizer)
    texts: dict[int, str] = {}
    foils: dict[tuple[str, bool], tuple[int, ...]] = {}

    def text_of(token: int) -> str:
        if token not in texts:
            texts[token] = inner.decode([token], skip_special_tokens=False)
        return texts[token]

    def foils_of(text: str, sticks: bool) -> tuple[int, ...]:
        if (text, sticks) not in foils:
            found = []
            for wanted in (text + " " * LEVEL, text[:-LEVEL]):
                first = inner.encode(wanted + " x"[not sticks :], add_special_tokens=False).ids[0]
                if wanted.endswith(" ") and text_of(first) == wanted:
                    found.append(first)
            foils[text, sticks] = tuple(found)
        return foils[text, sticks]

    def find(text: str, tokens: list[int], starts: list[int], room: int) -> tuple[list[_Place], Counter[str]]:
        places: list[_Place] = []
        left_out: Counter[str] = Counter()
        lines = {token: re.fullmatch(r"\n+( +)", text_of(token)) for token in set(tokens)}
        for index, token in enumerate(tokens):
            line = lines[token]
            if not line or not index:
                continue
            ahead = "".join(map(text_of, tokens[index + 1 : index + 3]))
            if not re.match(r" ?\S", ahead):
                left_out["indentations in several tokens or before nothing"] += 1
                continue
            sticks = ahead.startswith(" ")
            wrong = foils_of(line[0], sticks)
            if not wrong:
                left_out["indentations whose next level is no token"] += 1
                continue
            places.append(_Place(index, wrong, "", {"column": len(line[1]) + sticks}))
        return places, left_out

    score = f"log-probability of the right indentation minus that of one {LEVEL} columns deeper or less deep (nats)"
    return _task("indentation", score, tokenizer, documents, n_ctx, samples, seed, find)


def _task(
    name: str,
    score: str,
    tokenizer: Any,
    documents: Sequence[str],
    n_ctx: int,
    samples: int,
    seed: int,
    find: Find,
) -> Task:
    lead = leading(tokenizer)
    check_at_least("n_ctx", n_ctx, len(lead) + 1)
    check_at_least("samples", samples, 1)
    rng = np.random.default_rng(seed)
    left_out: Counter[str] = Counter()
    found: list[list[tuple[int, list[int], _Place]]] = []
    read = 0
    for i in map(int, rng.permutation(len(documents))):
        encoding = backend(tokenizer).encode(documents[i], add_special_tokens=False)
        tokens, starts = encoding.ids, [start for start, _ in encoding.offsets]
        places, why = find(documents[i], tokens, starts, n_ctx - len(lead))
        left_out += why
        read += 1
        if places:
            found.append([(i, tokens, place) for place in _shuffled(places, rng)])
        if len(found) == samples:
            break
    reasons = [f"{count} {reason} left out" for reason, count in sorted(left_out.items())]
    if not found:
        raise ValueError(f"{name}: no place in {len(documents)} documents ({'; '.join(reasons) or 'none comes near'})")
    chosen = take_turns(found, samples)
    made = [_sample(i, ids, place, lead, n_ctx, rng) for i, ids, place in chosen]
    notes = [f"{read} of {len(documents)} documents read, {read - len(found)} of them without a place", *reasons]
    unit = unit_of("place", [i for i, _, _ in chosen])
    return Task(name, unit, score, tuple(made), "; ".join(notes + fewer(len(made), samples)))


def _shuffled(places: list[_Place], rng: np.random.Generator) -> list[_Place]:
    kinds = sorted({place.kind for place in places})
    mixed = [places[j] for j in rng.permutation(len(places))]
    groups = [[place for place in mixed if place.kind == kinds[k]] for k in rng.permutation(len(kinds))]
    return take_turns(groups, len(places))


def _sample(
    document: int, ids: list[int], place: _Place, lead: tuple[int, ...], n_ctx: int, rng: np.random.Generator
) -> Sample:
    start = max(0, place.index - (n_ctx - len(lead)))
    tokens = (*lead, *ids[start : place.index])
    foil = place.foils[int(rng.integers(len(place.foils)))]
    row = Row(tokens, (len(tokens) - 1,), (ids[place.index],), (foil,))
    return Sample(row, factors={"document": document, "place": place.index, **place.factors})
