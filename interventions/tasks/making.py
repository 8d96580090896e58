"""What the makers of tasks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def backend(tokenizer: Any) -> Any:
    """Return what turns text into tokens and their places; ValueError if the tokenizer has none."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ValueError(f"the tokenizer should be a fast Hugging Face tokenizer but is {type(tokenizer).__name__}")
    return inner


def leading(tokenizer: Any) -> tuple[int, ...]:
    """Return the beginning-of-sequence token if the tokenizer puts it before every text, else nothing."""
    first = backend(tokenizer).encode("").ids[:1]
    return tuple(first) if first == [tokenizer.bos_token_id] else ()


def take_turns(groups: Sequence[Sequence[T]], count: int) -> list[T]:
    """Return each group's first item, then each one's second, and so on, `count` at most."""
    longest = max(map(len, groups), default=0)
    return [group[turn] for turn in range(longest) for group in groups if turn < len(group)][:count]


def unit_of(piece: str, documents: Sequence[int]) -> str:
    """Return the unit of samples that come from these documents: a piece of one where a document gives several."""
    if len(set(documents)) == len(documents):
        return "document"
    return f"{piece} of a document (not independent within one)"


def fewer(made: int, wanted: int) -> list[str]:
    """Return a note that there are fewer samples than wanted, if so."""
    return [f"{made} samples of {wanted} wanted: there are no more"] if made < wanted else []


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a number below the least."""
    if value < least:
        raise ValueError(f"{name} should be at least {least} but got {value}")
