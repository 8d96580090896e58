"""Norms against torch's own, and what folding them leaves."""

from __future__ import annotations

import pytest
import torch
from headscope.models import NormConfig
from headscope.models.norms import Norm
from torch.nn.functional import layer_norm, rms_norm


def norm(kind: str, width: int = 6, eps: float = 1e-3) -> Norm:
    torch.manual_seed(0)
    module = NormConfig(kind=kind, eps=eps).build(width)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(1.0, 0.5)
    return module.double()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.1 + 0.05


def test_equals_torch(x, close):
    rms, layer = norm("rms"), norm("layer")
    close(rms(x), rms_norm(x, (6,), rms.w, 1e-3), 1e-12)
    close(layer(x), layer_norm(x, (6,), layer.w, layer.b, 1e-3), 1e-12)


def test_parameters():
    assert {name for name, _ in norm("rms").named_parameters()} == {"w"}
    assert {name for name, _ in norm("layer").named_parameters()} == {"w", "b"}
    bare = Norm(6, 1e-6, gain=False)
    assert list(bare.parameters()) == []
    folded = torch.eye(6)
    bare.fold_(folded)
    assert torch.equal(folded, torch.eye(6))


def test_without_gain(x, close):
    close(Norm(6, 1e-3, gain=False)(x), rms_norm(x, (6,), None, 1e-3), 1e-12)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_hooks_see_divisor_and_direction(kind: str, x, close):
    module, seen = norm(kind), {}
    module.hook_scale.add_hook(lambda value, hook: seen.update(scale=value))
    module.hook_normalized.add_hook(lambda value, hook: seen.update(normalized=value))
    out = module(x)
    centred = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    assert seen["scale"].shape == (3, 4, 1)
    close(seen["normalized"] * seen["scale"], centred, 1e-12)
    close(seen["scale"].square(), centred.square().mean(-1, keepdim=True) + 1e-3, 1e-12)
    bias = 0 if module.b is None else module.b
    close(out, seen["normalized"] * module.w + bias, 1e-12)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_folding_leaves_the_scale(kind: str, x, close):
    """``norm(x) W = x fold(W) / scale`` but for the bias: everything linear has gone into the weight."""
    module = norm(kind)
    if module.b is not None:
        torch.nn.init.zeros_(module.b)
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    seen = {}
    module.hook_scale.add_hook(lambda value, hook: seen.update(scale=value))
    expected = module(x) @ weight.T
    folded = weight.clone()
    module.fold_(folded)
    close(x @ folded.T / seen["scale"], expected, 1e-12)
    assert not torch.allclose(x @ weight.T / seen["scale"], expected)


def test_half_precision_statistics_are_taken_in_float32():
    """Squares of 1e-4 vanish in float16; squares of 300 overflow it."""
    module = Norm(6, 0.0)
    for size in (1e-4, 300.0):
        x = torch.tensor([[size, -size, size, size, -size, size]], dtype=torch.float16)
        out = module.half()(x)
        assert out.dtype == torch.float16
        torch.testing.assert_close(out, torch.sign(x), rtol=1e-3, atol=0)


def test_bf16_equals_the_rounded_float32(x):
    module = norm("rms").bfloat16()
    low = x.bfloat16()
    assert torch.equal(module(low), (rms_norm(low.float(), (6,), None, 1e-3) * module.w).bfloat16())
