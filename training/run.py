"""One training run: from a model, a corpus and a recipe to a directory with its saved steps and its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoints.runs import step_directory
from ..models.config import ModelConfig
from ..models.hooked import HookedModel
from ..results import versions
from .clock import Clock, cpu_name
from .corpus import Corpus
from .directory import Log, TrainingError, begun_with, check_free, claimed, finish, restore, save_step
from .evaluation import evaluate, induction, split_loss
from .optimiser import Optimisers
from .presets import label
from .tokens import batch, encode, train_tokenizer


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


Progress = Callable[[int, int, dict[str, float]], None]


def train(
    config: ModelConfig,
    corpus: Corpus,
    directory: str | os.PathLike[str],
    recipe: Recipe = Recipe(),
    *,
    preset: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train a model and return the directory of its last saved step.

    The caller's random state and number of threads are left as they were.

    Parameters
    ----------
    config, corpus, recipe
        What to train, on what, how.
    directory
        Where the run lives. Must not exist, or be empty, unless `resume`.
    preset
        Name of the model, for the record; None: by its configuration (`presets.label`).
    resume
        Go on with the run that the directory holds; it must be the same run.
    progress
        Called after each step with (step, steps, {"loss", "tokens_per_second"}).

    Raises
    ------
    TrainingError
        If train or validation has fewer tokens than a window, or test has no text; if the directory holds something
        (without `resume`), or no run, another run or a finished one (with it); or if another process trains in it.
    """
    root = Path(directory).expanduser()
    record = _record(config, corpus, recipe, label(config) if preset is None else preset)
    check_free(root, record, resume)
    tokenizer = begun_with(root) or train_tokenizer(corpus.texts("train"), config.d_vocab)
    tokens = {split: encode(tokenizer, corpus.texts(split)) for split in ("train", "validation")}
    _require_text(tokens, config.n_ctx, corpus)
    with claimed(root, record, resume), _apart(recipe.threads):
        torch.default_generator.manual_seed(recipe.seed)
        model = HookedModel(config, tokenizer)
        clock = _steps(root, model, tokens, recipe, record, progress)
        measured = evaluate(model, corpus, seed=recipe.seed)
        finish(root, recipe.steps, {**clock, "tokens": recipe.steps * recipe.batch_size * config.n_ctx, **measured})
    return step_directory(root, recipe.steps)


def _steps(
    root: Path,
    model: HookedModel,
    tokens: Mapping[str, Tensor],
    recipe: Recipe,
    record: dict[str, Any],
    progress: Progress | None,
) -> dict[str, Any]:
    """Take the steps that are left, and return what the whole run took."""
    optimisers = Optimisers(model, recipe.muon_lr, recipe.adam_lr, recipe.weight_decay)
    start, before = restore(root, model, optimisers)
    if start == 0:
        save_step(root, 0, model, optimisers, before, record)
    log, clock = Log(root, start), Clock(before)
    for step in range(start, recipe.steps):
        windows = batch(tokens["train"], recipe.batch_size, model.config.n_ctx, recipe.seed, step)
        loss = model(windows, return_type="loss")
        loss.backward()
        optimisers.step((step + 1) / recipe.steps)
        done = step + 1
        spent = clock.spent()
        last = done == recipe.steps
        validated = done % recipe.validate_every == 0 or last
        validation = split_loss(model, tokens["validation"], windows=32) if validated else None
        saved = done % recipe.save_every == 0 or last
        found = induction(model, tokens["validation"], recipe.seed)["best"] if saved else None
        log.write(done, done * windows.numel(), spent.seconds, float(loss.detach()), validation, found)
        if saved:
            save_step(root, done, model, optimisers, spent, record)
        if progress is not None:
            speed = (done - start) * windows.numel() / clock.here
            progress(done, recipe.steps, {"loss": float(loss.detach()), "tokens_per_second": speed})
    return clock.spent().to_dict()


def _record(config: ModelConfig, corpus: Corpus, recipe: Recipe, preset: str) -> dict[str, Any]:
    return {
        "preset": preset,
        "recipe": asdict(recipe),
        "corpus": corpus.describe(),
        "model": config.to_dict(),
        "machine": {"cpu": cpu_name()},
        "versions": versions("torch", "tokenizers"),
    }


def _require_text(tokens: Mapping[str, Tensor], n_ctx: int, corpus: Corpus) -> None:
    if not any(corpus.texts("test")):
        raise TrainingError("the test split has no text, but the trained model is measured on it: give more text")
    for split, row in tokens.items():
        if len(row) < n_ctx:
            raise TrainingError(
                f"the {split} split has {len(row):,} tokens, but a window is {n_ctx:,} tokens (n_ctx): give more text"
            )


@contextmanager
def _apart(threads: int) -> Iterator[None]:
    """Train with `threads` threads, and leave torch's threads and random state to the caller as they were."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=()):  # a model is made on the CPU, so no other generator is drawn from
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
