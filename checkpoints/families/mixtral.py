"""Mixtral: Llama with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.experts import ExpertsConfig
from ..checkpoint import Layout
from .hf import activation, optional_size, rotary, size, with_window
from .llama import BLOCK, layout_of, model_of
from .table import experts


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Mixtral configuration."""
    mixture = ExpertsConfig(
        n_experts=size(config, "num_local_experts", 8),
        n_active=size(config, "num_experts_per_tok", 2),
        d_mlp=size(config, "intermediate_size"),
        act=activation(config.get("hidden_act", "silu")),
        normalise=True,
    )
    model = model_of(config).with_(mlp=mixture, positions=rotary(config, base=1e6))
    model = with_window(model, [True] * model.n_layers, optional_size(config, "sliding_window"))
    stored = {part: f"block_sparse_moe.experts.{{}}.{name}.weight" for part, name in _NAMES.items()}
    block = {**BLOCK, "mlp.router": "block_sparse_moe.gate.weight", **experts(stored, mixture.n_experts)}
    return layout_of(config, model, names, block)


_NAMES = {"gate": "w1", "up": "w3", "down": "w2"}
