"""One file a family of checkpoints: what its configuration means, and where each weight comes from.

To add a family, write a file with a function ``layout(config, names) -> Layout`` and name it in `FAMILIES` by the
``model_type`` of its Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..checkpoint import Layout
from . import (
    bloom,
    deepseek,
    falcon,
    gemma,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    gptj,
    llama,
    mixtral,
    mpt,
    olmo2,
    opt,
    phi3,
    qwen,
    shared_keys,
)

FAMILIES: dict[str, Callable[[dict[str, Any], Collection[str]], Layout]] = {
    "bloom": bloom.layout,
    "deepseek_v2": deepseek.layout,
    "deepseek_v3": deepseek.layout,
    "falcon": falcon.layout,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3": gemma.gemma3,
    "gemma3_text": gemma.gemma3,
    "gemma3n": shared_keys.gemma3n,
    "gemma3n_text": shared_keys.gemma3n,
    "gemma4": shared_keys.gemma4,
    "gemma4_text": shared_keys.gemma4,
    "gemma4_unified": shared_keys.gemma4,
    "gemma4_unified_text": shared_keys.gemma4,
    "gpt2": gpt2.layout,
    "gpt_bigcode": gpt_bigcode.layout,
    "gpt_neox": gpt_neox.layout,
    "gptj": gptj.layout,
    "llama": llama.layout,
    "mistral": llama.layout,
    "mixtral": mixtral.layout,
    "mpt": mpt.layout,
    "olmo2": olmo2.layout,
    "opt": opt.layout,
    "phi3": phi3.layout,
    "qwen2": qwen.layout,
    "qwen3": qwen.layout,
}
"""``model_type`` -> function of the configuration and the stored names."""
