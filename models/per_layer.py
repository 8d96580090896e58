"""Models whose layers differ: what one layer has of its own, beside what the model says for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from .experts import ExpertsConfig, mlp_from_dict
from .mlp import MLPConfig
from .rope import Rotary
from .variant import AttentionConfig, attention_from_dict

Positions = Rotary | Literal["learned", "none"]

OWN = ("window", "scale", "d_head", "n_kv_heads")
"""Fields of its attention that a layer may have of its own."""


def shape_of(attention: AttentionConfig) -> AttentionConfig:
    """Return an attention without what changes no weight and no product of weights: its window and its scale."""
    return replace(attention, window=None, scale=None)


def same_but_own(one: AttentionConfig, other: AttentionConfig) -> bool:
    """Whether two attentions differ in nothing but what a layer may have of its own (`OWN`)."""

    def rest(attention: AttentionConfig) -> dict[str, Any]:
        return {name: value for name, value in vars(attention).items() if name not in OWN}

    return type(one) is type(other) and rest(one) == rest(other)


@dataclass(frozen=True, kw_only=True)
class LayerChanges:
    """What one layer has of its own; None: as in the rest of the model.

    Parameters
    ----------
    attention
        The layer's attention; may differ from the model's in what `OWN` names.
    positions
        A `Rotary` of its own (another base), or ``"none"``.
    mlp
        Its feed-forward part.
    keys_from
        An earlier layer whose keys and values it attends to, as that layer made them of its own stream; None: to keys
        and values of its own.
    """

    attention: AttentionConfig | None = None
    positions: Rotary | Literal["none"] | None = None
    mlp: MLPConfig | ExpertsConfig | None = None
    keys_from: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description of what changes."""
        parts = {
            "attention": self.attention,
            "positions": self.positions,
            "mlp": self.mlp,
            "keys_from": self.keys_from,
        }
        return {
            name: part if isinstance(part, str | int) else part.to_dict()
            for name, part in parts.items()
            if part is not None
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LayerChanges:
        """Build from `to_dict`'s description."""
        fields = dict(data)
        if "attention" in fields:
            fields["attention"] = attention_from_dict(fields["attention"])
        if isinstance(fields.get("positions"), dict):
            fields["positions"] = Rotary.from_dict(fields["positions"])
        if "mlp" in fields:
            fields["mlp"] = mlp_from_dict(fields["mlp"])
        return cls(**fields)


ByLayer = tuple[LayerChanges | None, ...]


def by_layer_to_dict(by_layer: ByLayer) -> dict[str, Any]:
    """Return a JSON-ready description: each kind of layer once, and which kind every layer is of."""
    kinds = list(dict.fromkeys(by_layer))
    return {
        "kinds": [None if kind is None else kind.to_dict() for kind in kinds],
        "of_layer": [kinds.index(changes) for changes in by_layer],
    }


def by_layer_from_dict(data: dict[str, Any]) -> ByLayer:
    """Build from `by_layer_to_dict`'s description.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        kinds = [None if kind is None else LayerChanges.from_dict(kind) for kind in data["kinds"]]
        return tuple(kinds[kind] for kind in data["of_layer"])
    except (TypeError, IndexError) as error:
        raise ValueError(f"by_layer should hold 'kinds' and for every layer the index of one: {error}") from error
