"""One layer's map and spectra, and one head's pattern: what is drawn is what was given."""

from __future__ import annotations

import numpy as np
import pytest
from headscope.plots import attention_pattern, one_layer
from matplotlib.figure import Figure


def test_bars_are_shares_and_cells_are_named_by_their_cosines():
    matrix = np.array([[1.0, -0.25], [-0.25, 1.0]])
    left, right = one_layer(matrix, {"uncentred": [0.625, 0.375], "centred": [1.0]}, title="layer 0")
    assert [text.get_text() for text in left.texts] == ["−.25", "−.25"]
    assert [patch.get_height() for patch in right.patches] == [62.5, 37.5, 100.0]
    assert right.lines[0].get_ydata()[0] == 50  # an even share of two heads
    assert left.figure.get_suptitle() == "layer 0"


def test_many_heads_have_no_numbers_and_some_names():
    left, _ = one_layer(np.eye(64), {"uncentred": np.full(64, 1 / 64)})
    assert not left.texts
    assert len(left.get_xticklabels()) <= 32
    assert "labelled" in left.get_xlabel()


def test_both_draw_on_the_callers_axes():
    figure = Figure()
    panels = figure.subplots(1, 3)
    one_layer(np.eye(2), {"uncentred": [0.5, 0.5]}, title="mine", ax=panels[:2])
    assert attention_pattern(np.eye(2), ["a", "b"], title="its own", ax=panels[2]) is panels[2]
    assert [ax.get_title() for ax in panels] == ["mine", "", "its own"]


def test_the_future_of_a_query_is_no_weight():
    weights = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    ax = attention_pattern(weights, ["a", " b", "\n"])
    drawn = np.ma.filled(ax.collections[0].get_array().reshape(3, 3), np.nan)
    np.testing.assert_array_equal(np.isnan(drawn), ~np.tri(3, dtype=bool))
    np.testing.assert_array_equal(drawn[np.tri(3, dtype=bool)], weights[np.tri(3, dtype=bool)])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "␣b", "⏎"]


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match=r"square \[head, head\] matrix but is \(2, 3\)"):
        one_layer(np.ones((2, 3)), {})
    with pytest.raises(ValueError, match=r"pattern should be .* for 2 tokens, \(2, 2\), but is \(3, 3\)"):
        attention_pattern(np.eye(3), ["a", "b"])


def test_a_head_without_a_value_is_hatched_and_the_diagonal_is_not():
    matrix = np.eye(3)
    matrix[2] = matrix[:, 2] = np.nan
    left, _ = one_layer(matrix, {"uncentred": [0.5, 0.5]})
    cosines, diagonal = (np.ma.getmaskarray(mesh.get_array()).reshape(3, 3) for mesh in left.collections)
    assert left.patch.get_hatch()
    np.testing.assert_array_equal(~diagonal, np.diag([True, True, False]))
    np.testing.assert_array_equal(~cosines, [[False, True, False], [True, False, False], [False, False, False]])
