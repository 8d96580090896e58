"""What rows of printed figures say about one another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from statistics import median

from .finding import AGREES, CONTRADICTS, Finding
from .printed import BACKBONE, OWN, Row

SAME_TEXT = 0.05
"""Bytes a token of one vocabulary and corpus differ by no more than this share."""


def disagreements(rows: list[Row]) -> Iterator[Finding]:
    """Yield settings and ratios that two places print differently of one model."""
    for name in (*BACKBONE, *OWN, "ratio"):
        seen: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for row in rows:
            key = row.name, "" if name in BACKBONE else row.variant
            if name == "ratio" and "ratio" in row.figures:
                seen.setdefault(key, []).append((row.source, row.figures["ratio"][0].text))
            elif name in row.settings and name not in row.filled:
                seen.setdefault(key, []).append((row.source, str(row.settings[name])))
        for (model, variant), found in seen.items():
            if len({value for _, value in found}) > 1:
                printed = ", ".join(f"{value} ({source})" for source, value in found)
                check = f"{name} printed twice" if name != "ratio" else "cache over MHA's printed twice"
                yield Finding(model, variant, found[-1][0], check, printed, "one value", CONTRADICTS)


def twins(rows: list[Row]) -> Iterator[Finding]:
    """Yield models that one place prints with the same settings and different numbers of parameters."""
    sized = [row for row in rows if "parameters" in row.figures]
    for first, second in combinations(sized, 2):
        same = first.settings == second.settings and first.variant == second.variant
        texts = first.figures["parameters"][0].text, second.figures["parameters"][0].text
        if same and first.source == second.source and texts[0] != texts[1]:
            yield Finding(
                f"{first.name}, {second.name}",
                first.variant,
                first.source,
                "same settings",
                f"{texts[0]} and {texts[1]} parameters",
                "one number",
                CONTRADICTS,
                "one of the two rows is a copy",
            )


def bytes_a_token(rows: list[Row]) -> Iterator[Finding]:
    """Yield what each place's losses imply about bytes a token: ``loss / (bits a byte · ln 2)``."""
    seen: dict[str, list[float]] = {}
    for row in rows:
        if {"loss", "bits_per_byte"} <= set(row.figures):
            loss, bits = row.figures["loss"][0].value, row.figures["bits_per_byte"][0].value
            seen.setdefault(row.source, []).append(loss / (bits * math.log(2)))
    if len(seen) < 2:
        return
    middle = {source: median(values) for source, values in seen.items()}
    usual = sorted(middle.values())[(len(middle) - 1) // 2]
    for source, value in middle.items():
        others = ", ".join(f"{other:.2f} ({where})" for where, other in middle.items() if where != source)
        agrees = abs(value / usual - 1) <= SAME_TEXT
        yield Finding(
            "all",
            "",
            source,
            "bytes a token",
            f"{value:.2f} by its losses",
            others,
            AGREES if agrees else CONTRADICTS,
            "" if agrees else "another vocabulary or text, or bits a byte of another",
        )
