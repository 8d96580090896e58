"""What attention variants cost: cache, parameters, arithmetic, a floor under the time. From configurations alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..checkpoints.checkpoint import Checkpoint, Layout
from ..checkpoints.opening import Source, open_checkpoint, read_config
from ..models.config import ModelConfig
from ..models.grouped import GroupedConfig
from ..models.hooked import HookedModel, n_parameters
from ..models.lrkv import LRKVConfig
from ..models.mla import MLAConfig
from ..models.per_layer import shape_of
from ..models.variant import ELEMENT_BYTES, RANK_MULTIPLE, AttentionConfig, PlainHeads
from ..results import source_of, versions
from . import paper
from .cache import LAYOUTS, PAGE, Batch, Storage, batch_name, cache_bytes, parse_batches, shard
from .matching import equal_cache
from .result import Budget
from .timing import Device, bound_by, device_from, floor_seconds, queries_until_no_gain, rotary_arithmetic

DEFAULT_LENGTHS = "2048,8192"
BASELINE = "mha"
PRESET_NOTE = "Settings of the paper's Tables 5 and 7; headscope budget audit says what else it prints of them."


def budget(
    model: Source | ModelConfig | Mapping[str, ModelConfig] | None = None,
    *,
    lengths: str | Sequence[int | Sequence[int]] = DEFAULT_LENGTHS,
    devices: int = 1,
    device: str | Device = "h200",
    element_bytes: int = ELEMENT_BYTES,
    rank_multiple: int = RANK_MULTIPLE,
    page: int = PAGE,
    out: str | os.PathLike[str] | None = None,
) -> Budget:
    """Work out what models cost, beside MHA with the same heads.

    Parameters
    ----------
    model
        A preset of the paper (``"2.5B"`` for all variants, ``"2.5B-lrkv"`` for one), a ``.json`` file with a
        configuration (headscope's or Hugging Face's), a checkpoint or the name of a model that ships, a model, a
        result, a `ModelConfig`, or several by name. None: the preset 2.5B. A `Path` is never taken for a preset.
    lengths
        Batches of requests: ``"2048,8x8192,100+2000"`` (`parse_batches`), or numbers and sequences of numbers.
    devices
        Devices that the heads are dealt out over.
    device
        Whose bandwidth and rate set the floor under the time: one of `DEVICES`, ``"TB/s,TFLOP/s"``, or a `Device`.
    element_bytes, rank_multiple, page
        As in `Storage`.
    out
        Directory to save to.

    Raises
    ------
    CheckpointError
        If a file or checkpoint cannot be read.
    ValueError
        If a preset, a length, the number of devices or the device cannot be, or a model's layers do not all keep as
        much (Gemma 4).

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.budget("2.5B-lrkv", lengths="2048")
    >>> found.batches.set_index("model")["payload_bytes"].to_dict()
    {'mha': 339738624, '2.5B-lrkv': 164855808}
    """
    storage, chip = Storage(element_bytes, rank_multiple, page), device_from(device)
    batches = _batches(lengths)
    model = source_of(model)
    models, notes = _models(model)
    for name, config in models.items():
        _require_alike(name, config)
    models = _with_baseline(models)
    result = Budget(
        table=pd.DataFrame([_model_row(name, cfg, storage) for name, cfg in models.items()]),
        batches=pd.DataFrame([_batch_row(n, c, b, storage, chip) for b in batches for n, c in models.items()]),
        equal=pd.DataFrame([row for name, config in models.items() for row in _equal_rows(name, config.attention)]),
        parallel=pd.DataFrame(
            [_shard_row(n, c, b, devices, how, storage) for b in batches for n, c in models.items() for how in LAYOUTS]
        ),
        record={
            "kind": "budget",
            "source": _named(model),
            "models": {name: config.to_dict() for name, config in models.items()},
            "element_bytes": element_bytes,
            "rank_multiple": rank_multiple,
            "page_tokens": page,
            "devices": devices,
            "device": {"name": chip.name, "bandwidth": chip.bandwidth, "flops": chip.flops, "source": chip.source},
            "notes": notes,
            "units": "bytes (MiB: 2**20), seconds, elements a token and layer, percent of MHA with the same heads",
            "versions": versions(),
        },
        source=model if isinstance(model, str | os.PathLike | Checkpoint | HookedModel) else None,
    )
    if out is not None:
        result.save(out)
    return result


def _batches(lengths: str | Sequence[int | Sequence[int]]) -> tuple[Batch, ...]:
    if isinstance(lengths, str):
        return parse_batches(lengths)
    found = tuple((each,) if isinstance(each, int) else tuple(each) for each in lengths)
    if not found or not all(found) or min(min(batch) for batch in found) < 1:
        raise ValueError(f"lengths should be one or more batches of lengths above zero but got {lengths!r}")
    return found


def _models(model: Any) -> tuple[dict[str, ModelConfig], list[str]]:
    """Return the models by name, and notes."""
    if model is None:
        note = f"No model was named: these are the LRKV paper's {paper.DEFAULT} models (--preset {paper.DEFAULT})."
        return paper.preset_models(paper.DEFAULT), [note, PRESET_NOTE]
    if isinstance(model, Checkpoint):
        return _of_layout(model.layout, Path(model.path).name)
    if isinstance(model, HookedModel):
        model = model.config
    if isinstance(model, ModelConfig):
        return {"model": model}, _left_out("model", model)
    if isinstance(model, Mapping):
        if not model:
            raise ValueError("there is no model to budget")
        return dict(model), [note for name, config in model.items() for note in _left_out(name, config)]
    if isinstance(model, str) and model in paper.presets():
        return paper.preset_models(model), [PRESET_NOTE]
    text = str(model)
    if text.endswith(".json"):
        return _of_layout(read_config(text), Path(text).stem)
    return _of_layout(open_checkpoint(text).layout, Path(text).resolve().name)


def _named(model: Any) -> str | None:
    if isinstance(model, Checkpoint):
        return str(model.path)
    return str(model or paper.DEFAULT) if isinstance(model, str | os.PathLike | None) else None


def _of_layout(layout: Layout, name: str) -> tuple[dict[str, ModelConfig], list[str]]:
    notes = [] if layout.report_only is None else [f"{name}: {layout.report_only}."]
    return {name: layout.config}, notes + _left_out(name, layout.config)


def _left_out(name: str, config: ModelConfig) -> list[str]:
    """Return notes if some layers look no farther back than a window, or keep nothing of their own."""
    count, keeping = config.n_layers, config.n_layers_with_keys
    narrow = [layer for layer in range(count) if config.at(layer).attention.window is not None]
    notes = []
    if narrow:
        notes.append(
            f"{name}: {len(narrow)} of {count} layers see a window only; the cache is counted as if every layer "
            "kept the whole history."
        )
    if keeping < count:
        notes.append(
            f"{name}: {count - keeping} of {count} layers keep nothing and read another layer's keys and values: bytes "
            f"and weights are those of {keeping} layers, arithmetic and what a step reads those of {count}. Elements, "
            "and settings at equal cache, are of one layer that keeps its own."
        )
    return notes


def _require_alike(name: str, config: ModelConfig) -> None:
    kinds = {shape_of(config.at(layer).attention) for layer in range(config.n_layers)}
    if len(kinds) > 1:
        widths = ", ".join(map(str, sorted({kind.cache_width() for kind in kinds})))
        raise ValueError(
            f"{name}: its layers differ in the width or number of heads and groups (they leave {widths} elements a "
            "token): a budget counts models whose layers are alike"
        )


def _with_baseline(models: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Put MHA with the same heads before a model that stands without one."""
    if any(config.attention.variant == "mha" for config in models.values()):
        return models
    name = BASELINE if BASELINE not in models else f"{BASELINE}, same heads"
    return {name: dense(next(iter(models.values()))), **models}


def dense(config: ModelConfig) -> ModelConfig:
    """Return the same model with MHA: as many heads, as wide as a value."""
    attention = config.attention
    positions = config.positions
    if attention.rotary_width is not None:  # MLA's channel has a width of its own, which is none of a head's
        positions = "none"
    heads = GroupedConfig(
        n_heads=attention.n_heads,
        d_head=attention.d_value,
        bias=attention.bias,
        output_bias=attention.output_bias,
        qk_norm=attention.qk_norm if isinstance(attention, PlainHeads) else None,
    )
    return config.with_attention(heads, positions=positions)


def _setting(attention: AttentionConfig) -> tuple[str, float]:
    if isinstance(attention, LRKVConfig):
        return "rank", attention.rank
    if isinstance(attention, MLAConfig):
        return "latent", attention.d_latent
    return "groups", attention.n_groups


def _model_row(name: str, config: ModelConfig, storage: Storage) -> dict[str, Any]:
    attention, mha = config.attention, dense(config).attention
    logical, physical = attention.cache_width(), attention.cache_width(storage.rank_multiple)
    parts = {part.name: part.elements for part in attention.streams(1)}
    what, setting = _setting(attention)
    each = storage.element_bytes * config.n_layers_with_keys
    keeping = config.n_layers_with_keys / config.n_layers
    weights = config.n_layers_with_keys * attention.kv_parameters(config.d_model)
    return {
        "model": name,
        "variant": attention.variant,
        "n_layers": config.n_layers,
        "n_heads": attention.n_heads,
        "d_head": attention.d_value,
        "d_model": config.d_model,
        "setting": what,
        "value": setting,
        "cache_elements": logical,
        "cache_elements_physical": physical,
        "key_norm_elements": parts.get("k_scale", 0),
        "rotary_key_elements": parts.get("k_rot", 0),
        "bytes_per_token": each * logical,
        "bytes_per_token_physical": each * physical,
        "cache_pct_mha": 100 * keeping * logical / attention.dense_width,
        "cache_physical_pct_mha": 100 * keeping * physical / attention.dense_width,
        "kv_parameters": weights,
        "kv_parameters_pct_mha": 100 * weights / (config.n_layers * mha.kv_parameters(config.d_model)),
        "parameters": n_parameters(config),
    }


def _batch_row(name: str, config: ModelConfig, batch: Batch, storage: Storage, device: Device) -> dict[str, Any]:
    attention = config.attention
    held = cache_bytes(attention, config.n_layers_with_keys, batch, storage)
    # Every layer reads a cache, its own or another's.
    read = cache_bytes(attention, config.n_layers, batch, storage).padded
    products = sum(attention.decode_products(length) for length in batch)
    dense_products = attention.dense_width * sum(batch)
    dense_bytes = storage.element_bytes * config.n_layers * dense_products
    operations = 2 * config.n_layers * products
    floor = floor_seconds(read, operations, device)
    mha = floor_seconds(dense_bytes, 2 * config.n_layers * dense_products, device)
    options = {"element_bytes": storage.element_bytes, "rank_multiple": storage.rank_multiple}
    ends = queries_until_no_gain(attention, max(batch), device, **options)
    return {
        "batch": batch_name(batch),
        "requests": len(batch),
        "tokens": sum(batch),
        "model": name,
        "variant": attention.variant,
        "payload_bytes": held.payload,
        "padded_bytes": held.padded,
        "allocated_bytes": held.allocated,
        "payload_pct_mha": 100 * held.payload / dense_bytes,
        "operations": operations,
        "arithmetic_ratio": products / dense_products,
        "rotary_arithmetic_ratio": math.nan if config.rotary is None else rotary_arithmetic(attention, batch),
        "floor_seconds": floor,
        "bound_by": bound_by(read, operations, device),
        "mha_over_floor": mha / floor,
        "gain_ends_at_queries": ends,
    }


def _equal_rows(name: str, attention: AttentionConfig) -> list[dict[str, Any]]:
    elements = attention.cache_width()
    return [
        {
            "model": name,
            "model_elements": elements,
            "variant": match.variant,
            "setting": _setting(match.attention)[0],
            "value": match.setting,
            "rotary_key_elements": match.attention.rotary_width or 0,
            "fit": match.fit,
            "elements": match.attention.cache_width(),
            "pct_of_model": 100 * match.attention.cache_width() / elements,
        }
        for match in equal_cache(attention)
    ]


def _shard_row(
    name: str, config: ModelConfig, batch: Batch, devices: int, layout: str, storage: Storage
) -> dict[str, Any]:
    attention = config.attention
    logical, physical = (
        shard(
            attention,
            config.n_layers_with_keys,
            batch,
            devices,
            layout,
            rank_multiple=multiple,
            element_bytes=storage.element_bytes,
        )
        for multiple in (1, storage.rank_multiple)
    )
    dense_bytes = storage.element_bytes * config.n_layers * attention.dense_width * sum(batch)
    return {
        "batch": batch_name(batch),
        "tokens": sum(batch),
        "model": name,
        "devices": devices,
        "layout": layout,
        "total_bytes": logical.total,
        "total_pct_mha": 100 * logical.total / dense_bytes,
        "total_bytes_physical": physical.total,
        "fullest_device_bytes": physical.fullest,
        "moved_bytes": physical.moved // config.n_layers_with_keys * config.n_layers,  # for every layer that reads
    }
