"""What the families' Hugging Face configurations have in common: rotary positions, activations, missing fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import CheckpointError
from ...models.rope import LinearScaling, Llama3Scaling, RopeScaling, Rotary, YarnScaling

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
} | dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_new")


def need(config: dict[str, Any], key: str) -> Any:
    """Return a field of the configuration; CheckpointError names it if absent."""
    if config.get(key) is None:
        raise CheckpointError(f"config.json of a {config.get('model_type')!r} model has no {key!r}")
    return config[key]


def activation(name: str) -> str:
    """Return headscope's name of an activation."""
    if name not in ACTIVATIONS:
        raise CheckpointError(f"activation should be one of {sorted(ACTIVATIONS)} but config.json says {name!r}")
    return ACTIVATIONS[name]


def prefix_of(names: Collection[str], prefix: str) -> str:
    """Return `prefix` if the stored names carry it, the empty string if the bare model was saved."""
    return prefix if any(name.startswith(prefix) for name in names) else ""


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of a configuration, old spelling or new."""
    new = config.get("rope_parameters")
    if isinstance(new, dict):
        return dict(new)
    old = dict(config.get("rope_scaling") or {})
    old.setdefault("rope_type", old.pop("type", "default"))
    return {"rope_theta": config.get("rope_theta", 10000.0), **old}


def rotary(config: dict[str, Any], *, width: int | None = None, interleaved: bool = False) -> Rotary:
    """Return the rotary positions that a configuration describes.

    Raises
    ------
    CheckpointError
        If the scaling rule is none that headscope knows.
    """
    given = rope_parameters(config)
    kind = given.get("rope_type", "default")
    context = given.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    scaling: RopeScaling | None
    if kind == "default":
        scaling = None
    elif kind == "linear":
        scaling = LinearScaling(given["factor"])
    elif kind == "llama3":
        scaling = Llama3Scaling(
            given["factor"], need({"c": context}, "c"), given["low_freq_factor"], given["high_freq_factor"]
        )
    elif kind == "yarn":
        optional = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
        options = {key: given[key] for key in optional if given.get(key) is not None}
        scaling = YarnScaling(given["factor"], need({"c": context}, "c"), **options)
    else:
        raise CheckpointError(f"rope_type should be default, linear, llama3 or yarn but config.json says {kind!r}")
    return Rotary(base=float(given.get("rope_theta", 10000.0)), width=width, interleaved=interleaved, scaling=scaling)
