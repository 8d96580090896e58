"""A head's pattern before and after: three maps of the same cells, two on one scale, nothing of the future."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headscope import plots


def pattern(n, seed=0):
    scores = np.random.default_rng(seed).normal(size=(n, n)) - 1e9 * np.triu(np.ones((n, n)), 1)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def test_each_panel_holds_its_weights_and_no_future():
    before, after = pattern(6), pattern(6, 1)
    panels = plots.routing_maps(before, after, list("abcdef"), title="L0H0")
    for ax, expected in zip(panels, (before, after, after - before), strict=True):
        shown = ax.collections[0].get_array()
        np.testing.assert_array_equal(np.ma.getmaskarray(shown), np.triu(np.ones((6, 6)), 1))
        np.testing.assert_allclose(shown.compressed(), expected[np.tril_indices(6)])
    assert [ax.get_title() for ax in panels] == ["before", "after", "change: after − before"]
    assert panels[0].figure.get_suptitle() == "L0H0"


def test_the_future_does_not_set_the_scale():
    before, after = pattern(5), pattern(5, 1)
    before[0, 0] = after[0, 0] = 0.3
    past = np.tri(5, dtype=bool)
    scale = max(before[past].max(), after[past].max()), np.abs(after - before)[past].max()
    before[0, 3], after[1, 4] = 50.0, np.nan
    panels = plots.routing_maps(before, after, list("abcde"))
    assert [ax.collections[0].get_clim() for ax in panels] == [(0, scale[0]), (0, scale[0]), (-scale[1], scale[1])]


def test_an_edit_that_does_nothing_is_white_and_bf16_is_read():
    weights = torch.tensor(pattern(3), dtype=torch.bfloat16)
    change = plots.routing_maps(weights, weights, ["a", "b", "c"])[2].collections[0]
    assert change.get_clim() == (-1.0, 1.0)
    assert not change.get_array().any()


@pytest.mark.parametrize(("n", "named", "label"), [(60, 60, "query"), (130, 33, "query, every 4th labelled")])
def test_every_token_is_named_or_the_stride_is_said(n, named, label):
    panels = plots.routing_maps(pattern(n), pattern(n), [f"t{i}\n" for i in range(n)])
    assert panels[0].get_ylabel() == label
    names = [text.get_text() for text in panels[0].get_yticklabels()]
    assert len(names) == named
    assert names[1] == ("t1⏎" if n == 60 else "t4⏎ 4")
    assert [text.get_text() for text in panels[2].get_xticklabels()] == names
    assert panels[0].collections[0].get_array().shape == (n, n)  # no cell is left out


def test_wrong_shapes_are_named():
    with pytest.raises(
        ValueError, match=r"after should be \[query_pos, key_pos\] for 2 tokens, \(2, 2\), but is \(3, 3\)"
    ):
        plots.routing_maps(np.eye(2), np.eye(3), ["a", "b"])
