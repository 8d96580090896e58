"""From a path to a `Checkpoint`: which format and family it is, said once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..models.hooked import HookedModel
from . import native
from .checkpoint import Checkpoint, Layout
from .families import FAMILIES, gguf_llama, refusals
from .reference import reference_models
from .runs import saved_steps
from .scaled import ScaledStore, unpack
from .store import GGUFStore, SafetensorsStore, TensorStore, read_json

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint without reading its weights. Nothing is fetched: a path is a path.

    Parameters
    ----------
    path
        A directory (native or Hugging Face: ``config.json`` and safetensors; or with one GGUF file), a GGUF file, or,
        if there is no file of that name, the name of a model that ships (``"lrkv"``).

    Raises
    ------
    CheckpointError
        If there is nothing, or nothing headscope can read: names the file and what was expected.
    """
    try:
        place = Path(path).expanduser().resolve(strict=True)
    except FileNotFoundError:
        shipped = reference_models()
        if str(path) in shipped:
            return _open_directory(Path(path), shipped[str(path)])
        raise CheckpointError(
            f"{path} does not exist, nor does a model of that name ship ({', '.join(shipped) or 'none does'}): "
            "a path or such a name is expected, and nothing is fetched"
        ) from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of symbolic links, a null byte
        raise CheckpointError(f"{path} cannot be opened: {error}") from error
    if not place.is_dir():
        return _open_gguf(Path(path), place)
    if (place / "config.json").exists():
        return _open_directory(Path(path), place)
    ggufs = sorted(place.glob("*.gguf"))
    if len(ggufs) == 1:
        return _open_gguf(Path(path), ggufs[0])
    if ggufs:
        raise CheckpointError(f"{path} holds {len(ggufs)} GGUF files: name one of {', '.join(p.name for p in ggufs)}")
    if steps := saved_steps(place):
        raise CheckpointError(
            f"{path} is a training run: name a saved step, such as {steps[max(steps)]}, or follow it with over_training"
        )
    if not any(place.iterdir()):
        raise CheckpointError(f"{path} is empty")
    raise CheckpointError(f"{path} has no config.json and no GGUF file: expected a checkpoint's directory")


def _open_gguf(path: Path, file: Path) -> Checkpoint:
    if not file.is_file() or file.suffix != ".gguf":
        raise CheckpointError(f"{path} is no checkpoint: expected its directory or a .gguf file")
    store = GGUFStore(file)
    try:
        layout = gguf_llama.layout(store)
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    tokenizer: Callable[[], Any] | None = None
    if store.field("tokenizer.ggml.model") is not None:
        tokenizer = partial(_load_tokenizer, file.parent, gguf_file=file.name)
    return Checkpoint(path, store, layout, tokenizer)


def _open_directory(path: Path, place: Path) -> Checkpoint:
    config = read_json(place / "config.json")
    plain = SafetensorsStore(place)
    try:
        store = unpack(config, plain)
        layout = _layout(config, store)
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(f"{place / 'config.json'}: {error}") from error
    tokenizer: Callable[[], Any] | None = None
    if any((place / name).exists() for name in _TOKENIZER_FILES):
        tokenizer = partial(_load_tokenizer, place)
    return Checkpoint(path, store, layout, tokenizer)


def _layout(config: dict[str, Any], store: TensorStore) -> Layout:
    if config.get("format") == native.FORMAT:
        return native.layout(config)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        reason = refusals.KNOWN_REASONS.get(kind) if isinstance(kind, str) else None
        raise CheckpointError(
            f"model_type {kind!r} is not read: {reason}"
            if reason
            else f"model_type {kind!r} is none of the known ones ({', '.join(sorted(FAMILIES))}); "
            "a family is added by one file in checkpoints/families"
        )
    refusals.check(config, store.names(), unpacked=isinstance(store, ScaledStore))
    return FAMILIES[kind](config, store.names())


def _load_tokenizer(directory: Path, gguf_file: str | None = None) -> Any:
    from transformers import AutoTokenizer

    extra = {} if gguf_file is None else {"gguf_file": gguf_file}
    return AutoTokenizer.from_pretrained(directory, local_files_only=True, **extra)


def load(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> HookedModel:
    """Load a checkpoint into the hooked wrapper; see `Checkpoint.load`.

    Examples
    --------
    >>> import headscope as hs
    >>> model = hs.load("smollm2")  # doctest: +SKIP
    >>> logits, cache = model.run_with_cache("The capital of France is")  # doctest: +SKIP
    """
    return open_checkpoint(path).load(dtype, device)
