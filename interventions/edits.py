"""Edits as values: frozen, checked when built, applied for the length of a ``with`` block.

An edit names a path inside attention, layers, heads (groups, for a grouped model's keys and values) and positions, and
says what becomes of the tensor there. Applied, it is a hook at that path's hook point; leaving the block removes that
hook and no other, also when the forward pass raises.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from ..models.hooked import HookedModel

PATHS: dict[str, int | None] = {
    "q": 2,
    "k": 2,
    "k_shared": None,
    "k_private": 2,
    "k_rot": None,
    "v": 2,
    "v_shared": None,
    "v_private": 2,
    "latent": None,
    "pattern": 1,
    "z": 2,
    "result": 2,
}
"""Path -> the head axis of its hook point's tensor; None where all heads share one row a token."""


@dataclass(frozen=True, kw_only=True)
class Edit(ABC):
    """A change at one path of attention.

    Parameters
    ----------
    path
        One of `PATHS`. Keys and queries are edited before their norm and rotation.
    layers
        Layers to edit; None: all.
    heads
        Heads (for ``k`` and ``v``: groups) to edit; None: all. Shared paths have no heads.
    positions
        Positions (for ``pattern``: query positions) to edit; None: all.

    Raises
    ------
    ValueError
        If the path is unknown, or heads are named on a path that all heads share.
    """

    path: str
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise ValueError(f"path should be one of {', '.join(PATHS)} but got {self.path!r}")
        if PATHS[self.path] is None and self.heads is not None:
            raise ValueError(f"path {self.path!r} is shared by all heads: it has no heads {self.heads} of its own")
        for name in ("layers", "heads", "positions"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, tuple):
                raise ValueError(f"{name} should be a tuple of indices or None but got {value!r}")

    @abstractmethod
    def change(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the changed tensor, whole; the argument must be left as it is.

        Only the chosen heads and positions of what is returned are taken over.
        """

    def __call__(self, tensor: Tensor, hook: HookPoint) -> Tensor:
        """Return the tensor with the chosen heads and positions changed."""
        chosen = torch.ones((1,) * tensor.ndim, dtype=torch.bool, device=tensor.device)
        position_axis = 1 if hook.pos_dim is None else hook.pos_dim
        for what, axis, wanted in (("head", PATHS[self.path], self.heads), ("position", position_axis, self.positions)):
            if axis is not None and wanted is not None:
                self._check(what, wanted, tensor.shape[axis], hook)
                line = torch.zeros(tensor.shape[axis], dtype=torch.bool, device=tensor.device)
                line[list(wanted)] = True
                chosen = chosen & line.view([-1 if a == axis else 1 for a in range(tensor.ndim)])
        return torch.where(chosen, self.change(tensor), tensor)

    @staticmethod
    def _check(what: str, wanted: tuple[int, ...], count: int, hook: HookPoint) -> None:
        for index in wanted:
            if not 0 <= index < count:
                raise IndexError(f"{what} {index} does not exist at {hook.name}: it has {what}s 0–{count - 1}")


@dataclass(frozen=True, kw_only=True)
class Zero(Edit):
    """Set to zero."""

    def change(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return zeros, also where the tensor is not finite."""
        return torch.zeros_like(tensor)


@dataclass(frozen=True, kw_only=True)
class Scale(Edit):
    """Multiply by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.factor):
            raise ValueError(f"factor should be finite but got {self.factor}")

    def change(self, tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return ``factor * tensor``."""
        return tensor * self.factor


@contextmanager
def apply(model: HookedModel, *edits: Edit) -> Iterator[HookedModel]:
    """Apply edits to a model for the length of a ``with`` block, in the order given.

    Raises
    ------
    ValueError
        If the model's variant has no such path; names the variant and, for MQA, says why.
    IndexError
        If a layer, head or position does not exist; names the range.

    Examples
    --------
    >>> import torch
    >>> from headscope.interventions import Zero, apply
    >>> from headscope.models import HookedModel, LRKVConfig, ModelConfig
    >>> model = HookedModel(ModelConfig(d_model=16, n_layers=1, d_vocab=9, n_ctx=8,
    ...                                 attention=LRKVConfig(n_heads=2, d_head=8, rank=2)))
    >>> with apply(model, Zero(path="k_private", layers=(0,), heads=(1,))):
    ...     logits = model(torch.tensor([[1, 2, 3]]))
    """
    with ExitStack() as stack:
        for edit in edits:
            names = _points(model, edit)
            stack.enter_context(model.hooks(fwd_hooks=[(name, edit) for name in names]))
        yield model


def _points(model: HookedModel, edit: Edit) -> list[str]:
    layers = range(model.config.n_layers) if edit.layers is None else edit.layers
    names = []
    for layer in layers:
        model.attention(layer)
        name = f"blocks.{layer}.attn.hook_{edit.path}"
        if name not in model.hook_dict:
            variant = model.config.attention.variant
            why = ": its heads share one key and one value, so none has a part of its own" if variant == "mqa" else ""
            raise ValueError(f"{variant} has no path {edit.path!r}{why}")
        names.append(name)
    return names
