"""What the families' Hugging Face configurations have in common: rotary positions, activations, missing fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import CheckpointError
from ...models.rope import LinearScaling, Llama3Scaling, RopeScaling, Rotary, YarnScaling
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


def prefix_of(names: Collection[str], prefix: str) -> str:
    """Return `prefix` if the stored names carry it, the empty string if the bare model was saved."""
    return prefix if any(name.startswith(prefix) for name in names) else ""


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of a configuration, old spelling or new."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise CheckpointError(f"the rotary parameters should be a JSON object but are {given!r}")
    return {"rope_theta": real(config, "rope_theta", 10000.0), "rope_type": given.get("type", "default"), **given}


def rotary(config: dict[str, Any], *, width: int | None = None, interleaved: bool = False) -> Rotary:
    """Return the rotary positions that a configuration describes.

    Raises
    ------
    CheckpointError
        If the scaling rule is none that headscope knows.
    """
    given = rope_parameters(config)
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
    else:
        raise CheckpointError(f"rope_type should be default, linear, llama3 or yarn but is {kind!r}")
    return Rotary(base=real(given, "rope_theta"), width=width, interleaved=interleaved, scaling=scaling)


def _original_context(config: dict[str, Any], given: dict[str, Any]) -> int:
    key = "original_max_position_embeddings"
    for place in (given, config):
        if place.get(key) is not None:
            return size(place, key)
    return size(config, "max_position_embeddings")
