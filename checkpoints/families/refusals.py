"""What is refused by name, whatever the family: packed weights, and layers that no family knows the keys of."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ...errors import CheckpointError
from ...models.config import ModelConfig

BORROWED = "its layers have no keys and values: they attend to those of another model"
KNOWN_REASONS = {
    "gemma4_assistant": BORROWED,
    "gemma4_unified_assistant": BORROWED,
    "mistral_large4": "a learned index chooses the keys that a query sees, and rotary frequencies are learned",
    "mamba": "it has no attention",
    "rwkv": "it has no attention",
    "t5": "its attention is not causal alone (encoder and decoder)",
}
"""``model_type`` -> why its layers have no heads to compare, for types that are often asked for."""

PACKED = {
    r"\.(qweight|qzeros)$": "GPTQ or AWQ",
    r"\.(weight_packed|weight_shape)$": "compressed-tensors",
    r"\.weight\.(absmax|quant_map|nested_absmax|quant_state\.\w+)$": "bitsandbytes, 4 bits",
    r"\.(SCB|weight_format)$": "bitsandbytes, 8 bits",
    r"_blocks$": "MXFP4",
    r"\.(weight_scale|weight_scale_inv|input_scale)$": "8-bit floats with scales",
}
"""Pattern of a stored name -> the method that stores such a thing beside (or in place of) a weight."""


def check(config: dict[str, Any], names: Collection[str], *, unpacked: bool) -> None:
    """Refuse what no family can read; `unpacked` says that the packing which `config` names is dealt with already.

    Raises
    ------
    CheckpointError
        Names the method, the field or the tensor, and the reason.
    """
    packing = config.get("quantization_config")
    if packing is not None and not unpacked:
        method = packing.get("quant_method") if isinstance(packing, dict) else packing
        raise CheckpointError(f"quantization_config says that the weights are packed ({method}): dequantise them first")
    if config.get("is_encoder_decoder"):
        raise CheckpointError("is_encoder_decoder is set: only models that are all decoder are read")
    # A text model beside others keeps its own fields one level down.
    for fields in (config, config.get("text_config") or {}):
        kinds = fields.get("layer_types")
        for layer, kind in enumerate(kinds if isinstance(kinds, list) else ()):
            if kind not in ("full_attention", "sliding_attention"):
                raise CheckpointError(
                    f"layer {layer} is of kind {kind!r}: only full_attention and sliding_attention are softmax "
                    "attention over keys of the layer's own"
                )
    for name in sorted(names):
        for pattern, method in PACKED.items():
            if re.search(pattern, name):
                raise CheckpointError(
                    f"tensor {name!r} says that the weights are packed ({method}): dequantise them first"
                )


def check_shared(config: dict[str, Any], model: ModelConfig) -> None:
    """Refuse a configuration whose layers share keys if its family has not said whose.

    Raises
    ------
    CheckpointError
        Names the field.
    """
    for fields in (config, config.get("text_config") or {}):
        if (count := fields.get("num_kv_shared_layers")) and model.n_layers_with_keys == model.n_layers:
            raise CheckpointError(
                f"num_kv_shared_layers is {count}: layers share the keys and values of others, and of this model_type "
                "it is not known which"
            )
