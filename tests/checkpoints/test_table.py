"""From names to a plan: fused projections of any order, gains less 1, and ALiBi's slopes against the released models'."""

from __future__ import annotations

import pytest
import torch
from headscope.checkpoints.checkpoint import Source
from headscope.checkpoints.families.slopes import bloom_slopes, mpt_slopes
from headscope.checkpoints.families.table import fused, halves, plus_one, transposed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor


def part(table: object, name: str) -> Source:
    found = table[name]  # pyright: ignore[reportIndexIssue]
    assert isinstance(found, Source)
    return found


@given(
    groups=st.integers(1, 4),
    counts=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    width=st.integers(1, 5),
    turned=st.booleans(),
)
def test_fused_projections_come_apart_as_they_were_put_together(groups, counts, width, turned):
    generator = torch.Generator().manual_seed(0)
    whole = [[torch.randn(count * width, 3, generator=generator) for count in counts] for _ in range(groups)]
    stored = torch.cat([rows for group in whole for rows in group])
    table = fused("qkv", groups, counts, transposed if turned else None)
    for index, side in enumerate("qkv"):
        source = part(table, f"attn.{side}")
        assert source.names == ("qkv",)
        expected = torch.cat([group[index] for group in whole])
        assert torch.equal(source.make(stored.T if turned else stored), expected)
        assert torch.equal(source.make(stored[:, 0]), expected[:, 0])  # a bias


def test_a_fused_gate_stands_first():
    stored = torch.arange(12.0).view(6, 2)
    assert torch.equal(part(halves("gate_up"), "mlp.gate").make(stored), stored[:3])
    assert torch.equal(part(halves("gate_up"), "mlp.up").make(stored), stored[3:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_gain_less_1_is_not_rounded_when_1_is_added(dtype):
    stored = torch.tensor([0.0117, -0.3, 2.5], dtype=dtype)
    made: Tensor = plus_one(stored)
    torch.testing.assert_close(made.double(), stored.double() + 1, rtol=1e-7, atol=0)


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_the_released_ones(heads):
    torch.testing.assert_close(torch.tensor(bloom_slopes(heads)), _get_alibi_slopes(heads, torch.device("cpu")))
    theirs = build_mpt_alibi_tensor(heads, 3)  # slope times position, the last at 0
    torch.testing.assert_close(-torch.tensor(mpt_slopes(heads)), theirs[:, 0, 1])
