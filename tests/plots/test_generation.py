"""Maps over a generation: what they show is what came in, and they stay readable at any size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from headscope import plots
from headscope.plots.panels import figure_of


def step_map(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.step_map(*given, **options))


def looked_map(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.looked_map(*given, **options))


def table(layers, heads, steps):
    index = [(s, layer, h) for s in range(steps) for layer in range(layers) for h in range(heads)]
    frame = pd.DataFrame(index, columns=["step", "layer", "head"])
    return frame.assign(entropy=np.linspace(0, 3, len(frame)))


def test_cells_hold_the_values():
    frame = table(2, 4, 3)
    ax, bar = step_map(frame, "entropy", label="entropy (nats)", tokens=["a", " b", "\n"]).axes
    grid = np.asarray(ax.collections[0].get_array())
    assert grid.shape == (8, 3)
    row = frame[(frame["layer"] == 1) & (frame["head"] == 2)].sort_values("step")
    np.testing.assert_array_equal(grid[6], row["entropy"])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "␣b", "⏎"]
    assert [label.get_text() for label in ax.get_yticklabels()][5] == "L1H1"
    assert bar.get_ylabel() == "entropy (nats)"


def test_a_large_model_names_layers_by_their_first_head():
    ax = step_map(table(64, 128, 2), "entropy", label="x", tokens=["a", "b"]).axes[0]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) == 32
    assert names[:2] == ["L0H0", "L2H0"]


def test_many_tokens_are_named_by_position_and_the_stride_is_said():
    ax = step_map(table(1, 2, 150), "entropy", label="x", tokens=["a"] * 150).axes[0]
    assert ax.get_xlabel() == "number of the new token, every 4th labelled"
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["0", "4", "8"]


def test_a_cell_without_a_value_does_not_set_the_scale():
    frame = table(1, 2, 2)
    frame.loc[0, "entropy"] = np.nan
    image = step_map(frame, "entropy", label="x", tokens=["a", "b"]).axes[0].collections[0]
    assert image.get_clim() == (0.0, 3.0)
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[True, False], [False, False]]


def test_steps_beyond_what_a_page_shows_are_means_and_it_is_said():
    frame = table(1, 2, 1500)
    frame.loc[frame["step"] == 1, "entropy"] = np.nan
    ax = step_map(frame, "entropy", label="x", tokens=["a"] * 1500).axes[0]
    grid = np.asarray(ax.collections[0].get_array())
    assert grid.shape == (2, 500)
    first = frame[(frame["head"] == 1) & (frame["step"] < 3)]["entropy"].mean()
    assert grid[1, 0] == pytest.approx(first)
    assert ax.get_xlabel() == "number of the new token (means of 3 steps), every 30th labelled"
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["0", "30", "60"]


def test_pages_hold_every_layer_once_and_have_one_scale():
    frame = table(7, 128, 2)
    pages = plots.head_pages(zip(frame["layer"], frame["head"], strict=True))
    assert sum(pages, []) == list(range(7))
    assert max(map(len, pages)) == 4
    drawn = [step_map(frame, "entropy", label="x", tokens=["a", "b"], layers=page, title="T") for page in pages]
    assert [len(page.axes[0].collections[0].get_array()) for page in drawn] == [512, 384]
    assert {page.axes[0].collections[0].get_clim() for page in drawn} == {(0.0, 3.0)}
    assert [page.get_suptitle() for page in drawn] == ["T (layers 0–3 of 0–6)", "T (layers 4–6 of 0–6)"]
    assert plots.head_pages([(0, head) for head in range(2000)]) == [[0]]
    with pytest.raises(ValueError, match=r"none of the layers \[9\]: it has \[0, 1\]"):
        step_map(table(2, 2, 1), "entropy", label="", tokens=["a"], layers=[9])


def test_cells_stand_where_heads_looked():
    rows = pd.DataFrame({"layer": [0, 1], "head": [1, 0], "key_pos": [2, 0], "weight": [0.75, 0.5]})
    ax = looked_map(rows, ["a", "b", "$x$"]).axes[0]
    assert ax.collections[0].get_array().tolist() == [[None, 0.75], [0.5, None]]
    assert ax.collections[0].get_clim() == (0.0, 1.0)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L0H1", "L1H0"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a 0", r"\$x\$ 2"]
    assert ax.get_xlabel() == "the 2 positions of 3 that are among a head's strongest"
    assert ax.patch.get_hatch() is None  # nothing is missing there
    looked_map(rows, ["a", "b", "$x$"]).canvas.draw()


def test_of_many_positions_the_strongest_have_columns_and_the_rest_one_together():
    rng = np.random.default_rng(0)
    places = np.arange(90)
    rows = pd.DataFrame({"layer": 0, "head": places % 3, "key_pos": 5 * places, "weight": rng.permutation(90) / 100})
    ax = looked_map(rows, ["t"] * 500).axes[0]
    grid = ax.collections[0].get_array()
    assert grid.shape == (3, 61)
    strongest = rows.nlargest(60, "weight")
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == [f"t {place}" for place in sorted(strongest["key_pos"])] + ["30 others"]
    others = rows.drop(strongest.index).groupby("head")["weight"].sum()
    np.testing.assert_allclose(grid[:, -1].filled(0), others)
    assert grid.sum() == pytest.approx(rows["weight"].sum())  # nothing is lost
    assert ax.get_xlabel() == "the 60 positions with most weight of 90 that are looked at, of 500"


@pytest.mark.parametrize("draw", [lambda t: step_map(t, "entropy", label="", tokens=[]), lambda t: looked_map(t, [])])
def test_an_empty_table_is_refused(draw):
    columns = ["step", "layer", "head", "entropy", "key_pos", "weight"]
    with pytest.raises(ValueError, match="is empty"):
        draw(pd.DataFrame(columns=columns))
