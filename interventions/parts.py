"""Scores of finished layers as arrays, to be kept while a sweep goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..unfinished import Unfinished
from .plan import LayerScores

_ARRAYS = ("clean", "clean_accuracy", "edit", "edit_accuracy", "random", "moves")


def load(kept: Unfinished, layer: int) -> LayerScores | None:
    """Return a finished layer, or None."""
    held = kept.load(_piece(layer))
    if held is None:
        return None
    cells = tuple(int(head) for head in held["cells"])
    found = {name: held[name] for name in _ARRAYS}
    return LayerScores(layer=layer, cells=cells, shared=held.get("shared"), **found)


def save(kept: Unfinished, scores: LayerScores) -> None:
    """Keep a finished layer."""
    arrays: dict[str, Any] = {name: getattr(scores, name) for name in _ARRAYS} | {"cells": np.array(scores.cells)}
    if scores.shared is not None:
        arrays["shared"] = scores.shared
    kept.save(_piece(scores.layer), arrays)


def _piece(layer: int) -> str:
    return f"layer-{layer:04d}"
