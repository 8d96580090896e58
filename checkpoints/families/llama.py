"""Llama and its like: separate projections, RMS norms, rotary positions, gated MLP."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout
from .hf import activation, optional_size, prefix_of, real, rotary, size, with_window
from .table import Table, plan

BLOCK: Table = {
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Llama or Mistral configuration; where Mistral's has a window, all layers have it."""
    bias = bool(config.get("attention_bias", False))
    model = model_of(config, bias=bias, output_bias=bias)
    if config["model_type"] == "mistral":
        model = with_window(model, [True] * model.n_layers, optional_size(config, "sliding_window"))
    return layout_of(config, model, names)


def model_of(config: dict[str, Any], *, d_head: int | None = None, **attention: Any) -> ModelConfig:
    """Return the model that a configuration of Llama's like describes.

    Parameters
    ----------
    config
        The configuration.
    d_head
        Width of a head where the configuration does not say; None: ``hidden_size / num_attention_heads``.
    attention
        Further choices for `GroupedConfig`.
    """
    heads, d_model = size(config, "num_attention_heads"), size(config, "hidden_size")
    return ModelConfig(
        d_model=d_model,
        n_layers=size(config, "num_hidden_layers"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings"),
        attention=GroupedConfig(
            n_heads=heads,
            n_kv_heads=size(config, "num_key_value_heads", heads),
            d_head=size(config, "head_dim", d_head or d_model // heads),
            **attention,
        ),
        mlp=MLPConfig(
            d_mlp=size(config, "intermediate_size"),
            act=activation(config.get("hidden_act", "silu")),
            bias=bool(config.get("mlp_bias", False)),
        ),
        norm=NormConfig("rms", real(config, "rms_norm_eps")),
        positions=rotary(config),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def layout_of(
    config: dict[str, Any],
    model: ModelConfig,
    names: Collection[str],
    block: Table = BLOCK,
    *,
    report_only: str | None = None,
) -> Layout:
    """Return the layout of a model whose tensors are named as Llama's, but for what its table of a block says.

    Parameters
    ----------
    config, model, names
        The configuration, the model that it describes, and the stored names.
    block
        The family's table of a block.
    report_only
        As in `Layout`.
    """
    root = prefix_of(names, "model.")
    ends: Table = {"embed": f"{root}embed_tokens", "ln_final": f"{root}norm", "unembed": "lm_head"}
    return Layout(
        family=config["model_type"],
        config=model,
        plan=plan(model, root + "layers.{}.", block, ends),
        ignored=(r".*rotary_emb\.inv_freq",),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only=report_only,
        raw=config,
    )
