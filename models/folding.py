"""From weights to factors: checked, upcast to float64, with the norms' gains folded in where asked."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .attention import Attention
from .factors import HeadStack, Separate
from .norms import Norm
from .variant import AttentionConfig


def check_finite(layer: int, name: str, weight: Float[Tensor, "*shape"], unit: str = "head") -> None:
    """Raise ValueError naming layer, head (or what else the first of three axes counts) and matrix on NaN or Inf."""
    # A sum is NaN or Inf whenever an entry is, and one pass is cheaper than a mask of the weight's size.
    if bool(torch.isfinite(weight.sum(dtype=torch.float64))):
        return
    bad: Bool[Tensor, "*shape"] = ~torch.isfinite(weight)
    if not bool(bad.any()):
        return
    if weight.ndim == 3:
        where = f"layer {layer}, {unit} {int(bad.flatten(1).any(1).nonzero()[0])}, {name}"
    else:
        where = f"layer {layer}, {name}"
    raise ValueError(f"{where} holds {int(bad.sum())} values that are NaN or Inf; expected finite weights")


def matrix(
    layer: int, name: str, weight: Float[Tensor, "*shape"], norm: Norm | None = None, unit: str = "head"
) -> Float[Tensor, "*shape"]:
    """Return a weight (last axis: input) checked, in float64, with the norm before it folded in."""
    # One copy, laid out for the products to come, also where nothing is to convert: factors must not move when
    # somebody edits the model. On the CPU, since some accelerators have no float64.
    wide = torch.empty(weight.shape, dtype=torch.float64).copy_(weight.detach())
    check_finite(layer, name, wide, unit)
    if norm is not None:
        check_finite(layer, f"gain of the norm before {name}", norm.gain)
        norm.fold_(wide)
    return wide


def stack(
    layer: int,
    name: str,
    weight: Float[Tensor, "rows d_in"],
    width: int,
    norm: Norm | None,
    of_head: Int[Tensor, " head"],
) -> Separate:
    """Return a stacked projection ``[group * width, d_in]`` as one factor a group."""
    # Turned, where it has to be, as a matrix and in its own type: many times faster than while it is upcast.
    rows = weight.detach().contiguous().unflatten(0, (-1, width))
    unit = "head" if len(rows) == len(of_head) else "group"
    return Separate(matrix(layer, name, rows, norm, unit), of_head)


def fold_qk_gains(
    layer: int, q: HeadStack, k: HeadStack, attention: Attention, fold: bool, notes: list[str]
) -> tuple[HeadStack, HeadStack]:
    """Return queries and keys with the q/k norm's gains folded into their columns, and note what is left out.

    A gain before the rotation belongs to the factor's columns on either side; one after the rotation stands between
    the query's and the key's rotation, ``W_Q R_i diag(g_q g_k) R_j^T W_K^T``, which depends on both positions. It is
    then taken for a key at position 0, where the form is ``W_Q R_delta (W_K diag(g_q g_k))^T``.
    """
    norm = attention.qk_norm
    if norm is None:
        return q, k
    each = "per token, the same for all heads," if norm.span == "all" else "per head and token"
    notes.append(f"q/k norm: its data-dependent scalar {each} is not part of the form")
    if not (norm.gain and fold):
        return q, k
    g_q = matrix(layer, "q_norm gain", attention.q_norm.gain)
    g_k = matrix(layer, "k_norm gain", attention.k_norm.gain)
    if norm.span == "all":
        g_q, g_k = (gain.unflatten(0, (-1, attention.config.d_key)) for gain in (g_q, g_k))
    if norm.where == "before":
        return q.scale_columns(g_q), k.scale_columns(g_k)
    if attention.rotary is not None:
        notes.append("q/k norm gain after the rotation depends on both positions: taken for a key at position 0")
    return q, k.scale_columns(g_q * g_k)


def note_left_out(config: AttentionConfig, norm: Norm | None, notes: list[str]) -> None:
    """Say what of a layer's scores is outside its bilinear forms."""
    if config.softcap is not None:
        notes.append(f"scores are capped at ±{config.softcap:g}, which is not part of the forms")
    if config.slopes is not None:
        notes.append("ALiBi's slopes over distance are not part of the forms")
    if config.window is not None:
        notes.append(
            f"a sliding window hides keys {config.window} and more tokens back, which is not part of the forms"
        )
    if config.bias:
        notes.append("query, key and value biases are not part of the forms")
    if norm is not None and norm.b is not None:
        notes.append("the input norm's bias is not part of the forms")
