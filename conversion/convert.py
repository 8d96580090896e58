"""A trained model into another attention variant, with what it costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..checkpoints import save
from ..checkpoints.native import check_free
from ..checkpoints.opening import Source, opened_source
from ..models.config import ModelConfig
from ..models.grouped import GroupedAttention
from ..models.hooked import HookedModel
from ..models.variant import RANK_MULTIPLE
from ..results import versions
from .fitting import RIDGE, SWEEPS, TOLERANCE
from .layer import SIDES, LayerConversion, convert_layer
from .result import Conversion
from .target import Keys, Target, To, target
from .text import Text, losses, second_moments, window_losses, windows

Progress = Callable[[int, int, str], None]


def convert(
    source: Source,
    destination: str | os.PathLike[str] | None = None,
    *,
    to: To = "lrkv",
    rank: int | None = None,
    cache_ratio: float | None = None,
    groups: int | None = None,
    keys: Keys = "rotate-at-read",
    align: bool = True,
    calibrate: Text = None,
    calibration_samples: int = 24,
    text: Text = None,
    samples: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> Conversion:
    """Turn a trained MHA, GQA or MQA model into LRKV, or pool its keys and values to GQA or MQA.

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel`, or a result: then what it was
        measured on.
    destination
        Directory for the new native checkpoint; must not exist, or be empty. None: in memory alone.
    to
        ``"lrkv"`` with `rank` or `cache_ratio`, ``"gqa"`` with `groups`, or ``"mqa"``.
    rank, cache_ratio
        LRKV's rank, or the share of the source's cache to fill at most.
    groups
        GQA's groups, a divisor of the source's.
    keys
        LRKV under rotary positions: ``"rotate-at-read"`` (any private directions, cached unrotated; the smaller error)
        or ``"plane-closed"`` (whole rotary planes, whose coordinates can be rotated once).
    align
        Bring the heads' bases together first (exact in itself: queries and outputs are turned along).
    calibrate, calibration_samples
        Text whose inputs errors are measured on: a file or folder, or tokens ``[batch, pos]``; None: the train split of
        Python's standard library. Windows of it, of 512 tokens at most.
    text, samples
        The same for the loss before and after; None: the library's test split, which the models that ship never saw.
    seed
        Of the choice of windows.
    progress
        Called with (steps done, steps in all, what was done).

    Returns
    -------
    Conversion
        The converted model, errors by layer, side and step, cache and loss before and after.

    Raises
    ------
    CheckpointError
        If the source cannot be read, or the destination holds something.
    ValueError
        If the source is of another variant, an option cannot be, or the text is too short.

    References
    ----------
    O'Neill et al., Low-Rank Key Value Attention (arXiv 2601.11471v3): the target. Ainslie et al., GQA (arXiv
    2305.13245), section 2.1: mean pooling.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.convert("mha", rank=6, calibration_samples=4, samples=2)
    >>> found.model.config.attention.variant, found.record["cache_bytes"]["after"]["logical"]
    ('lrkv', 1024)
    """
    if destination is not None:
        check_free(destination)
    opened = opened_source(source)
    goal = target(opened.config, to, rank=rank, cache_ratio=cache_ratio, groups=groups, keys=keys, align=align)
    model = opened if isinstance(opened, HookedModel) else opened.load()
    calibration, fitted_to = windows(model, calibrate, "train", calibration_samples, seed)
    task, scored_on = windows(model, text, "test", samples, seed)
    rows = [sample.right.tokens for sample in calibration.samples]
    steps = _Steps(len(rows) + model.config.n_layers + 2, progress)
    moments = second_moments(model, rows, lambda done: steps.tick("reading the calibration text"))
    layers = []
    for layer, moment in enumerate(moments):
        layers.append(convert_layer(_grouped(model, layer), moment, goal))
        steps.tick(f"layer {layer}")
    converted = _assemble(model, goal.config, layers)
    before = window_losses(model, task)
    steps.tick("loss before")
    after = window_losses(converted, task)
    steps.tick("loss after")
    record = {
        "source": opened.describe(),
        "source_config": model.config.to_dict(),
        "config": goal.config.to_dict(),
        "method": _method(goal, layers),
        "calibration": fitted_to,
        "cache_bytes": {"before": _cache(model.config), "after": _cache(goal.config)},
        "loss": scored_on | losses(task, before, after),
        "destination": None if destination is None else str(destination),
        "versions": versions("torch", "numpy"),
    }
    # What others measure is what came out.
    became = converted if destination is None else str(destination)
    result = Conversion(table=_table(layers), record=record, model=converted, source=became)
    if destination is not None:
        save(converted, Path(destination), record={"conversion": result.to_dict()})
    return result


class _Steps:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def tick(self, what: str) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total, what)


def _grouped(model: HookedModel, layer: int) -> GroupedAttention:
    attention = model.attention(layer)
    if not isinstance(attention, GroupedAttention):
        raise ValueError(f"layer {layer} should be MHA, GQA or MQA but is {attention.config.variant.upper()}")
    return attention


def _assemble(source: HookedModel, config: ModelConfig, layers: list[LayerConversion]) -> HookedModel:
    """Return the model with converted attention; all else is a copy of the source's."""
    with torch.device("meta"):
        model = HookedModel(config, source.tokenizer)
    state = {name: tensor.clone() for name, tensor in source.state_dict().items() if ".attn." not in name}
    for i, layer in enumerate(layers):
        like = source.attention(i).o.weight
        for name, tensor in layer.state.items():
            state[f"blocks.{i}.attn.{name}"] = tensor.to(like.device, like.dtype).contiguous()
    model.load_state_dict(state, assign=True)
    if config.tie_embeddings:
        model.unembed.weight = model.embed.weight
    return model.eval()


def _method(goal: Target, layers: list[LayerConversion]) -> dict[str, Any]:
    violations = [layer.violation for layer in layers if layer.violation is not None]
    return goal.describe() | {
        "conventions": layers[0].conventions,
        "ridge": RIDGE,
        "sweeps": SWEEPS,
        "tolerance": TOLERANCE,
        "closure_violation": max(violations) if violations else None,
    }


def _cache(config: ModelConfig) -> dict[str, int]:
    """Return bytes a token over all layers, as ranks are and as kernels pad them."""
    return {"logical": config.cache_bytes(), "physical": config.cache_bytes(RANK_MULTIPLE)}


def _table(layers: list[LayerConversion]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"layer": i, "side": side, "step": step, "error": error}
            for i, layer in enumerate(layers)
            for side in SIDES
            for step, error in layer.errors[side].items()
        ]
    )
