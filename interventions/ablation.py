"""Ablate heads on a task: what each head's part is worth there, beside controls, with intervals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.opening import Source, model_of
from ..models.hooked import HookedModel
from ..models.layers import parse_layers
from ..plots import effect_intervals, effect_map
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import ablation_table
from ..results import Picture, Result, source_of, versions
from ..training.corpus import documents
from ..unfinished import Unfinished
from . import parts
from .bridged import BridgeSweep
from .paths import view
from .plan import ALL, LayerScores, Plan
from .statistics import FLIPS
from .sweep import Sweep
from .tabulate import LEVEL, MEANING, effect_table, sample_table
from .tasks import Task, chance, named
from .workers import Workers, workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Progress = Callable[[int, int, str], None]

_SAMPLES = {
    "sample": "which sample of the task",
    "clean": "score without the edit (nats)",
    "edited": "score with it",
    "random": "score with a random direction of the same norm instead",
}
_SHOWN = ("layer", "head", "effect", "low", "high", "q", "random_effect", "beyond_q", "shared_effect", "significant")
_CAPTION = (
    "Layers down, heads across. Colour is the change of the score under the edit: where it is below zero, the task "
    "suffers. A dot marks what matters beyond a random direction of the same norm; hatched cells have no value."
)
_INTERVALS_CAPTION = (
    "The strongest effects, largest first: the edit's, beside that of a random direction of the same norm and of the "
    "same edit on what all heads of the layer share. Bars are intervals; bold names and filled points are significant."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Ablation(Result):
    """What each head's part is worth on a task.

    Parameters
    ----------
    table
        One row per cell; see `tabulate.COLUMNS`. Where all heads of a layer are edited together, ``head`` is -1.
    samples
        One row per cell and sample: score without the edit, with it, and with its control (NaN behind an early stop).
    record
        What was done: checkpoint, task and its unit, path and its convention, edit, seeds, statistics.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.ablate("lrkv", "induction", path="v_private", layers="2", heads=(4, 5), samples=4)
    >>> int(result.table["head"][result.table["effect"].idxmin()])  # the head whose private values matter
    5
    """

    samples: pd.DataFrame

    stem: ClassVar[str] = "ablation"

    def title(self) -> str:
        """Return what was edited and where."""
        record = self.record
        where = record["checkpoint"]["path"] or "a model in memory"
        turned = " after the rotation" if record["rotated"] else ""
        return f"{record['how']} of {record['path']}{turned} in {where} on {record['task']['name']}"

    def summary(self) -> str:
        """Return the unedited model's score and how many cells matter."""
        clean, blind, table = self.record["clean"], self.record["chance"], self.table
        sure = table["significant"].astype(bool)
        cells = f"{len(table)} cell{'' if len(table) == 1 else 's'}"
        stopped = ""
        if self.record["stop_early"]:
            few = table["n"][table["n"] < clean["n"]]
            stopped = f"\n{len(few)} of {cells} stopped early" + (
                f", after {few.min()} samples or more." if len(few) else "."
            )
        hurt, helped = (np.count_nonzero(sure & side) for side in (table["effect"] < 0, table["effect"] > 0))
        return (
            f"Unedited: score {clean['score']:.3f} nats, accuracy {100 * clean['accuracy']:.1f} %, over "
            f"{_many(clean['n'], self.record['units'])} ({self.record['task']['unit']}); where all tokens are alike, "
            f"{blind['score']:.3f} nats and {100 * blind['accuracy']:.1f} %.\n"
            f"{np.count_nonzero(sure)} of {cells} matter beyond a random direction of their norm: "
            f"{hurt} edits hurt, {helped} help (both q < {LEVEL}, Benjamini-Hochberg over {cells}).{stopped}"
        )

    def reading(self) -> str:
        """Return which cells matter most, and how the shared path compares."""
        found = pd.DataFrame(self.table[self.table["significant"] & (self.table["effect"] < 0)]).sort_values("effect")
        lines = []
        if len(found):
            worst = "; ".join(
                f"{_cell(row)} {row['effect']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
                for row in found.head(5).to_dict("records")
            )
            lines.append(f"What hurts most, in nats: {worst}.")
        else:
            lines.append(_why_nothing(self.table))
        shared = self.table.dropna(subset=["shared_effect"]).drop_duplicates("layer")
        if len(shared):
            row = shared.sort_values("shared_effect").to_dict("records")[0]
            if row["shared_effect"] >= 0:
                return "\n".join([*lines, "The same edit on the shared path hurts in no layer."])
            lines.append(
                "The same edit on the shared path costs most in "
                f"layer {row['layer']}: {row['shared_effect']:+.3f} nats."
            )
        return "\n".join(lines)

    def measured(self) -> list[str]:
        """Return what the score is, and what is to be noted about path and task."""
        record = self.record
        lines = [f"Score: {record['task']['score']}."]
        lines += [f"Path {record['path']}: {record['convention']}."] if record["convention"] else []
        return lines + ([record["task"]["note"]] if record["task"]["note"] else [])

    def meaning(self) -> dict[str, str]:
        """Return `tabulate.MEANING` and what the samples' columns hold."""
        return {**MEANING, **_SAMPLES}

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the cells with the largest effects."""
        rows = self.table.sort_values("effect", key=abs, ascending=False, kind="stable")
        return pd.DataFrame(rows[list(_SHOWN)]), "the largest effects first"

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the table, what was done, and what it shows."""
        lines = [self.title(), *self.measured(), *self.summary().splitlines(), *self.reading().splitlines()]
        return [ablation_table(self.table, cell=self.record["cells"])], lines

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and the samples."""
        return {self.stem: self.table, "samples": self.samples}

    def pictures(self) -> dict[str, Picture]:
        """Return the heat map, and the strongest effects with their intervals."""
        drawn = {"effects.png": Picture(self.plot, _CAPTION)}
        if bool(self.table["effect"].notna().any()):
            drawn["intervals.png"] = Picture(self.plot_intervals, _INTERVALS_CAPTION)
        return drawn

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw the effects, layers by heads, with what is significant marked."""
        return figure_of(effect_map(self.table, title=self.title(), unit="nats", cell=self.record["cells"], ax=ax))

    def plot_intervals(self, top: int = 20, *, ax: OnAxes = None) -> Figure:
        """Draw the strongest effects with their intervals, each beside its controls."""
        drawn = effect_intervals(self.table, top=top, title=self.title(), cell=self.record["cells"], ax=ax)
        return figure_of(drawn)


def ablate(
    source: Source | Any,
    task: Task | str | os.PathLike[str] = "induction",
    *,
    path: str = "k_private",
    how: str = "shuffle",
    rotated: bool = False,
    layers: str | Sequence[int] | None = None,
    heads: str | tuple[int, ...] = "each",
    seeds: int = 1,
    seed: int = 0,
    stop_early: bool = False,
    text: str | os.PathLike[str] | None = None,
    samples: int = 64,
    origin: dict[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ablation | None:
    """Edit one head after another and measure what changes in a task.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.ablate("lrkv", "induction", path="v_private", layers="2", heads=(5,), samples=8)
    >>> bool(result.table["significant"].item()), bool(result.table["effect"].item() < -1)
    (True, True)

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel`, a bridged model
        (`load_bridge`), or a result: then what it was measured on.
    task
        Samples and their scores, or the name of a task that is made from text (`tasks.NAMES`), or a ``.jsonl`` file.
    text, samples
        For a name: text file or folder to make samples from (None: the standard library's test split), and how many.
    path, how, rotated, heads, seeds, seed, stop_early
        As in `Plan`.
    origin
        Where a model in memory comes from (`Checkpoint.describe`), for the record; a path speaks for itself.
    layers
        Layers to go through, as for `report`; None: all.
    out
        Directory to save to. What is finished is kept there as it comes, so that the same call after a kill goes on.
    progress
        Called with (layers done, layers in all, which).

    Returns
    -------
    Ablation
        None on all but the first of several processes (`workers`).

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be read.
    HeadscopeError
        If `out` holds another unfinished sweep, or another process has died.
    ValueError, IndexError
        If the model has no such path, layer or head, an option cannot be, or the task does not fit the model.
    """
    plan = Plan(path, how, rotated, heads, seeds, seed, stop_early=stop_early)
    source = model = source_of(source)
    if isinstance(source, str | os.PathLike | Checkpoint):
        model, origin = model_of(source)
    if not isinstance(task, Task):
        if not isinstance(model, HookedModel) or model.tokenizer is None:
            raise ValueError(f"task {str(task)!r} needs a tokenizer to be made with: give the model one, or a Task")
        task = named(task, model.tokenizer, documents(text), min(model.config.n_ctx, 512), samples, seed)
    units = _units(task)
    if plan.stop_early and len(set(units)) < len(units):
        raise ValueError(f"stop_early needs independent samples, but a sample of {task.name!r} is a {task.unit}")
    sweep = Sweep(model, task, plan) if isinstance(model, HookedModel) else BridgeSweep(model, task, plan)
    chosen = parse_layers(layers, sweep.n_layers)
    for layer in chosen:
        sweep.cells(layer)
    target = None if out is None else Path(out).expanduser()
    record = {
        "kind": "ablation",
        **sweep.describe(origin),
        "task": {**_describe(task), "sha256": _fingerprint(task)},
        "layers": chosen,
        **asdict(plan),
        "convention": view(model, path, chosen[0], rotated=rotated).convention,
        "cells": sweep.kind,
        "statistics": _STATISTICS,
        "versions": versions(*_RECORDED),
    }
    with workers() as team:
        kept = Unfinished(target, "sweep", record)
        found = _go_through(sweep, team, kept, chosen, progress)
        if found is None:
            return None
    score, accuracy = found[0].clean, found[0].clean_accuracy
    record["clean"] = {"score": float(score.mean()), "accuracy": float(accuracy.mean()), "n": len(score)}
    record["chance"] = dict(zip(("score", "accuracy"), chance(task, sweep.d_vocab), strict=True))
    record["units"] = len(set(units))
    result = Ablation(table=effect_table(found, units, plan), samples=sample_table(found), record=record, source=source)
    if target is not None:
        result.save(target)
        kept.discard()
    return result


def _go_through(
    sweep: Sweep | BridgeSweep, team: Workers, kept: Unfinished, layers: Sequence[int], progress: Progress | None
) -> list[LayerScores] | None:
    """Return all layers' scores on the leading process, in order; None on the others."""
    mine: list[LayerScores] = []
    own = team.share(layers)
    for done, layer in enumerate(own):
        scores = parts.load(kept, layer)
        if scores is None:
            scores = sweep.layer(layer)
            parts.save(kept, scores)
        mine.append(scores)
        if progress is not None and team.leads:
            progress(done + 1, len(own), f"layer {layer}")
    brought = team.gather(mine)
    if brought is None:
        return None
    return sorted((scores for found in brought for scores in found), key=lambda scores: scores.layer)


def _describe(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "unit": task.unit,
        "score": task.score,
        "note": task.note,
        "n": len(task.samples),
    }


def _fingerprint(task: Task) -> str:
    """Return a hash of what the samples are."""
    return hashlib.sha256(repr([(s.right, s.wrong, dict(s.factors)) for s in task.samples]).encode()).hexdigest()


_RECORDED = ("torch", "numpy", "scipy", "pandas")
_STATISTICS = {
    "unit": "the task's sample; samples of one document are averaged first, and the document is the unit",
    "interval": "95 %, BCa bootstrap of the mean paired difference (98.75 % where a sweep may stop at four looks)",
    "p": "two-sided sign-flip permutation test, times four where a sweep may stop at four looks",
    "q": "Benjamini-Hochberg over all cells",
    "significant": f"q < {LEVEL} for the effect and for the effect beyond the control, both on one side",
}


def _units(task: Task) -> list[Any]:
    """Return what each sample is a sample of: samples of one document are not independent, and are averaged first."""
    return [sample.factors.get("document", i) for i, sample in enumerate(task.samples)]


def _why_nothing(table: pd.DataFrame) -> str:
    """Return that no edit is found to hurt, and if so, that so few units could not have shown it."""
    units = max(table["n"])
    floor = max(2.0 ** (1 - units), 1 / (FLIPS + 1))
    if floor * len(table) > LEVEL:
        return (
            f"No edit can be told to hurt: with {units} unit{'' if units == 1 else 's'} no p is below {floor:.2g}, "
            f"too large for q < {LEVEL} of one cell among {len(table)}. Take more samples."
        )
    return "No edit is told to hurt, beyond what its control does."


def _many(samples: int, units: int) -> str:
    text = f"{samples} sample{'' if samples == 1 else 's'}"
    return f"{text} of {units} documents, which are the units" if units < samples else text


def _cell(row: dict[str, Any]) -> str:
    return f"layer {row['layer']}" if row["head"] == ALL else f"L{row['layer']}H{row['head']}"
