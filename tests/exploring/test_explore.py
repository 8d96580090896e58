"""What explorers draw is what reports, patterns and probes hold."""

from __future__ import annotations

import doctest
import importlib

import headscope as hs
import numpy as np
import pytest
import torch
from headscope.exploring import Explorer, explore
from headscope.models.per_layer import LayerChanges

TEXT = "def read(path):\n    with open(path) as handle:\n        return handle.read()\n"


def shown(figure) -> np.ndarray:
    """The map's colours, NaN where it has none."""
    values = figure.axes[0].collections[0].get_array().astype(float)
    side = round(values.size**0.5)
    return np.ma.filled(values, np.nan).reshape(side, side)


@pytest.fixture(scope="module")
def model() -> hs.HookedModel:
    return hs.load("lrkv")


def test_a_report_is_turned_by_layer_and_circuit():
    report = hs.report("lrkv", null=0)
    explorer = explore(report, layer=3)
    assert explorer.choices == {"layer": (0, 1, 2, 3), "circuit": ("QK", "OV")}
    figure = explorer(circuit="OV")
    wanted = report.similarity["ov", "all", 3].copy()
    np.fill_diagonal(wanted, np.nan)
    np.testing.assert_allclose(shown(figure), wanted)
    row = report.table.query("layer == 3 and circuit == 'ov'").iloc[0]
    assert f"effective rank {row['erank']:.2f} of at most 8, centred {row['erank_centred']:.2f} of at most 7" in (
        figure.get_suptitle()
    )


@pytest.mark.parametrize("source", ["path", "checkpoint", "model"])
def test_a_model_is_turned_by_distance_too(source, model):
    given = {"path": "lrkv", "checkpoint": hs.open_checkpoint("lrkv"), "model": model}[source]
    explorer = explore(given)
    assert explorer.choices["offset"] == tuple(range(256))
    report = hs.report("lrkv", circuit="qk", offsets=7, layers=[1], null=0)
    wanted = report.similarity["qk", "all", 1].copy()
    np.fill_diagonal(wanted, np.nan)
    np.testing.assert_allclose(shown(explorer(layer=1, circuit="QK", offset=7)), wanted, atol=1e-12)


def test_long_distances_double_and_positions_that_do_not_rotate_offer_none():
    def random(**changed) -> hs.HookedModel:
        attention = hs.GroupedConfig(n_heads=4, d_head=8)
        return hs.HookedModel(
            hs.ModelConfig(
                **{"d_model": 32, "n_layers": 1, "d_vocab": 50, "n_ctx": 2000, "attention": attention, **changed}
            )
        )

    assert explore(random()).choices["offset"][-4:] == (255, 256, 512, 1024)
    assert "offset" not in explore(random(positions="learned")).choices


def test_parts_of_the_latent_variant_can_be_chosen():
    explorer = explore("mla")
    assert {"QK · content", "QK · position", "QK · joint", "QK · content_d_model", "OV"} <= set(
        explorer.choices["circuit"]
    )
    assert "QK · position" in explorer(circuit="QK · position", offset=3).get_suptitle()


def test_a_layer_without_rotary_positions_has_no_distance():
    attention = hs.GroupedConfig(n_heads=4, d_head=8)
    by_layer = (LayerChanges(), LayerChanges(positions="none"))
    config = hs.ModelConfig(d_model=32, n_layers=2, d_vocab=50, n_ctx=16, attention=attention, by_layer=by_layer)
    explorer = hs.explore(hs.HookedModel(config), offset=3)
    assert "distance 3" in explorer(layer=0).get_suptitle()
    assert "distance" not in explorer(layer=1).get_suptitle()


def test_texts_that_do_not_fit_are_refused(model):
    for text in ("", "word " * 2000):
        with pytest.raises(ValueError, match=r"text should have between 1 and n_ctx \d+ tokens but has"):
            hs.explore(model, text)


def test_a_text_gives_patterns_by_head(model):
    explorer = explore(model, TEXT)
    _, cache = model.run_with_cache(TEXT)
    wanted = cache["blocks.3.attn.hook_pattern"][0, 3]
    got = shown(explorer(layer=3, head=3))
    count = len(wanted)
    below = np.tril(np.ones((count, count), dtype=bool))
    np.testing.assert_allclose(got[below], wanted.detach().numpy()[below], atol=1e-6)
    assert np.isnan(got[~below]).all()
    again = explore(hs.report(model, null=0, layers="0"), TEXT)(layer=3, head=3)
    np.testing.assert_array_equal(shown(again)[below], got[below])  # a result's model reads it, too
    labels = [label.get_text() for label in explorer(layer=0).axes[0].get_xticklabels()]
    assert labels[0] == "def"


def test_a_probe_is_turned_by_step_and_other_results_by_picture(model):
    probe = hs.probe(model, TEXT, max_new_tokens=3)
    explorer = explore(probe)
    assert explorer.choices == {"step": (0, 1, 2)}
    assert explorer(step=2).get_suptitle() == probe.looked(2).get_suptitle()
    needles = explore(hs.needle(model, distances=(8, 32), samples=4))
    assert needles.choices == {"picture": ("needle-8", "needle-32")}
    assert "32 tokens back" in needles(picture="needle-32").get_suptitle()


def test_what_cannot_be_explored_is_said(model):
    report = hs.report("lrkv", null=0, layers="0")
    with pytest.raises(ValueError, match="layer should be one of 0 but got 3"):
        explore(report, layer=3)
    with pytest.raises(hs.CheckpointError, match="nowhere does not exist"):
        explore("nowhere")
    same = hs.HookedModel(
        hs.ModelConfig(
            d_model=16, n_layers=1, d_vocab=9, n_ctx=8, attention=hs.GroupedConfig(n_heads=2, d_head=8, n_kv_heads=1)
        )
    )
    with torch.no_grad():
        same.attention(0).q.weight[8:] = same.attention(0).q.weight[:8]
    assert "degenerate: all heads have the same form" in explore(same)().get_suptitle()


def test_the_example_runs():
    assert isinstance(explore("lrkv"), Explorer)
    results = doctest.testmod(importlib.import_module("headscope.exploring.explore"))
    assert results.attempted > 0
    assert results.failed == 0
