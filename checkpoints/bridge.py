"""Any causal model of Hugging Face in TransformerLens's bridge; what goes wrong there is refused or mended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from . import hub

LACKS = (
    "in TransformerLens's bridge: whole forward passes through Hugging Face's own code, with TransformerLens's "
    "head-level hook names; no factors (so no report), keys not split into shared and private, no hook points of "
    "latents, and none of headscope's own decoding"
)
"""What a bridged model is, and what it lacks beside the wrapper."""
TOLERANCE = 1e-3
"""Largest difference from Hugging Face's logits, in the largest of them, that passes for rounding."""


def load_bridge(
    path: str | os.PathLike[str], device_map: str | None = None, *, dtype: torch.dtype | None = None
) -> tuple[Any, Any]:
    """Load a Hugging Face model into TransformerLens's bridge, and its tokenizer.

    Its logits on a short row are compared with Hugging Face's own before it is given out.

    Parameters
    ----------
    path
        Directory with config, weights and tokenizer (nothing is fetched then), or the name of a hub model.
    device_map
        As for Hugging Face (``"auto"`` spreads a large model over what there is, through accelerate); None: the CPU.
    dtype
        Type to compute in; None: as Hugging Face chooses.

    Raises
    ------
    CheckpointError
        If there is no such model, or the bridge does not compute what Hugging Face does.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    place = hub.fetch(str(path)) if hub.is_model_name(path) else Path(path).expanduser()
    if not (place / "config.json").exists():
        raise CheckpointError(f"{path} is no Hugging Face directory: it has no config.json")
    options: dict[str, Any] = {"device_map": device_map} | ({} if dtype is None else {"dtype": dtype})
    try:
        _refuse(path, AutoConfig.from_pretrained(place, local_files_only=True))
        plain = AutoModelForCausalLM.from_pretrained(place, local_files_only=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be loaded by transformers: {str(error).splitlines()[0]}") from error
    return bridged(plain.eval(), str(path), tokenizer), tokenizer


def bridged(plain: Any, name: str, tokenizer: Any = None) -> Any:
    """Return a Hugging Face model in the bridge, mended, with the same logits; the model itself is changed by it.

    Raises
    ------
    CheckpointError
        If the bridge does not know the architecture, or does not compute what Hugging Face does.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    _refuse(name, plain.config)
    tokens = torch.arange(2, 10, device=plain.device)[None] % plain.config.vocab_size
    with torch.no_grad():
        expected = plain(tokens).logits.float()
        try:
            bridge = build_bridge_from_module(plain, type(plain).__name__, hf_config=plain.config, tokenizer=tokenizer)
        except ValueError as error:
            raise CheckpointError(f"{name} is not carried by TransformerLens's bridge: {error}") from error
        _mend(bridge, plain.config)
        apart = (bridge(tokens).float() - expected).abs().max() / expected.abs().max()
    if not float(apart) <= TOLERANCE:
        raise CheckpointError(
            f"{name} ({type(plain).__name__}) gives other logits in TransformerLens's bridge than in Hugging Face's "
            f"own code (apart by {float(apart):.2g} of the largest): it cannot be used there"
        )
    return bridge


def _refuse(path: Any, config: Any) -> None:
    """Refuse what TransformerLens 4.3 splits into heads wrongly, or not at all."""
    kind = config.model_type
    if kind == "falcon" and config.new_decoder_architecture:
        raise CheckpointError(
            f"{path} is a Falcon of the new decoder architecture, whose fused projection interleaves queries with "
            "their group's key and value; TransformerLens's bridge reads it as one block after the other"
        )
    if kind == "gpt_bigcode" and not config.multi_query:
        raise CheckpointError(
            f"{path} is a GPT-BigCode with multi_query false, which TransformerLens's bridge does not carry"
        )


def _mend(bridge: Any, config: Any) -> None:
    """Split the input of latent attention's output projection by the width of a value, not by the rotary one."""
    width = getattr(config, "v_head_dim", None)
    if width is None or getattr(config, "kv_lora_rank", None) is None:
        return
    for block in bridge.blocks:
        split = block.attn.o.hook_in.hook_conversion
        split.n_heads, split.d_head = config.num_attention_heads, width
