"""Norms with TransformerLens's hook points: `hook_scale` (the divisor) and `hook_normalized` (before the gain)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

NormKind = Literal["rms", "layer"]


@dataclass(frozen=True)
class NormConfig:
    """Which norm stands before attention, before the MLP and at the end.

    Parameters
    ----------
    kind
        ``"rms"`` (divide by the root mean square) or ``"layer"`` (subtract the mean first; gain and bias).
    eps
        Added to the mean square under the root.
    bias
        Whether a layer norm has a learned bias (an RMS norm has none).

    Examples
    --------
    >>> from headscope import NormConfig
    >>> NormConfig("layer").to_dict()
    {'kind': 'layer', 'eps': 1e-05, 'bias': True}
    """

    kind: NormKind = "rms"
    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(NormKind):
            raise ValueError(f"norm.kind should be one of {get_args(NormKind)} but got {self.kind!r}")
        require_eps("norm.eps", self.eps)

    def build(self, width: int) -> Norm:
        """Return the module for vectors of `width`."""
        centred = self.kind == "layer"
        return Norm(width, self.eps, centred=centred, bias=centred and self.bias)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        return {"kind": self.kind, "eps": self.eps, "bias": self.bias}


def require_eps(name: str, value: float) -> None:
    """Raise ValueError unless `value` can be added under a norm's root."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} should be a finite number >= 0 but got {value!r}")


class Norm(nn.Module):
    """``(x - mean if centred) / sqrt(mean square + eps) * w + b`` over the last axis.

    Statistics are taken in float32 for half-precision inputs, in the input's own type otherwise.

    Parameters
    ----------
    width
        Size of the last axis.
    eps
        Added to the mean square.
    centred
        Subtract the mean first (LayerNorm).
    gain, bias
        Whether there is a learned gain `w` and a learned bias `b`, both ``[width]``.
    """

    def __init__(self, width: int, eps: float, *, centred: bool = False, gain: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.eps = eps
        self.centred = centred
        self.w = nn.Parameter(torch.ones(width)) if gain else None
        self.b = nn.Parameter(torch.zeros(width)) if bias else None
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    @property
    def gain(self) -> Float[Tensor, " width"]:
        """The learned gain without its gradient, ones if there is none."""
        return torch.ones(self.width) if self.w is None else self.w.detach()

    def fold_(self, weight: Float[Tensor, "*rows width"]) -> None:
        """Fold everything linear in the norm into `weight` in place; its last axis reads this norm's output.

        The gain scales the columns; a centred norm also removes their mean, since its output never has a component
        along the all-ones direction before the gain. What is left of the norm is one positive scalar a token.
        """
        if self.w is not None:
            weight *= self.gain.to(weight)
        if self.centred:
            weight -= weight.mean(-1, keepdim=True)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Normalise the last axis."""
        dtype = x.dtype
        if dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        x = self.hook_normalized(x / scale)
        if self.w is not None:
            x = x * self.w
        if self.b is not None:
            x = x + self.b
        return x.to(dtype)


class JointNorm(Norm):
    """One norm over all heads together, ``[..., head, width]`` (OLMo-2): they share its divisor, not its gains."""

    def forward(self, x: Float[Tensor, "*batch head width"]) -> Float[Tensor, "*batch head width"]:
        """Normalise the last two axes as one."""
        return super().forward(x.flatten(-2)).unflatten(-1, x.shape[-2:])
