"""From a path to a `Checkpoint`: which format and family it is, said once."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.hooked import HookedModel
from ..results import Result, source_of
from . import hub, native
from .bridge import LACKS, load_bridge
from .checkpoint import Checkpoint, Layout
from .families import FAMILIES, gguf_llama, refusals
from .reference import reference_models
from .runs import saved_steps
from .scaled import ScaledStore, unpack
from .store import GGUFStore, SafetensorsStore, read_json

Source = str | os.PathLike[str] | Checkpoint | HookedModel | Result
"""What a verb measures: a path or the name of a model that ships, an opened checkpoint, a model in memory, or a result,
whose source it then is."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint without reading its weights. A path is a path: only a hub model named as such is fetched.

    Parameters
    ----------
    path
        A directory (native or Hugging Face: ``config.json`` and safetensors; or with one GGUF file), a GGUF file, or,
        if there is no file of that name, the name of a model that ships (``"lrkv"``) or of one of Hugging Face's hub
        (``"org/name"``, where no folder ``org`` is), whose config, safetensors and tokenizer are then fetched.

    Raises
    ------
    CheckpointError
        If there is nothing, or nothing headscope can read: names the file and what was expected.

    Examples
    --------
    >>> import headscope as hs
    >>> checkpoint = hs.open_checkpoint("gqa")
    >>> checkpoint.config.attention.variant, checkpoint.factors(0).n_heads
    ('gqa', 8)
    """
    try:
        place = Path(path).expanduser().resolve(strict=True)
    except FileNotFoundError:
        shipped = reference_models()
        if str(path) in shipped:
            return _open_directory(Path(path), shipped[str(path)])
        if hub.is_model_name(path):
            return _open_directory(Path(path), hub.fetch(str(path)))
        raise CheckpointError(
            f"{path} does not exist, nor does a model of that name ship ({', '.join(shipped) or 'none does'}): "
            "a path, such a name or org/name of a hub model is expected"
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
        layout = _layout(config, store.names(), unpacked=isinstance(store, ScaledStore))
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(f"{place / 'config.json'}: {error}") from error
    tokenizer: Callable[[], Any] | None = None
    if any((place / name).exists() for name in _TOKENIZER_FILES):
        tokenizer = partial(_load_tokenizer, place)
    return Checkpoint(path, store, layout, tokenizer)


def opened_source(source: Source) -> Checkpoint | HookedModel:
    """Return a source as what factors can be read from, opened if it is a path.

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be opened.
    ValueError
        If the source is nothing of the kind, or a result without one.
    """
    given = source_of(source)
    if isinstance(given, str | os.PathLike):
        return open_checkpoint(given)
    if not isinstance(given, Checkpoint | HookedModel):
        raise ValueError(
            f"source should be a path, a Checkpoint, a HookedModel or a result but is {type(given).__name__}"
        )
    return given


def model_of(source: Source, origin: dict[str, Any] | None = None) -> tuple[HookedModel, dict[str, Any]]:
    """Return a source as a model to run, in evaluation mode, and the description of where it comes from.

    Parameters
    ----------
    source
        See `Source`.
    origin
        Where a model in memory comes from, if that is known.

    Raises
    ------
    CheckpointError, ValueError
        As for `opened_source`.
    """
    opened = opened_source(source)
    if isinstance(opened, HookedModel):
        return opened.eval(), origin or opened.describe()
    return opened.load().eval(), opened.describe()


def read_config(path: str | os.PathLike[str]) -> Layout:
    """Read a configuration alone, without weights: what model it means.

    Parameters
    ----------
    path
        A JSON file: a `ModelConfig.to_dict`, the native format's or a Hugging Face ``config.json``.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or describes no model that headscope knows.
    """
    place = Path(path).expanduser()
    config = read_json(place)
    try:
        if "attention" in config and "model_type" not in config:
            return Layout("configuration", ModelConfig.from_dict(config), {}, raw=config)
        return _layout(config, (), unpacked=True)  # packed or not: there are no weights here
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _layout(config: dict[str, Any], names: Collection[str], *, unpacked: bool = False) -> Layout:
    if config.get("format") == native.FORMAT:
        return native.layout(config)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        reason = refusals.KNOWN_REASONS.get(kind) if isinstance(kind, str) else None
        raise CheckpointError(
            f"model_type {kind!r} is not read: {reason}"
            if reason
            else f"model_type {kind!r} is none of the known ones ({', '.join(sorted(FAMILIES))}); "
            "load(path, bridge=True) runs any causal Hugging Face model through TransformerLens's bridge; "
            "a family is added by one file in checkpoints/families"
        )
    refusals.check(config, names, unpacked=unpacked)
    layout = FAMILIES[kind](config, names)
    refusals.check_shared(config, layout.config)
    return layout


def _load_tokenizer(directory: Path, gguf_file: str | None = None) -> Any:
    from transformers import AutoTokenizer

    extra = {} if gguf_file is None else {"gguf_file": gguf_file}
    return AutoTokenizer.from_pretrained(directory, local_files_only=True, **extra)


@overload
def load(
    path: Source,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    bridge: Literal[False] = False,
) -> HookedModel: ...


@overload
def load(
    path: Source,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    bridge: Literal[True],
) -> Any: ...


def load(
    path: Source,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    bridge: bool = False,
) -> Any:
    """Load a checkpoint into the hooked wrapper; see `open_checkpoint` for `path`, `Checkpoint.load` for the rest.

    Parameters
    ----------
    path, dtype, device
        What to load, the type to compute in, and where. Of an opened checkpoint or a result, what that stands for; a
        model in memory is returned itself, or a copy of it where type or place are asked for.
    bridge
        Load through TransformerLens's bridge instead: any causal model that transformers knows. A warning says what
        such a model lacks beside the wrapper.

    Examples
    --------
    >>> import headscope as hs
    >>> model = hs.load("smollm2")  # doctest: +SKIP
    >>> logits, cache = model.run_with_cache("The capital of France is")  # doctest: +SKIP
    """
    if not bridge:
        opened = opened_source(path)
        if isinstance(opened, Checkpoint):
            return opened.load(dtype, device)
        if dtype is None and device is None:
            return opened
        return copy.deepcopy(opened).to(device=device, dtype=dtype)  # what others hold stays as it is
    place = source_of(path)
    if not isinstance(place, str | os.PathLike):
        raise ValueError(f"the bridge loads a path or a hub model, but got a {type(place).__name__}")
    model, _ = load_bridge(place, dtype=dtype)
    warnings.warn(f"{place} is loaded {LACKS}", stacklevel=2)
    return model if device is None else model.to(device)
