"""What can be recomputed of one row of printed figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache

from ..models.config import ModelConfig
from ..models.hooked import n_parameters
from ..models.mlp import MLPConfig
from ..models.norms import NormConfig
from .explain import LAYERS, Changes, as_ranges, in_words, search
from .finding import AGREES, CONTRADICTS, UNKNOWN, Finding
from .printed import BACKBONE, OWN, Figure, Row

NAME_TOLERANCE = 0.05
"""A size in a model's name is nominal: up to this share off, it counts as right."""


def check_row(row: Row, rows: list[Row]) -> Iterator[Finding]:
    """Yield what can be said of one row by itself (`rows` name its sister models)."""
    if not row.missing("heads", "d_head", *row.needs()):
        try:
            row.attention()
        except ValueError as error:
            yield _finding(row, "settings", _settings(row), "no such layer", False, str(error))
            return
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


def _settings(row: Row) -> str:
    return ", ".join(f"{name} {row.settings[name]}" for name in ("heads", "d_head", *row.needs()))


def _unknown(row: Row, check: str, printed: str, missing: list[str]) -> Finding:
    said = f"not known: {', '.join(missing)}"
    return Finding(row.name, row.variant, row.source, check, printed, "–", UNKNOWN, said)


# -- caches ----------------------------------------------------------------------------------------------------------


def _bytes_of(row: Row, elements: int, changes: Changes) -> int:
    s = row.settings | changes
    return elements * s["element_bytes"] * s["layers"] * s["requests"] * s["length"]


def _dense_bytes(row: Row, changes: Changes) -> int:
    return _bytes_of(row, 2 * row.settings["heads"] * row.settings["d_head"], changes)


def _any_agrees(figures: tuple[Figure, ...], value: float) -> bool:
    return any(figure.agrees(value) for figure in figures)


def _cache(row: Row) -> Finding:
    figures, dense = row.figures["bytes"], row.figures.get("dense_bytes")
    if missing := row.missing("layers", "heads", "d_head", "length", *row.needs()):
        return _unknown(row, "cache", figures[0].text, missing)

    @cache  # the search asks for each setting again with every number of layers
    def width(own: tuple[tuple[str, int], ...]) -> int:
        return row.attention(**dict(own)).cache_width()

    def computed(changes: Changes) -> int:
        own = tuple((name, value) for name, value in changes.items() if name in OWN)
        return _bytes_of(row, width(own), changes)

    def fits(changes: Changes) -> bool:
        beside = dense is None or _any_agrees(dense, _dense_bytes(row, changes))
        return beside and _any_agrees(figures, computed(changes))

    value = computed({})
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
