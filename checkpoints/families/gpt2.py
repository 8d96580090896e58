"""GPT-2: queries, keys and values fused in one transposed matrix (Conv1D), layer norms, learned positions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ...models.per_layer import LayerChanges
from ..checkpoint import Layout, Source
from .hf import activation, prefix_of, real, size
from .table import Table, fused, plan, transposed

BLOCK: Table = {
    "ln1": "ln_1",
    "ln2": "ln_2",
    "attn.o": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a GPT-2 configuration."""
    model = model_of(config)
    if config.get("scale_attn_by_inverse_layer_idx", False):
        attention = model.attention
        scale = attention.score_scale(None)
        changes = [LayerChanges(attention=replace(attention, scale=scale / (i + 1))) for i in range(model.n_layers)]
        model = model.with_(by_layer=tuple(changes))
    turned = {ours: Source.of(str(BLOCK[ours]), transposed) for ours in ("attn.o", "mlp.up", "mlp.down")}
    heads = (model.attention.n_heads,) * 3
    return layout_of(config, model, names, {**BLOCK, **turned, **fused("attn.c_attn", 1, heads, transposed)})


def model_of(config: dict[str, Any], *, n_kv_heads: int | None = None, bias: bool = True) -> ModelConfig:
    """Return the model that a configuration of GPT-2's like describes; `bias` is that of its attention."""
    heads, d_model = size(config, "n_head"), size(config, "n_embd")
    scaled = config.get("scale_attn_weights", True)
    return ModelConfig(
        d_model=d_model,
        n_layers=size(config, "n_layer"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "n_positions"),
        attention=GroupedConfig(
            n_heads=heads,
            d_head=d_model // heads,
            scale=None if scaled else 1.0,
            n_kv_heads=n_kv_heads,
            bias=bias,
            output_bias=bias,
        ),
        mlp=MLPConfig(
            d_mlp=size(config, "n_inner", 4 * d_model),
            act=activation(config.get("activation_function", "gelu_new")),
            gated=False,
            bias=True,
        ),
        norm=NormConfig("layer", real(config, "layer_norm_epsilon", 1e-5)),
        positions="learned",
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
    )


def layout_of(config: dict[str, Any], model: ModelConfig, names: Collection[str], block: Table) -> Layout:
    """Return the layout of a model whose tensors outside its blocks are named as GPT-2's."""
    root = prefix_of(names, "transformer.")
    ends: Table = {
        "embed": f"{root}wte",
        "pos_embed": f"{root}wpe",
        "ln_final": f"{root}ln_f",
        "unembed": "lm_head",
    }
    return Layout(
        family=config["model_type"],
        config=model,
        plan=plan(model, root + "h.{}.", block, ends),
        ignored=(r".*\.attn\.(masked_)?bias",),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        raw=config,
    )
