"""Matched models: the five variants in one backbone, alike in depth, width, heads, data, order, seed and optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..models.config import ModelConfig
from ..models.grouped import GroupedConfig
from ..models.lrkv import LRKVConfig
from ..models.mla import MLAConfig
from ..models.mlp import MLPConfig
from ..models.norms import NormConfig
from ..models.rope import Rotary
from ..models.variant import AttentionConfig


@dataclass(frozen=True)
class Backbone:
    """What the variants have in common.

    Parameters
    ----------
    d_model, n_layers, n_heads, d_head, d_mlp, n_ctx, d_vocab
        As in `ModelConfig` and its parts; the MLP is gated.
    """

    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 8
    d_head: int = 16
    d_mlp: int = 352
    n_ctx: int = 256
    d_vocab: int = 1024


BACKBONES = {
    "reference": Backbone(),
    "tiny": Backbone(d_model=32, n_layers=2, n_heads=4, d_head=8, d_mlp=64, n_ctx=32, d_vocab=300),
}
"""``reference``: about a million parameters. ``tiny``: seconds on one core, for a try."""


def rank_for(ratio: float, n_heads: int, d_head: int, n_groups: int | None = None) -> int:
    """Return the largest LRKV rank whose cache is at most `ratio` of MHA's: ``floor(d_head (ratio - 1 / n_heads))``.

    Parameters
    ----------
    ratio
        Share of the other cache.
    n_heads, d_head
        Heads and their width.
    n_groups
        Distinct keys of the other cache, if it is not MHA's but GQA's.

    Raises
    ------
    ValueError
        If not even rank 1 fits, or the ratio would need a rank above `d_head`.

    Examples
    --------
    >>> rank_for(0.5, 18, 128), rank_for(1 / 3, 18, 128)
    (56, 35)
    """
    groups = n_groups or n_heads
    # A ratio meant to hit a rank exactly must not lose it to rounding.
    rank = math.floor(d_head * (ratio * groups - 1) / n_heads + 1e-9)
    if not 1 <= rank <= d_head:
        low, high = (1 + n_heads / d_head) / groups, (1 + n_heads) / groups
        raise ValueError(
            f"cache ratio should be between {low:.4f} (rank 1) and {high:.4f} (rank {d_head}) "
            f"for {n_heads} heads of {d_head} but got {ratio}"
        )
    return rank


def _lrkv(b: Backbone) -> AttentionConfig:
    return LRKVConfig(n_heads=b.n_heads, d_head=b.d_head, rank=rank_for(0.5, b.n_heads, b.d_head))


def _mla(b: Backbone) -> AttentionConfig:
    # Latent and rotary key together a quarter of MHA's cache, as wide as DeepSeek's in proportion.
    d_rope = b.d_head // 2
    latent = b.n_heads * b.d_head // 2 - d_rope
    return MLAConfig(
        n_heads=b.n_heads, d_latent=latent, d_nope=b.d_head, d_rope=d_rope, d_value_head=b.d_head, latent_eps=1e-5
    )


PRESETS: dict[str, Callable[[Backbone], AttentionConfig]] = {
    "mha": lambda b: GroupedConfig(n_heads=b.n_heads, d_head=b.d_head),
    "gqa": lambda b: GroupedConfig(n_heads=b.n_heads, n_kv_heads=max(2, b.n_heads // 4), d_head=b.d_head),
    "mqa": lambda b: GroupedConfig(n_heads=b.n_heads, n_kv_heads=1, d_head=b.d_head),
    "mla": _mla,
    "lrkv": _lrkv,
}
"""Name -> the attention of a backbone. Cache of MHA's: gqa 1/4, mqa 1/H, mla 1/4, lrkv 1/2 at most."""


def build(
    preset: str,
    size: str = "reference",
    *,
    rank: int | None = None,
    cache_ratio: float | None = None,
    d_mlp: int | None = None,
) -> ModelConfig:
    """Return a preset's model.

    Parameters
    ----------
    preset
        One of `PRESETS`.
    size
        One of `BACKBONES`.
    rank, cache_ratio
        LRKV only: its rank, or the share of MHA's cache to fill (`rank_for`).
    d_mlp
        Hidden width of the MLP, if other than the backbone's.

    Raises
    ------
    ValueError
        If a name is unknown, or a rank is asked of another variant.
    """
    for what, name, known in (("preset", preset, PRESETS), ("size", size, BACKBONES)):
        if name not in known:
            raise ValueError(f"{what} should be one of {', '.join(known)} but got {name!r}")
    backbone = BACKBONES[size]
    attention = PRESETS[preset](backbone)
    if rank is not None or cache_ratio is not None:
        if preset != "lrkv":
            raise ValueError(f"rank and cache ratio belong to lrkv, not to {preset}")
        if rank is not None and cache_ratio is not None:
            raise ValueError("give a rank or a cache ratio, not both")
        chosen = rank if rank is not None else rank_for(cache_ratio or 0.0, backbone.n_heads, backbone.d_head)
        attention = LRKVConfig(n_heads=backbone.n_heads, d_head=backbone.d_head, rank=chosen)
    return ModelConfig(
        d_model=backbone.d_model,
        n_layers=backbone.n_layers,
        d_vocab=backbone.d_vocab,
        n_ctx=backbone.n_ctx,
        attention=attention,
        mlp=MLPConfig(d_mlp=d_mlp or backbone.d_mlp),
        norm=NormConfig("rms", 1e-5),
        positions=Rotary(),
        tie_embeddings=True,
    )


def n_parameters(config: ModelConfig) -> int:
    """Return a model's parameters, tied ones counted once."""
    import torch

    from ..models.hooked import HookedModel

    with torch.device("meta"):
        return sum(p.numel() for p in HookedModel(config).parameters())


def matched(preset: str, size: str = "reference") -> ModelConfig:
    """Return a preset's model with the MLP widened until it has as many parameters as MHA's (to within one column)."""
    wanted = n_parameters(build("mha", size))
    plain = build(preset, size)
    backbone = BACKBONES[size]
    each = 3 * backbone.d_model * backbone.n_layers
    extra = round((wanted - n_parameters(plain)) / each)
    return build(preset, size, d_mlp=backbone.d_mlp + extra)
