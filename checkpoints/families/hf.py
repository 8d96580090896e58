"""What the families' Hugging Face configurations have in common: rotary positions, windows, missing fields."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError
from ...models.config import ModelConfig
from ...models.per_layer import LayerChanges
from ...models.rope import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    ProportionalScaling,
    RopeScaling,
    Rotary,
    YarnScaling,
)
from ..fields import count, number

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
} | dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_new")


def size(config: dict[str, Any], key: str, default: int | None = None) -> int:
    """Return a width or a number of things; CheckpointError names it if it is absent or cannot be."""
    return count(key, _field(config, key, default))


def real(config: dict[str, Any], key: str, default: float | None = None) -> float:
    """Return a number; CheckpointError names it if it is absent or cannot be."""
    return number(key, _field(config, key, default))


def _field(config: dict[str, Any], key: str, default: Any) -> Any:
    value = default if config.get(key) is None else config[key]
    if value is None:
        raise CheckpointError(f"{key!r} is missing")
    return value


def activation(name: Any) -> str:
    """Return headscope's name of an activation."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(f"the activation should be one of {sorted(ACTIVATIONS)} but is {name!r}")
    return ACTIVATIONS[name]


def optional_size(config: dict[str, Any], key: str) -> int | None:
    """Return a width or a number of things, None where the configuration has none."""
    return None if config.get(key) is None else size(config, key)


def optional_real(config: dict[str, Any], key: str) -> float | None:
    """Return a number, None where the configuration has none."""
    return None if config.get(key) is None else real(config, key)


def prefix_of(names: Collection[str], prefix: str) -> str:
    """Return `prefix` if the stored names carry it, the empty string if the bare model was saved."""
    return prefix if any(name.startswith(prefix) for name in names) else ""


def root_of(names: Collection[str], ending: str) -> str:
    """Return what stands before `ending` in the stored name that ends so; the empty string if none does."""
    return next((name.removesuffix(ending) for name in sorted(names) if name.endswith(ending)), "")


def sliding_layers(config: dict[str, Any], default: Sequence[bool]) -> list[bool]:
    """Return which layers look back over a sliding window.

    Parameters
    ----------
    config
        The configuration; its ``layer_types`` decide if it has them.
    default
        One value a layer, for a configuration without.

    Raises
    ------
    CheckpointError
        If there are not as many as layers. (Of which kinds they may be, `refusals.check` says.)
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return list(default)
    if not isinstance(kinds, list) or len(kinds) != len(default):
        raise CheckpointError(f"'layer_types' should be a list of {len(default)} kinds, one a layer, but is {kinds!r}")
    return [kind == "sliding_attention" for kind in kinds]


def with_window(
    model: ModelConfig, sliding: Sequence[bool], window: int | None, local: Rotary | None = None
) -> ModelConfig:
    """Return the model with a window in some layers, where the positions may be of their own."""
    if window is None or not any(sliding):
        return model
    changes = LayerChanges(attention=replace(model.attention, window=window), positions=local)
    if all(sliding) and local is None:
        return model.with_(attention=changes.attention)
    return model.with_(by_layer=tuple(changes if here else None for here in sliding))


def rope_parameters(config: dict[str, Any], base: float = 10000.0) -> dict[str, Any]:
    """Return the rotary parameters of a configuration, old spelling or new; `base` if it names none."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"the rotary parameters should be a JSON object but are {given!r}")
    return {"rope_theta": real(config, "rope_theta", base), "rope_type": given.get("type", "default"), **given}


def partial_width(config: dict[str, Any], d_head: int, share: float = 1.0) -> int | None:
    """Return how many leading columns of a head turn, None: all; `share` of them if the configuration is silent."""
    given = rope_parameters(config)
    place = given if given.get("partial_rotary_factor") is not None else config
    width = int(d_head * real(place, "partial_rotary_factor", share))
    return None if width == d_head else width


def rotary(
    config: dict[str, Any], *, width: int | None = None, interleaved: bool = False, base: float = 10000.0
) -> Rotary:
    """Return the rotary positions that a configuration describes; `base` if it names none.

    Raises
    ------
    CheckpointError
        If the scaling rule is none that headscope knows.
    """
    given = rope_parameters(config, base)
    kind = given["rope_type"]
    scaling: RopeScaling | None
    if kind == "default":
        scaling = None
    elif kind == "linear":
        scaling = LinearScaling(real(given, "factor"))
    elif kind == "llama3":
        low, high = real(given, "low_freq_factor"), real(given, "high_freq_factor")
        scaling = Llama3Scaling(real(given, "factor"), _original_context(config, given), low, high)
    elif kind == "yarn":
        optional = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
        options = {name: real(given, name) for name in optional if given.get(name)}
        truncate = bool(given.get("truncate", True))
        scaling = YarnScaling(real(given, "factor"), _original_context(config, given), **options, truncate=truncate)
    elif kind == "longrope":
        scaling = _long_rope(config, given)
    elif kind == "proportional":
        scaling = ProportionalScaling(real(given, "partial_rotary_factor", 1.0), real(given, "factor", 1.0))
    else:
        known = "default, linear, llama3, yarn, longrope or proportional"
        raise CheckpointError(f"rope_type should be {known} but is {kind!r}")
    return Rotary(base=real(given, "rope_theta"), width=width, interleaved=interleaved, scaling=scaling)


def _long_rope(config: dict[str, Any], given: dict[str, Any]) -> FrequencyFactors:
    """Return the factors for inputs within the original context; beyond it other ones hold (``long_factor``)."""
    factors = given.get("short_factor")
    if not isinstance(factors, list):
        raise CheckpointError(f"'short_factor' should be a list of numbers but is {factors!r}")
    original = _original_context(config, given)
    stretch = real(given, "factor", size(config, "max_position_embeddings") / original)
    usual = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return FrequencyFactors(
        tuple(number("short_factor", factor) for factor in factors), real(given, "attention_factor", usual)
    )


def _original_context(config: dict[str, Any], given: dict[str, Any]) -> int:
    key = "original_max_position_embeddings"
    for place in (config, given):  # where both have it, Hugging Face goes by the former
        if place.get(key) is not None:
            return size(place, key)
    return size(config, "max_position_embeddings")
