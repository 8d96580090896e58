"""Mixtures of experts, token by token in loops. The released routers are compared in tests/checkpoints."""

from __future__ import annotations

import pytest
import torch
from headscope.models import ExpertsConfig, GroupedConfig, HookedModel, MLPConfig, ModelConfig

PLAIN = ExpertsConfig(n_experts=4, n_active=2, d_mlp=5)
CONFIGS = {
    "softmax": PLAIN,
    "normalised": ExpertsConfig(n_experts=4, n_active=2, d_mlp=5, normalise=True, factor=1.7),
    "shared": ExpertsConfig(n_experts=3, n_active=1, d_mlp=5, shared=MLPConfig(d_mlp=4, bias=True)),
    "groups": ExpertsConfig(n_experts=6, n_active=2, d_mlp=5, n_groups=3, n_active_groups=1),
    "sigmoid": ExpertsConfig(
        n_experts=6,
        n_active=3,
        d_mlp=5,
        scores="sigmoid",
        correction=True,
        n_groups=3,
        n_active_groups=2,
        group_score="best_two",
        normalise=True,
    ),
}


def by_hand(experts, x: torch.Tensor) -> torch.Tensor:
    config = experts.config
    logits = experts.router @ x
    scores = logits.softmax(0) if config.scores == "softmax" else logits.sigmoid()
    ranked = {
        e: float(scores[e] + (0 if experts.correction is None else experts.correction[e])) for e in range(len(scores))
    }
    size = config.n_experts // config.n_groups
    count = 1 if config.group_score == "best" else 2

    def worth(group: int) -> float:
        return sum(sorted((ranked[e] for e in range(group * size, (group + 1) * size)), reverse=True)[:count])

    groups = sorted(range(config.n_groups), key=worth, reverse=True)[: config.n_active_groups]
    chosen = sorted((e for e in ranked if e // size in groups), key=ranked.__getitem__, reverse=True)[: config.n_active]
    total = sum(float(scores[e]) for e in chosen) if config.normalise else 1.0
    out = torch.zeros_like(x) if experts.shared is None else experts.shared(x[None, None])[0, 0]
    for e in chosen:
        hidden = torch.nn.functional.silu(experts.gates[e] @ x) * (experts.ups[e] @ x)
        out = out + float(scores[e]) / total * config.factor * (experts.downs[e] @ hidden)
    return out


@pytest.mark.parametrize("name", list(CONFIGS))
@torch.no_grad()
def test_experts_equal_loops(name, close):
    torch.manual_seed(0)
    experts = CONFIGS[name].build(8).double()
    if experts.correction is not None:
        experts.correction.normal_()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    close(experts(x), torch.stack([torch.stack([by_hand(experts, token) for token in row]) for row in x]))


def test_a_model_of_experts_runs_trains_and_says_what_it_has_not(tokens):
    heads = GroupedConfig(n_heads=4, d_head=4)
    config = ModelConfig(d_model=16, n_layers=2, d_vocab=19, n_ctx=12, attention=heads, mlp=CONFIGS["sigmoid"])
    assert ModelConfig.from_dict(config.to_dict()) == config
    torch.manual_seed(0)
    model = HookedModel(config)
    loss, cache = model.run_with_cache(tokens, "loss")
    loss.backward()
    assert bool(model.blocks[0].mlp.router.grad.isfinite().all())
    assert float(model.blocks[0].mlp.downs.grad.abs().max()) > 0
    assert cache["blocks.1.mlp.hook_expert_indices"].shape == (2, 7, 3)
    assert cache["blocks.1.mlp.hook_expert_weights"].shape == (2, 7, 3)
    with pytest.raises(ValueError, match="layer 0 is a mixture of experts"):
        _ = model.W_in
