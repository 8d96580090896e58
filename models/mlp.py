"""The feed-forward part of a block: plain or gated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


@dataclass(frozen=True)
class MLPConfig:
    """Width and kind of the feed-forward part.

    Parameters
    ----------
    d_mlp
        Hidden width.
    act
        Name of the activation, one of `ACTIVATIONS`.
    gated
        ``act(x W_gate) * (x W_in)`` instead of ``act(x W_in)``.
    bias
        Whether the projections have biases.

    Examples
    --------
    >>> from headscope import MLPConfig
    >>> MLPConfig(d_mlp=64)
    MLPConfig(d_mlp=64, act='silu', gated=True, bias=False)
    """

    d_mlp: int
    act: str = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.d_mlp, bool) or not isinstance(self.d_mlp, int) or self.d_mlp <= 0:
            raise ValueError(f"mlp.d_mlp should be an integer > 0 but got {self.d_mlp!r}")
        if self.act not in ACTIVATIONS:
            raise ValueError(f"mlp.act should be one of {sorted(ACTIVATIONS)} but got {self.act!r}")

    def build(self, d_model: int) -> MLP:
        """Return the module for a residual stream of width `d_model`."""
        return MLP(d_model, self)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        return asdict(self)


class MLP(nn.Module):
    """Feed-forward part with hook points `hook_pre`, `hook_post` and, if gated, `hook_pre_linear`."""

    def __init__(self, d_model: int, config: MLPConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.act]
        self.gate = nn.Linear(d_model, config.d_mlp, bias=config.bias) if config.gated else None
        self.up = nn.Linear(d_model, config.d_mlp, bias=config.bias)
        self.down = nn.Linear(config.d_mlp, d_model, bias=config.bias)
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()
        if config.gated:
            self.hook_pre_linear = HookPoint()

    @property
    def W_in(self) -> Float[Tensor, "d_model d_mlp"]:
        """Input projection (a view)."""
        return self.up.weight.T

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"]:
        """Gate projection (a view); ValueError if the MLP is not gated."""
        if self.gate is None:
            raise ValueError("this MLP is not gated: it has no W_gate")
        return self.gate.weight.T

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:
        """Output projection (a view)."""
        return self.down.weight.T

    @property
    def b_out(self) -> Float[Tensor, " d_model"]:
        """Output bias, zeros if there is none."""
        bias = self.down.bias
        return self.down.weight.new_zeros(self.down.out_features) if bias is None else bias

    def scale_out_(self, factor: float) -> None:
        """Multiply the output weights by `factor`, in place."""
        self.down.weight.mul_(factor)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Apply the feed-forward part."""
        if self.gate is None:
            hidden = self.act(self.hook_pre(self.up(x)))
        else:
            hidden = self.act(self.hook_pre(self.gate(x))) * self.hook_pre_linear(self.up(x))
        return self.down(self.hook_post(hidden))
