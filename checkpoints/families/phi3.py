"""Phi-3: Llama with queries, keys and values in one matrix, and gate and input of the MLP in another."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..checkpoint import Layout
from .hf import optional_size, partial_width, rope_parameters, rotary, with_window
from .llama import BLOCK, layout_of, model_of
from .table import fused, halves


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Phi-3 configuration; older ones call LongRoPE ``su`` or ``yarn``."""
    kind = rope_parameters(config)["rope_type"]
    long = kind in ("longrope", "su", "yarn")
    read = config
    if long:
        read = config | {"rope_scaling": {**rope_parameters(config), "rope_type": "longrope"}}
    model = model_of(read | {"rope_scaling": None, "rope_parameters": None} if long else read)
    model = model.with_(positions=rotary(read, width=partial_width(read, model.attention.d_key)))
    model = with_window(model, [True] * model.n_layers, optional_size(config, "sliding_window"))
    heads, groups = model.attention.n_heads, model.attention.n_groups
    block = {**BLOCK, **fused("self_attn.qkv_proj", 1, (heads, groups, groups)), **halves("mlp.gate_up_proj")}
    reason = (
        "its rotary frequencies change with the length of the input (longrope); the report takes those of the original "
        "context"
    )
    return layout_of(config, model, names, block, report_only=reason if long else None)
