"""A mixture of experts: a router chooses a few small MLPs for every token; one more may be open to all tokens.

References
----------
Mixtral (arXiv 2401.04088); DeepSeek-V2 (arXiv 2405.04434), section 2.2; DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .mlp import ACTIVATIONS, MLPConfig

RouterScores = Literal["softmax", "sigmoid"]
GroupScore = Literal["best", "best_two"]


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Gated MLPs of which a token passes through a few.

    Parameters
    ----------
    n_experts, n_active
        Experts, and how many of them a token passes through.
    d_mlp
        Hidden width of an expert.
    act
        Name of the activation, one of `ACTIVATIONS`.
    shared
        An MLP that every token passes through besides; None: none.
    scores
        ``"softmax"`` over the experts or a ``"sigmoid"`` each.
    correction
        Whether a learned bias is added to the scores where experts are chosen (not where their results are weighed).
    n_groups, n_active_groups
        The experts in groups, of which only the best stay in the choice; 1 and 1: no groups.
    group_score
        What a group is worth: its ``"best"`` score or the sum of its ``"best_two"``.
    normalise
        Whether the chosen experts' weights are made to sum to 1.
    factor
        Factor on the weights.
    """

    n_experts: int
    n_active: int
    d_mlp: int
    act: str = "silu"
    shared: MLPConfig | None = None
    scores: RouterScores = "softmax"
    correction: bool = False
    n_groups: int = 1
    n_active_groups: int = 1
    group_score: GroupScore = "best"
    normalise: bool = False
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n_experts", "n_active", "d_mlp", "n_groups", "n_active_groups"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"mlp.{name} should be an integer > 0 but got {value!r}")
        if self.act not in ACTIVATIONS:
            raise ValueError(f"mlp.act should be one of {sorted(ACTIVATIONS)} but got {self.act!r}")
        for name, allowed in (("scores", RouterScores), ("group_score", GroupScore)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"mlp.{name} should be one of {get_args(allowed)} but got {getattr(self, name)!r}")
        if self.n_experts % self.n_groups or self.n_active_groups > self.n_groups:
            raise ValueError(
                f"mlp.n_groups should divide n_experts={self.n_experts} and be at least n_active_groups="
                f"{self.n_active_groups} but got {self.n_groups}"
            )
        open_to_choice = self.n_active_groups * self.n_experts // self.n_groups
        if self.n_active > open_to_choice:
            raise ValueError(f"mlp.n_active should be at most {open_to_choice} but got {self.n_active}")
        if not math.isfinite(self.factor):
            raise ValueError(f"mlp.factor should be finite but got {self.factor}")

    def build(self, d_model: int) -> Experts:
        """Return the module for a residual stream of width `d_model`."""
        return Experts(d_model, self)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        return asdict(self)


def mlp_from_dict(data: dict[str, Any]) -> MLPConfig | ExpertsConfig:
    """Build a feed-forward part's configuration from its description; one with experts says how many."""
    if "n_experts" not in data:
        return MLPConfig(**data)
    shared = data.get("shared")
    return ExpertsConfig(**{**data, "shared": None if shared is None else MLPConfig(**shared)})


class Experts(nn.Module):
    """A router and its experts.

    Hook points ``hook_expert_indices`` and ``hook_expert_weights`` are ``[batch, pos, n_active]``: which experts each
    token passes through, and what their results are multiplied by.
    """

    def __init__(self, d_model: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.act = ACTIVATIONS[config.act]
        self.router = nn.Parameter(torch.empty(config.n_experts, d_model))
        self.correction = nn.Parameter(torch.zeros(config.n_experts)) if config.correction else None
        self.gates = nn.Parameter(torch.empty(config.n_experts, config.d_mlp, d_model))
        self.ups = nn.Parameter(torch.empty(config.n_experts, config.d_mlp, d_model))
        self.downs = nn.Parameter(torch.empty(config.n_experts, d_model, config.d_mlp))
        for weight in (self.router, self.gates, self.ups, self.downs):
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        self.shared = None if config.shared is None else config.shared.build(d_model)
        self.hook_expert_indices = HookPoint()
        self.hook_expert_weights = HookPoint()

    @property
    def b_out(self) -> Float[Tensor, " d_model"]:
        """Output bias that every token gets: the shared MLP's, zeros if there is none."""
        return self.downs.new_zeros(self.downs.shape[1]) if self.shared is None else self.shared.b_out

    def scale_out_(self, factor: float) -> None:
        """Multiply all output weights by `factor`, in place."""
        self.downs.mul_(factor)
        if self.shared is not None:
            self.shared.scale_out_(factor)

    def route(
        self, x: Float[Tensor, "batch pos d_model"]
    ) -> tuple[Int[Tensor, "batch pos active"], Float[Tensor, "batch pos active"]]:
        """Return the chosen experts and their weights, worked out in float32 or wider: near ties decide."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        logits = F.linear(wide, self.router.to(wide.dtype))
        scores = logits.softmax(-1) if self.config.scores == "softmax" else logits.sigmoid()
        ranked = scores if self.correction is None else scores + self.correction
        chosen = self._within_groups(ranked).topk(self.config.n_active, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self.config.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.config.factor

    def _within_groups(self, ranked: Float[Tensor, "batch pos expert"]) -> Float[Tensor, "batch pos expert"]:
        """Take the experts outside the best groups out of the choice."""
        config = self.config
        if config.n_active_groups == config.n_groups:
            return ranked
        grouped = ranked.unflatten(-1, (config.n_groups, -1))
        worth = grouped.topk(1 if config.group_score == "best" else 2, dim=-1).values.sum(-1)
        kept = torch.zeros_like(worth, dtype=torch.bool)
        kept.scatter_(-1, worth.topk(config.n_active_groups, dim=-1).indices, True)
        return grouped.masked_fill(~kept[..., None], -math.inf).flatten(-2)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Send every token through its experts and the shared MLP."""
        chosen, weights = self.route(x)
        chosen, weights = self.hook_expert_indices(chosen), self.hook_expert_weights(weights)
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            batch, pos, rank = (chosen == expert).nonzero(as_tuple=True)
            rows = x[batch, pos]
            hidden = self.act(F.linear(rows, self.gates[expert])) * F.linear(rows, self.ups[expert])
            made = F.linear(hidden, self.downs[expert]) * weights[batch, pos, rank, None].to(x.dtype)
            out = out.index_put((batch, pos), made, accumulate=True)
        return out if self.shared is None else out + self.shared(x)
