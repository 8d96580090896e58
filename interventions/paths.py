"""The paths inside a head, and how each is read from a model's hook point and written back.

Most paths are a hook point's whole tensor. Three are not:

- **shared and private parts** of keys and values. LRKV has hook points for them. MHA, GQA and MLA are split by a
  convention: the shared part is the mean over groups after their bases are aligned (`models.gauge`), the private part
  what a group has beyond it; both are given in the common basis. Of MLA's keys only the content columns are split; the
  position channel is shared as it is. MQA's groups are one: it has no private part.
- **after rotation**: keys and queries are edited before their rotation, or as they are after it. A row moved before the
  rotation is rotated by its new position; moved after it, it takes its old position along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.attention import Attention
from ..models.gauge import FreeTurns, align, free_turns
from ..models.hooked import HookedModel
from .site import Site

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
"""Path -> the head axis of its tensor; None where all heads share one row a token. ``k`` and ``v`` and their parts have
groups for heads; ``pattern`` is ``[batch, head, query_pos, key_pos]``, all others ``[batch, pos, (head,) width]``."""

ROTATED = ("q", "k", "k_shared", "k_private")
"""Paths that exist after the rotation, too."""

SHARED = {"k": "k_shared", "k_private": "k_shared", "v": "v_shared", "v_private": "v_shared"}
"""Path -> what its heads share, where the same edit is a control."""


@dataclass(frozen=True)
class View:
    """A path in one layer of a model.

    Parameters
    ----------
    hook
        Name of the hook point.
    read
        ``(tensor at the hook point, site) -> the path's tensor``.
    write
        ``(tensor at the hook point, the path's new tensor, site) -> the hook point's new tensor``.
    convention
        How the path is defined, where that is a choice; empty where it is not.
    """

    hook: str
    read: Callable[[Tensor, Site], Tensor]
    write: Callable[[Tensor, Tensor, Site], Tensor]
    convention: str = ""


def check_path(path: str, *, rotated: bool) -> None:
    """Raise ValueError unless a path exists at all, and after the rotation if that is asked."""
    if path not in PATHS:
        raise ValueError(f"path should be one of {', '.join(PATHS)} but got {path!r}")
    if rotated and path not in ROTATED:
        raise ValueError(f"path {path!r} has no rotation; after it are only {', '.join(ROTATED)}")


def view(model: HookedModel | Any, path: str, layer: int, *, rotated: bool = False) -> View:
    """Return a path in one layer.

    Parameters
    ----------
    model
        The wrapper, or TransformerLens's bridge (whole hook points, and the split of values).
    path, layer
        Where.
    rotated
        After the rotation.

    Raises
    ------
    ValueError
        If the model has no such path; names the variant and says why.
    IndexError
        If the layer does not exist.
    """
    check_path(path, rotated=rotated)
    place = f"blocks.{layer}.attn"
    if not isinstance(model, HookedModel):
        return _bridge_view(model, path, layer, rotated)
    attention = model.attention(layer)
    if rotated and attention.rotary is None:
        raise ValueError(f"path {path!r} after the rotation: this model's positions are not rotary")
    if rotated and path in ("q", "k"):
        return _whole(f"{place}.hook_rot_{path}")
    if f"{place}.hook_{path}" in model.hook_dict:
        found = _whole(f"{place}.hook_{path}")
    else:
        found = _split(attention, place, path)
    return _after_rotation(found, attention, path) if rotated else found


def shared_view(model: HookedModel, path: str, layer: int, *, rotated: bool = False) -> View | None:
    """Return what a path's heads share, where the same edit is a control; None if they share nothing apart."""
    config = model.attention(layer).config
    if path not in SHARED or config.n_groups == 1 or (rotated and config.rotary_width is not None):
        return None
    return view(model, SHARED[path], layer, rotated=rotated)


def _whole(hook: str) -> View:
    return View(hook, lambda tensor, site: tensor, lambda tensor, part, site: part)


def _split(attention: Attention, place: str, path: str) -> View:
    """Return a shared or private part by the aligned mean over groups."""
    variant, config = attention.config.variant, attention.config
    side, _, part = path.partition("_")
    if part not in ("shared", "private"):
        raise ValueError(f"{variant} has no path {path!r}")
    if config.n_groups == 1:
        raise ValueError(
            f"{variant} has no path {path!r}: its heads share one key and one value, so none has a part of its own; "
            f"edit its {side} whole"
        )
    weights = attention.W_K if side == "k" else attention.W_V
    columns, free, said = free_turns(attention, side)
    return _mean_view(f"{place}.hook_{side}", part, weights[..., columns], columns, free, said)


def _mean_view(hook: str, part: str, weights: Tensor, columns: slice, free: FreeTurns, said: str) -> View:
    turns = align(weights, free)

    def common(tensor: Float[Tensor, "batch pos group width"]) -> Float[Tensor, "batch pos split"]:
        here = turns.to(tensor.device, tensor.dtype)
        return torch.einsum("bpgd,gde->bpe", tensor[..., columns], here) / len(turns)

    def put(tensor: Tensor, change: Float[Tensor, "batch pos group split"]) -> Tensor:
        """Add a change, given in the common basis."""
        new = tensor.clone()
        new[..., columns] += torch.einsum("bpge,gde->bpgd", change, turns.to(change.device, change.dtype))
        return new

    def read_private(tensor: Tensor, site: Site) -> Tensor:
        aligned = torch.einsum("bpgd,gde->bpge", tensor[..., columns], turns.to(tensor.device, tensor.dtype))
        return aligned - aligned.mean(2, keepdim=True)

    def write_private(tensor: Tensor, private: Tensor, site: Site) -> Tensor:
        return put(tensor, private - read_private(tensor, site))

    def write_shared(tensor: Tensor, shared: Tensor, site: Site) -> Tensor:
        return put(tensor, (shared - common(tensor))[:, :, None].expand(-1, -1, len(turns), -1))

    convention = f"shared is the mean over groups ({said}), private is what a group has beyond it"
    if part == "private":
        return View(hook, read_private, write_private, convention)
    return View(hook, lambda tensor, site: common(tensor), write_shared, convention)


def _after_rotation(found: View, attention: Attention, path: str) -> View:
    """Return the part as it is once rotated, written back before the rotation: exact, since rotations are linear."""
    if attention.config.rotary_width is not None:
        raise ValueError(f"{attention.config.variant}'s path {path!r} is content without positions: nothing turns it")

    def rotate(part: Tensor, site: Site, sign: int) -> Tensor:
        rows = part if part.ndim == 4 else part[:, :, None]
        rows = rows.float() if part.itemsize < 4 else rows
        turned = attention.turn(rows, sign * site.positions)
        # The amplitude of a scaled rotation is undone, too.
        turned = turned if sign > 0 else _unscaled(turned, attention)
        return turned.view(part.shape)

    def write(tensor: Tensor, turned: Tensor, site: Site) -> Tensor:
        # Only what changed is turned back, so that what did not stays as it is to the bit.
        part = found.read(tensor, site)
        change = rotate(turned - rotate(part, site, 1), site, -1).to(part.dtype)
        return found.write(tensor, part + change, site)

    return View(found.hook, lambda tensor, site: rotate(found.read(tensor, site), site, 1), write, found.convention)


def _unscaled(turned: Tensor, attention: Attention) -> Tensor:
    amplitude = 1.0 if attention.rotary is None else attention.rotary.amplitude
    if amplitude == 1.0:
        return turned
    columns = turned.clone()
    columns[..., attention.turned] /= amplitude**2
    return columns


def _bridge_view(model: Any, path: str, layer: int, rotated: bool) -> View:
    """Return a path of TransformerLens's bridge."""
    hook = f"blocks.{layer}.attn.hook_{'rot_' if rotated else ''}{path}"
    if not 0 <= layer < model.cfg.n_layers:
        raise IndexError(f"layer {layer} does not exist: this model has layers 0–{model.cfg.n_layers - 1}")
    if hook in model.hook_dict:
        return _checked(hook, path, model.cfg)
    if path in ("v_shared", "v_private") and not rotated:
        try:
            values = model.blocks[layer].attn.W_V
        except NotImplementedError:
            raise ValueError(f"this bridge has no path {path!r}: its values are made from a latent") from None
        if len(values) == 1:
            raise ValueError(f"this model has no path {path!r}: its heads share one value")
        free = FreeTurns(tuple(range(values.shape[-1])))
        return _mean_view(
            f"blocks.{layer}.attn.hook_v", path.partition("_")[2], values, slice(None), free, "values aligned"
        )
    raise ValueError(f"this bridge has no path {path!r}{' after the rotation' if rotated else ''}: load the wrapper")


def _checked(hook: str, path: str, cfg: Any) -> View:
    """Return a bridge's whole hook point, and refuse a tensor whose axes are not what the path's are."""
    groups = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
    heads = {"k": groups, "v": groups}.get(path, cfg.n_heads)

    def read(tensor: Tensor, site: Site) -> Tensor:
        batch, count = site.valid.shape
        axes = (batch, heads, count) if path == "pattern" else (batch, count, heads)
        if PATHS[path] is not None and (tensor.ndim != 4 or tuple(tensor.shape[:3]) != axes):
            raise ValueError(
                f"{hook} should begin with {axes} (batch, {'head, query' if path == 'pattern' else 'position, head'}) "
                f"but is {tuple(tensor.shape)} in this bridge: its heads cannot be edited there"
            )
        return tensor

    return View(hook, read, lambda tensor, part, site: part)
