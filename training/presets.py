"""Matched models: the five variants in one backbone, alike in depth, width, heads, data, order, seed and optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..models.config import ModelConfig
from ..models.grouped import GroupedConfig
from ..models.hooked import n_parameters
from ..models.lrkv import LRKVConfig, rank_for
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


def _lrkv(b: Backbone) -> LRKVConfig:
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
"""Name -> the attention of a backbone.

Of MHA's cache: gqa 1/4 (in the tiny backbone, whose 4 heads would leave one group, 1/2), mqa 1/H, mla 1/4, lrkv 1/2 at
most.
"""


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
        mlp=MLPConfig(d_mlp=backbone.d_mlp if d_mlp is None else d_mlp),
        norm=NormConfig("rms", 1e-5),
        positions=Rotary(),
        tie_embeddings=True,
    )


def matched(
    preset: str, size: str = "reference", *, rank: int | None = None, cache_ratio: float | None = None
) -> ModelConfig:
    """Return a preset's model with as many parameters as MHA's, to within one column of the MLP, which makes up for it.

    Parameters
    ----------
    preset, size, rank, cache_ratio
        As for `build`.

    Raises
    ------
    ValueError
        As `build`.
    """
    wanted = n_parameters(build("mha", size))
    plain = build(preset, size, rank=rank, cache_ratio=cache_ratio)
    backbone = BACKBONES[size]
    each = 3 * backbone.d_model * backbone.n_layers
    extra = round((wanted - n_parameters(plain)) / each)
    return build(preset, size, rank=rank, cache_ratio=cache_ratio, d_mlp=backbone.d_mlp + extra)


def label(config: ModelConfig) -> str:
    """Return what a model is called beside others: by its attention.

    Returns
    -------
    str
        A preset's name if the attention is the preset's, whatever the width of the MLP; ``"lrkv-r4"`` for the lrkv
        preset with another rank; ``"custom"`` for anything else.

    Examples
    --------
    >>> label(build("lrkv")), label(build("lrkv", rank=6)), label(build("lrkv", rank=4)), label(matched("mqa"))
    ('lrkv', 'lrkv', 'lrkv-r4', 'mqa')
    """
    attention = config.attention
    if config.by_layer:
        return "custom"
    for name, make in PRESETS.items():
        if attention in [make(backbone) for backbone in BACKBONES.values()]:
            return name
    if isinstance(attention, LRKVConfig):
        own = [_lrkv(backbone) for backbone in BACKBONES.values()]
        if attention in [replace(preset, rank=min(attention.rank, preset.d_head)) for preset in own]:
            return f"lrkv-r{attention.rank}"
    return "custom"
