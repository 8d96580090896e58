"""Distances between query and key that a measure averages over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offsets:
    """A range of distances between query and key, both ends included.

    Examples
    --------
    >>> Offsets.parse("0:255"), Offsets.parse("3"), Offsets.parse("none")
    (Offsets(first=0, last=255), Offsets(first=3, last=3), None)
    """

    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < 2**31:
            raise ValueError(f"offsets should be 0 <= first <= last < 2**31 but got {self.first}:{self.last}")

    @classmethod
    def parse(cls, text: str | int | tuple[int, int] | Offsets | None) -> Offsets | None:
        """Read ``"3"``, ``"0:255"`` or ``"none"`` (also an int, a pair, or what `parse` returned)."""
        if text is None or isinstance(text, Offsets):
            return text
        if isinstance(text, tuple):
            return cls(*text)
        if isinstance(text, str) and text.strip().lower() == "none":
            return None
        try:
            first, colon, last = str(text).partition(":")
            ends = int(first), int(last if colon else first)
        except ValueError:
            raise ValueError(f"offsets should be a distance, FIRST:LAST or none but got {text!r}") from None
        return cls(*ends)

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}:{self.last}"

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1
