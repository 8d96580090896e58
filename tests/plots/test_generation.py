"""Maps over a generation: what they show is what came in, and they stay readable at any size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from headscope.plots import looked_map, step_map


def table(layers, heads, steps):
    index = [(s, layer, h) for s in range(steps) for layer in range(layers) for h in range(heads)]
    frame = pd.DataFrame(index, columns=["step", "layer", "head"])
    return frame.assign(entropy=np.linspace(0, 3, len(frame)))


def test_cells_hold_the_values():
    frame = table(2, 4, 3)
    ax, bar = step_map(frame, "entropy", label="entropy (nats)", tokens=["a", " b", "\n"]).axes
    grid = np.asarray(ax.images[0].get_array())
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
    assert ax.get_xlabel() == "new token (every 3th)"
    assert [label.get_text() for label in ax.get_xticklabels()][:3] == ["0", "3", "6"]


def test_a_cell_without_a_value_does_not_set_the_scale():
    frame = table(1, 2, 2)
    frame.loc[0, "entropy"] = np.nan
    image = step_map(frame, "entropy", label="x", tokens=["a", "b"]).axes[0].images[0]
    assert image.get_clim() == (0.0, 3.0)


def test_points_stand_where_heads_looked():
    rows = pd.DataFrame({"layer": [0, 1], "head": [1, 0], "key_pos": [2, 0], "weight": [0.75, 0.5]})
    ax = looked_map(rows, ["a", "b", "$x$"]).axes[0]
    points = ax.collections[0]
    np.testing.assert_array_equal(points.get_offsets(), [[2, 0], [0, 1]])
    np.testing.assert_array_equal(points.get_array(), [0.75, 0.5])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L0H1", "L1H0"]
    looked_map(rows, ["a", "b", "$x$"]).canvas.draw()


@pytest.mark.parametrize("draw", [lambda t: step_map(t, "entropy", label="", tokens=[]), lambda t: looked_map(t, [])])
def test_an_empty_table_is_refused(draw):
    columns = ["step", "layer", "head", "entropy", "key_pos", "weight"]
    with pytest.raises(ValueError, match="is empty"):
        draw(pd.DataFrame(columns=columns))
