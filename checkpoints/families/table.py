"""From a family's table of names to a plan: which stored tensor every parameter of a model is made from.

A table names modules, ``"attn.q": "self_attn.q_proj"``; a module's weight and bias go to ``.weight`` and ``.bias``.
Which parameters there are follows from the model itself, so a table need not know whether there is a bias, a second
norm or an MLP. A `Source` in place of a name says that the parameters are made from the stored modules by a function
(and one under a parameter's whole name, that it is made from the tensors named).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...models.block import Block
from ...models.config import ModelConfig
from ...models.hooked import HookedModel
from ...models.per_layer import LayerChanges
from ..checkpoint import Source

Table = Mapping[str, str | Source]

_STORED = {"weight": "weight", "bias": "bias", "w": "weight", "b": "bias"}


def plan(model: ModelConfig, layers: str, block: Table | Callable[[int], Table], ends: Table) -> dict[str, Source]:
    """Return where each parameter stands.

    Parameters
    ----------
    model
        The model that the checkpoint is.
    layers
        What stored names of a block begin with, its index in braces: ``"model.layers.{}."``.
    block
        Module or parameter of a block -> stored name behind `layers`; or a function that gives a layer's such table.
        What makes keys and values comes from the layer that a layer takes them from (`ModelConfig.keys_of`).
    ends
        Module or parameter outside the blocks -> whole stored name. The embedding stands in for a tied unembedding.
    """
    made: dict[str, Source | None] = {}
    with torch.device("meta"):
        one = HookedModel(model.with_(n_layers=1, by_layer=()))
        kinds = {changes: _parameters(Block(model.at(layer))) for changes, layer in _kinds(model).items()}
    for name in one.state_dict():
        if not name.startswith("blocks.") and not (name == "unembed.weight" and model.tie_embeddings):
            made[name] = _find(ends, name, "")
    for layer in range(model.n_layers):
        for name, of_keys in kinds[model.by_layer[layer] if model.by_layer else None].items():
            place = model.keys_of(layer) if of_keys else layer
            table = block(place) if callable(block) else block
            made[f"blocks.{layer}.{name}"] = _find(table, name, layers.format(place))
    return {name: source for name, source in made.items() if source is not None}


def _parameters(block: Block) -> dict[str, bool]:
    """Return each parameter of a block, and whether it makes keys and values."""
    return {
        name: name.startswith("attn.") and block.attn.makes_keys(name.removeprefix("attn."))
        for name in block.state_dict()
    }


def _kinds(model: ModelConfig) -> dict[LayerChanges | None, int]:
    """Return each kind of layer and one layer that is of it."""
    of_layer = model.by_layer or (None,) * model.n_layers
    return {changes: layer for layer, changes in enumerate(of_layer)}


def _find(table: Table, name: str, prefix: str) -> Source | None:
    ending = ""
    entry = table.get(name)
    if entry is None:
        module, _, kind = name.rpartition(".")
        entry, ending = table.get(module), f".{_STORED.get(kind, kind)}"
    if entry is None:
        return None
    source = Source.of(entry) if isinstance(entry, str) else entry
    return Source(tuple(f"{prefix}{stored}{ending}" for stored in source.names), source.make)


def fused(name: str, groups: int, counts: tuple[int, ...], before: Callable[[Tensor], Tensor] | None = None) -> Table:
    """Return the rows of a table for queries, keys and values that are stored as one module.

    Parameters
    ----------
    name
        The stored module.
    groups
        How often the order queries, keys, values repeats along the rows.
    counts
        Heads of each within a repetition: ``(n_heads, n_groups, n_groups)`` one after another with one repetition,
        ``(1, 1, 1)`` head by head with `n_heads` of them.
    before
        What to do to the stored tensor first (`transposed`).
    """

    def part(start: int, stop: int) -> Callable[[Tensor], Tensor]:
        def take(stored: Tensor) -> Tensor:
            rows = stored if before is None else before(stored)
            return rows.unflatten(0, (groups, sum(counts), -1))[:, start:stop].flatten(0, 2)

        return take

    ends = [sum(counts[: index + 1]) for index in range(3)]
    return {
        f"attn.{side}": Source.of(name, part(stop - count, stop))
        for side, count, stop in zip("qkv", counts, ends, strict=True)
    }


def halves(name: str) -> Table:
    """Return the rows of a table for a gated MLP whose gate and input are stored as one module, gate first."""
    return {
        "mlp.gate": Source.of(name, lambda rows: rows.unflatten(0, (2, -1))[0]),
        "mlp.up": Source.of(name, lambda rows: rows.unflatten(0, (2, -1))[1]),
    }


def experts(names: Mapping[str, str], count: int) -> Table:
    """Return the rows of a table for experts that are stored one by one.

    Parameters
    ----------
    names
        ``"gate"``, ``"up"``, ``"down"`` -> stored name of a weight, the expert's index in braces.
    count
        How many there are.
    """
    return {
        f"mlp.{part}s": Source(
            tuple(name.format(expert) for expert in range(count)), lambda *weights: torch.stack(weights)
        )
        for part, name in names.items()
    }


def transposed(stored: Tensor) -> Tensor:
    """Turn a weight stored ``[in, out]`` (Conv1D) the usual way; a bias stays as it is."""
    return stored.T if stored.ndim == 2 else stored


def plus_one(stored: Tensor) -> Tensor:
    """Return the gain that is stored as its difference from 1 (Gemma), in float32 at least: bfloat16 would round it."""
    wide = stored.float() if stored.dtype in (torch.float16, torch.bfloat16) else stored
    return wide + 1
