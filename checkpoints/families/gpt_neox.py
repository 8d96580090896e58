"""GPT-NeoX and Pythia: fused head by head, partly rotary, attention and MLP side by side behind a norm each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout
from .hf import activation, partial_width, prefix_of, real, rotary, size
from .table import Table, fused, plan

BLOCK: Table = {
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn.o": "attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a GPT-NeoX configuration."""
    heads, d_model = size(config, "num_attention_heads"), size(config, "hidden_size")
    bias = bool(config.get("attention_bias", True))
    width = partial_width(config, d_model // heads, real(config, "rotary_pct", 0.25))
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "num_hidden_layers"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings"),
        attention=GroupedConfig(n_heads=heads, d_head=d_model // heads, bias=bias, output_bias=bias),
        mlp=MLPConfig(
            d_mlp=size(config, "intermediate_size"),
            act=activation(config.get("hidden_act", "gelu")),
            gated=False,
            bias=True,
        ),
        norm=NormConfig("layer", real(config, "layer_norm_eps", 1e-5)),
        positions=rotary(config, width=width, base=real(config, "rotary_emb_base", 10000)),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        arrangement="parallel" if config.get("use_parallel_residual", True) else "pre",
    )
    root = prefix_of(names, "gpt_neox.")
    ends: Table = {"embed": f"{root}embed_in", "ln_final": f"{root}final_layer_norm", "unembed": "embed_out"}
    block = {**BLOCK, **fused("attention.query_key_value", heads, (1, 1, 1))}
    return Layout(
        family="gpt_neox",
        config=model,
        plan=plan(model, root + "layers.{}.", block, ends),
        ignored=(r".*\.attention\.(masked_)?bias", r".*rotary_emb\.inv_freq"),
        tied_copy="embed_out.weight" if model.tie_embeddings else None,
        raw=config,
    )
