"""A training run as others read it: its saved steps, its log and its record.

Read are the runs of ``headscope train`` (``run.json``, ``log.csv``, ``steps/step-000200/``), checkpoints that were made
of one to be handed on (their ``config.json`` holds the run's record; no log), and, for their saved steps alone,
directories of Hugging Face's trainer (``checkpoint-200/``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import CheckpointError
from ..results import Result, source_of
from .reference import reference_models
from .store import read_json

_STEP = re.compile(r"(?:step|checkpoint)-(\d+)")


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A training run on disk.

    Parameters
    ----------
    path
        Its directory.
    record
        What was asked for (``run.json``); empty if the run is another trainer's.
    log
        ``log.csv``: step, tokens, seconds, train_loss, validation_loss, induction (NaN where not measured); empty if
        the run is another trainer's.
    result
        ``result.json``; None until the run is finished.
    steps
        Saved checkpoint of each saved step, in order; empty where only the record of a run was kept.
    """

    path: Path
    record: dict[str, Any]
    log: pd.DataFrame
    result: dict[str, Any] | None
    steps: dict[int, Path]


def step_directory(root: Path, step: int) -> Path:
    """Return where a run keeps the checkpoint of a step."""
    return root / "steps" / f"step-{step:06d}"


def saved_steps(directory: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the saved checkpoints of a run by step, in order; empty if the directory is no run."""
    root = Path(directory)
    found = [*root.glob("steps/step-*"), *root.glob("checkpoint-*")]
    numbered = {int(match[1]): path for path in found if (match := _STEP.fullmatch(path.name)) and path.is_dir()}
    return dict(sorted(numbered.items()))


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a training run and not one checkpoint: it has saved steps and is none itself."""
    root = Path(path).expanduser()
    return (root / "run.json").exists() or (bool(saved_steps(root)) and not (root / "config.json").exists())


def open_run(run: str | os.PathLike[str] | Result) -> TrainingRun:
    """Read a training run: a directory, or what a result followed.

    Raises
    ------
    CheckpointError
        If there is no such directory, it holds neither a saved step nor a run's record, or a file cannot be read.
    """
    directory = source_of(run)
    if not isinstance(directory, str | os.PathLike):
        raise ValueError(f"a training run is named by its directory, but got a {type(directory).__name__}")
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise CheckpointError(f"{directory} does not exist: expected the directory of a training run")
    steps = saved_steps(root)
    if not steps and not (root / "run.json").exists():
        raise CheckpointError(f"{directory} holds no saved step (steps/step-… or checkpoint-…): it is no training run")
    described, log, finished = root / "run.json", root / "log.csv", root / "result.json"
    try:
        lines = pd.read_csv(log) if log.exists() else pd.DataFrame()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{log} cannot be read: {error}") from error
    return TrainingRun(
        path=root,
        record=read_json(described) if described.exists() else {},
        log=lines,
        result=read_json(finished) if finished.exists() else None,
        steps=steps,
    )


def carried_run(path: str | os.PathLike[str]) -> TrainingRun | None:
    """Return the run whose record a checkpoint carries, without a log and with the checkpoint as its last step.

    Parameters
    ----------
    path
        Directory of a checkpoint made to be handed on, or, if there is none of that name, the name of a model that
        ships.

    Returns
    -------
    TrainingRun
        None if it is no such checkpoint.
    """
    root = Path(path).expanduser()
    root = root if root.exists() else reference_models().get(str(path), root)
    config = root / "config.json"
    stored = read_json(config) if config.exists() else {}
    record = stored.get("record") or {}
    if "model" not in stored or not {"recipe", "result"} <= record.keys():
        return None
    described = {**record, "model": stored["model"]}
    steps = {int(record["recipe"]["steps"]): root}
    return TrainingRun(path=root, record=described, log=pd.DataFrame(), result=described.pop("result"), steps=steps)
