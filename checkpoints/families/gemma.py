"""Gemma 1 to 3: gains stored as differences from 1, a scaled embedding, heads wider than their share.

Gemma 2 adds norms behind attention and MLP, caps on scores and logits, and a window in every other layer; Gemma 3 drops
the caps, norms queries and keys, and gives the layers with a window rotary positions of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...errors import CheckpointError
from ...models.config import ModelConfig
from ...models.variant import QKNorm
from ..checkpoint import Layout, Source
from .hf import optional_real, optional_size, real, root_of, rotary, size, sliding_layers, with_window
from .llama import BLOCK, model_of
from .table import Table, plan, plus_one

DEFAULTS = {"head_dim": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
TEXT_DEFAULTS = DEFAULTS | {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
"""What released configurations of Gemma 3 leave out."""

_GAINS = ("ln1", "ln1_post", "ln2", "ln2_post", "attn.q_norm", "attn.k_norm")
SANDWICH = {
    "ln1_post": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ln2_post": "post_feedforward_layernorm",
}


def gemma(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Gemma 1 configuration; its ``gelu`` is the tanh approximation, whatever it is called."""
    config = DEFAULTS | config
    given = config.get("hidden_act", "gelu_pytorch_tanh")
    act = "gelu_pytorch_tanh" if given == "gelu" else given
    return _layout(config, gemma_model(config | {"hidden_act": act}), names, BLOCK)


def gemma2(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Gemma 2 configuration."""
    config = DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} | config
    model = gemma_model(
        config,
        scale=real(config, "query_pre_attn_scalar", 256) ** -0.5,
        softcap=optional_real(config, "attn_logit_softcapping"),
    ).with_(arrangement="sandwich", logit_softcap=optional_real(config, "final_logit_softcapping"))
    sliding = sliding_layers(config, [layer % 2 == 0 for layer in range(model.n_layers)])
    model = with_window(model, sliding, optional_size({"sliding_window": 4096} | config, "sliding_window"))
    return _layout(config, model, names, {**BLOCK, **SANDWICH})


def gemma3(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Gemma 3 configuration, of the text model or of the one that also sees (whose text model is taken)."""
    text = TEXT_DEFAULTS | (config.get("text_config") or config)
    if text.get("attn_logit_softcapping") is not None:
        raise CheckpointError("attn_logit_softcapping: Gemma 3 caps no scores, and Hugging Face's model ignores it")
    norm = QKNorm("before", eps=real(text, "rms_norm_eps"))
    whole, local = (rope_of(text, *kind) for kind in ROPES)
    model = gemma_model(whole, scale=real(text, "query_pre_attn_scalar", 256) ** -0.5, qk_norm=norm)
    model = model.with_(arrangement="sandwich", logit_softcap=optional_real(text, "final_logit_softcapping"))
    every = size(text, "sliding_window_pattern", 6)
    sliding = sliding_layers(text, [(layer + 1) % every != 0 for layer in range(model.n_layers)])
    model = with_window(model, sliding, optional_size(text, "sliding_window"), rotary(local))
    return _layout(text | {"model_type": config["model_type"]}, model, names, {**BLOCK, **SANDWICH})


ROPES = (("full_attention", "rope_theta", 1e6), ("sliding_attention", "rope_local_base_freq", 1e4))


def rope_of(config: dict[str, Any], kind: str, old_name: str, base: float) -> dict[str, Any]:
    """Return the configuration with the rotary parameters of one kind of layer in the usual place."""
    nested = config.get("rope_parameters")
    given = dict((nested or {}).get(kind) or {})
    if kind == "full_attention":  # the older spelling scales these layers alone
        given |= config.get("rope_scaling") or {}
    given.setdefault("rope_theta", real(config, old_name, base))
    return config | {"rope_parameters": given, "rope_scaling": None}


def gemma_model(config: dict[str, Any], **attention: Any) -> ModelConfig:
    """Return the model that a configuration of Gemma's like describes, with further choices for its attention."""
    if config.get("use_bidirectional_attention"):
        raise CheckpointError("use_bidirectional_attention: its layers look ahead, and only causal attention is read")
    bias = bool(config.get("attention_bias", False))
    read = {"hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh"} | config
    model = model_of(read, bias=bias, output_bias=bias, **attention)
    return model.with_(embed_scale=model.d_model**0.5)


def _layout(config: dict[str, Any], model: ModelConfig, names: Collection[str], block: Table) -> Layout:
    root = root_of(names, "embed_tokens.weight")
    gains = {name: Source.of(str(block[name]), plus_one) for name in _GAINS if name in block}
    head = next((name for name in sorted(names) if name.endswith("lm_head.weight")), "lm_head.weight")
    ends: Table = {
        "embed": f"{root}embed_tokens",
        "ln_final": Source.of(f"{root}norm", plus_one),
        "unembed.weight": head,
    }
    return Layout(
        family=config["model_type"],
        config=model,
        plan=plan(model, root + "layers.{}.", {**block, **gains}, ends),
        ignored=(r".*rotary_emb\.inv_freq", r".*vision_tower\..*", r".*multi_modal_projector\..*"),
        tied_copy=head if model.tie_embeddings else None,
        raw=config,
    )
