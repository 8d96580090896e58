"""Named tensors on disk, read one at a time: safetensors (single file or sharded) and GGUF. Never a pickle."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CheckpointError

INDEX = "model.safetensors.index.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class TensorStore(ABC):
    """Where a checkpoint's tensors lie."""

    files: Sequence[Path]

    @abstractmethod
    def names(self) -> list[str]:
        """Return every tensor's name."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Return the name of the type that a tensor is stored in."""

    @abstractmethod
    def check_dtype(self, name: str) -> None:
        """Check, without reading its values, that a tensor is of a type that headscope computes with.

        Raises
        ------
        CheckpointError
            If not; names file, tensor and type.
        """

    @abstractmethod
    def file_of(self, name: str) -> Path:
        """Return the file that holds a tensor."""

    @abstractmethod
    def get(self, name: str) -> Tensor:
        """Read one tensor; CheckpointError as in `check_dtype`."""

    def sha256(self) -> str:
        """Return the hash of all files' bytes, in the order of their names."""
        digest = hashlib.sha256()
        for path in sorted(self.files):
            with path.open("rb") as handle:
                while chunk := handle.read(1 << 22):
                    digest.update(chunk)
        return digest.hexdigest()


class SafetensorsStore(TensorStore):
    """The safetensors of a directory, memory-mapped.

    Raises
    ------
    CheckpointError
        If there are none, a shard is missing or truncated, or the index names a tensor that its shard lacks.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._where = self._locate()
        self.files = sorted(set(self._where.values()))

    def _locate(self) -> dict[str, Path]:
        index = self.directory / INDEX
        if index.exists():
            return self._from_index(index)
        single = self.directory / "model.safetensors"
        found = [single] if single.exists() else sorted(self.directory.glob("*.safetensors"))
        if len(found) == 1:
            return dict.fromkeys(_keys(found[0]), found[0])
        if found:
            raise CheckpointError(f"{self.directory} holds {len(found)} safetensors files but no {INDEX}")
        pickles = [p.name for p in sorted(self.directory.iterdir()) if p.suffix in _PICKLES]
        if pickles:
            raise CheckpointError(
                f"{self.directory} holds only pickles ({', '.join(pickles[:3])}): headscope never loads a pickle; "
                "save the model as safetensors"
            )
        raise CheckpointError(f"{self.directory} holds no weights: expected model.safetensors or {INDEX}")

    @staticmethod
    def _from_index(index: Path) -> dict[str, Path]:
        weight_map = read_json(index).get("weight_map")
        if (
            not isinstance(weight_map, dict)
            or not weight_map
            or not all(isinstance(s, str) for s in weight_map.values())
        ):
            raise CheckpointError(f"{index} should hold a 'weight_map' of tensor names to files")
        for shard in sorted(set(weight_map.values())):
            if not (index.parent / shard).exists():
                raise CheckpointError(f"{index.parent / shard} is missing: {index.name} names it")
            present = set(_keys(index.parent / shard))
            absent = sorted(n for n, s in weight_map.items() if s == shard and n not in present)
            if absent:
                raise CheckpointError(f"{index.parent / shard} lacks tensor {absent[0]!r} that {index.name} names")
        return {name: index.parent / shard for name, shard in weight_map.items()}

    @cached_property
    def _open(self) -> dict[Path, Any]:
        return {path: safe_open(path, framework="pt") for path in self.files}

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape from the file's header."""
        return tuple(self._open[self._where[name]].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Return a tensor's type from the file's header."""
        stored = self._open[self._where[name]].get_slice(name).get_dtype()
        return str(_DTYPES[stored]).removeprefix("torch.") if stored in _DTYPES else stored

    def check_dtype(self, name: str) -> None:
        """Refuse integers, 8-bit floats and whatever else weights are packed into."""
        dtype = self._open[self._where[name]].get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{self._where[name]}: tensor {name!r} is of type {dtype}; expected one of {sorted(_DTYPES)} "
                "(packed quantised weights have to be dequantised first)"
            )

    def file_of(self, name: str) -> Path:
        """Return the shard."""
        return self._where[name]

    def get(self, name: str) -> Tensor:
        """Read one tensor, in the type it is stored in. It may share memory with this store: copy before editing."""
        self.check_dtype(name)
        return self.raw(name)

    def raw(self, name: str) -> Tensor:
        """Read one tensor of whatever type, as it is stored."""
        return self._open[self._where[name]].get_tensor(name)


class GGUFStore(TensorStore):
    """The tensors and metadata of a GGUF file, dequantised to float32 one at a time.

    Raises
    ------
    CheckpointError
        If the file is no GGUF or is cut short.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        try:
            reader = GGUFReader(path)
        except (ValueError, OSError, KeyError, IndexError) as error:
            raise CheckpointError(f"{path} cannot be read as GGUF (cut short?): {error}") from error
        self.path = path
        self.files = [path]
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(self, key: str, default: Any = None) -> Any:
        """Return a metadata value, `default` if it is absent."""
        found = self._fields.get(key)
        return default if found is None else found.contents()

    def need(self, key: str) -> Any:
        """Return a metadata value; CheckpointError names the key if absent."""
        value = self.field(key)
        if value is None:
            raise CheckpointError(f"metadata {key!r} is missing")
        return value

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, slowest axis first."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def dtype(self, name: str) -> str:
        """Return the name of a tensor's quantisation."""
        return self._tensors[name].tensor_type.name

    def check_dtype(self, name: str) -> None:
        """Refuse integers and float64; every quantisation can be read."""
        if self.dtype(name) in ("I8", "I16", "I32", "I64", "F64"):
            raise CheckpointError(f"{self.path}: tensor {name!r} is of type {self.dtype(name)}; expected weights")

    def file_of(self, name: str) -> Path:
        """Return the file."""
        return self.path

    def get(self, name: str) -> Tensor:
        """Read and dequantise one tensor to float32."""
        from gguf import dequantize

        self.check_dtype(name)
        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise CheckpointError(f"{self.path}: tensor {name!r} cannot be dequantised: {error}") from error
        return torch.tensor(values, dtype=torch.float32).reshape(self.shape(name))


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as handle:
            return list(handle.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors (cut short?): {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; CheckpointError names the file if it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} should hold a JSON object but holds {type(data).__name__}")
    return data
