"""OLMo-2: norms behind attention and MLP, and one norm over all queries (and all keys) of a token."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.variant import QKNorm
from ..checkpoint import Layout
from .hf import real
from .llama import BLOCK, layout_of, model_of


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read an OLMo-2 configuration."""
    bias = bool(config.get("attention_bias", False))
    norm = QKNorm("before", eps=real(config, "rms_norm_eps", 1e-5), span="all")
    model = model_of({"rms_norm_eps": 1e-5, **config}, bias=bias, output_bias=bias, qk_norm=norm)
    block = {**BLOCK, "ln1_post": "post_attention_layernorm", "ln2_post": "post_feedforward_layernorm"}
    return layout_of(config, model.with_(arrangement="post"), names, block)
