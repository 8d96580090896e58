"""One head's routing before and after an edit, against the patterns that the model itself has."""

from __future__ import annotations

import json

import headscope as hs
import numpy as np
import pytest
import torch
from headscope.interventions import Resample, Shuffle, Zero, apply

ROW = [1, 5, 2, 5, 3, 1, 5, 5]


@pytest.fixture(scope="module")
def model() -> hs.HookedModel:
    torch.manual_seed(0)
    attention = hs.LRKVConfig(n_heads=4, d_head=6, rank=2)
    return hs.HookedModel(hs.ModelConfig(d_model=24, n_layers=3, d_vocab=7, n_ctx=10, attention=attention)).eval()


def pattern(model, layer, head):
    _, cache = model.run_with_cache(torch.tensor([ROW]))
    return cache[f"blocks.{layer}.attn.hook_pattern"][0, head].detach().double().numpy()


def test_weights_are_the_model_s_own_before_and_after(model):
    edit = Shuffle(path="v_private", layers=(0,), heads=(1,), seed=3)
    found = hs.routing(model, ROW, layer=1, head=2, edit=edit)
    before = pattern(model, 1, 2)
    with apply(model, edit):
        after = pattern(model, 1, 2)
    assert len(found.table) == len(ROW) * (len(ROW) + 1) // 2
    for row in found.table.itertuples():
        assert row.weight == pytest.approx(before[row.query_pos, row.key_pos], abs=1e-6)  # float32
        assert row.weight_edited == pytest.approx(after[row.query_pos, row.key_pos], abs=1e-6)  # float32
    sums = found.table.groupby("query_pos")[["weight", "weight_edited"]].sum()
    np.testing.assert_allclose(sums, 1, atol=1e-6)
    assert found.record["moved"] == pytest.approx(np.abs(after - before).sum() / 2 / len(ROW), abs=1e-6)
    entropies = [-np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(1).mean() for p in (before, after)]
    assert found.record["entropy"] == pytest.approx(entropies, abs=1e-5)
    strongest = found.moved(1).to_dict("records")[0]
    assert abs(strongest["change"]) == pytest.approx(np.abs(after - before).max(), abs=1e-6)
    panels = found.plot().axes[:3]
    change = panels[2].collections[0].get_array().compressed()
    np.testing.assert_allclose(change, (after - before)[np.tril_indices(8)], atol=1e-6)
    assert [name.get_text() for name in panels[0].get_xticklabels()] == [str(token) for token in ROW]
    assert "shuffle of v_private" in found.title()


def test_an_edit_that_comes_too_late_moves_nothing_and_it_is_said(model):
    for edit in ("zero:v:1:2", "zero:z:1", "zero:k:2"):
        found = hs.routing(model, ROW, layer=1, head=2, edit=edit)
        assert found.record["moved"] == 0
        assert "does not reach where L1H2 looks" in found.reading()
    assert "one text" in hs.routing(model, ROW, layer=1, head=2, edit="zero:k:1").reading()


def test_the_model_is_left_as_it_was(model):
    before = pattern(model, 1, 2)
    hs.routing(model, ROW, layer=1, head=2, edit=Zero(path="k"))
    np.testing.assert_array_equal(pattern(model, 1, 2), before)


def test_everything_is_saved_and_axes_may_be_given(model, tmp_path):
    from matplotlib.figure import Figure

    found = hs.routing(model, ROW, layer=0, head=0, edit="mean:k:0:0", out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "routing.json", "routing.csv", "routing.parquet", "tokens.csv", "tokens.parquet", "routing.png",
    }  # fmt: skip
    kept = json.loads((tmp_path / "routing.json").read_text())
    assert kept["rows"][0]["weight"] == 1.0
    assert kept["record"]["edit"]["edit"] == "Mean"
    figure = Figure()
    assert found.plot(ax=figure.subplots(1, 3)) is figure
    tables, lines = found.terminal()
    assert tables[0].row_count == 10
    assert lines[0].startswith("L0H0 of a model in memory: mean of k")


def test_a_text_of_a_model_that_ships():
    found = hs.routing("lrkv", "a = 1\nb = 1\n", layer=2, head=5, edit="shuffle:k_shared:2")
    assert "".join(found.tokens["text"]) == "a = 1\nb = 1\n"
    assert found.record["checkpoint"]["path"]


def test_what_cannot_be_is_named(model):
    with pytest.raises(IndexError, match="layer 3 does not exist"):
        hs.routing(model, ROW, layer=3, head=0, edit="zero:k")
    with pytest.raises(IndexError, match="head 4 does not exist: layer 0 has heads 0–3"):
        hs.routing(model, ROW, layer=0, head=4, edit="zero:k")
    with pytest.raises(ValueError, match="between 1 and n_ctx 10 tokens but has 0"):
        hs.routing(model, [], layer=0, head=0, edit="zero:k")
    with pytest.raises(ValueError, match="tokens but has 11"):
        hs.routing(model, [1] * 11, layer=0, head=0, edit="zero:k")
    with pytest.raises(ValueError, match="resampling needs other rows than this text"):
        hs.routing(model, ROW, layer=0, head=0, edit="resample:k")
    found = hs.routing(model, ROW, layer=0, head=0, edit=Resample(path="k", donors=((2, 3, 4),)))
    assert found.record["edit"]["donors"] == "1 rows"
    with pytest.raises(hs.TokenizerError):
        hs.routing(model, "text", layer=0, head=0, edit="zero:k")
