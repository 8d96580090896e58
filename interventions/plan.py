"""What a sweep does at each cell, and what a layer of it gives."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..models.layers import parse_layers
from .edits import Edit, Mean, Noise, Resample, Rows, Shuffle, Zero
from .paths import PATHS

HOW = ("shuffle", "shuffle-past", "shuffle-token", "resample", "mean", "zero", "noise")
"""Names of edits that a sweep makes."""
ALL = -1
"""Stands for the head of a cell in which all heads are edited together."""
LOOKS = 4
"""How often a sweep that may stop early looks at what it has: after each quarter of the samples."""


@dataclass(frozen=True)
class Plan:
    """What a sweep does at each cell.

    Parameters
    ----------
    path, how, rotated
        Where, and what: one of `HOW`. Donors of resampling and the reference of the mean are the task's own rows.
    heads
        ``"each"``: one cell a head (group, for keys and values of grouped models); ``"all"``: one cell a layer; or the
        heads to go through.
    seeds, seed
        Repeats of what is random, averaged within each sample (the unit stays the sample), and the first one's seed.
    rows
        Rows of one forward pass over all its arms; beyond rounding no number depends on it.
    stop_early
        Leave a cell once its samples so far decide it (`LOOKS` looks, Bonferroni over looks and cells of the layer).
    """

    path: str = "k_private"
    how: str = "shuffle"
    rotated: bool = False
    heads: str | tuple[int, ...] = "each"
    seeds: int = 1
    seed: int = 0
    rows: int = 128
    stop_early: bool = False

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise ValueError(f"how should be one of {', '.join(HOW)} but got {self.how!r}")
        named = isinstance(self.heads, tuple) and self.heads and len(set(self.heads)) == len(self.heads)
        if self.heads not in ("each", "all") and not named:
            raise ValueError(f"heads should be 'each', 'all' or distinct numbers of heads but got {self.heads!r}")
        for name in ("seeds", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1 but got {getattr(self, name)}")
        self.edit(self.path, self.seed, ((0,),))  # an edit that cannot be is refused here

    def edit(self, path: str, seed: int, rows: Rows) -> Edit:
        """Return the edit of all heads at a path."""
        common: dict[str, Any] = {"path": path, "rotated": self.rotated}
        if self.how.startswith("shuffle"):
            among: Any = self.how.partition("-")[2] or "sample"
            return Shuffle(**common, seed=seed, among=among)
        if self.how == "resample":
            return Resample(**common, seed=seed, donors=rows, paired=True)
        if self.how == "mean":
            return Mean(**common, reference=rows)
        return Zero(**common) if self.how == "zero" else Noise(**common, seed=seed)


def edit_from_text(text: str, rows: Rows, n_layers: int, seed: int = 0) -> Edit:
    """Read an edit like ``shuffle:v_private``, ``zero:z:3`` or ``mean:k:0-2:1,5``: how, path, layers, heads.

    Parameters
    ----------
    text
        ``HOW:PATH[:LAYERS[:HEADS]]``; layers as for `report` with ``-`` for ranges, heads with commas.
    rows
        Donors of ``resample``, reference of ``mean``.
    n_layers
        Of the model.
    seed
        Of what is random.

    Raises
    ------
    ValueError, IndexError
        If it is no such text, or names what does not exist.
    """
    how, path, layers, heads, *more = [*text.split(":"), *[""] * 4][: max(4, text.count(":") + 1)]
    if more or not path:
        raise ValueError(f"edit should be HOW:PATH[:LAYERS[:HEADS]], like shuffle:v_private:3:1,5, but got {text!r}")
    chosen = tuple(parse_layers(re.sub(r"(?<=\d)-(?=\d)", ":", layers), n_layers)) if layers else None
    try:
        wanted = tuple(int(head) for head in heads.split(",")) if heads else None
    except ValueError:
        raise ValueError(f"heads of the edit should be numbers like 1,5 but got {heads!r}") from None
    return dataclasses.replace(Plan(path=path, how=how).edit(path, seed, rows), layers=chosen, heads=wanted)


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Scores of one layer's cells; NaN where a cell was left before a sample.

    Parameters
    ----------
    layer, cells
        Which layer, and the head of each cell (`ALL` where all are edited together).
    clean, clean_accuracy
        Score and accuracy without an edit, ``[sample]``.
    edit, edit_accuracy, random
        Score and accuracy with the edit, and score with the control of the same norm, ``[cell, sample]``.
    shared
        Score with the same edit on the shared path, ``[sample]``; None where there is no such path.
    moves
        How far the edit moved rows, in norms of the row: the sum, and over how many rows, ``[cell, 2]``.
    """

    layer: int
    cells: tuple[int, ...]
    clean: Float[np.ndarray, " sample"]
    clean_accuracy: Float[np.ndarray, " sample"]
    edit: Float[np.ndarray, "cell sample"]
    edit_accuracy: Float[np.ndarray, "cell sample"]
    random: Float[np.ndarray, "cell sample"]
    shared: Float[np.ndarray, " sample"] | None
    moves: Float[np.ndarray, "cell 2"]

    @classmethod
    def unseen(cls, layer: int, cells: tuple[int, ...], samples: int, *, shared: bool) -> LayerScores:
        """Return scores of which none is known."""

        def unknown(*shape: int) -> np.ndarray:
            return np.full(shape, np.nan)

        edit, accuracy, random = (unknown(len(cells), samples) for _ in range(3))
        beside, moves = unknown(samples) if shared else None, np.zeros((len(cells), 2))
        return cls(layer, cells, unknown(samples), unknown(samples), edit, accuracy, random, beside, moves)

    @property
    def moved(self) -> Float[np.ndarray, " cell"]:
        """How far the edit moved a row on average; 0 where it moved none, NaN where it was not seen."""
        return self.moves[:, 0] / np.maximum(self.moves[:, 1], 1)


def cell_kind(plan: Plan, n_heads: int, n_groups: int) -> str:
    """Return what a cell's number counts: a head, or a key/value group where heads share keys and values."""
    return "group" if plan.path[0] in "kv" and n_groups < n_heads else "head"


def head_cells(plan: Plan, n_heads: int, n_groups: int) -> tuple[int, ...]:
    """Return the heads of a layer's cells: groups, for keys and values."""
    path = plan.path
    if plan.heads == "all" or PATHS[path] is None:
        if plan.heads not in ("all", "each"):
            raise ValueError(f"path {path!r} is shared by all heads: it has no heads {plan.heads} of its own")
        return (ALL,)
    count = n_groups if path[0] in "kv" else n_heads
    if isinstance(plan.heads, str):
        return tuple(range(count))
    for head in plan.heads:
        if not 0 <= head < count:
            raise IndexError(f"head {head} does not exist: path {path!r} has heads 0–{count - 1}")
    return plan.heads
