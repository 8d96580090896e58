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
from .statistics import effects
from .tasks import Row, Task, row_scores
from .tasks.task import log_probabilities

HOW = ("shuffle", "shuffle-past", "shuffle-token", "resample", "mean", "zero", "noise")
"""Names of edits that a sweep makes."""
ALL = -1
"""Stands for the head of a cell in which all heads are edited together."""
LOOKS = 4
"""How often a sweep that may stop early looks at what it has: after each quarter of the samples."""
_FLIPS = 49_999

_Value = tuple[int, float, float | None]
"""Sample, what a row brings to its score, and its accuracy (None: the sample's score decides)."""


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
class _Change:
    """What becomes of all heads at one view; worked out once a batch, whatever the number of arms."""

    view: View
    edit: Edit
    reference: Reference | None


@dataclass(frozen=True, eq=False)
class _Arm:
    """A change of one head, or of all."""

    change: _Change
    head: int | None


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
        self._donors: Rows = tuple(dict.fromkeys(row.tokens for sample in task.samples for row in sample.rows))
        self._clean: tuple[np.ndarray, np.ndarray] | None = None
        longest = max(map(len, self._donors))
        if longest > model.config.n_ctx:
            raise ValueError(
                f"task {task.name!r} has rows of {longest} tokens but the model has n_ctx {model.config.n_ctx}"
            )

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.model.config.n_layers

    def describe(self, name: str | None) -> dict[str, Any]:
        """Return what the model is, for a record."""
        return {"checkpoint": {**self.model.describe(), "path": name}, "config": self.model.config.to_dict()}

    @torch.no_grad()
    def clean(self) -> tuple[Float[np.ndarray, " sample"], Float[np.ndarray, " sample"]]:
        """Return score and accuracy of every sample on the unedited model."""
        if self._clean is None:
            values: list[_Value] = []
            for batch in self._batches(self.settings.rows, range(len(self.task.samples))):
                values += self._values(batch, self.model(batch.tokens, stop_at_layer=self.model.config.n_layers))
            self._clean = _per_sample(values)
        return self._clean

    def cells(self, layer: int) -> tuple[int, ...]:
        """Return the heads of a layer's cells.

        Raises
        ------
        ValueError, IndexError
            If the model has no such path, layer or head.
        """
        config = self.model.config.attention
        view(self.model, self.settings.path, layer, rotated=self.settings.rotated)
        return head_cells(self.settings, config.n_heads, config.n_groups)

    @torch.no_grad()
    def layer(self, layer: int) -> LayerScores:
        """Go through the cells of one layer."""
        cells, count = self.cells(layer), len(self.task.samples)
        edit, accuracy, random = (np.full((len(cells), count), np.nan) for _ in range(3))
        shared: np.ndarray | None = None
        moved = np.zeros((len(cells), 2))
        open_cells = np.arange(len(cells))
        looks = LOOKS if self.settings.stop_early else 1
        for chosen in np.array_split(np.arange(count), min(looks, count)):
            scores, right, moves = self._mean(layer, [cells[c] for c in open_cells], chosen.tolist())
            here = np.ix_(open_cells, chosen)
            width = len(open_cells)
            edit[here], random[here], accuracy[here] = scores[:width], scores[width : 2 * width], right[:width]
            moved[open_cells] += moves[:width]
            if len(scores) > 2 * width:
                shared = np.full(count, np.nan) if shared is None else shared
                shared[chosen] = scores[-1]
            if self.settings.stop_early:
                open_cells = self._undecided(open_cells, edit, random)
                if not len(open_cells):
                    break
        return LayerScores(layer, cells, edit, accuracy, random, shared, moved[:, 0] / np.maximum(moved[:, 1], 1))

    def _undecided(self, cells: np.ndarray, edit: np.ndarray, random: np.ndarray) -> np.ndarray:
        """Return the cells that are not decided yet: by the effect and by the effect beyond the control, both.

        Each test has Bonferroni's share of 5 %, over looks and cells, so that stopping keeps the family-wise error.
        """
        seen = ~np.isnan(edit[cells[0]])
        edited, control, clean = edit[np.ix_(cells, seen)], random[np.ix_(cells, seen)], self.clean()[0][seen]
        found = [effects(difference.T, flips=_FLIPS) for difference in (edited - clean, edited - control)]
        p = np.maximum(np.asarray(found[0]["p"]), np.asarray(found[1]["p"]))
        return cells[~(p <= 0.05 / (LOOKS * len(edit)))]

    def _mean(
        self, layer: int, cells: Sequence[int], samples: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores and accuracies ``[arm, sample]`` over all seeds, and how far rows moved."""
        first = self.settings.seed
        found = [self._repeat(layer, cells, seed, samples) for seed in range(first, first + self.settings.seeds)]
        scores, accuracy, moved = zip(*found, strict=True)
        return np.mean(scores, axis=0), np.mean(accuracy, axis=0), np.sum(moved, axis=0)

    def _repeat(
        self, layer: int, cells: Sequence[int], seed: int, samples: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the same with one seed: the edits, then their controls, then the shared path."""
        arms = self._arms(layer, cells, seed)
        values: list[list[_Value]] = [[] for _ in arms]
        moved = np.zeros((len(arms), 2))
        for batch in self._batches(max(1, self.settings.rows // len(arms)), samples):
            resid = self.model(batch.tokens, stop_at_layer=layer)
            share = max(1, self.settings.rows // len(batch.rows))
            for start in range(0, len(arms), share):
                after, moves = self._run(batch, resid, layer, arms[start : start + share])
                moved[start : start + share] += moves
                for arm, last in zip(values[start:], after, strict=False):
                    arm += self._values(batch, last)
        scored = [_per_sample(arm) for arm in values]
        return np.stack([score for score, _ in scored]), np.stack([right for _, right in scored]), moved

    def _arms(self, layer: int, cells: Sequence[int], seed: int) -> list[_Arm]:
        """Return the edit of each cell, then each one's control, then the same edit on the shared path."""
        path, rotated = self.settings.path, self.settings.rotated
        own, shared = (
            view(self.model, path, layer, rotated=rotated),
            shared_view(self.model, path, layer, rotated=rotated),
        )
        edit = self.settings.edit(path, seed, self._donors)
        kinds = [(own, edit), (own, SameNorm(of=edit, seed=seed))]
        if shared is not None:
            kinds.append((shared, self.settings.edit(SHARED[path], seed, self._donors)))
        held = measure(self.model, [(kind.reference_rows, found) for found, kind in kinds])
        changes = [_Change(found, kind, reference) for (found, kind), reference in zip(kinds, held, strict=True)]
        heads = [None if head == ALL else head for head in cells]
        return [_Arm(c, head) for c in changes[:2] for head in heads] + [_Arm(c, None) for c in changes[2:]]

    def _run(
        self, batch: _Batch, resid: Tensor, layer: int, arms: Sequence[_Arm]
    ) -> tuple[list[Float[Tensor, "batch pos d_model"]], Float[np.ndarray, "arm 2"]]:
        """Return for each arm the last residual stream, and how far rows were moved: the sum, and of how many rows."""
        size, moves = len(resid), np.zeros((len(arms), 2))

        def hook(tensor: Tensor, hook: HookPoint) -> Tensor:
            new = tensor.clone()
            before = tensor[:size]  # up to here all arms are alike
            known: dict[int, tuple[Site, Tensor, Tensor]] = {}
            for i, arm in enumerate(arms):
                change = arm.change
                if change.view.hook != hook.name:
                    continue
                if id(change) not in known:
                    site = batch.site(layer, change.reference)
                    part = change.view.read(before, site)
                    known[id(change)] = site, part, change.edit.change(part, site)
                site, part, changed = known[id(change)]
                after = changed if arm.head is None else _of_head(part, changed, arm.head, self.settings.path)
                moves[i] = _distance(part, after, batch.valid)
                new[i * size : (i + 1) * size] = change.view.write(before, after, site)
            return new

        names = list(dict.fromkeys(arm.change.view.hook for arm in arms))
        stacked = resid.repeat(len(arms), 1, 1)
        with self.model.hooks(fwd_hooks=[(name, hook) for name in names]):
            last = self.model(stacked, start_at_layer=layer, stop_at_layer=self.model.config.n_layers)
        return list(last.split(size)), moves

    def _batches(self, size: int, samples: Sequence[int]) -> Iterator[_Batch]:
        rows = [(i, row) for i in samples for row in self.task.samples[i].rows]
        for first in range(0, len(rows), size):
            chunk = rows[first : first + size]
            tokens, valid = padded(tuple(row.tokens for _, row in chunk))
            yield _Batch(tuple(i for i, _ in chunk), tuple(row for _, row in chunk), tokens, valid)

    def _values(self, batch: _Batch, resid: Float[Tensor, "batch pos d_model"]) -> list[_Value]:
        """Return what each row of a batch brings to its sample's score; logits are read at scored positions alone."""
        found: list[_Value] = []
        places = [(i, position) for i, row in enumerate(batch.rows) for position in row.scored]
        index = torch.tensor(places, device=resid.device).T
        read = self.model.ln_final(resid[index[0], index[1]][None])[0] @ self.model.W_U
        split = read.split([len(row.scored) for row in batch.rows])
        for sample, row, logits in zip(batch.samples, batch.rows, split, strict=True):
            if self.task.samples[sample].wrong is None:
                found.append((sample, *row_scores(logits, row)))
            else:
                sign = 1 if row is self.task.samples[sample].right else -1
                found.append((sample, sign * float(log_probabilities(logits, row.answers).sum()), None))
        return found


def head_cells(settings: Settings, n_heads: int, n_groups: int) -> tuple[int, ...]:
    """Return the heads of a layer's cells: groups, for keys and values."""
    path = settings.path
    if settings.heads == "all" or PATHS[path] is None:
        if settings.heads not in ("all", "each"):
            raise ValueError(f"path {path!r} is shared by all heads: it has no heads {settings.heads} of its own")
        return (ALL,)
    count = n_groups if path[0] in "kv" else n_heads
    if isinstance(settings.heads, str):
        return tuple(range(count))
    for head in settings.heads:
        if not 0 <= head < count:
            raise IndexError(f"head {head} does not exist: path {path!r} has heads 0–{count - 1}")
    return settings.heads


def _per_sample(values: Sequence[_Value]) -> tuple[Float[np.ndarray, " sample"], Float[np.ndarray, " sample"]]:
    """Return score and accuracy of each sample from its rows: the right one's alone, or right minus wrong."""
    scores: dict[int, float] = {}
    accuracy: dict[int, float | None] = {}
    for sample, score, right in values:
        scores[sample] = scores.get(sample, 0.0) + score
        accuracy[sample] = right
    found = [float(scores[i] > 0) if right is None else right for i, right in accuracy.items()]
    return np.array(list(scores.values())), np.array(found)


def _of_head(part: Tensor, changed: Tensor, head: int, path: str) -> Tensor:
    """Return the tensor with one head's rows changed."""
    after = part.clone()
    after.select(PATHS[path] or 0, head).copy_(changed.select(PATHS[path] or 0, head))
    return after


def _distance(part: Tensor, after: Tensor, valid: Bool[Tensor, "batch pos"]) -> tuple[float, int]:
    """Return how far changed rows moved, in norms of what they were: the sum, and of how many rows."""
    moved, norm = (after - part).norm(dim=-1), part.norm(dim=-1)
    if part.shape[1] == valid.shape[1]:
        moved, norm = moved[valid], norm[valid]
    changed = moved > 0
    return float((moved[changed] / norm[changed].clamp_min(1e-30)).sum()), int(changed.sum())
