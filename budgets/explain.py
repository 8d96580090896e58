"""Which other settings would give a printed figure: one changed, or two where one is not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from .printed import Row

LAYERS = range(1, 129)
LENGTHS = [2**power for power in range(7, 21)]
ELEMENT_BYTES = (1, 2, 4)
SHOWN = 4

_WORDS = {
    "layers": "{} layers",
    "rank": "rank {}",
    "groups": "{} groups",
    "latent": "latent {}",
    "length": "length {}",
    "element_bytes": "{}-byte elements",
}

Changes = dict[str, int]


def candidates(row: Row) -> dict[str, list[int]]:
    """Return what each setting of a row could have been instead."""
    s = row.settings
    found = {"layers": list(LAYERS), "length": LENGTHS, "element_bytes": list(ELEMENT_BYTES)}
    own = {
        "lrkv": ("rank", range(1, s.get("d_head", 0) + 1)),
        "gqa": ("groups", [g for g in range(1, s.get("heads", 0) + 1) if s["heads"] % g == 0]),
        "mla": ("latent", range(16, 4 * s.get("heads", 0) * s.get("d_head", 0) + 1, 16)),
    }.get(row.variant)
    if own is not None:
        found[own[0]] = list(own[1])
    return {name: [v for v in values if v != s.get(name)] for name, values in found.items() if name in s}


def search(row: Row, fits: Callable[[Changes], bool], names: tuple[str, ...]) -> list[Changes]:
    """Return the smallest sets of changed settings with which `fits` holds.

    Single changes come first; pairs are tried only where no single change fits. Among the pairs the variant's own
    setting (rank, groups, latent) is always one: two circumstances that undo each other explain nothing.
    """
    options = {name: values for name, values in candidates(row).items() if name in names}
    single = [change for change in _each(options, 1) if fits(change)]
    if single:
        return single
    return [change for change in _each(options, 2) if {"rank", "groups", "latent"} & set(change) and fits(change)]


def _each(options: dict[str, list[int]], count: int) -> Iterator[Changes]:
    for names in combinations(options, count):
        if count == 1:
            yield from ({names[0]: value} for value in options[names[0]])
        else:
            for first in options[names[0]]:
                yield from ({names[0]: first, names[1]: second} for second in options[names[1]])


def in_words(row: Row, found: list[Changes]) -> str:
    """Say which changes would fit; "nothing that was searched" if none does."""
    if not found:
        return "nothing searched fits"
    said = [" and ".join(_changed(row, name, value) for name, value in change.items()) for change in found[:SHOWN]]
    more = f"; {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "fits " + "; or ".join(said) + more


def _changed(row: Row, name: str, value: int) -> str:
    known = row.settings[name]
    origin = f" of {row.filled[name]}" if name in row.filled else ""
    return f"{_WORDS[name].format(value)} (not {known}{origin})"


def as_ranges(values: list[int]) -> str:
    """Write ascending integers with runs as ranges.

    Examples
    --------
    >>> as_ranges([3, 4, 5, 9])
    '3-5, 9'
    """
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
