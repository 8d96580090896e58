"""A checkpoint seen as headscope's own weights: lazily by layer, or whole as a model.

A family of checkpoints says two things: the `ModelConfig` that its own configuration means, and a plan, that is, for
each of headscope's parameters the stored tensors it is made from. Everything else (checking, lazy layers, loading)
follows from these and stands here, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..models.attention import Attention
from ..models.block import Block
from ..models.config import ModelConfig
from ..models.factors import Factors
from ..models.hooked import HookedModel
from .store import TensorStore


@dataclass(frozen=True)
class Source:
    """How one parameter is made: the stored tensors' names, and a function of them (one tensor: itself).

    `make` must work on meta tensors too: shapes are checked before anything is read.
    """

    names: tuple[str, ...]
    make: Callable[..., Tensor] = lambda tensor: tensor

    @classmethod
    def of(cls, name: str, make: Callable[[Tensor], Tensor] | None = None) -> Source:
        """Return the source that is one stored tensor, perhaps reshaped."""
        return cls((name,)) if make is None else cls((name,), make)


Plan = Mapping[str, Source]

SHARED = (
    "layers whose keys_of is another layer attend to that layer's keys and values: their queries read their own "
    "stream, keys and values the other layer's"
)


@dataclass(frozen=True)
class Layout:
    """What a family reads out of a checkpoint's configuration and names.

    Parameters
    ----------
    family
        Name of the family, for records and messages.
    config
        The model that the checkpoint is.
    plan
        Parameter name -> where it comes from.
    ignored
        Patterns of stored names that carry no weights of this model (buffers, heads of other tasks).
    tied_copy
        Stored name of a tied model's unembedding, should a copy of the embedding be stored under it.
    report_only
        Why the checkpoint can be reported on but not run, None if it can be run.
    notes
        What a reader of a measure must know about every layer's factors, beside what the factors say themselves.
    raw
        The checkpoint's own configuration, for the record.
    """

    family: str
    config: ModelConfig
    plan: Plan
    ignored: tuple[str, ...] = ()
    tied_copy: str | None = None
    report_only: str | None = None
    notes: tuple[str, ...] = ()
    raw: Mapping[str, Any] | None = None


class Checkpoint:
    """Weights on disk that can be reported on layer by layer, and loaded.

    Parameters
    ----------
    path
        What the user named.
    store
        The stored tensors.
    layout
        What they mean.
    tokenizer
        Function that loads the tokenizer, None if the checkpoint has none.
    """

    def __init__(
        self, path: Path, store: TensorStore, layout: Layout, tokenizer: Callable[[], Any] | None = None
    ) -> None:
        self.path = path
        self.store = store
        self.layout = layout
        self.tokenizer = tokenizer

    def __repr__(self) -> str:
        return (
            f"Checkpoint({str(self.path)!r}, family={self.layout.family!r}, variant={self.config.attention.variant!r})"
        )

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.layout.config

    def describe(self) -> dict[str, Any]:
        """Return where the weights come from: path, family, the hash of the files, the types they are stored in."""
        return {
            "path": str(self.path),
            "family": self.layout.family,
            "sha256": self.store.sha256(),
            "stored_dtypes": sorted({self.store.dtype(name) for name in self.store.names()}),
        }

    def factors(self, layer: int, *, fold_norm: bool = True) -> Factors:
        """Return one layer's bilinear forms, reading that layer's attention and nothing else.

        Raises
        ------
        IndexError
            If the layer does not exist.
        CheckpointError
            If a tensor is missing or has a wrong shape or type.
        ValueError
            If a weight is NaN or Inf; names layer, head and matrix.
        """
        block, notes = self._block(layer), self.layout.notes
        if (source := self.config.keys_of(layer)) == layer:
            factors = block.factors(layer, fold_norm=fold_norm)
        else:
            behind = self._block(source, ("ln1.",))
            factors, notes = block.factors(layer, fold_norm=fold_norm, keys_behind=behind), (SHARED, *notes)
        return replace(factors, notes=(*factors.notes, *notes))

    def attention(self, layer: int) -> Attention:
        """Return one layer's attention as a module, in the type it is stored in; reads and raises as `factors` does.

        Where the layer takes its keys and values from another one, these are that layer's projections.
        """
        return self._block(layer).attn

    def _block(self, layer: int, parts: tuple[str, ...] = ("ln1.", "attn.")) -> Block:
        """Return one layer's block without its MLP, and of it some parts filled (attention and the norm before)."""
        if not 0 <= layer < self.config.n_layers:
            raise IndexError(f"layer {layer} does not exist: this checkpoint has layers 0–{self.config.n_layers - 1}")
        with torch.device("meta"):
            block = Block(self.config.at(layer).with_(mlp=None))
        prefix = f"blocks.{layer}."
        needed = {name: tensor for name, tensor in block.state_dict().items() if name.startswith(parts)}
        self._check({f"{prefix}{name}": tensor for name, tensor in needed.items()})
        block.load_state_dict({name: self._read(f"{prefix}{name}") for name in needed}, strict=False, assign=True)
        return block

    def load(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> HookedModel:
        """Return the model with these weights.

        Every name, shape and type is checked before anything is read, every value before the model exists.

        Parameters
        ----------
        dtype
            Type to compute in; None: the stored one, but float32 instead of a half-precision one on a CPU.
        device
            None: the CPU.

        Raises
        ------
        CheckpointError
            If the checkpoint can only be reported on, or a tensor is missing, superfluous, of a wrong shape or type,
            or holds NaN or Inf; names file and tensor.
        """
        if self.layout.report_only is not None:
            raise CheckpointError(
                f"{self.path} can be reported on but not run: {self.layout.report_only}; "
                "load(path, bridge=True) runs it through TransformerLens's bridge"
            )
        with torch.device("meta"):
            model = HookedModel(self.config, self.tokenizer)
        expected = dict(model.state_dict())
        if self.config.tie_embeddings:
            expected.pop("unembed.weight")
        self._check(expected)
        self._check_extra()
        target = torch.device(device or "cpu")
        state: dict[str, Tensor] = {}
        for name in expected:
            tensor = self._read(name)
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{self._place(name)} holds NaN or Inf; expected finite weights")
            # A copy, so that the model shares no memory with the open file, nor one weight with another.
            state[name] = tensor.to(target, _working_dtype(tensor.dtype, dtype, target), copy=True)
        if self.config.tie_embeddings:
            self._check_tied_copy()
            state["unembed.weight"] = state["embed.weight"]
        model.load_state_dict(state, assign=True)
        if self.config.tie_embeddings:
            model.unembed.weight = model.embed.weight
        return model.eval()

    # -- checking and reading -----------------------------------------------------------------------------------------

    @cached_property
    def _stored(self) -> frozenset[str]:
        return frozenset(self.store.names())

    def _place(self, name: str) -> str:
        """Return a parameter's file and stored tensors, for messages."""
        names = self.layout.plan[name].names
        return f"{self.store.file_of(names[0])}: tensor {', '.join(map(repr, names))}"

    def _check(self, expected: Mapping[str, Tensor]) -> None:
        """Check that every expected parameter can be made, and with the right shape, without reading a value."""
        for name, parameter in expected.items():
            source = self.layout.plan.get(name)
            if source is None:
                raise CheckpointError(
                    f"{self.path}: family {self.layout.family!r} does not say where {name!r} comes from"
                )
            for stored in source.names:
                if stored not in self._stored:
                    raise CheckpointError(f"{self.path}: tensor {stored!r} is missing (for {name!r})")
                self.store.check_dtype(stored)
            metas = [torch.empty(self.store.shape(stored), device="meta") for stored in source.names]
            try:
                made = tuple(source.make(*metas).shape)
            except (RuntimeError, ValueError, IndexError) as error:
                shapes = ", ".join(str(tuple(meta.shape)) for meta in metas)
                reason = str(error).splitlines()[0]
                raise CheckpointError(
                    f"{self._place(name)} of shape {shapes} does not fit {name!r} {tuple(parameter.shape)}: {reason}"
                ) from error
            if made != tuple(parameter.shape):
                raise CheckpointError(
                    f"{self._place(name)} gives {name!r} the shape {made}; expected {tuple(parameter.shape)}"
                )

    def _check_extra(self) -> None:
        used = {stored for source in self.layout.plan.values() for stored in source.names}
        if self.layout.tied_copy is not None:
            used.add(self.layout.tied_copy)
        ignored = [re.compile(pattern) for pattern in self.layout.ignored]
        extra = sorted(n for n in self._stored - used if not any(p.fullmatch(n) for p in ignored))
        if extra:
            shown = ", ".join(map(repr, extra[:3])) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "")
            raise CheckpointError(
                f"{self.store.file_of(extra[0])} holds tensors that a {self.layout.family} model of this "
                f"configuration has no place for: {shown}"
            )

    def _check_tied_copy(self) -> None:
        """Check that a stored copy of the tied embedding is one: a different matrix would be silently left out."""
        copy = self.layout.tied_copy
        if copy is None or copy not in self._stored:
            return
        embedding = self._read("embed.weight")
        if not torch.equal(self.store.get(copy).to(embedding.dtype), embedding):
            raise CheckpointError(
                f"{self.store.file_of(copy)}: tensor {copy!r} differs from the embedding that config.json ties it to: "
                "set tie_word_embeddings to false"
            )

    def _read(self, name: str) -> Tensor:
        source = self.layout.plan[name]
        return source.make(*(self.store.get(stored) for stored in source.names)).contiguous()


def _working_dtype(stored: torch.dtype, asked: torch.dtype | None, device: torch.device) -> torch.dtype:
    # Half-precision matrix products are some 200 times slower than float32 ones on common CPUs.
    if asked is None and device.type == "cpu" and stored in (torch.float16, torch.bfloat16):
        return torch.float32
    return asked or stored
