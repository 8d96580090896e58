"""From a finished run to a checkpoint that can be handed on by itself."""

from __future__ import annotations

import os
from pathlib import Path

from ..checkpoints import open_checkpoint, save
from ..checkpoints.runs import open_run
from ..models.hooked import n_parameters
from .directory import TrainingError
from .kept import finished


def ship(run: str | os.PathLike[str], directory: str | os.PathLike[str], command: str) -> Path:
    """Write a finished run's last step with the whole record of how it came about.

    Parameters
    ----------
    run
        Directory of the run.
    directory
        Where to write; must not exist, or be empty.
    command
        What the run was made with, for the record.

    Raises
    ------
    TrainingError
        If the run is not finished, or its weights are not there.
    CheckpointError
        If there is no run, or the directory holds something.
    """
    found = open_run(run)
    result = finished(found)
    if not found.steps:
        raise TrainingError(f"{run} is what was kept of a run: its weights are not there, so there is nothing to ship")
    model = open_checkpoint(found.steps[max(found.steps)]).load()
    record = {
        **{name: value for name, value in found.record.items() if name != "model"},
        "command": command,
        "parameters": n_parameters(model.config),
        "result": result,
    }
    return save(model, directory, record=record)
