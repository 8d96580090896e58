"""Effective rank over the saved steps of a training run: every step measured, finished layers kept as they come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ..checkpoints import Checkpoint, open_checkpoint
from ..checkpoints.runs import TrainingRun, open_run
from ..errors import CheckpointError
from ..models.layers import parse_layers
from ..results import Result
from ..unfinished import Unfinished
from .offsets import Offsets
from .settings import Circuit, Progress, Settings, Steps, kinds_of_layers
from .spectra import Definition
from .trajectory import COLUMNS, LOGGED, Trajectory


def over_training(
    run: str | os.PathLike[str] | Result,
    *,
    circuit: Circuit = "both",
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    layers: str | Sequence[int] | None = None,
    definition: Definition = "gram",
    null: int = 20,
    fold_norm: bool = True,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Measure how different the heads of each layer are at every saved step of a training run.

    Parameters
    ----------
    run
        Directory of a run of ``headscope train``, finished or not, or of another trainer that leaves
        ``checkpoint-200/`` and so on.
    circuit, offsets, layers, definition, null, fold_norm, progress
        As for `report`. The null is drawn once: all steps are of one architecture.
    out
        Directory to save to. Finished layers of each step are kept there as they come, so that the same call after a
        kill goes on, with steps that were saved since, too.

    Raises
    ------
    CheckpointError
        If there is no run, a saved step cannot be read, or the steps are of different architectures.
    HeadscopeError
        If `out` holds another unfinished report; names the difference.
    ValueError, IndexError
        As for `report`.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.over_training("runs/lrkv-0", circuit="qk", null=2)
    >>> result.table[["step", "layer"]].iloc[0].tolist()
    [0, 0]
    """
    settings = Settings.parse(circuit, offsets, definition, null, fold_norm)
    found = open_run(run)
    saved = _opened(found)
    config = next(iter(saved.values())).config
    chosen = parse_layers(layers, config.n_layers)
    steps = Steps(len(saved) * len(chosen) + null * len(kinds_of_layers(config, chosen)), progress)
    target = None if out is None else Path(out).expanduser()
    what = {"kind": "effective rank over training", "run": str(found.path), "layers": chosen}
    kept = Unfinished(target, "report over training", {**what, **settings.plan(config), "null": null})
    drawn = settings.draw(config, chosen, steps.done, kept)
    rows: list[dict[str, Any]] = []
    described: list[dict[str, Any]] = []
    for step, checkpoint in saved.items():
        described.append({"step": step, **checkpoint.describe()})
        for layer in chosen:
            # By the hash of its weights: a step that was saved anew in between is measured anew.
            piece = f"step-{step:06d}-{described[-1]['sha256'][:16]}-layer-{layer:04d}"
            similarities, _ = settings.layer(piece, partial(checkpoint.factors, layer, fold_norm=fold_norm), kept)
            for (name, part), similarity in similarities.items():
                place = {"step": step, "layer": layer, "keys_of": config.keys_of(layer), "circuit": name, "part": part}
                rows.append({**place, **settings.row(similarity, drawn.of(layer, (name, part)))})
            steps.done(f"step {step}, layer {layer}")
    record = {
        **what,
        "training": found.record,
        "finished": found.result is not None,
        "steps": list(saved),
        "checkpoints": described,
        **settings.describe(config, drawn),
    }
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    result = Trajectory(table=table, log=_logged(found.log), record=record, source=str(found.path))
    if target is not None:
        result.save(target)
        kept.discard()
    return result


def _opened(run: TrainingRun) -> dict[int, Checkpoint]:
    """Return the checkpoint of each saved step, all of one architecture."""
    if not run.steps:
        raise CheckpointError(f"{run.path} holds the record of a run without its weights: there are no steps to follow")
    saved = {step: open_checkpoint(path) for step, path in run.steps.items()}
    first = next(iter(saved.values()))
    for step, checkpoint in saved.items():
        if checkpoint.config != first.config:
            raise CheckpointError(f"{run.steps[step]} is of another architecture than {first.path}")
    return saved


def _logged(log: pd.DataFrame) -> pd.DataFrame:
    """Return what a run logged of loss and induction, at every step that has one; empty if there is no log of ours."""
    names = ["step", *LOGGED]
    if not set(names) <= set(log.columns):
        return pd.DataFrame(columns=names)
    return pd.DataFrame(log.loc[log[list(LOGGED)].notna().any(axis=1), names]).reset_index(drop=True)
