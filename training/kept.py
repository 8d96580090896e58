"""What is kept of a finished run without its weights: enough to compare it with others, in a few hundred kilobytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from ..checkpoints.runs import TrainingRun, open_run
from ..checkpoints.store import read_json
from ..diversity import Offsets, Report, report
from .directory import TrainingError

REPORT = "report.json"


def keep(
    run: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    null: int = 20,
) -> Path:
    """Write a finished run's record, log and result, and a report of its last step, but no weights.

    Parameters
    ----------
    run
        Directory of the run.
    directory
        Where to write; must not exist.
    offsets, null
        As for `report`; a comparison can ask for these and no others.

    Raises
    ------
    TrainingError
        If the run is not finished or has no saved step, or the directory exists.
    CheckpointError
        If there is no run.
    """
    found, target = open_run(run), Path(directory).expanduser()
    finished(found)
    if not found.steps:
        raise TrainingError(f"{found.path} has no saved step: it is itself what was kept of a run")
    if target.exists():
        raise TrainingError(f"{target} exists already: name another directory")
    seen = last_report(found, offsets, null)
    # Where the weights were says nothing where they are not; what they were is in their hash.
    seen.record["checkpoint"]["path"] = str(Path(found.path.name) / "steps" / f"step-{max(found.steps):06d}")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in ("run.json", "log.csv", "result.json"):
        shutil.copy(found.path / name, part / name)
    (part / REPORT).write_text(seen.to_json() + "\n", encoding="utf-8")
    part.rename(target)
    return target


def finished(run: TrainingRun) -> dict[str, Any]:
    """Return a run's result.

    Raises
    ------
    TrainingError
        If it has none yet.
    """
    if run.result is None:
        raise TrainingError(f"{run.path} is not finished: go on with headscope train … --resume")
    return run.result


def last_report(run: TrainingRun, offsets: Any, null: int) -> Report:
    """Return the report of a run's last step: measured, or as kept where the weights are not.

    Raises
    ------
    TrainingError
        If neither is there, or what is kept was measured otherwise.
    """
    if run.steps:
        return report(run.steps[max(run.steps)], offsets=offsets, null=null)
    place = run.path / REPORT
    if not place.exists():
        raise TrainingError(f"{run.path} has neither a saved step nor a {REPORT}: there is nothing to measure")
    held = read_json(place)
    wanted = str(Offsets.parse(offsets)).lower()
    kept = held["record"]["offsets"]["text"], len(held["record"]["null"]["seeds"])
    if kept != (wanted, null):
        raise TrainingError(
            f"{place} was measured with offsets {kept[0]} and {kept[1]} null draws, not with {wanted} and {null}, "
            "and the run's weights are not here"
        )
    table = pd.DataFrame(held["rows"])
    if "keys_of" not in table:  # kept before layers could share keys
        table.insert(1, "keys_of", table["layer"])
    return Report(table=table, similarity={}, record=held["record"])
