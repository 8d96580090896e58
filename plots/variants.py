"""How each variant looks in figures: its name, colour and marker."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.colors import to_rgb

# Colour, marker and its size (points). The darker five of Okabe and Ito's colours, which can be read as text on white;
# no marker is a circle, which is a run.
VARIANTS = {
    "mha": ("#000000", "s", 8.0),
    "gqa": ("#D55E00", "^", 10.0),
    "mqa": ("#009E73", "v", 10.0),
    "mla": ("#CC79A7", "D", 7.5),
    "lrkv": ("#0072B2", "p", 9.5),
}
OTHER_COLOURS, OTHER_MARKERS = ("#E69F00", "#56B4E9"), ("X", "h", "P", "*", "8")

Look = tuple[str, str, float]
"""Colour, marker, and the marker's size in points."""


def variant_of(model: str) -> str:
    """Return the variant that a model's name begins with: "lrkv" of "lrkv-r4"."""
    return model.lower().split("-")[0]


def display_name(model: str) -> str:
    """Name a model as a reader says it: "MHA", "LRKV r4"; a model of no known variant as it came."""
    variant = variant_of(model)
    return f"{variant.upper()}{model[len(variant) :].replace('-', ' ')}" if variant in VARIANTS else model


def looks(models: Iterable[str]) -> dict[str, Look]:
    """Give each model its variant's colour and marker; models of no known variant have their own."""
    found = {}
    others = 0
    for model in dict.fromkeys(models):
        look = VARIANTS.get(variant_of(model))
        if look is None:
            # 2 and 5 have no common factor, so that the first ten differ in one or the other.
            look = OTHER_COLOURS[others % len(OTHER_COLOURS)], OTHER_MARKERS[others % len(OTHER_MARKERS)], 9.0
            others += 1
        found[model] = look
    return found


def tint(colour: str) -> tuple[float, float, float, float]:
    """Mix with white, half transparent: the dots on a mean's marker and the marker behind it must be seen."""
    red, green, blue = (0.3 * part + 0.7 for part in to_rgb(colour))
    return red, green, blue, 0.5
