"""One file a family of checkpoints: what its configuration means, and where each weight comes from.

To add a family, write a file with a function ``layout(config, names) -> Layout`` and name it in `FAMILIES` by the
``model_type`` of its Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..checkpoint import Layout
from . import deepseek, gpt2, llama

FAMILIES: dict[str, Callable[[dict[str, Any], Collection[str]], Layout]] = {
    "llama": llama.layout,
    "mistral": llama.layout,
    "gpt2": gpt2.layout,
    "deepseek_v2": deepseek.layout,
    "deepseek_v3": deepseek.layout,
}
"""``model_type`` -> function of the configuration and the stored names."""
