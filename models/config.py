"""The configuration of a whole model: refused when it cannot be, and the same after a trip through JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from . import grouped, lrkv, mla  # noqa: F401  (each file registers its variant)
from .experts import ExpertsConfig, mlp_from_dict
from .mlp import MLPConfig
from .norms import Norm, NormConfig
from .per_layer import (
    OWN,
    ByLayer,
    LayerChanges,
    Positions,
    by_layer_from_dict,
    by_layer_to_dict,
    same_but_own,
    shape_of,
)
from .rope import Rotary
from .variant import ELEMENT_BYTES, AttentionConfig, attention_from_dict

Arrangement = Literal["pre", "post", "sandwich", "parallel", "parallel_one_norm"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer around one attention variant.

    Parameters
    ----------
    d_model, n_layers, d_vocab
        Width of the residual stream, number of blocks, size of the vocabulary.
    n_ctx
        Longest input; with learned positions a hard limit.
    attention
        The variant (`GroupedConfig`, `MLAConfig`, `LRKVConfig`).
    mlp
        The feed-forward part, an `MLPConfig` or an `ExpertsConfig`; None: attention only.
    norm
        Which norm stands before (or behind) attention and MLP, and at the end.
    positions
        A `Rotary`, ``"learned"`` (added to the embedding) or ``"none"``.
    tie_embeddings
        Whether the unembedding is the embedding, transposed.
    arrangement
        How a block is put together: norms before attention and MLP (``"pre"``), behind them, before what they made is
        added (``"post"``: OLMo-2), or both (``"sandwich"``: Gemma 2); or attention and MLP side by side, each behind a
        norm of its own (``"parallel"``: GPT-NeoX) or both behind one (``"parallel_one_norm"``: GPT-J).
    embed_scale
        Factor on the embedding as it enters the residual stream (Gemma: ``sqrt(d_model)``).
    embed_norm
        Whether the embedding goes through a norm of its own (Bloom).
    unembed_bias
        Whether the logits have a bias (GPT-J).
    logit_softcap
        Logits are squeezed to within ±`logit_softcap` by a tanh (Gemma 2); None: they are not.
    by_layer
        What layers have of their own, `LayerChanges` or None for each; empty: all are alike. `at` reads it.

    Raises
    ------
    ValueError
        If a field cannot be: the message names the field, the allowed values and what came.

    Examples
    --------
    >>> from headscope.models import GroupedConfig, ModelConfig
    >>> cfg = ModelConfig(d_model=64, n_layers=2, d_vocab=100, n_ctx=32,
    ...                   attention=GroupedConfig(n_heads=4, n_kv_heads=2, d_head=16))
    >>> cfg.attention.variant, cfg.attention.head_to_group
    ('gqa', [0, 0, 1, 1])
    """

    d_model: int
    n_layers: int
    d_vocab: int
    n_ctx: int
    attention: AttentionConfig
    mlp: MLPConfig | ExpertsConfig | None = None
    norm: NormConfig = field(default_factory=NormConfig)
    positions: Positions = field(default_factory=Rotary)
    tie_embeddings: bool = False
    arrangement: Arrangement = "pre"
    embed_scale: float = 1.0
    embed_norm: bool = False
    unembed_bias: bool = False
    logit_softcap: float | None = None
    by_layer: ByLayer = ()

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "d_vocab", "n_ctx"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} should be an integer > 0 but got {value!r}")
        if not isinstance(self.attention, AttentionConfig):
            raise ValueError(f"attention should be one of the variants' configurations but got {self.attention!r}")
        if self.mlp is not None and not isinstance(self.mlp, MLPConfig | ExpertsConfig):
            raise ValueError(f"mlp should be an MLPConfig, an ExpertsConfig or None but got {self.mlp!r}")
        if not isinstance(self.norm, NormConfig):
            raise ValueError(f"norm should be a NormConfig but got {self.norm!r}")
        if not isinstance(self.positions, Rotary) and self.positions not in ("learned", "none"):
            raise ValueError(f"positions should be a Rotary, 'learned' or 'none' but got {self.positions!r}")
        if self.arrangement not in get_args(Arrangement):
            raise ValueError(f"arrangement should be one of {get_args(Arrangement)} but got {self.arrangement!r}")
        for name, value in (
            ("embed_scale", self.embed_scale),
            ("logit_softcap", 1.0 if self.logit_softcap is None else self.logit_softcap),
        ):
            if not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} should be finite and > 0 but got {value}")
        turned = self.attention.rotated_columns(self.rotary)
        if self.rotary is not None:
            self.rotary.frequencies(turned.stop - turned.start)
        if self.by_layer:
            self._check_layers()

    def _check_layers(self) -> None:
        if len(self.by_layer) != self.n_layers:
            raise ValueError(f"by_layer should have {self.n_layers} entries, one a layer, but has {len(self.by_layer)}")
        for layer, changes in enumerate(self.by_layer):
            if changes is None or changes in self.by_layer[:layer]:
                continue
            if not isinstance(changes, LayerChanges):
                raise ValueError(f"by_layer[{layer}] should be LayerChanges or None but got {changes!r}")
            if changes.attention is not None and not same_but_own(changes.attention, self.attention):
                raise ValueError(f"by_layer[{layer}].attention may differ from the model's in {', '.join(OWN)} alone")
            if changes.positions is not None and self.positions == "learned":
                raise ValueError(f"by_layer[{layer}].positions: learned ones belong to the whole model")
            if changes.mlp is not None and self.mlp is None:
                raise ValueError(f"by_layer[{layer}].mlp: the model has none, so no layer has")
            self.at(layer)  # checked as a model of such layers would be
        for layer in range(self.n_layers):
            if (source := self.keys_of(layer)) != layer:
                self._check_shared(layer, source)

    def _check_shared(self, layer: int, source: int) -> None:
        where = f"by_layer[{layer}].keys_from"
        if isinstance(source, bool) or not isinstance(source, int) or not 0 <= source < layer:
            raise ValueError(f"{where} should be an earlier layer, 0–{layer - 1}, but got {source!r}")
        if (first := self.keys_of(source)) != source:
            raise ValueError(f"{where} is {source}, which has no keys of its own: name layer {first}")
        here, there = ((shape_of(kind.attention), kind.positions) for kind in (self.at(layer), self.at(source)))
        if here != there:
            raise ValueError(f"{where} is {source}, whose keys are of another shape or at other positions")

    def keys_of(self, layer: int) -> int:
        """Return the layer whose keys and values a layer attends to: almost always itself."""
        changes = self.by_layer[layer] if self.by_layer else None
        return layer if changes is None or changes.keys_from is None else changes.keys_from

    @property
    def n_layers_with_keys(self) -> int:
        """Layers that make keys and values, and leave them in a cache."""
        return sum(self.keys_of(layer) == layer for layer in range(self.n_layers))

    def cache_bytes(self, rank_multiple: int = 1) -> int:
        """Return the bytes that a token leaves in the caches of all layers, at `ELEMENT_BYTES` an element.

        Parameters
        ----------
        rank_multiple
            What ranks are padded to; 1 counts them as they are (logical), 8 as caches store them (physical).

        Examples
        --------
        >>> from headscope.models import LRKVConfig, ModelConfig
        >>> attention = LRKVConfig(n_heads=8, d_head=16, rank=6)
        >>> config = ModelConfig(d_model=128, n_layers=4, d_vocab=1024, n_ctx=256, attention=attention)
        >>> config.cache_bytes(), config.cache_bytes(8)
        (1024, 1280)
        """
        keeping = (layer for layer in range(self.n_layers) if self.keys_of(layer) == layer)
        return ELEMENT_BYTES * sum(self.at(layer).attention.cache_width(rank_multiple) for layer in keeping)

    @property
    def not_built(self) -> str | None:
        """Why no `HookedModel` can be built of this, though its layers can be measured; None if one can."""
        if shared := [layer for layer in range(self.n_layers) if self.keys_of(layer) != layer]:
            return f"layers that take their keys and values from other layers: {', '.join(map(str, shared))}"
        shapes = {shape_of(self.at(layer).attention) for layer in range(self.n_layers)}
        return "layers whose heads differ in width or number of groups" if len(shapes) > 1 else None

    def at(self, layer: int) -> ModelConfig:
        """Return the model as it would be if every layer were like this one, with keys and values of its own.

        Raises
        ------
        IndexError
            If the layer does not exist.
        """
        if not 0 <= layer < self.n_layers:
            raise IndexError(f"layer {layer} does not exist: this model has layers 0–{self.n_layers - 1}")
        changes = self.by_layer[layer] if self.by_layer else None
        if changes is None:
            return replace(self, by_layer=()) if self.by_layer else self
        own = {name: getattr(changes, name) for name in ("attention", "positions", "mlp")}
        return replace(self, by_layer=(), **{name: value for name, value in own.items() if value is not None})

    def build_norm(self, wanted: bool = True) -> Norm | None:
        """Return a norm of the residual stream, None if none is wanted."""
        return self.norm.build(self.d_model) if wanted else None

    @property
    def rotary(self) -> Rotary | None:
        """The rotary positions, None if there are none."""
        return self.positions if isinstance(self.positions, Rotary) else None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `from_dict` reads it back."""
        return {
            "d_model": self.d_model,
            "n_layers": self.n_layers,
            "d_vocab": self.d_vocab,
            "n_ctx": self.n_ctx,
            "attention": self.attention.to_dict(),
            "mlp": None if self.mlp is None else self.mlp.to_dict(),
            "norm": self.norm.to_dict(),
            "positions": self.positions.to_dict() if isinstance(self.positions, Rotary) else self.positions,
            "tie_embeddings": self.tie_embeddings,
            "arrangement": self.arrangement,
            "embed_scale": self.embed_scale,
            "embed_norm": self.embed_norm,
            "unembed_bias": self.unembed_bias,
            "logit_softcap": self.logit_softcap,
            "by_layer": by_layer_to_dict(self.by_layer) if self.by_layer else None,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelConfig:
        """Build from `to_dict`'s description.

        Raises
        ------
        ValueError
            If a field is unknown, missing or cannot be.
        """
        try:
            fields = dict(data)
            fields["attention"] = attention_from_dict(fields["attention"])
            if fields.get("mlp") is not None:
                fields["mlp"] = mlp_from_dict(fields["mlp"])
            if "norm" in fields:
                fields["norm"] = NormConfig(**fields["norm"])
            if isinstance(fields.get("positions"), dict):
                fields["positions"] = Rotary.from_dict(fields["positions"])
            by_layer = fields.pop("by_layer", None)
            return cls(**fields, by_layer=by_layer_from_dict(by_layer) if by_layer else ())
        except KeyError as error:
            raise ValueError(f"the configuration has no field {error}") from error
        except TypeError as error:
            raise ValueError(f"the configuration does not fit: {error}") from error

    def with_attention(self, attention: AttentionConfig, **changes: Any) -> ModelConfig:
        """Return a copy with another attention in every layer; windows and scales that layers have of their own stay.

        Every layer has keys and values of its own then.

        Parameters
        ----------
        attention
            The new one.
        changes
            Other fields to change, as for `with_`; without rotary ``positions`` layers lose bases of their own.
        """
        rotary = isinstance(changes.get("positions", self.positions), Rotary)
        layers = tuple(
            changed
            and replace(
                changed,
                attention=changed.attention
                and replace(attention, window=changed.attention.window, scale=changed.attention.scale),
                positions=changed.positions if rotary else None,
                keys_from=None,
            )
            for changed in self.by_layer
        )
        return self.with_(attention=attention, by_layer=layers, **changes)

    def with_(self, **changes: Any) -> ModelConfig:
        """Return a copy with some fields changed, checked again."""
        return replace(self, **changes)
