"""A run's directory: whose it is, the steps saved in it and what going on from them needs, and its log.

::

    run.json                 what was asked for and on what (written once, before the first step)
    log.csv                  step, tokens, seconds, losses, and at saved steps the best head's induction score
    steps/step-000200/       a native checkpoint a saved step; the last one is the trained model
    resume-000200/           optimiser state of the newest saved step (removed when the run ends)
    result.json              written last: the run is finished
    .lock                    held by the process that trains (removed when the run ends)

Every file and folder appears whole (written aside, then renamed), so a kill at any moment leaves a run that goes on
from its newest saved step to the same bits.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from ..checkpoints import open_checkpoint, save
from ..checkpoints.runs import step_directory
from ..checkpoints.store import read_json
from ..errors import HeadscopeError
from ..models.config import ModelConfig
from ..models.hooked import HookedModel
from .alike import first_difference
from .clock import Spent
from .optimiser import Optimisers

RECORD, RESULT, LOCK = "run.json", "result.json", ".lock"
_BEFORE_THE_RECORD = {LOCK, f".{RECORD}.part"}
"""What a kill can leave of a run that has not begun."""
LOG_COLUMNS = ("step", "tokens", "seconds", "train_loss", "validation_loss", "induction")


class TrainingError(HeadscopeError):
    """A run cannot start, go on, be compared or be kept: of its text, its directory, or what it is beside others."""


def check_free(root: Path, record: dict[str, Any], resume: bool) -> bool:
    """Return whether a run would begin in a directory, and not go on.

    Raises
    ------
    TrainingError
        If the directory holds something (without `resume`), or no run, another one or a finished one (with it).
    """
    names = {path.name for path in root.iterdir()} if root.is_dir() else set()
    if root.is_dir() and names <= _BEFORE_THE_RECORD:
        return True
    if not resume:
        if root.exists():
            instead = ", or go on with --resume" if RECORD in names and RESULT not in names else ""
            raise TrainingError(f"{root} exists already: name another directory{instead}")
        return True
    if RECORD not in names:
        raise TrainingError(f"{root} holds no run to resume (no {RECORD})")
    if RESULT in names:
        raise TrainingError(f"{root} holds a finished run: there is nothing to resume")
    try:
        there = _identity(read_json(root / RECORD))
    except KeyError as error:
        raise TrainingError(f"{root / RECORD} is no record of headscope train: it has no {error}") from None
    if found := first_difference(there, _identity(record)):
        raise TrainingError(f"{root} holds another run than what is asked for: {found}")
    return False


def _identity(record: dict[str, Any]) -> dict[str, Any]:
    """Return of a run's record what its numbers hang on, whichever version wrote it."""
    corpus = {name: record["corpus"][name] for name in ("sha256", "bytes")}  # bytes tell how it was split
    versions = {name: record["versions"][name] for name in ("headscope", "torch", "tokenizers")}
    model = ModelConfig.from_dict(record["model"]).to_dict()
    return {
        **{name: record[name] for name in ("preset", "recipe")},
        "corpus": corpus,
        "model": model,
        "versions": versions,
    }


@contextmanager
def claimed(root: Path, record: dict[str, Any], resume: bool) -> Iterator[None]:
    """Make a directory this run's and this process's, while the block runs.

    Raises
    ------
    TrainingError
        As `check_free`, or if another process has it.
    """
    check_free(root, record, resume)
    root.mkdir(parents=True, exist_ok=True)
    with (root / LOCK).open("a+", encoding="utf-8") as handle:
        _lock(root, handle)
        if check_free(root, record, resume):  # once more: another process may have come first
            write_json(root / RECORD, record)
        yield
        # A run that failed keeps its file: one that vanished while another process opened it would lock nothing.
        (root / LOCK).unlink()


def _lock(root: Path, handle: IO[str]) -> None:
    """Lock an open file until it is closed, by a kill too, and write into it who has it."""
    import fcntl  # of POSIX alone, as nothing else here is

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        raise TrainingError(f"{root} is being trained in by {handle.read() or 'another process'}: let it end") from None
    except OSError as error:
        raise TrainingError(f"{root} cannot be locked ({error.strerror}): name one on a local disk") from error
    handle.truncate(0)
    handle.write(f"process {os.getpid()} on {platform.node()}")
    handle.flush()


def begun_with(root: Path) -> Any:
    """Return the tokenizer that a run was begun with, or None."""
    first = step_directory(root, 0)
    load = open_checkpoint(first).tokenizer if first.exists() else None
    return None if load is None else load()


def save_step(
    root: Path, step: int, model: HookedModel, optimisers: Optimisers, spent: Spent, record: dict[str, Any]
) -> None:
    """Save weights, then what resuming needs beside them, then forget the older such state."""
    target = step_directory(root, step)
    if not target.exists():
        save(model, target, record={**record, "step": step})
    state = root / f"resume-{step:06d}"
    part = root / f".resume-{step:06d}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in optimisers.state().items()}
    if tensors:
        save_file(tensors, part / "optimiser.safetensors")
    write_json(part / "clock.json", spent.to_dict())
    shutil.rmtree(state, ignore_errors=True)
    part.rename(state)
    for older in root.glob("resume-*"):
        if older != state:
            shutil.rmtree(older)


def restore(root: Path, model: HookedModel, optimisers: Optimisers) -> tuple[int, Spent]:
    """Load the newest saved step whose state is whole; return it and what was spent so far."""
    for state in sorted(root.glob("resume-*"), reverse=True):
        step = int(state.name.removeprefix("resume-"))
        weights = step_directory(root, step)
        if not weights.exists():
            continue
        model.load_state_dict(open_checkpoint(weights).load().state_dict())
        if (state / "optimiser.safetensors").exists():
            optimisers.load(_aligned(load_file(state / "optimiser.safetensors")))
        return step, Spent.from_dict(read_json(state / "clock.json"))
    return 0, Spent()


def finish(root: Path, step: int, result: dict[str, Any]) -> None:
    """Write the result, and forget what going on would have needed."""
    write_json(root / RESULT, result)
    shutil.rmtree(root / f"resume-{step:06d}", ignore_errors=True)


def _aligned(state: dict[str, Tensor]) -> dict[str, Tensor]:
    # Tensors read from a file start wherever the file has them; a fresh copy starts where torch's own would.
    return {name: tensor.clone() for name, tensor in state.items()}


class Log:
    """The run's log, cut back to the step that is gone on from."""

    def __init__(self, root: Path, start: int) -> None:
        path = root / "log.csv"
        rows: list[list[str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as handle:
                rows = [row for row in csv.reader(handle) if _whole(row) and int(row[0]) <= start]
        part = path.with_suffix(".part")
        with part.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows([LOG_COLUMNS, *rows])
        part.replace(path)
        self._path = path

    def write(self, step: int, tokens: int, seconds: float, *measured: float | None) -> None:
        """Add a step's row; what was not measured stays empty."""
        row = [step, tokens, f"{seconds:.3f}", *("" if value is None else value for value in measured)]
        with self._path.open("a", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerow(row)


def _whole(row: list[str]) -> bool:
    """Whether a row is one, and not the header or what a kill left of a row."""
    return len(row) == len(LOG_COLUMNS) and row[0].isdigit()


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a file beside its place and move it there."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)
