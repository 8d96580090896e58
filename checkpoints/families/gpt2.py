"""GPT-2: queries, keys and values fused in one transposed matrix (Conv1D), layer norms, learned positions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from ...models.config import ModelConfig
from ...models.grouped import GroupedConfig
from ...models.mlp import MLPConfig
from ...models.norms import NormConfig
from ..checkpoint import Layout, Source
from .hf import activation, prefix_of, real, size


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a GPT-2 configuration."""
    heads, d_model = size(config, "n_head"), size(config, "n_embd")
    scaled = config.get("scale_attn_weights", True)
    model = ModelConfig(
        d_model=d_model,
        n_layers=size(config, "n_layer"),
        d_vocab=size(config, "vocab_size"),
        n_ctx=size(config, "n_positions"),
        attention=GroupedConfig(
            n_heads=heads, d_head=d_model // heads, bias=True, output_bias=True, scale=None if scaled else 1.0
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
    by_layer = config.get("scale_attn_by_inverse_layer_idx", False)
    return Layout(
        family="gpt2",
        config=model,
        plan=plan(model, prefix_of(names, "transformer.")),
        ignored=(r".*\.attn\.(masked_)?bias",),
        tied_copy="lm_head.weight" if model.tie_embeddings else None,
        report_only="its score scale differs by layer (scale_attn_by_inverse_layer_idx)" if by_layer else None,
        raw=config,
    )


def plan(model: ModelConfig, root: str) -> dict[str, Source]:
    """Return where each parameter stands."""
    made = {
        "embed.weight": Source.of(f"{root}wte.weight"),
        "pos_embed.weight": Source.of(f"{root}wpe.weight"),
        "ln_final.w": Source.of(f"{root}ln_f.weight"),
        "ln_final.b": Source.of(f"{root}ln_f.bias"),
    }
    if not model.tie_embeddings:
        made["unembed.weight"] = Source.of("lm_head.weight")
    for layer in range(model.n_layers):
        here, there = f"blocks.{layer}.", f"{root}h.{layer}."
        for ours, theirs in (("ln1", "ln_1"), ("ln2", "ln_2")):
            made[f"{here}{ours}.w"] = Source.of(f"{there}{theirs}.weight")
            made[f"{here}{ours}.b"] = Source.of(f"{there}{theirs}.bias")
        for index, ours in enumerate("qkv"):
            for kind in ("weight", "bias"):
                made[f"{here}attn.{ours}.{kind}"] = Source.of(f"{there}attn.c_attn.{kind}", _part(index))
        for ours, theirs in (("attn.o", "attn.c_proj"), ("mlp.up", "mlp.c_fc"), ("mlp.down", "mlp.c_proj")):
            made[f"{here}{ours}.weight"] = Source.of(f"{there}{theirs}.weight", lambda w: w.t())
            made[f"{here}{ours}.bias"] = Source.of(f"{there}{theirs}.bias")
    return made


def _part(index: int) -> Callable[[Tensor], Tensor]:
    """Return the function that takes one of the three fused projections (or biases) and turns it the usual way."""

    def take(fused: Tensor) -> Tensor:
        third = fused.unflatten(-1, (3, -1))[..., index, :]
        return third.T if third.ndim == 2 else third

    return take
