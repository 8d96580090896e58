"""Llama and its like: separate projections, RMS norms, rotary positions, gated MLP."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout, Source
from .hf import activation, prefix_of, real, rotary, size


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Llama or Mistral configuration."""
    heads, d_model = size(config, "num_attention_heads"), size(config, "hidden_size")
    bias = bool(config.get("attention_bias", False))
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "num_hidden_layers"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings"),
        attention=GroupedConfig(
            n_heads=heads,
            n_kv_heads=size(config, "num_key_value_heads", heads),
            d_head=size(config, "head_dim", d_model // heads),
            bias=bias,
            output_bias=bias,
        ),
        mlp=MLPConfig(
            d_mlp=size(config, "intermediate_size"),
            act=activation(config.get("hidden_act", "silu")),
            gated=True,
            bias=bool(config.get("mlp_bias", False)),
        ),
        norm=NormConfig("rms", real(config, "rms_norm_eps")),
        positions=rotary(config),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
    root = prefix_of(names, "model.")
    window = config.get("sliding_window")
    return Layout(
        family=config["model_type"],
        config=model,
        plan=plan(model, root),
        ignored=(r".*rotary_emb\.inv_freq",),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only=None
        if window is None
        else f"its attention looks back over a sliding window ({window} tokens), which the wrapper does not do",
        raw=config,
    )


def plan(model: ModelConfig, root: str) -> dict[str, Source]:
    """Return where each parameter stands."""
    table = {
        "ln1.w": "input_layernorm.weight",
        "ln2.w": "post_attention_layernorm.weight",
        "attn.q": "self_attn.q_proj",
        "attn.k": "self_attn.k_proj",
        "attn.v": "self_attn.v_proj",
        "attn.o": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    }
    made = {
        "embed.weight": Source.of(f"{root}embed_tokens.weight"),
        "ln_final.w": Source.of(f"{root}norm.weight"),
    }
    if not model.tie_embeddings:
        made["unembed.weight"] = Source.of("lm_head.weight")
    biased = {"attn": model.attention.bias, "mlp": model.mlp is not None and model.mlp.bias}
    for layer in range(model.n_layers):
        for ours, theirs in table.items():
            here, there = f"blocks.{layer}.{ours}", f"{root}layers.{layer}.{theirs}"
            if ours.startswith("ln"):
                made[here] = Source.of(there)
                continue
            made[f"{here}.weight"] = Source.of(f"{there}.weight")
            if biased[ours.split(".")[0]]:
                made[f"{here}.bias"] = Source.of(f"{there}.bias")
    return made
