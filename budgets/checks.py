"""What can be recomputed of a printed figure, and what cannot be true together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import median

from ..models.config import ModelConfig
from ..models.hooked import n_parameters
from ..models.mlp import MLPConfig
from ..models.norms import NormConfig
from .explain import LAYERS, Changes, as_ranges, in_words, search
from .printed import BACKBONE, OWN, Figure, Row

AGREES, CONTRADICTS, UNKNOWN = "agrees", "contradicts", "cannot be checked"
NAME_TOLERANCE = 0.05
"""A size in a model's name is nominal: up to this share off, it counts as right."""
SAME_TEXT = 0.05
"""Bytes a token of one vocabulary and corpus differ by no more than this share."""


@dataclass(frozen=True)
class Finding:
    """A check with its outcome.

    Parameters
    ----------
    name, variant, source
        Whose figure it is and where it stands.
    check
        What was checked.
    printed, computed
        What is printed, and what comes out, with units.
    verdict
        `AGREES`, `CONTRADICTS` or `UNKNOWN`.
    explanation
        What would make it true, or what is missing.
    """

    name: str
    variant: str
    source: str
    check: str
    printed: str
    computed: str
    verdict: str
    explanation: str = ""


def check_all(rows: list[Row]) -> list[Finding]:
    """Return every check of every row, then those between rows."""
    found = [finding for row in rows for finding in check_row(row, rows)]
    return [*found, *_disagreements(rows), *_twins(rows), *_bytes_a_token(rows)]


def check_row(row: Row, rows: list[Row]) -> Iterator[Finding]:
    """Yield what can be said of one row by itself (`rows` name its sister models)."""
    if "bytes" in row.figures:
        yield _cache(row)
    if "dense_bytes" in row.figures:
        yield _dense_cache(row)
    if "ratio" in row.figures:
        yield _ratio(row)
        if {"bytes", "dense_bytes"} <= set(row.figures):
            yield _ratio_of_bytes(row)
    if "parameters" in row.figures:
        yield _parameters(row, rows)
    if "centred_rank" in row.figures:
        yield _centred_rank(row)


def _finding(row: Row, check: str, printed: str, computed: str, agrees: bool, explanation: str = "") -> Finding:
    verdict = AGREES if agrees else CONTRADICTS
    return Finding(row.name, row.variant, row.source, check, printed, computed, verdict, explanation)


def _unknown(row: Row, check: str, printed: str, missing: list[str]) -> Finding:
    said = f"not known: {', '.join(missing)}"
    return Finding(row.name, row.variant, row.source, check, printed, "–", UNKNOWN, said)


# -- caches ----------------------------------------------------------------------------------------------------------


def _bytes_of(row: Row, elements: int, changes: Changes) -> int:
    s = row.settings | changes
    return elements * s["element_bytes"] * s["layers"] * s["requests"] * s["length"]


def _own_bytes(row: Row, changes: Changes) -> int:
    own = {name: value for name, value in changes.items() if name in OWN}
    return _bytes_of(row, row.attention(**own).cache_width(), changes)


def _dense_bytes(row: Row, changes: Changes) -> int:
    return _bytes_of(row, 2 * row.settings["heads"] * row.settings["d_head"], changes)


def _any_agrees(figures: tuple[Figure, ...], value: float) -> bool:
    return any(figure.agrees(value) for figure in figures)


def _cache(row: Row) -> Finding:
    figures, dense = row.figures["bytes"], row.figures.get("dense_bytes")
    if missing := row.missing("layers", "heads", "d_head", "length", *row.needs()):
        return _unknown(row, "cache", figures[0].text, missing)
    value = _own_bytes(row, {})

    def fits(changes: Changes) -> bool:
        beside = dense is None or _any_agrees(dense, _dense_bytes(row, changes))
        return beside and _any_agrees(figures, _own_bytes(row, changes))

    agrees = _any_agrees(figures, value)
    settings = ("layers", "length", "element_bytes", *OWN)
    explanation = "" if agrees else in_words(row, search(row, fits, settings))
    return _finding(row, "cache", figures[0].text, _mib(value), agrees, explanation)


def _dense_cache(row: Row) -> Finding:
    figures = row.figures["dense_bytes"]
    if missing := row.missing("layers", "heads", "d_head", "length"):
        return _unknown(row, "MHA's cache", figures[0].text, missing)
    value = _dense_bytes(row, {})

    def fits(changes: Changes) -> bool:
        return _any_agrees(figures, _dense_bytes(row, changes))

    agrees = fits({})
    explanation = "" if agrees else in_words(row, search(row, fits, ("layers", "length", "element_bytes")))
    return _finding(row, "MHA's cache", figures[0].text, _mib(value), agrees, explanation)


def _share(row: Row, changes: Changes) -> float:
    return 100 * row.attention(**changes).cache_width() / (2 * row.settings["heads"] * row.settings["d_head"])


def _fitting_settings(row: Row, low: float, high: float) -> str:
    """Say which rank (groups, latent) has a share of MHA's cache between two percentages."""
    found = search(row, lambda changes: low <= _share(row, changes) <= high, OWN)
    if found or not row.needs():
        return in_words(row, found)
    name = row.needs()[-1]
    wanted = (low + high) / 2
    exact = row.settings[name] + (wanted - _share(row, {})) / (_share(row, {name: 2}) - _share(row, {name: 1}))
    if row.variant != "lrkv" or not 1 <= exact < row.settings["d_head"]:
        return in_words(row, found)
    return "no rank fits: " + ", ".join(f"{r} gives {_share(row, {name: r}):.2f} %" for r in _around(exact))


def _around(value: float) -> tuple[int, int]:
    return math.floor(value), math.floor(value) + 1


def _ratio(row: Row) -> Finding:
    figure = row.figures["ratio"][0]
    if missing := row.missing("heads", "d_head", *row.needs()):
        return _unknown(row, "cache over MHA's", f"{figure.text} %", missing)
    value = _share(row, {})
    explanation = "" if figure.agrees(value) else _fitting_settings(row, figure.low, figure.high)
    return _finding(
        row, "cache over MHA's, by settings", f"{figure.text} %", f"{value:.3f} %", figure.agrees(value), explanation
    )


def _ratio_of_bytes(row: Row) -> Finding:
    own, dense, figure = row.figures["bytes"][0], row.figures["dense_bytes"][0], row.figures["ratio"][0]
    low, high = 100 * own.low / dense.high, 100 * own.high / dense.low
    value = 100 * own.value / dense.value
    agrees = low <= figure.high and figure.low <= high
    explanation = ""
    if not agrees and not row.missing("heads", "d_head", *row.needs()):
        known = low <= _share(row, {}) <= high
        fit = "the settings fit" if known else _fitting_settings(row, value - 1e-9, value + 1e-9)
        explanation = f"the bytes: {fit}"
    printed = f"{figure.text} % beside {own.text} of {dense.text}"
    return _finding(row, "cache over MHA's, by bytes", printed, f"{value:.3f} %", agrees, explanation)


def _mib(value: float) -> str:
    return f"{value / 2**20:,.5f}".rstrip("0").rstrip(".") + " MiB"


# -- parameters and ranks --------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _count(config: ModelConfig) -> tuple[int, int]:
    """Return the parameters of a model without layers, and of a layer."""
    one, two = (n_parameters(config.with_(n_layers=layers)) for layers in (1, 2))
    return 2 * one - two, two - one


def _sizes(row: Row) -> dict[str, tuple[int, int]]:
    s = row.settings
    found = {}
    for tied in (False, True):
        config = ModelConfig(
            d_model=s["d_model"],
            n_layers=1,
            d_vocab=s["vocabulary"],
            n_ctx=1,
            attention=row.attention(),
            mlp=MLPConfig(4 * s["d_model"], gated=False),
            norm=NormConfig("rms", 1e-5),
            positions="none",
            tie_embeddings=tied,
        )
        found["tied" if tied else "untied"] = _count(config)
    return found


def _parameters(row: Row, rows: list[Row]) -> Finding:
    figure = row.figures["parameters"][0]
    if missing := row.missing(*BACKBONE, *row.needs()):
        return _unknown(row, "parameters", figure.text, missing)
    layers = row.settings["layers"]

    def close(value: float) -> bool:
        return abs(value / figure.value - 1) <= NAME_TOLERANCE or figure.agrees(value)

    sizes = _sizes(row)
    computed = ", ".join(f"{(base + layers * each) / 1e9:.3f} B {how}" for how, (base, each) in sizes.items())
    agrees = any(close(base + layers * each) for base, each in sizes.values())
    if agrees:
        return _finding(row, "parameters", figure.text, computed, True)
    said = [
        f"{as_ranges(fitting)} layers (not {layers}) {how}"
        for how, (base, each) in sizes.items()  # embeddings tied or not: neither is printed
        if (fitting := [n for n in LAYERS if close(base + n * each)])
    ]
    sisters = {other.variant: other for other in rows if other.name == row.name and other.variant != row.variant}
    for variant, other in sisters.items():
        if not other.missing(*BACKBONE, *other.needs()):
            base, each = _sizes(other)["untied"]
            if close(base + layers * each):
                said.append(f"{variant} in place of {row.variant}, {(base + layers * each) / 1e9:.3f} B")
    explanation = f"fits {'; or '.join(said)}" if said else "nothing searched fits"
    return _finding(row, "parameters", figure.text, computed, False, explanation)


def _centred_rank(row: Row) -> Finding:
    figure = row.figures["centred_rank"][0]
    if missing := row.missing("heads"):
        return _unknown(row, "centred effective rank", figure.text, missing)
    cap = row.settings["heads"] - 1
    inside = figure.low <= cap if figure.high < math.inf else figure.low < cap
    explanation = "" if inside else f"fits an uncentred rank, whose cap is {cap + 1}, or more heads"
    return _finding(row, "centred effective rank", figure.text, f"at most {cap}", inside, explanation)


# -- between rows ----------------------------------------------------------------------------------------------------


def _disagreements(rows: list[Row]) -> Iterator[Finding]:
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


def _twins(rows: list[Row]) -> Iterator[Finding]:
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


def _bytes_a_token(rows: list[Row]) -> Iterator[Finding]:
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
