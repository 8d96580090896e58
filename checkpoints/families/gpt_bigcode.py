"""GPT-BigCode (StarCoder, SantaCoder): GPT-2 with one key and value for all heads, stored the usual way round."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..checkpoint import Layout
from .gpt2 import BLOCK, layout_of, model_of
from .table import fused


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a GPT-BigCode configuration."""
    one = bool(config.get("multi_query", True))
    model = model_of({"activation_function": "gelu_pytorch_tanh"} | config, n_kv_heads=1 if one else None)
    heads = model.attention.n_heads
    # One key and value stand behind all queries; a key and value of each head stand behind its query.
    order = fused("attn.c_attn", 1, (heads, 1, 1)) if one else fused("attn.c_attn", heads, (1, 1, 1))
    return layout_of(config, model, names, {**BLOCK, **order})
