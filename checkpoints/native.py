"""headscope's own format: ``config.json`` and safetensors (sharded if large), names as in the model."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.hooked import HookedModel
from .checkpoint import Layout, Source

FORMAT = "headscope"
VERSION = 1


def layout(config: dict[str, Any]) -> Layout:
    """Read a native ``config.json``.

    Raises
    ------
    CheckpointError
        If the format's version is newer than this one, or the configuration cannot be.
    """
    if config.get("version") != VERSION:
        raise CheckpointError(f"the native format's version should be {VERSION} but is {config.get('version')!r}")
    if not isinstance(config.get("model"), dict):
        raise CheckpointError(f"'model' should be a JSON object but is {config.get('model')!r}")
    try:
        model = ModelConfig.from_dict(config["model"])
        with torch.device("meta"):
            names = list(HookedModel(model).state_dict())
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"'model' describes no model that can be: {error}") from error
    if model.tie_embeddings:
        names.remove("unembed.weight")
    return Layout(FORMAT, model, {name: Source.of(name) for name in names}, raw=config)


def save(
    model: HookedModel,
    directory: str | os.PathLike[str],
    *,
    record: dict[str, Any] | None = None,
    max_shard_size: int | str = "5GB",
) -> Path:
    """Write a model in the native format. A directory that already holds something is never touched.

    Parameters
    ----------
    model
        The model; tied embeddings are stored once and tied again on loading.
    directory
        Must not exist, or be empty.
    record
        What made these weights (command, seed, data); kept in ``config.json``.
    max_shard_size
        Bytes, or a text like ``"5GB"``.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    CheckpointError
        If the directory holds something.

    Examples
    --------
    >>> import headscope as hs
    >>> attention = hs.GroupedConfig(n_heads=2, d_head=4)
    >>> model = hs.HookedModel(hs.ModelConfig(d_model=8, n_layers=1, d_vocab=9, n_ctx=4, attention=attention))
    >>> place = hs.save(model, "small", record={"seed": 0})
    >>> hs.load(place).config == model.config
    True
    """
    from huggingface_hub import save_torch_state_dict

    target = check_free(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and moved there whole: a kill leaves no half checkpoint under the final name.
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        state = model.state_dict()
        if model.config.tie_embeddings:
            state.pop("unembed.weight")
        save_torch_state_dict(_apart(state), part, max_shard_size=max_shard_size)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(part)
        content = {
            "format": FORMAT,
            "version": VERSION,
            "model": model.config.to_dict(),
            "record": record or {},
        }
        (part / "config.json").write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        part.chmod(0o755)
        for file in part.iterdir():
            file.chmod(0o644)  # safetensors writes for its owner alone, and others may be who reads
        if target.exists():
            target.rmdir()
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def check_free(directory: str | os.PathLike[str]) -> Path:
    """Return a directory's path; CheckpointError if it holds something: nothing is ever overwritten."""
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} already exists: headscope does not overwrite a checkpoint")
    return target


def _apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with memory of their own each: safetensors writes no views, and leaves out what is shared."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        memory = tensor.untyped_storage()
        alone = memory.nbytes() == tensor.nbytes and tensor.is_contiguous() and memory.data_ptr() not in seen
        seen.add(memory.data_ptr())
        apart[name] = tensor if alone else tensor.clone(memory_format=torch.contiguous_format)
    return apart
