"""DeepSeek-V2, V2-Lite and V3: multi-head latent attention; experts in most layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from ...models.config import ModelConfig
from ...models.mla import MLAConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout, Source
from .hf import activation, prefix_of, real, rotary, size


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a DeepSeek-V2 or V3 configuration.

    Head widths are ``qk_nope_head_dim`` and ``qk_rope_head_dim``; a ``head_dim`` beside them is ignored, since some
    released configurations give it a value that no weight has.
    """
    n_layers = size(config, "num_hidden_layers")
    second = config["model_type"] == "deepseek_v2"
    dense = min(int(real(config, "first_k_dense_replace", 0)), n_layers)
    d_nope, d_rope = size(config, "qk_nope_head_dim"), size(config, "qk_rope_head_dim")
    # Version 2 has no such choice: whatever stands there, its pairs are neighbours.
    interleaved = second or bool(config.get("rope_interleave", True))
    positions = rotary(config, width=d_rope, interleaved=interleaved)
    bias = bool(config.get("attention_bias", False))
    model = ModelConfig(
        d_model=size(config, "hidden_size"),
        n_layers=n_layers,
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings"),
        attention=MLAConfig(
            n_heads=size(config, "num_attention_heads"),
            d_latent=size(config, "kv_lora_rank"),
            d_nope=d_nope,
            d_rope=d_rope,
            d_value_head=size(config, "v_head_dim"),
            d_q_latent=None if config.get("q_lora_rank") is None else size(config, "q_lora_rank"),
            bias=bias,
            output_bias=bias,
        ),
        mlp=MLPConfig(
            d_mlp=size(config, "intermediate_size"),
            act=activation(config.get("hidden_act", "silu")),
            bias=second and bool(config.get("mlp_bias", False)),
        ),
        norm=NormConfig("rms", real(config, "rms_norm_eps")),
        positions=positions,
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
    return Layout(
        family=config["model_type"],
        config=model,
        plan=plan(model, prefix_of(names, "model.")),
        ignored=(r".*rotary_emb\.inv_freq",),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only=None
        if dense == n_layers
        else f"layers {dense}–{n_layers - 1} are mixtures of experts, which the wrapper does not carry",
        raw=config,
    )


def plan(model: ModelConfig, root: str) -> dict[str, Source]:
    """Return where each parameter stands."""
    mla = model.attention
    if not isinstance(mla, MLAConfig):
        raise TypeError(f"expected MLAConfig but got {type(mla).__name__}")
    table = {
        "ln1.w": Source.of("input_layernorm.weight"),
        "ln2.w": Source.of("post_attention_layernorm.weight"),
        "attn.latent_norm.w": Source.of("self_attn.kv_a_layernorm.weight"),
        "attn.kv_down.weight": Source.of("self_attn.kv_a_proj_with_mqa.weight", lambda w: w[: mla.d_latent]),
        "attn.k_rot.weight": Source.of("self_attn.kv_a_proj_with_mqa.weight", lambda w: w[mla.d_latent :]),
        "attn.k_up.weight": Source.of("self_attn.kv_b_proj.weight", _rows(mla, slice(0, mla.d_nope))),
        "attn.v_up.weight": Source.of("self_attn.kv_b_proj.weight", _rows(mla, slice(mla.d_nope, None))),
        "attn.o.weight": Source.of("self_attn.o_proj.weight"),
        "mlp.gate.weight": Source.of("mlp.gate_proj.weight"),
        "mlp.up.weight": Source.of("mlp.up_proj.weight"),
        "mlp.down.weight": Source.of("mlp.down_proj.weight"),
    }
    if mla.d_q_latent is None:
        table["attn.q.weight"] = Source.of("self_attn.q_proj.weight")
    else:
        table["attn.q_down.weight"] = Source.of("self_attn.q_a_proj.weight")
        table["attn.q_latent_norm.w"] = Source.of("self_attn.q_a_layernorm.weight")
        table["attn.q_up.weight"] = Source.of("self_attn.q_b_proj.weight")
    if mla.bias:
        table["attn.kv_down.bias"] = Source.of("self_attn.kv_a_proj_with_mqa.bias", lambda b: b[: mla.d_latent])
        table["attn.k_rot.bias"] = Source.of("self_attn.kv_a_proj_with_mqa.bias", lambda b: b[mla.d_latent :])
        if mla.d_q_latent is not None:
            table["attn.q_down.bias"] = Source.of("self_attn.q_a_proj.bias")
    if model.mlp is not None and model.mlp.bias:
        table |= {f"mlp.{part}.bias": Source.of(f"mlp.{part}_proj.bias") for part in ("gate", "up", "down")}
    if mla.output_bias:
        table["attn.o.bias"] = Source.of("self_attn.o_proj.bias")
    made = {
        "embed.weight": Source.of(f"{root}embed_tokens.weight"),
        "ln_final.w": Source.of(f"{root}norm.weight"),
    }
    if not model.tie_embeddings:
        made["unembed.weight"] = Source.of("lm_head.weight")
    for layer in range(model.n_layers):
        for ours, source in table.items():
            stored = tuple(f"{root}layers.{layer}.{name}" for name in source.names)
            made[f"blocks.{layer}.{ours}"] = Source(stored, source.make)
    return made


def _rows(mla: MLAConfig, part: slice) -> Callable[[Tensor], Tensor]:
    """Return the function that takes the key's (or value's) rows of every head out of the fused up-projection."""

    def take(fused: Tensor) -> Tensor:
        return fused.unflatten(0, (mla.n_heads, mla.d_nope + mla.d_value_head))[:, part].flatten(0, 1)

    return take
