"""The models of the LRKV paper, as its tables describe them, and the losses that it prints.

References
----------
O'Neill, Clancy, Matskevichus, Reid, Low-Rank Key Value Attention (arXiv 2601.11471v3): sizes and settings from Tables 5
and 7, cross-entropy from Table 1, the rank ablation from Table 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..models.config import ModelConfig
from ..models.grouped import GroupedConfig
from ..models.lrkv import LRKVConfig
from ..models.mla import MLAConfig
from ..models.mlp import MLPConfig
from ..models.norms import NormConfig
from ..models.rope import Rotary
from ..models.variant import AttentionConfig

D_HEAD, D_VOCAB, N_CTX = 128, 50_304, 2_048
VARIANTS = ("mha", "gqa", "mqa", "mla", "lrkv")


@dataclass(frozen=True)
class Size:
    """A row of Table 7 with its column of Table 1.

    Parameters
    ----------
    n_layers, n_heads, d_model
        The backbone; heads are 128 wide, the MLP is four times `d_model`.
    groups, d_latent, rank
        Of GQA, MLA and LRKV.
    losses
        Test cross-entropy in nats a token, in the order of `VARIANTS`.
    """

    n_layers: int
    n_heads: int
    d_model: int
    groups: int
    d_latent: int
    rank: int
    losses: tuple[float, float, float, float, float]


SIZES = {
    "128M": Size(12, 6, 768, 3, 128, 46, (2.903, 2.918, 2.929, 2.901, 2.893)),
    "1.2B": Size(24, 12, 1536, 4, 256, 51, (2.530, 2.536, 2.573, 2.564, 2.509)),
    "2.5B": Size(18, 18, 2304, 6, 384, 55, (2.389, 2.397, 2.408, 2.392, 2.376)),
    "6.3B": Size(32, 32, 4096, 2, 1024, 54, (2.319, 2.354, 2.304, 2.377, 2.288)),
}
DEFAULT = "2.5B"

RANK_ABLATION = {8: 2.908, 16: 2.905, 32: 2.896, 64: 2.888, 128: 2.877}
"""Rank -> cross-entropy of the 128M model (Table 8)."""


def presets() -> list[str]:
    """Return the names that `preset_models` takes: a size for all its variants, or a size and a variant."""
    return [*SIZES, *(f"{size}-{variant}" for size in SIZES for variant in VARIANTS)]


def preset_models(name: str) -> dict[str, ModelConfig]:
    """Return model name -> configuration.

    Table 7 gives MLA's latent and no position channel, so that its cache is counted without one. ``mla+rope`` beside
    it has a channel of half a head, as DeepSeek's; it is not in the paper.

    Raises
    ------
    ValueError
        If there is no preset of that name.
    """
    size, _, variant = name.partition("-")
    if size not in SIZES or (variant and variant not in VARIANTS):
        raise ValueError(
            f"preset should be a size ({', '.join(SIZES)}), or a size and a variant like 2.5B-lrkv, but got {name!r}"
        )
    if variant:
        return {name: model(size, variant)}
    return {each: model(size, each) for each in (*VARIANTS[:4], "mla+rope", "lrkv")}


def model(size: str, variant: str) -> ModelConfig:
    """Return one model of Table 7."""
    row = SIZES[size]
    attention = _attention(row, variant)
    return ModelConfig(
        d_model=row.d_model,
        n_layers=row.n_layers,
        d_vocab=D_VOCAB,
        n_ctx=N_CTX,
        attention=attention,
        mlp=MLPConfig(d_mlp=4 * row.d_model, gated=False),
        norm=NormConfig("rms", 1e-5),
        positions="none" if attention.rotary_width == 0 else Rotary(),
    )


def _attention(row: Size, variant: str) -> AttentionConfig:
    if variant == "lrkv":
        return LRKVConfig(n_heads=row.n_heads, d_head=D_HEAD, rank=row.rank)
    if variant.startswith("mla"):
        channel = D_HEAD // 2 if variant == "mla+rope" else 0
        return MLAConfig(n_heads=row.n_heads, d_latent=row.d_latent, d_nope=D_HEAD, d_rope=channel, d_value_head=D_HEAD)
    groups = {"mha": None, "gqa": row.groups, "mqa": 1}[variant]
    return GroupedConfig(n_heads=row.n_heads, d_head=D_HEAD, n_kv_heads=groups)


def losses() -> pd.DataFrame:
    """Return what the paper prints of loss, beside the cache that its settings give.

    Columns: size, model, loss (nats a token), cache_pct_mha (percent of MHA's elements, ranks as they are), series
    (``"table 1"`` or ``"rank ablation"``).
    """
    found = []
    for size, row in SIZES.items():
        for variant, loss in zip(VARIANTS, row.losses, strict=True):
            found.append(_point(size, variant, loss, _attention(row, variant), "table 1"))
    for rank, loss in RANK_ABLATION.items():
        attention = LRKVConfig(n_heads=SIZES["128M"].n_heads, d_head=D_HEAD, rank=rank)
        found.append(_point("128M", f"lrkv-r{rank}", loss, attention, "rank ablation"))
    return pd.DataFrame(found)


def _point(size: str, name: str, loss: float, attention: AttentionConfig, series: str) -> dict[str, object]:
    share = 100 * attention.cache_width() / attention.dense_width
    return {"size": size, "model": name, "loss": loss, "cache_pct_mha": share, "series": series}
