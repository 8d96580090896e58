"""One edit after another over the cells of a layer: each head alone, each beside its control, many in one forward pass.

Up to the edited layer nothing changes, so a batch's residual stream is worked out once, and every arm (an edit of one
head, or its control) starts from a copy of it, stacked along the batch. Behind the last block only the scored
positions are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from ..models.hooked import HookedModel
from ..models.layers import parse_layers
from .applying import Reference, measure, padded
from .edits import Edit, Mean, Noise, Resample, Rows, SameNorm, Shuffle, Zero
from .paths import PATHS, SHARED, View, shared_view, view
from .site import Site
from .tasks import Row, Task, pair_scores, row_scores

HOW = ("shuffle", "shuffle-past", "shuffle-token", "resample", "mean", "zero", "noise")
"""Names of edits that a sweep makes."""
ALL = -1
"""Stands for the head of a cell in which all heads are edited together."""


@dataclass(frozen=True)
class Settings:
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
    """

    path: str = "k_private"
    how: str = "shuffle"
    rotated: bool = False
    heads: str | tuple[int, ...] = "each"
    seeds: int = 1
    seed: int = 0
    rows: int = 128

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise ValueError(f"how should be one of {', '.join(HOW)} but got {self.how!r}")
        if self.heads not in ("each", "all") and not (isinstance(self.heads, tuple) and self.heads):
            raise ValueError(f"heads should be 'each', 'all' or numbers of heads but got {self.heads!r}")
        for name in ("seeds", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1 but got {getattr(self, name)}")
        SameNorm(of=self.edit(self.path, self.seed, ((0,),)))  # a path without a control is refused here

    def edit(self, path: str, seed: int, rows: Rows) -> Edit:
        """Return the edit of all heads at a path."""
        common: dict[str, Any] = {"path": path, "rotated": self.rotated}
        if self.how.startswith("shuffle"):
            among: Any = self.how.partition("-")[2] or "sample"
            return Shuffle(**common, seed=seed, among=among)
        if self.how == "resample":
            return Resample(**common, seed=seed, donors=rows)
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
    chosen = tuple(parse_layers(layers.replace("-", ":"), n_layers)) if layers else None
    try:
        wanted = tuple(int(head) for head in heads.split(",")) if heads else None
    except ValueError:
        raise ValueError(f"heads of the edit should be numbers like 1,5 but got {heads!r}") from None
    return dataclasses.replace(Settings(path=path, how=how).edit(path, seed, rows), layers=chosen, heads=wanted)


@dataclass(frozen=True, eq=False)
class LayerScores:
    """Scores of one layer's cells.

    Parameters
    ----------
    layer, cells
        Which layer, and the head of each cell (`ALL` where all are edited together).
    edit, edit_accuracy, random
        Score and accuracy with the edit, and score with the control of the same norm, ``[cell, sample]``.
    shared
        Score with the same edit on the shared path, ``[sample]``; None where there is no such path.
    moved
        How far the edit moves a row, in norms of the row, ``[cell]``.
    """

    layer: int
    cells: tuple[int, ...]
    edit: Float[np.ndarray, "cell sample"]
    edit_accuracy: Float[np.ndarray, "cell sample"]
    random: Float[np.ndarray, "cell sample"]
    shared: Float[np.ndarray, " sample"] | None
    moved: Float[np.ndarray, " cell"]


@dataclass(frozen=True, eq=False)
class _Arm:
    """A change of some heads at one view."""

    view: View
    edit: Edit
    reference: Reference | None


@dataclass(frozen=True, eq=False)
class _Batch:
    """Some of the task's rows, padded."""

    samples: tuple[int, ...]
    rows: tuple[Row, ...]
    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]

    def site(self, layer: int, reference: Reference | None) -> Site:
        positions = (self.valid.long().cumsum(-1) - 1).clamp_min(0)
        return Site(layer, self.samples, self.valid, positions, self.tokens, reference)


class Sweep:
    """A model on a task, and what is to be done to it.

    Parameters
    ----------
    model
        The wrapper.
    task
        Its samples are the units.
    settings
        Path, edit, heads, seeds.

    Raises
    ------
    ValueError
        If a row of the task is longer than the model's context.
    """

    def __init__(self, model: HookedModel, task: Task, settings: Settings) -> None:
        self.model, self.task, self.settings = model.eval(), task, settings
        self._rows = [(i, row) for i, sample in enumerate(task.samples) for row in sample.rows]
        self._donors: Rows = tuple(dict.fromkeys(row.tokens for _, row in self._rows))
        longest = max(len(row.tokens) for _, row in self._rows)
        if longest > model.config.n_ctx:
            raise ValueError(
                f"task {task.name!r} has rows of {longest} tokens but the model has n_ctx {model.config.n_ctx}"
            )

    @torch.no_grad()
    def clean(self) -> tuple[Float[np.ndarray, " sample"], Float[np.ndarray, " sample"]]:
        """Return score and accuracy of every sample on the unedited model."""
        found = [
            self._logits(batch, self.model(batch.tokens, stop_at_layer=self.model.config.n_layers))
            for batch in self._batches(self.settings.rows)
        ]
        return self._scores([logits for batch in found for logits in batch])

    def cells(self, layer: int) -> tuple[int, ...]:
        """Return the heads of a layer's cells.

        Raises
        ------
        ValueError, IndexError
            If the model has no such path, layer or head.
        """
        config, path = self.model.config.attention, self.settings.path
        view(self.model, path, layer, rotated=self.settings.rotated)
        if self.settings.heads == "all" or PATHS[path] is None:
            if self.settings.heads not in ("all", "each"):
                raise ValueError(
                    f"path {path!r} is shared by all heads: it has no heads {self.settings.heads} of its own"
                )
            return (ALL,)
        count = config.n_groups if path[0] in "kv" else config.n_heads
        if isinstance(self.settings.heads, str):
            return tuple(range(count))
        for head in self.settings.heads:
            if not 0 <= head < count:
                raise IndexError(f"head {head} does not exist: path {path!r} has heads 0–{count - 1}")
        return self.settings.heads

    @torch.no_grad()
    def layer(self, layer: int) -> LayerScores:
        """Go through the cells of one layer."""
        cells, settings = self.cells(layer), self.settings
        found = [self._repeat(layer, cells, seed) for seed in range(settings.seed, settings.seed + settings.seeds)]
        scores = np.mean([scores for scores, _, _ in found], axis=0)  # [arm, sample]
        accuracy = np.mean([accuracy for _, accuracy, _ in found], axis=0)
        moved = np.mean([moved for _, _, moved in found], axis=0)
        count = len(cells)
        shared = scores[2 * count] if len(scores) > 2 * count else None
        return LayerScores(layer, cells, scores[:count], accuracy[:count], scores[count : 2 * count], shared, moved)

    def _repeat(self, layer: int, cells: Sequence[int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores and accuracies ``[arm, sample]`` with one seed: edits, controls, shared path; and `moved`."""
        arms = self._arms(layer, cells, seed)
        logits: list[list[Tensor]] = [[] for _ in arms]
        moved = np.zeros((len(arms), 2))
        for batch in self._batches(max(1, self.settings.rows // len(arms))):
            resid = self.model(batch.tokens, stop_at_layer=layer)
            share = max(1, self.settings.rows // len(batch.rows))
            for start in range(0, len(arms), share):
                after, moves = self._run(batch, resid, layer, arms[start : start + share])
                moved[start : start + share] += moves
                for found, resids in zip(logits[start:], after, strict=False):
                    found += self._logits(batch, resids)
        scored = [self._scores(found) for found in logits]
        return np.stack([s for s, _ in scored]), np.stack([a for _, a in scored]), _ratio(moved[: len(cells)])

    def _arms(self, layer: int, cells: Sequence[int], seed: int) -> list[_Arm]:
        """Return the edit of each cell, then each one's control, then the same edit on the shared path."""
        path, rotated = self.settings.path, self.settings.rotated
        own, shared = (
            view(self.model, path, layer, rotated=rotated),
            shared_view(self.model, path, layer, rotated=rotated),
        )
        edit = self.settings.edit(path, seed, self._donors)
        edits = [edit if head == ALL else dataclasses.replace(edit, heads=(head,)) for head in cells]
        kinds = [*((own, e) for e in edits), *((own, SameNorm(of=e, seed=seed)) for e in edits)]
        if shared is not None:
            kinds.append((shared, self.settings.edit(SHARED[path], seed, self._donors)))
        held = measure(self.model, [(kind.reference_rows, found) for found, kind in kinds])
        return [_Arm(found, kind, reference) for (found, kind), reference in zip(kinds, held, strict=True)]

    def _run(
        self, batch: _Batch, resid: Tensor, layer: int, arms: Sequence[_Arm]
    ) -> tuple[list[Float[Tensor, "batch pos d_model"]], Float[np.ndarray, "arm 2"]]:
        """Return for each arm the last residual stream, and how far rows were moved: the sum, and of how many rows."""
        size, moves = len(resid), np.zeros((len(arms), 2))

        def hook(tensor: Tensor, hook: HookPoint) -> Tensor:
            new = tensor.clone()
            before = tensor[:size]  # up to here all arms are alike
            for i, arm in enumerate(arms):
                if arm.view.hook == hook.name:
                    site = batch.site(layer, arm.reference)
                    part = arm.view.read(before, site)
                    after = arm.edit.edited(part, site)
                    moves[i] = _distance(part, after, batch.valid)
                    new[i * size : (i + 1) * size] = arm.view.write(before, after, site)
            return new

        names = list(dict.fromkeys(arm.view.hook for arm in arms))
        stacked = resid.repeat(len(arms), 1, 1)
        with self.model.hooks(fwd_hooks=[(name, hook) for name in names]):
            last = self.model(stacked, start_at_layer=layer, stop_at_layer=self.model.config.n_layers)
        return list(last.split(size)), moves

    def _batches(self, size: int) -> Iterator[_Batch]:
        for first in range(0, len(self._rows), size):
            chunk = self._rows[first : first + size]
            tokens, valid = padded(tuple(row.tokens for _, row in chunk))
            yield _Batch(tuple(i for i, _ in chunk), tuple(row for _, row in chunk), tokens, valid)

    def _logits(
        self, batch: _Batch, resid: Float[Tensor, "batch pos d_model"]
    ) -> list[Float[Tensor, "scored d_vocab"]]:
        """Return the logits at each row's scored positions."""
        return [
            self.model.ln_final(resid[i : i + 1, list(row.scored)])[0] @ self.model.W_U
            for i, row in enumerate(batch.rows)
        ]

    def _scores(self, logits: Sequence[Tensor]) -> tuple[Float[np.ndarray, " sample"], Float[np.ndarray, " sample"]]:
        """Return score and accuracy of each sample from the logits of all rows."""
        found, place = [], 0
        for sample in self.task.samples:
            here = logits[place : place + len(sample.rows)]
            place += len(sample.rows)
            found.append(
                row_scores(here[0], sample.right) if sample.wrong is None else pair_scores(here[0], here[1], sample)
            )
        return np.array([score for score, _ in found]), np.array([accuracy for _, accuracy in found])


def _distance(part: Tensor, after: Tensor, valid: Bool[Tensor, "batch pos"]) -> tuple[float, int]:
    """Return how far changed rows moved, in norms of what they were: the sum, and of how many rows."""
    moved, norm = (after - part).norm(dim=-1), part.norm(dim=-1)
    if part.shape[1] == valid.shape[1]:
        moved, norm = moved[valid], norm[valid]
    changed = moved > 0
    return float((moved[changed] / norm[changed].clamp_min(1e-30)).sum()), int(changed.sum())


def _ratio(moved: Float[np.ndarray, "arm 2"]) -> Float[np.ndarray, " arm"]:
    """Return sums over counts; 0 where nothing moved."""
    return moved[:, 0] / np.maximum(moved[:, 1], 1)
