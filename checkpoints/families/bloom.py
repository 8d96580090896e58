"""Bloom: fused head by head, ALiBi, a norm behind the embedding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout
from .hf import prefix_of, real, size
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
    """Read a Bloom configuration; older ones call the width ``n_embed``."""
    d_model = size(config, "n_embed" if config.get("n_embed") else "hidden_size")
    heads = size(config, "num_attention_heads" if config.get("num_attention_heads") else "n_head")
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "num_hidden_layers" if config.get("num_hidden_layers") else "n_layer"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "seq_length", 2048),
        attention=GroupedConfig(
            n_heads=heads, d_head=d_model // heads, bias=True, output_bias=True, slopes=bloom_slopes(heads)
        ),
        mlp=MLPConfig(d_mlp=4 * d_model, act="gelu_new", gated=False, bias=True),
        norm=NormConfig("layer", real(config, "layer_norm_epsilon", 1e-5)),
        positions="none",
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        embed_norm=True,
    )
    root = prefix_of(names, "transformer.")
    ends: Table = {
        "embed": f"{root}word_embeddings",
        "embed_norm": f"{root}word_embeddings_layernorm",
        "ln_final": f"{root}ln_f",
        "unembed": "lm_head",
    }
    normed = config.get("apply_residual_connection_post_layernorm", False)
    return Layout(
        family="bloom",
        config=model,
        plan=plan(model, root + "h.{}.", {**BLOCK, **fused("self_attention.query_key_value", heads, (1, 1, 1))}, ends),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only="its blocks add to the normed stream (apply_residual_connection_post_layernorm)"
        if normed
        else None,
        raw=config,
    )
