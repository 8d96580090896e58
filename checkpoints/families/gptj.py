"""GPT-J: attention and MLP side by side behind one norm, the first columns of a head turned in neighbouring pairs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ...models.rope import Rotary
from ..checkpoint import Layout
from .gpt2 import layout_of, model_of
from .hf import optional_size
from .table import Table

BLOCK: Table = {
    "ln1": "ln_1",
    "attn.q": "attn.q_proj",
    "attn.k": "attn.k_proj",
    "attn.v": "attn.v_proj",
    "attn.o": "attn.out_proj",
    "mlp.up": "mlp.fc_in",
    "mlp.down": "mlp.fc_out",
}


def layout(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a GPT-J configuration."""
    config = {"rotary_dim": 64, "tie_word_embeddings": False} | config
    model = model_of(config, bias=False)
    width = optional_size(config, "rotary_dim")
    model = model.with_(
        # Hugging Face's model scales by the head's width, whatever scale_attn_weights says.
        attention=replace(model.attention, scale=None),
        positions=Rotary(width=None if width == model.attention.d_key else width, interleaved=True),
        arrangement="parallel_one_norm",
        unembed_bias=True,
    )
    return layout_of(config, model, names, BLOCK)
