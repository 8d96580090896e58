"""One training run in one directory: what it is, its log, its saved steps, and enough to go on exactly after a kill.

::

    run.json                 what was asked for and on what (written once, before the first step)
    log.csv                  step, tokens, seconds, losses, and at saved steps the best head's induction score
    steps/step-000200/       a native checkpoint a saved step; the last one is the trained model
    resume-000200/           optimiser state of the newest saved step (removed when the run ends)
    result.json              written last: the run is finished

Every file and folder appears whole (written aside, then renamed), so a kill at any moment leaves a run that goes on
from its newest saved step to the same bits.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..checkpoints import open_checkpoint, save
from ..checkpoints.runs import step_directory
from ..errors import HeadscopeError
from ..models.config import ModelConfig
from ..models.hooked import HookedModel
from .corpus import Corpus
from .evaluation import evaluate, induction, split_loss
from .optimiser import Optimisers
from .tokens import batch, encode, train_tokenizer


class TrainingError(HeadscopeError):
    """A run cannot start or go on: its directory holds something else, or was finished."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; with the model and the corpus it determines the run.

    Parameters
    ----------
    steps, batch_size
        Optimiser steps, and windows of ``n_ctx`` tokens in each.
    seed
        Of the initial weights and of the order of the data.
    muon_lr, adam_lr, weight_decay
        Peak rates of the two optimisers; decay of Muon's matrices.
    save_every, validate_every
        Steps between saved checkpoints, and between validation losses.
    threads
        Threads of torch; another number may round differently.
    """

    steps: int = 4000
    batch_size: int = 8
    seed: int = 0
    muon_lr: float = 0.02
    adam_lr: float = 0.008
    weight_decay: float = 0.01
    save_every: int = 200
    validate_every: int = 50
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "save_every", "validate_every", "threads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} should be > 0 but got {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"seed should be >= 0 but got {self.seed}")


LOG_COLUMNS = ("step", "tokens", "seconds", "train_loss", "validation_loss", "induction")
Progress = Callable[[int, int, dict[str, float]], None]


def train(
    config: ModelConfig,
    corpus: Corpus,
    directory: str | os.PathLike[str],
    recipe: Recipe = Recipe(),
    *,
    preset: str = "custom",
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train a model and return the directory of its last saved step.

    Parameters
    ----------
    config, corpus, recipe
        What to train, on what, how.
    directory
        Where the run lives. Must not exist, unless `resume`.
    preset
        Name of the model, for the record.
    resume
        Go on with the run that the directory holds; it must be the same run.
    progress
        Called after each step with (step, steps, {"loss", "tokens_per_second"}).

    Raises
    ------
    TrainingError
        If the directory exists (without `resume`), or holds another run or a finished one (with it).
    """
    root = Path(directory)
    record = _record(config, corpus, recipe, preset)
    _claim(root, record, resume)
    torch.set_num_threads(recipe.threads)
    tokenizer = _tokenizer(root, corpus, config.d_vocab)
    tokens = {split: encode(tokenizer, corpus.texts(split)) for split in ("train", "validation")}
    torch.manual_seed(recipe.seed)
    model = HookedModel(config, tokenizer)
    optimisers = Optimisers(model, recipe.muon_lr, recipe.adam_lr, recipe.weight_decay)
    start, spent = _restore(root, model, optimisers)
    if start == 0:
        _save(root, 0, model, optimisers, 0.0, record)
    log = _Log(root / "log.csv", start)
    began = time.monotonic()
    for step in range(start, recipe.steps):
        windows = batch(tokens["train"], recipe.batch_size, config.n_ctx, recipe.seed, step)
        loss = model(windows, return_type="loss")
        loss.backward()
        optimisers.step((step + 1) / recipe.steps)
        done = step + 1
        seconds = spent + time.monotonic() - began
        last = done == recipe.steps
        validated = done % recipe.validate_every == 0 or last
        validation = split_loss(model, tokens["validation"], windows=32) if validated else None
        saved = done % recipe.save_every == 0 or last
        found = induction(model, tokens["validation"], recipe.seed)["best"] if saved else None
        log.write(done, done * windows.numel(), seconds, float(loss.detach()), validation, found)
        if saved:
            _save(root, done, model, optimisers, seconds, record)
        if progress is not None:
            speed = (done - start) * windows.numel() / (time.monotonic() - began)
            progress(done, recipe.steps, {"loss": float(loss.detach()), "tokens_per_second": speed})
    final = step_directory(root, recipe.steps)
    seconds = spent + time.monotonic() - began
    result = {"seconds": seconds, "tokens": recipe.steps * recipe.batch_size * config.n_ctx}
    _write_json(root / "result.json", result | evaluate(model, corpus, seed=recipe.seed))
    shutil.rmtree(root / f"resume-{recipe.steps:06d}", ignore_errors=True)
    return final


def _record(config: ModelConfig, corpus: Corpus, recipe: Recipe, preset: str) -> dict[str, Any]:
    return {
        "preset": preset,
        "recipe": asdict(recipe),
        "corpus": corpus.describe(),
        "model": config.to_dict(),
        "versions": {name: version(name) for name in ("headscope", "torch", "tokenizers")},
    }


def _claim(root: Path, record: dict[str, Any], resume: bool) -> None:
    """Make the directory this run's, or make sure that it is."""
    described = root / "run.json"
    if not resume:
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise TrainingError(f"{root} exists already: name another directory, or go on with --resume")
        root.mkdir(parents=True, exist_ok=True)
        _write_json(described, record)
        return
    if not described.exists():
        raise TrainingError(f"{root} holds no run to resume (no run.json)")
    if (root / "result.json").exists():
        raise TrainingError(f"{root} holds a finished run: there is nothing to resume")
    there = json.loads(described.read_text(encoding="utf-8"))
    for key in record:
        if there.get(key) != record[key]:
            raise TrainingError(f"{root} holds another run: its {key} is {there.get(key)}, not {record[key]}")


def _tokenizer(root: Path, corpus: Corpus, d_vocab: int) -> Any:
    """Return the tokenizer that the run was begun with, or train it."""
    first = step_directory(root, 0)
    if first.exists():
        load = open_checkpoint(first).tokenizer
        if load is not None:
            return load()
    return train_tokenizer(corpus.texts("train"), d_vocab)


def _save(
    root: Path, step: int, model: HookedModel, optimisers: Optimisers, seconds: float, record: dict[str, Any]
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
    _write_json(part / "clock.json", {"seconds": seconds})
    shutil.rmtree(state, ignore_errors=True)
    part.rename(state)
    for older in root.glob("resume-*"):
        if older != state:
            shutil.rmtree(older)


def _restore(root: Path, model: HookedModel, optimisers: Optimisers) -> tuple[int, float]:
    """Load the newest saved step whose state is whole; return it and the seconds spent so far."""
    for state in sorted(root.glob("resume-*"), reverse=True):
        step = int(state.name.removeprefix("resume-"))
        weights = step_directory(root, step)
        if not weights.exists():
            continue
        model.load_state_dict(open_checkpoint(weights).load().state_dict())
        if (state / "optimiser.safetensors").exists():
            optimisers.load(_aligned(load_file(state / "optimiser.safetensors")))
        return step, json.loads((state / "clock.json").read_text(encoding="utf-8"))["seconds"]
    return 0, 0.0


def _aligned(state: dict[str, Tensor]) -> dict[str, Tensor]:
    # Tensors read from a file start wherever the file has them; a fresh copy starts where torch's own would.
    return {name: tensor.clone() for name, tensor in state.items()}


class _Log:
    """The run's log, cut back to the step that is gone on from."""

    def __init__(self, path: Path, start: int) -> None:
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
        row = [step, tokens, f"{seconds:.3f}", *("" if value is None else value for value in measured)]
        with self._path.open("a", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerow(row)


def _whole(row: list[str]) -> bool:
    """Whether a row is one, and not the header or what a kill left of a row."""
    return len(row) == len(LOG_COLUMNS) and row[0].isdigit()


def _write_json(path: Path, data: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)
