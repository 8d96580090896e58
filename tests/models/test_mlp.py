"""The feed-forward part against its formula."""

from __future__ import annotations

import math

import pytest
import torch
from headscope.models import MLPConfig
from headscope.models.mlp import ACTIVATIONS

SCALAR = {
    "silu": lambda v: v / (1 + math.exp(-v)),
    "gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))),
    "gelu_new": lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    "relu": lambda v: max(v, 0.0),
    "relu2": lambda v: max(v, 0.0) ** 2,
}


def test_every_activation_has_a_formula_here():
    assert set(SCALAR) == set(ACTIVATIONS)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("act", SCALAR)
def test_equals_the_formula(act: str, gated: bool, bias: bool, close):
    torch.manual_seed(0)
    mlp = MLPConfig(d_mlp=5, act=act, gated=gated, bias=bias).build(4).double()
    x = torch.randn(1, 1, 4, dtype=torch.float64)

    def affine(layer, values: list[float]) -> list[float]:
        offset = [0.0] * len(layer.weight) if layer.bias is None else layer.bias.tolist()
        rows = zip(layer.weight.tolist(), offset, strict=True)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in rows]

    values = x.flatten().tolist()
    up = affine(mlp.up, values)
    hidden = [SCALAR[act](v) for v in (affine(mlp.gate, values) if gated else up)]
    if gated:
        hidden = [h * u for h, u in zip(hidden, up, strict=True)]
    expected = torch.tensor(affine(mlp.down, hidden), dtype=torch.float64)
    close(mlp(x).flatten().detach(), expected, 1e-12)


def test_weights_in_transformer_lens_shapes():
    mlp = MLPConfig(d_mlp=5, bias=True).build(4)
    assert mlp.W_in.shape == mlp.W_gate.shape == (4, 5)
    assert mlp.W_out.shape == (5, 4)
    assert mlp.W_in.data_ptr() == mlp.up.weight.data_ptr()
    assert mlp.W_out.data_ptr() == mlp.down.weight.data_ptr()
    assert torch.equal(mlp.b_out, mlp.down.bias)
    plain = MLPConfig(d_mlp=5, gated=False).build(4)
    assert torch.equal(plain.b_out, torch.zeros(4))
    with pytest.raises(ValueError, match="not gated"):
        plain.W_gate  # noqa: B018


def test_hooks_stand_where_transformer_lens_has_them(close):
    """`hook_pre` before the activation, `hook_pre_linear` the ungated branch, `hook_post` what goes down."""
    torch.manual_seed(0)
    mlp = MLPConfig(d_mlp=5, act="relu").build(4)
    seen = {}
    for name in ("hook_pre", "hook_pre_linear", "hook_post"):
        getattr(mlp, name).add_hook(lambda value, hook, name=name: seen.update({name: value}))
    x = torch.randn(2, 3, 4)
    out = mlp(x)
    close(seen["hook_pre"], x @ mlp.W_gate, 1e-6)
    close(seen["hook_pre_linear"], x @ mlp.W_in, 1e-6)
    close(seen["hook_post"], seen["hook_pre"].relu() * seen["hook_pre_linear"], 1e-6)
    close(out, seen["hook_post"] @ mlp.W_out, 1e-6)
