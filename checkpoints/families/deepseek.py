"""DeepSeek-V2, V2-Lite and V3: multi-head latent attention; experts in most layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...models.config import ModelConfig
from ...models.experts import ExpertsConfig
from ...models.mla import MLAConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ...models.per_layer import LayerChanges
from ..checkpoint import Layout, Source
from .hf import activation, optional_size, real, rotary, size
from .llama import BLOCK, layout_of
from .table import Table, experts


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a DeepSeek-V2 or V3 configuration.

    Head widths are ``qk_nope_head_dim`` and ``qk_rope_head_dim``; a ``head_dim`` beside them is ignored, since some
    released configurations give it a value that no weight has.
    """
    n_layers = size(config, "num_hidden_layers")
    second = config["model_type"] == "deepseek_v2"
    # Version 2 has no such choice: whatever stands there, its pairs are neighbours.
    interleaved = second or bool(config.get("rope_interleave", True))
    bias = bool(config.get("attention_bias", False))
    dense = MLPConfig(
        d_mlp=size(config, "intermediate_size"),
        act=activation(config.get("hidden_act", "silu")),
        bias=second and bool(config.get("mlp_bias", False)),
    )
    first = min(int(real(config, "first_k_dense_replace", 0)), n_layers)
    mixture = None if first == n_layers else _experts(config, dense, second)
    mla = MLAConfig(
        n_heads=size(config, "num_attention_heads"),
        d_latent=size(config, "kv_lora_rank"),
        d_nope=size(config, "qk_nope_head_dim"),
        d_rope=size(config, "qk_rope_head_dim"),
        d_value_head=size(config, "v_head_dim"),
        d_q_latent=optional_size(config, "q_lora_rank"),
        bias=bias,
        output_bias=bias,
    )
    model = ModelConfig(
        d_model=size(config, "hidden_size"),
        n_layers=n_layers,
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "max_position_embeddings"),
        attention=mla,
        mlp=mixture or dense,
        norm=NormConfig("rms", real(config, "rms_norm_eps")),
        positions=rotary(config, width=mla.d_rope, interleaved=interleaved),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        by_layer=(LayerChanges(mlp=dense),) * first + (None,) * (n_layers - first) if mixture and first else (),
    )
    made = layout_of(config, model, names, {**BLOCK, **_attention(mla), **(_mixture(mixture) if mixture else {})})
    # Layers behind the last one predict further tokens while training, and are no part of the model.
    extra = range(n_layers, n_layers + int(real(config, "num_nextn_predict_layers", 0)))
    return replace(made, ignored=(*made.ignored, *(rf".*layers\.{layer}\..*" for layer in extra)))


def _experts(config: dict[str, Any], dense: MLPConfig, second: bool) -> ExpertsConfig:
    """Return the mixture; version 2 takes no notice of ``norm_topk_prob``, as in Hugging Face's model."""
    width = size(config, "moe_intermediate_size")
    grouped = not second or config.get("topk_method") == "group_limited_greedy"
    return ExpertsConfig(
        n_experts=size(config, "n_routed_experts"),
        n_active=size(config, "num_experts_per_tok"),
        d_mlp=width,
        act=dense.act,
        shared=MLPConfig(d_mlp=width * size(config, "n_shared_experts"), act=dense.act, bias=dense.bias),
        scores="softmax" if second else "sigmoid",
        correction=not second,
        n_groups=size(config, "n_group", None if second else 8) if grouped else 1,
        n_active_groups=size(config, "topk_group", None if second else 4) if grouped else 1,
        group_score="best" if second else "best_two",
        normalise=not second and bool(config.get("norm_topk_prob", True)),
        factor=real(config, "routed_scaling_factor", 1.0 if second else 2.5),
    )


def _attention(mla: MLAConfig) -> Table:
    def latent(rows: Tensor) -> Tensor:
        return rows[: mla.d_latent]

    def rotated(rows: Tensor) -> Tensor:
        return rows[mla.d_latent :]

    return {
        "attn.q_down": "self_attn.q_a_proj",
        "attn.q_latent_norm": "self_attn.q_a_layernorm",
        "attn.q_up": "self_attn.q_b_proj",
        "attn.kv_down": Source.of("self_attn.kv_a_proj_with_mqa", latent),
        "attn.k_rot": Source.of("self_attn.kv_a_proj_with_mqa", rotated),
        "attn.latent_norm": "self_attn.kv_a_layernorm",
        "attn.k_up": Source.of("self_attn.kv_b_proj", _rows(mla, slice(0, mla.d_nope))),
        "attn.v_up": Source.of("self_attn.kv_b_proj", _rows(mla, slice(mla.d_nope, None))),
    }


def _mixture(mixture: ExpertsConfig) -> Table:
    stored = {part: f"mlp.experts.{{}}.{part}_proj.weight" for part in ("gate", "up", "down")}
    shared = {f"mlp.shared.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}
    return {
        "mlp.router": "mlp.gate.weight",
        "mlp.correction": "mlp.gate.e_score_correction_bias",
        **experts(stored, mixture.n_experts),
        **shared,
    }


def _rows(mla: MLAConfig, part: slice) -> Callable[[Tensor], Tensor]:
    """Return the function that takes the key's (or value's) rows of every head out of the fused up-projection."""

    def take(stored: Tensor) -> Tensor:
        return stored.unflatten(0, (mla.n_heads, mla.d_nope + mla.d_value_head))[:, part].flatten(0, 1)

    return take
