"""Weights packed into 8-bit floats with a scale for each block, as DeepSeek-V3 is released: unpacked one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .fields import count
from .store import SafetensorsStore, TensorStore

SCALE = "_scale_inv"


class ScaledStore(TensorStore):
    """The safetensors of a directory whose packed weights have a tensor of scales beside them.

    A scale is what a block of the weight is multiplied by (in spite of its name). Blocks at the lower and right edge
    may be cut short.

    Parameters
    ----------
    store
        The stored tensors.
    block
        Rows and columns of a block.
    """

    def __init__(self, store: SafetensorsStore, block: tuple[int, int]) -> None:
        self.store = store
        self.block = block
        self.files = store.files
        self._scales = {name for name in store.names() if name.endswith(SCALE)}

    def names(self) -> list[str]:
        """Return every weight's name; scales are none."""
        return [name for name in self.store.names() if name not in self._scales]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape from the file's header."""
        return self.store.shape(name)

    def dtype(self, name: str) -> str:
        """Return a tensor's type from the file's header: that of the packed values."""
        return self.store.dtype(name)

    def check_dtype(self, name: str) -> None:
        """Refuse a packed weight whose scales do not fit it, and of what has none whatever the plain store refuses."""
        if f"{name}{SCALE}" not in self._scales:
            self.store.check_dtype(name)
            return
        shape, scales = self.shape(name), self.store.shape(f"{name}{SCALE}")
        blocks = tuple(-(-size // width) for size, width in zip(shape, self.block, strict=False))
        if len(shape) != 2 or scales != blocks:
            raise CheckpointError(
                f"{self.file_of(name)}: tensor {name!r} of shape {shape} has scales of shape {scales}; "
                f"expected {blocks} (blocks of {self.block[0]} × {self.block[1]})"
            )

    def file_of(self, name: str) -> Path:
        """Return the shard."""
        return self.store.file_of(name)

    def get(self, name: str) -> Tensor:
        """Read one tensor; a packed one is multiplied out to float32."""
        self.check_dtype(name)
        if f"{name}{SCALE}" not in self._scales:
            return self.store.get(name)
        packed = self.store.raw(name).to(torch.float32)
        rows, columns = packed.shape
        scales = self.store.raw(f"{name}{SCALE}").to(torch.float32)
        down, across = self.block
        return packed * scales.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]


def unpack(config: dict[str, Any], store: SafetensorsStore) -> TensorStore:
    """Return the store through which the weights that a Hugging Face configuration calls packed can be read.

    Raises
    ------
    CheckpointError
        If they are 8-bit floats in blocks whose size cannot be. Any other packing is left for others to refuse.
    """
    packing = config.get("quantization_config")
    if not isinstance(packing, dict) or packing.get("quant_method") != "fp8" or "weight_block_size" not in packing:
        return store
    block = packing["weight_block_size"]
    if not isinstance(block, list) or len(block) != 2:
        raise CheckpointError(f"'weight_block_size' should be the rows and columns of a block but is {block!r}")
    return ScaledStore(store, (count("weight_block_size", block[0]), count("weight_block_size", block[1])))
