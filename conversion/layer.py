"""One layer's attention as another variant: its weights under the new module's names, and what each step lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.attention import per_head
from ..models.gauge import FreeTurns, free_turns
from ..models.grouped import GroupedAttention
from ..models.lrkv import LRKVConfig
from ..models.memory.factored import closure_violation
from .fitting import pool, split, whitener
from .target import Target

SIDES = ("k", "v")


@dataclass(frozen=True, eq=False)
class LayerConversion:
    """A converted layer.

    Parameters
    ----------
    state
        Weights of the new attention module, by name, float64.
    errors
        Side (``"k"``, ``"v"``) -> step -> relative squared error on the calibration inputs.
    conventions
        Side -> how the bases were aligned.
    violation
        How far rotations throw private keys out of their spans (`closure_violation`, the worst head); None where
        nothing rotates them apart.
    """

    state: dict[str, Tensor]
    errors: dict[str, dict[str, float]]
    conventions: dict[str, str]
    violation: float | None


def convert_layer(
    attention: GroupedAttention, moment: Float[Tensor, "d_model d_model"], target: Target
) -> LayerConversion:
    """Convert one layer.

    Parameters
    ----------
    attention
        The source; left as it is.
    moment
        Second moment ``X^T X`` of the layer's normed inputs, float64.
    target
        What it becomes.
    """
    white = whitener(moment)
    state = {name: weight.detach().double().cpu() for name, weight in attention.state_dict().items()}
    errors: dict[str, dict[str, float]] = {}
    conventions: dict[str, str] = {}
    turns: dict[str, Tensor] = {}
    for side in SIDES:
        _, free, conventions[side] = free_turns(attention, side)
        if not target.align:
            free, conventions[side] = FreeTurns(), "not aligned, as asked for"
        make = _lrkv_side if isinstance(target.config.attention, LRKVConfig) else _pooled_side
        turns[side], errors[side] = make(attention, side, state, white, target, free)
    of_head = torch.tensor(attention.head_to_group)
    _turn_queries(state, turns["k"][of_head])
    _turn_outputs(state, turns["v"][of_head])
    return LayerConversion(state, errors, conventions, _violation(attention, state, target))


def _lrkv_side(
    attention: GroupedAttention,
    side: str,
    state: dict[str, Tensor],
    white: Tensor,
    target: Target,
    free: FreeTurns,
) -> tuple[Float[Tensor, "group width width"], dict[str, float]]:
    """Replace a side's weights by shared and private ones; heads of a group get the same."""
    width, of_head = attention.d_head, torch.tensor(attention.head_to_group)
    found = split(per_head(state.pop(f"{side}.weight"), width), white, target.choose(side), free)
    state[f"{side}.shared.weight"] = found.shared.T
    state[f"{side}.down.weight"] = _rows(found.down[of_head])
    state[f"{side}.B"] = found.up[of_head]
    if (bias := state.get(f"{side}.bias")) is not None:
        state[f"{side}.bias"] = _turned_bias(bias, found.turns)[of_head]
    return found.turns, found.errors


def _pooled_side(
    attention: GroupedAttention,
    side: str,
    state: dict[str, Tensor],
    white: Tensor,
    target: Target,
    free: FreeTurns,
) -> tuple[Float[Tensor, "group width width"], dict[str, float]]:
    """Replace a side's weights by the means of neighbouring groups."""
    groups = target.config.attention.n_groups
    turns, pooled, errors = pool(per_head(state[f"{side}.weight"], attention.d_head), white, groups, free)
    state[f"{side}.weight"] = _rows(pooled)
    if (bias := state.get(f"{side}.bias")) is not None:
        state[f"{side}.bias"] = _turned_bias(bias, turns).unflatten(0, (groups, -1)).mean(1).flatten()
    return turns, errors


def _turn_queries(state: dict[str, Tensor], turns: Float[Tensor, "head width width"]) -> None:
    """Turn queries as their keys were: scores stay what they are."""
    state["q.weight"] = _rows(per_head(state["q.weight"], turns.shape[1]) @ turns)
    if "q.bias" in state:
        state["q.bias"] = _turned_bias(state["q.bias"], turns).flatten()


def _turn_outputs(state: dict[str, Tensor], turns: Float[Tensor, "head width width"]) -> None:
    """Turn output projections back from what their values were turned by."""
    heads, width, _ = turns.shape
    state["o.weight"] = (turns.mT @ state["o.weight"].T.unflatten(0, (heads, width))).flatten(0, 1).T


def _violation(attention: GroupedAttention, state: dict[str, Tensor], target: Target) -> float | None:
    if attention.rotary is None or "k.B" not in state:
        return None
    return float(closure_violation(state["k.B"], *attention.plane_columns()).max())


def _turned_bias(bias: Float[Tensor, " rows"], turns: Float[Tensor, "head width width"]) -> Float[Tensor, "head width"]:
    return torch.einsum("hd,hde->he", bias.view(turns.shape[:2]), turns)


def _rows(heads: Float[Tensor, "head d_in width"]) -> Float[Tensor, "rows d_in"]:
    """Return one matrix a head as a stacked projection: `per_head` undone."""
    return heads.mT.flatten(0, 1)
