"""Models of every variant for the measures, small enough to write out d_model x d_model forms by brute force."""

from __future__ import annotations

import pytest
import torch
from headscope.models import (
    GroupedConfig,
    HookedModel,
    LRKVConfig,
    MLAConfig,
    ModelConfig,
    NormConfig,
    QKNorm,
    Rotary,
    YarnScaling,
)

YARN = YarnScaling(factor=4.0, original_context=16)
ATTENTION = {
    "mha": GroupedConfig(n_heads=5, d_head=6),
    "gqa": GroupedConfig(n_heads=6, n_kv_heads=2, d_head=6),
    "mqa": GroupedConfig(n_heads=4, n_kv_heads=1, d_head=6),
    "mla": MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3),
    "mla-query-latent": MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3, d_q_latent=8),
    "lrkv": LRKVConfig(n_heads=5, d_head=6, rank=2),
    "lrkv-qk-norm": LRKVConfig(n_heads=5, d_head=6, rank=3, qk_norm=QKNorm()),
}
POSITIONS = {
    "half-split": Rotary(base=100.0),
    "interleaved": Rotary(base=100.0, interleaved=True),
    "partial": Rotary(base=100.0, width=4),
    "yarn": Rotary(base=100.0, scaling=YARN),
    "none": "none",
}


def build(attention, positions=POSITIONS["half-split"], norm="rms", seed=0, d_model=16, n_layers=1) -> HookedModel:
    """Return a float64 model whose norm gains are not 1."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=d_model,
        n_layers=n_layers,
        d_vocab=11,
        n_ctx=64,
        attention=attention,
        norm=NormConfig(norm),
        positions=positions,
    )
    model = HookedModel(config).double()
    for name, parameter in model.named_parameters():
        if name.endswith((".w", ".b")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@pytest.fixture
def attention_of():
    """Return the configuration of a name."""
    return ATTENTION.__getitem__


@pytest.fixture(params=ATTENTION, name="attention")
def _attention(request):
    return ATTENTION[request.param]


@pytest.fixture(params=POSITIONS, name="positions")
def _positions(request):
    return POSITIONS[request.param]


@pytest.fixture(name="build")
def _build():
    return build
