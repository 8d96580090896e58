"""One edit after another over the cells of a layer: each head alone, each beside its control, many in one forward pass.

Up to the edited layer nothing changes, so a batch's residual stream is worked out once, and every arm (an edit of one
head, or its control) starts from a copy of it, stacked along the batch. Behind the last block only the scored
positions are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from ..models.hooked import HookedModel
from .applying import Reference, counted, measure, padded
from .edits import Edit, Rows, SameNorm
from .paths import PATHS, SHARED, View, shared_view, view
from .plan import ALL, LOOKS, LayerScores, Plan, cell_kind, head_cells
from .site import Site, generator
from .statistics import FLIPS, sign_flips
from .tasks import Row, Task, row_scores
from .tasks.task import log_probabilities

TOKENS = 2**14
"""Tokens of one forward pass over all its arms, at most."""
LOGITS = 2**26
"""Numbers of one product with the unembedding, at most (256 MiB in float32)."""
NOBODY = -2
"""Stands for the head of the arm in which nothing is edited."""

_Value = tuple[int, float, float | None]
"""Sample, what a row brings to its score, and its accuracy (None: the sample's score decides)."""


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
        positions = counted(self.valid).to(self.tokens.device)
        return Site(layer, self.samples, self.valid, positions, self.tokens, reference=reference)


class Sweep:
    """A model on a task, and what is to be done to it.

    Parameters
    ----------
    model
        The wrapper.
    task
        Its samples are the units.
    plan
        Path, edit, heads, seeds.

    Raises
    ------
    ValueError
        If a row of the task is longer than the model's context.
    """

    def __init__(self, model: HookedModel, task: Task, plan: Plan) -> None:
        self.model, self.task, self.plan = model.eval(), task, plan
        self._donors: Rows = tuple(sample.right.tokens for sample in task.samples)
        longest = max(len(row.tokens) for sample in task.samples for row in sample.rows)
        if longest > model.config.n_ctx:
            raise ValueError(
                f"task {task.name!r} has rows of {longest} tokens but the model has n_ctx {model.config.n_ctx}"
            )
        self._size = max(1, min(plan.rows, TOKENS // longest))
        SameNorm(of=plan.edit(plan.path, plan.seed, self._donors))  # a path without a control is refused here

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.model.config.n_layers

    @property
    def d_vocab(self) -> int:
        """Tokens that the model chooses from."""
        return self.model.config.d_vocab

    @property
    def kind(self) -> str:
        """What a cell's number counts."""
        config = self.model.config.attention
        return cell_kind(self.plan, config.n_heads, config.n_groups)

    def describe(self, origin: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the model is and where it comes from, for a record."""
        return {"checkpoint": origin or self.model.describe(), "config": self.model.config.to_dict()}

    @torch.no_grad()
    def clean(self) -> tuple[Float[np.ndarray, " sample"], Float[np.ndarray, " sample"]]:
        """Return score and accuracy of every sample on the unedited model."""
        values: list[_Value] = []
        for batch in self._batches(self._size, range(len(self.task.samples))):
            values += self._values(batch, self.model(batch.tokens, stop_at_layer=self.model.config.n_layers))
        return _per_sample(values)

    def cells(self, layer: int) -> tuple[int, ...]:
        """Return the heads of a layer's cells.

        Raises
        ------
        ValueError, IndexError
            If the model has no such path, layer or head.
        """
        config = self.model.config.attention
        view(self.model, self.plan.path, layer, rotated=self.plan.rotated)
        return head_cells(self.plan, config.n_heads, config.n_groups)

    @torch.no_grad()
    def layer(self, layer: int) -> LayerScores:
        """Go through the cells of one layer.

        Raises
        ------
        ValueError
            If a score is not finite; names layer, head and sample.
        """
        cells, count = self.cells(layer), len(self.task.samples)
        found = LayerScores.unseen(layer, cells, count, shared=self._shared_view(layer) is not None)
        still = np.arange(len(cells))
        for chosen in self._looks(count):
            scores, right, moves = self._mean(layer, [cells[c] for c in still], chosen.tolist())
            here, width = np.ix_(still, chosen), len(still)
            found.clean[chosen], found.clean_accuracy[chosen] = scores[0], right[0]
            found.edit[here], found.edit_accuracy[here] = scores[1 : width + 1], right[1 : width + 1]
            found.random[here] = scores[width + 1 : 2 * width + 1]
            found.moves[still] += moves[1 : width + 1]
            if found.shared is not None:
                found.shared[chosen] = scores[-1]
            if self.plan.stop_early:
                still = self._undecided(still, found)
                if not len(still):
                    break
        return found

    def _looks(self, count: int) -> list[np.ndarray]:
        """Return the samples of each look: all at once, or in quarters of a random order."""
        if not self.plan.stop_early:
            return [np.arange(count)]
        order = generator("looks", self.plan.seed).permutation(count)
        return [np.sort(part) for part in np.array_split(order, min(LOOKS, count))]

    def _undecided(self, cells: np.ndarray, found: LayerScores) -> np.ndarray:
        """Return the cells that are not decided yet: by the effect and by the effect beyond the control, both.

        Each test has Bonferroni's share of 5 %, over looks and cells, so that stopping keeps the family-wise error.
        """
        seen = ~np.isnan(found.edit[cells[0]])
        edited, control, clean = found.edit[np.ix_(cells, seen)], found.random[np.ix_(cells, seen)], found.clean[seen]
        tests = [sign_flips((edited - other).T, flips=FLIPS) for other in (clean, control)]
        return cells[~(np.maximum(*tests) <= 0.05 / (LOOKS * len(found.cells)))]

    def _mean(
        self, layer: int, cells: Sequence[int], samples: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores and accuracies ``[arm, sample]`` over all seeds, and how far rows moved."""
        first = self.plan.seed
        found = [self._repeat(layer, cells, seed, samples) for seed in range(first, first + self.plan.seeds)]
        scores, accuracy, moved = zip(*found, strict=True)
        mean = np.mean(scores, axis=0)
        for arm, sample in np.argwhere(~np.isfinite(mean))[:1]:
            names = ["unedited", *(f"head {c}" for c in cells), *(f"control of head {c}" for c in cells), "shared path"]
            raise ValueError(
                f"layer {layer}, {names[arm]}: the score of sample {samples[sample]} is {mean[arm, sample]}"
            )
        return mean, np.mean(accuracy, axis=0), np.sum(moved, axis=0)

    def _repeat(
        self, layer: int, cells: Sequence[int], seed: int, samples: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the same with one seed: unedited, the edits, their controls, the shared path."""
        arms = self._arms(layer, cells, seed)
        values: list[list[_Value]] = [[] for _ in arms]
        moved = np.zeros((len(arms), 2))
        for batch in self._batches(max(1, self._size // len(arms)), samples):
            resid = self.model(batch.tokens, stop_at_layer=layer)
            share = max(1, self._size // len(batch.rows))
            for start in range(0, len(arms), share):
                after, moves = self._run(batch, resid, layer, arms[start : start + share])
                moved[start : start + share] += moves
                for arm, last in zip(values[start:], after, strict=False):
                    arm += self._values(batch, last)
        scored = [_per_sample(arm) for arm in values]
        return np.stack([score for score, _ in scored]), np.stack([right for _, right in scored]), moved

    def _shared_view(self, layer: int) -> View | None:
        return shared_view(self.model, self.plan.path, layer, rotated=self.plan.rotated)

    def _arms(self, layer: int, cells: Sequence[int], seed: int) -> list[_Arm]:
        """Return no edit, then the edit of each cell, each one's control, and the same edit on the shared path.

        The unedited arm stands in the same stack as the others: what is compared went through the same products.
        """
        path, shared = self.plan.path, self._shared_view(layer)
        own = view(self.model, path, layer, rotated=self.plan.rotated)
        edit = self.plan.edit(path, seed, self._donors)
        kinds = [(own, edit), (own, SameNorm(of=edit, seed=seed))]
        if shared is not None:
            kinds.append((shared, self.plan.edit(SHARED[path], seed, self._donors)))
        held = measure(self.model, [(kind.reference_rows, found) for found, kind in kinds])
        changes = [_Change(found, kind, reference) for (found, kind), reference in zip(kinds, held, strict=True)]
        heads = [None if head == ALL else head for head in cells]
        edits = [_Arm(change, head) for change in changes[:2] for head in heads]
        return [_Arm(changes[0], NOBODY), *edits, *(_Arm(change, None) for change in changes[2:])]

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
                if change.view.hook != hook.name or arm.head == NOBODY:
                    continue
                if id(change) not in known:
                    site = batch.site(layer, change.reference)
                    part = change.view.read(before, site)
                    known[id(change)] = site, part, change.edit.change(part, site)
                site, part, changed = known[id(change)]
                after = changed if arm.head is None else _of_head(part, changed, arm.head, self.plan.path)
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
            samples_of, rows_of = tuple(i for i, _ in chunk), tuple(row for _, row in chunk)
            yield _Batch(samples_of, rows_of, tokens.to(next(self.model.parameters()).device), valid)

    def _values(self, batch: _Batch, resid: Float[Tensor, "batch pos d_model"]) -> list[_Value]:
        """Return what each row of a batch brings to its sample's score; logits are read at scored positions alone."""
        found: list[_Value] = []
        share = max(1, LOGITS // (self.model.config.d_vocab * max(len(row.scored) for row in batch.rows)))
        for start in range(0, len(batch.rows), share):
            rows = batch.rows[start : start + share]
            places = [(start + i, position) for i, row in enumerate(rows) for position in row.scored]
            index = torch.tensor(places, device=resid.device).T
            read = self.model.ln_final(resid[index[0], index[1]][None])[0] @ self.model.W_U
            split = read.split([len(row.scored) for row in rows])
            found += [self._value(*each) for each in zip(batch.samples[start:], rows, split, strict=False)]
        return found

    def _value(self, sample: int, row: Row, logits: Float[Tensor, "scored d_vocab"]) -> _Value:
        if self.task.samples[sample].wrong is None:
            return sample, *row_scores(logits, row)
        sign = 1 if row is self.task.samples[sample].right else -1
        return sample, sign * float(log_probabilities(logits, row.answers).sum()), None


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
    moved, norm = (after - part).norm(dim=-1)[valid], part.norm(dim=-1)[valid]
    changed = moved > 0
    return float((moved[changed] / norm[changed].clamp_min(1e-30)).sum()), int(changed.sum())
