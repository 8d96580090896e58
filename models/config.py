"""The configuration of a whole model: refused when it cannot be, and the same after a trip through JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from . import grouped, lrkv, mla  # noqa: F401  (each file registers its variant)
from .mlp import MLPConfig
from .norms import NormConfig
from .rope import Rotary
from .variant import AttentionConfig, attention_from_dict

Positions = Rotary | Literal["learned", "none"]


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
        The feed-forward part; None: attention only.
    norm
        The norm before attention, before the MLP and at the end.
    positions
        A `Rotary`, ``"learned"`` (added to the embedding) or ``"none"``.
    tie_embeddings
        Whether the unembedding is the embedding, transposed.

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
    mlp: MLPConfig | None = None
    norm: NormConfig = field(default_factory=NormConfig)
    positions: Positions = field(default_factory=Rotary)
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "d_vocab", "n_ctx"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} should be an integer > 0 but got {value!r}")
        if not isinstance(self.attention, AttentionConfig):
            raise ValueError(f"attention should be one of the variants' configurations but got {self.attention!r}")
        if self.mlp is not None and not isinstance(self.mlp, MLPConfig):
            raise ValueError(f"mlp should be an MLPConfig or None but got {self.mlp!r}")
        if not isinstance(self.norm, NormConfig):
            raise ValueError(f"norm should be a NormConfig but got {self.norm!r}")
        if not isinstance(self.positions, Rotary) and self.positions not in ("learned", "none"):
            raise ValueError(f"positions should be a Rotary, 'learned' or 'none' but got {self.positions!r}")
        turned = self.attention.rotated_columns(self.rotary)
        if self.rotary is not None:
            self.rotary.frequencies(turned.stop - turned.start)

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
                fields["mlp"] = MLPConfig(**fields["mlp"])
            if "norm" in fields:
                fields["norm"] = NormConfig(**fields["norm"])
            if isinstance(fields.get("positions"), dict):
                fields["positions"] = Rotary.from_dict(fields["positions"])
            return cls(**fields)
        except KeyError as error:
            raise ValueError(f"the configuration has no field {error}") from error
        except TypeError as error:
            raise ValueError(f"the configuration does not fit: {error}") from error

    def with_(self, **changes: Any) -> ModelConfig:
        """Return a copy with some fields changed, checked again."""
        return replace(self, **changes)
