"""MPT: queries, keys and values in one matrix, ALiBi, layer norms without a bias."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import CheckpointError
from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout
from .hf import optional_real, prefix_of, real, size
from .slopes import mpt_slopes
from .table import Table, fused, plan

BLOCK: Table = {
    "ln1": "norm_1",
    "ln2": "norm_2",
    "attn.o": "attn.out_proj",
    "mlp.up": "ffn.up_proj",
    "mlp.down": "ffn.down_proj",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read an MPT configuration."""
    chosen = config.get("attn_config") or {}
    if chosen.get("attn_type", "multihead_attention") != "multihead_attention":
        raise CheckpointError(f"attn_type {chosen['attn_type']!r}: only multihead_attention is read")
    for name in ("qk_ln", "prefix_lm"):
        if chosen.get(name):
            raise CheckpointError(f"attn_config.{name} is set: MPT models with it are not read")
    heads, d_model = size(config, "n_heads"), size(config, "d_model")
    bias = not config.get("no_bias", True)
    alibi = bool(chosen.get("alibi", True))
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "n_layers"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_seq_len"),
        attention=GroupedConfig(
            n_heads=heads,
            d_head=d_model // heads,
            bias=bias,
            output_bias=bias,
            scale=optional_real(chosen, "softmax_scale"),
            slopes=mpt_slopes(heads, size(chosen, "alibi_bias_max", 8)) if alibi else None,
        ),
        mlp=MLPConfig(d_mlp=size(config, "expansion_ratio", 4) * d_model, act="gelu", gated=False, bias=bias),
        norm=NormConfig("layer", real(config, "layer_norm_epsilon", 1e-5), bias=bias),
        positions="none" if alibi else "learned",
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
    )
    root = prefix_of(names, "transformer.")
    ends: Table = {
        "embed": f"{root}wte",
        "pos_embed": f"{root}wpe",
        "ln_final": f"{root}norm_f",
        "unembed": "lm_head",
    }
    return Layout(
        family="mpt",
        config=model,
        plan=plan(model, root + "blocks.{}.", {**BLOCK, **fused("attn.Wqkv", 1, (heads,) * 3)}, ends),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only=_not_run(config, chosen),
        raw=config,
    )


def _not_run(config: dict[str, Any], chosen: dict[str, Any]) -> str | None:
    if chosen.get("clip_qkv"):
        return "its queries, keys and values are clipped (attn_config.clip_qkv), which no form holds either"
    ignored = [name for name, usual in (("alibi", True), ("alibi_bias_max", 8)) if chosen.get(name, usual) != usual]
    ignored += [name for name in ("logit_scale",) if config.get(name) is not None]
    return f"{', '.join(ignored)}: Hugging Face's own model takes no notice of it" if ignored else None
