"""OPT: separate projections with biases, learned positions that begin at the third stored row."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import CheckpointError
from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout, Source
from .hf import activation, prefix_of, size
from .table import Table, plan

BLOCK: Table = {
    "ln1": "self_attn_layer_norm",
    "ln2": "final_layer_norm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.out_proj",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read an OPT configuration."""
    if not config.get("layer_norm_elementwise_affine", True):
        raise CheckpointError("layer_norm_elementwise_affine is false: layer norms without a gain are not read")
    heads, d_model = size(config, "num_attention_heads"), size(config, "hidden_size")
    bias = bool(config.get("enable_bias", True))
    before = bool(config.get("do_layer_norm_before", True))
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "num_hidden_layers"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings"),
        attention=GroupedConfig(n_heads=heads, d_head=d_model // heads, bias=bias, output_bias=bias),
        mlp=MLPConfig(
            d_mlp=size(config, "ffn_dim"),
            act=activation(config.get("activation_function", "relu")),
            gated=False,
            bias=bias,
        ),
        norm=NormConfig("layer", 1e-5),
        positions="learned",
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        # Norms that stand behind the addition are no part of what attention reads: none is folded into its forms.
        arrangement="pre" if before else "post",
    )
    root = prefix_of(names, "model.") + "decoder."
    ends: Table = {
        "embed": f"{root}embed_tokens",
        "pos_embed": Source.of(f"{root}embed_positions", lambda rows: rows[2:]),
        "ln_final": f"{root}final_layer_norm",
        "unembed": "lm_head",
    }
    return Layout(
        family="opt",
        config=model,
        plan=plan(model, root + "layers.{}.", BLOCK, ends),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only=_not_run(config, before, d_model),
        raw=config,
    )


def _not_run(config: dict[str, Any], before: bool, d_model: int) -> str | None:
    if not before:
        return "its norms stand behind the sum of stream and attention (do_layer_norm_before is false)"
    if size(config, "word_embed_proj_dim", d_model) != d_model:
        return "its embedding goes through a projection (word_embed_proj_dim)"
    return "it has no last norm (_remove_final_layer_norm)" if config.get("_remove_final_layer_norm") else None
