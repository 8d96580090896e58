"""Falcon: one key and value for all heads (7B), or one a group (40B, 180B), fused; attention and MLP side by side."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout
from .hf import activation, prefix_of, real, rotary, size
from .slopes import bloom_slopes
from .table import Table, fused, plan

BLOCK: Table = {
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn.o": "self_attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Falcon configuration."""
    heads, d_model = size(config, "num_attention_heads"), size(config, "hidden_size")
    newer, bias = bool(config.get("new_decoder_architecture", False)), bool(config.get("bias", False))
    parallel = newer or bool(config.get("parallel_attn", True))
    two_norms = newer and size(config, "num_ln_in_parallel_attn", 2) == 2
    groups = size(config, "num_kv_heads", heads) if newer else 1 if config.get("multi_query", True) else heads
    slopes = None
    if alibi := bool(config.get("alibi", False)):
        # The bias is added before the scores are scaled.
        slopes = tuple(slope * (d_model // heads) ** -0.5 for slope in bloom_slopes(heads))
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "num_hidden_layers"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings", 2048),
        attention=GroupedConfig(
            n_heads=heads, n_kv_heads=groups, d_head=d_model // heads, bias=bias, output_bias=bias, slopes=slopes
        ),
        mlp=MLPConfig(
            d_mlp=size(config, "ffn_hidden_size", 4 * d_model),
            act=activation(config.get("activation", "gelu")),
            gated=False,
            bias=bias,
        ),
        norm=NormConfig("layer", real(config, "layer_norm_epsilon", 1e-5)),
        positions="none" if alibi else rotary(config),
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        arrangement="pre" if not parallel else "parallel" if two_norms else "parallel_one_norm",
    )
    root = prefix_of(names, "transformer.")
    norms = {"ln1": "ln_attn", "ln2": "ln_mlp"} if two_norms else {}
    return Layout(
        family="falcon",
        config=model,
        plan=plan(
            model,
            root + "h.{}.",
            {**BLOCK, **norms, **fused("self_attention.query_key_value", groups, (heads // groups, 1, 1))},
            {"embed": f"{root}word_embeddings", "ln_final": f"{root}ln_f", "unembed": "lm_head"},
        ),
        ignored=(r".*rotary(_emb)?\.inv_freq",),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only="with ALiBi, Hugging Face's two ways to attend (eager and sdpa) give different logits"
        if alibi
        else None,
        raw=config,
    )
