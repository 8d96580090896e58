"""Qwen2 (biases on queries, keys and values) and Qwen3 (q/k norm); perhaps a window in the upper layers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...models.variant import QKNorm
from ..checkpoint import Layout
from .hf import optional_size, real, sliding_layers, with_window
from .llama import layout_of, model_of


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Qwen2 or Qwen3 configuration."""
    if config["model_type"] == "qwen2":
        model = model_of(config, bias=True)
    else:
        bias = bool(config.get("attention_bias", False))
        norm = QKNorm("before", eps=real(config, "rms_norm_eps"))
        model = model_of(config, d_head=128, bias=bias, output_bias=bias, qk_norm=norm)
    window = optional_size(config, "sliding_window") if config.get("use_sliding_window") else None
    first = real(config, "max_window_layers", model.n_layers)
    sliding = sliding_layers(config, [window is not None and layer >= first for layer in range(model.n_layers)])
    return layout_of(config, with_window(model, sliding, window), names)
