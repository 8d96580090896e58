"""Gemma 3n and Gemma 4: upper layers that attend to the keys and values of lower ones.

From some layer on, every layer takes keys and values from the last layer of its kind (full or sliding attention) below;
only queries and outputs are its own. Both networks have parts that headscope does not run: they are reported on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError
from ...models.config import ModelConfig
from ...models.per_layer import LayerChanges
from ...models.variant import QKNorm
from ..checkpoint import Layout
from .gemma import ROPES, SANDWICH, gemma_model, rope_of
from .hf import optional_real, real, root_of, size, sliding_layers
from .llama import BLOCK
from .table import Table, plan

COMMON = {
    "num_attention_heads": 8,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "sliding_window": 512,
}
DEFAULTS_3N = COMMON | {
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 35,
    "num_key_value_heads": 2,
    "vocab_size": 262400,
    "max_position_embeddings": 32768,
    "final_logit_softcapping": 30.0,
    "num_kv_shared_layers": 15,
}
DEFAULTS_4 = COMMON | {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_key_value_heads": 4,
    "global_head_dim": 512,
    "vocab_size": 262144,
    "max_position_embeddings": 131072,
}
"""What configurations may leave out."""
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}

VALUE_NORM = "value norm: its data-dependent scalar per head and token is not part of the forms"
KEYS_AS_VALUES = "full-attention layers make values with the key projection (attention_k_eq_v)"
NOT_RUN_3N = "AltUp mixes its streams, and its layers have Laurel and inputs of their own (none of it is counted)"
NOT_RUN_4 = "its values go through a norm, and its layers may have inputs of their own and experts (not counted)"

_BLOCK: Table = {**BLOCK, **SANDWICH}


def gemma3n(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Gemma 3n configuration, of the text model or of the one that also sees and hears."""
    text = DEFAULTS_3N | (config.get("text_config") or config)
    sliding = sliding_layers(text, [(layer + 1) % 5 != 0 for layer in range(size(text, "num_hidden_layers"))])
    widths = text["intermediate_size"]
    if not isinstance(widths, list):
        widths = [widths] * len(sliding)
    if len(widths) != len(sliding):
        raise CheckpointError(f"'intermediate_size' should be a number or {len(sliding)} of them but is {widths}")
    model = _model(text, sliding, [{"intermediate_size": width} for width in widths])
    return _layout(config, model, names, lambda layer: _BLOCK, NOT_RUN_3N)


def gemma4(config: dict[str, Any], names: Collection[str]) -> Layout:
    """Read a Gemma 4 configuration, of the text model or of one around it; heads are wider where attention is full."""
    text = DEFAULTS_4 | (config.get("text_config") or config)
    if text.get("use_bidirectional_attention") == "all":
        raise CheckpointError("use_bidirectional_attention: its layers look ahead, and only causal attention is read")
    text["use_bidirectional_attention"] = None  # within an image ("vision"), which is no text
    if text.get("rope_parameters") is None:
        text["rope_parameters"] = {"full_attention": PROPORTIONAL}
    count = size(text, "num_hidden_layers")
    sliding = sliding_layers(text, [(layer + 1) % 6 != 0 for layer in range(count)])
    sliding[-1] = False  # whatever the configuration says, as in Hugging Face's model
    model = _model(text, sliding, _own_of_gemma4(text, sliding))
    if not text.get("attention_k_eq_v", False):
        return _layout(config, model, names, lambda layer: _BLOCK, NOT_RUN_4)
    by_keys = {**_BLOCK, "attn.v": _BLOCK["attn.k"]}
    made = _layout(config, model, names, lambda layer: _BLOCK if sliding[layer] else by_keys, NOT_RUN_4)
    return replace(made, notes=(*made.notes, KEYS_AS_VALUES))


def _own_of_gemma4(text: dict[str, Any], sliding: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the fields of the configuration that each layer has of its own, older spelling or new."""
    own: list[dict[str, Any]] = [{} for _ in sliding]
    given = text.get("per_layer_config")
    if given is None:
        wide = {"head_dim": text["global_head_dim"]}
        if text.get("attention_k_eq_v", False) and text.get("num_global_key_value_heads") is not None:
            wide["num_key_value_heads"] = text["num_global_key_value_heads"]
        given = {layer: wide for layer, slides in enumerate(sliding) if not slides}
    for layer, fields in given.items():
        if not str(layer).isdecimal() or int(layer) >= len(own):
            raise CheckpointError(f"per_layer_config names layer {layer!r}, but there are layers 0–{len(own) - 1}")
        own[int(layer)] |= fields
    if text.get("use_double_wide_mlp", False):
        for fields in own[_first_shared(text, len(sliding)) :]:
            fields["intermediate_size"] = 2 * size(text, "intermediate_size")
    return own


def _model(text: dict[str, Any], sliding: Sequence[bool], own: Sequence[dict[str, Any]]) -> ModelConfig:
    """Return the model; `own` are fields of the configuration that stand for one layer alone."""
    norm = QKNorm("before", eps=real(text, "rms_norm_eps"))
    models = []
    for slides, fields in zip(sliding, own, strict=True):
        model = gemma_model(rope_of(text | fields, *ROPES[slides]), scale=1.0, qk_norm=norm)
        window = size(text, "sliding_window") if slides else None
        models.append(model.with_(attention=replace(model.attention, window=window)))
    sources = _sources(sliding, _first_shared(text, len(sliding)))
    whole = models[sliding.index(False)] if False in sliding else models[0]
    return whole.with_(
        arrangement="sandwich",
        logit_softcap=optional_real(text, "final_logit_softcapping"),
        by_layer=tuple(
            LayerChanges(attention=model.attention, positions=model.positions, mlp=model.mlp, keys_from=source)
            for model, source in zip(models, sources, strict=True)
        ),
    )


def _first_shared(text: dict[str, Any], count: int) -> int:
    """Return the first layer without keys of its own."""
    return count - size(text, "num_kv_shared_layers") if text.get("num_kv_shared_layers") else count


def _sources(sliding: Sequence[bool], first: int) -> list[int | None]:
    """Return for each layer the one that it takes keys from: from layer `first` on the last of its kind below."""
    if first < 1:
        raise CheckpointError(f"num_kv_shared_layers leaves none of {len(sliding)} layers with keys of its own")
    own = {slides: layer for layer, slides in enumerate(sliding[:first])}
    missing = [layer for layer, slides in enumerate(sliding) if slides not in own]
    if missing:
        raise CheckpointError(f"layer {missing[0]} shares keys, but no layer of its kind below layer {first} has any")
    return [None if layer < first else own[slides] for layer, slides in enumerate(sliding)]


def _layout(
    config: dict[str, Any], model: ModelConfig, names: Collection[str], block: Callable[[int], Table], reason: str
) -> Layout:
    root = root_of(names, "embed_tokens.weight")
    ends: Table = {"embed": f"{root}embed_tokens", "ln_final": f"{root}norm", "unembed": "lm_head"}
    return Layout(
        family=config["model_type"],
        config=model,
        plan=plan(model, root + "layers.{}.", block, ends),
        report_only=reason,
        notes=(VALUE_NORM,),
        raw=config,
    )
