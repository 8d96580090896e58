"""What stands between the product of a query and a key and the softmax: a cap, a slope over distance, a window."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def soft_cap(x: Float[Tensor, "*shape"], cap: float) -> Float[Tensor, "*shape"]:
    """Return ``cap * tanh(x / cap)``: nearly `x` where it is small, never beyond ±`cap` (Gemma 2, arXiv 2408.00118)."""
    return torch.tanh(x / cap) * cap


def slope_bias(
    slopes: tuple[float, ...],
    query_pos: Int[Tensor, "batch query_pos"],
    key_pos: Int[Tensor, "batch key_pos"],
    dtype: torch.dtype,
) -> Float[Tensor, "batch head query_pos key_pos"]:
    """Return ALiBi's bias: minus a head's slope times how far a key lies behind the query (arXiv 2108.12409)."""
    distance = (key_pos[:, None, :] - query_pos[:, :, None]).to(dtype)
    return torch.tensor(slopes, dtype=dtype, device=distance.device)[:, None, None] * distance[:, None]


def within(
    visible: Bool[Tensor, "#batch #head query_pos key_pos"] | None,
    window: int,
    query_pos: Int[Tensor, "batch query_pos"],
    key_pos: Int[Tensor, "batch key_pos"],
) -> Bool[Tensor, "batch #head query_pos key_pos"] | None:
    """Narrow a mask to a sliding window: a query sees itself and the ``window - 1`` tokens before it.

    Parameters
    ----------
    visible
        What is visible without the window; None: a query sees itself and all before it (as many keys as queries).
    window
        Keys a query may see, itself among them.
    query_pos, key_pos
        Position of each; what pads have is of no matter, since they are not visible.

    Returns
    -------
    Tensor or None
        `visible` as it came where no query reaches beyond the window.
    """
    if key_pos.shape[1] <= window:
        return visible
    near = (query_pos[:, :, None] - key_pos[:, None, :] < window)[:, None]
    if visible is None:
        visible = torch.ones(near.shape[-2:], dtype=torch.bool, device=near.device).tril()[None, None]
    return visible & near
