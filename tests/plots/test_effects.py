"""The map of effects: a cell for each, white at zero, marks on what is significant, gaps hatched."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from headscope import plots
from headscope.plots.panels import figure_of


def effect_map(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.effect_map(*given, **options))


def table(layers: int = 3, heads: int = 4, marked: tuple[tuple[int, int], ...] = ((1, 2),)) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        {"layer": layer, "head": head, "effect": float(rng.normal()), "significant": (layer, head) in marked}
        for layer in range(layers)
        for head in range(heads)
    ]
    return pd.DataFrame(rows)


def test_every_cell_has_its_value_and_the_scale_is_even():
    rows = table()
    ax = effect_map(rows, title="shuffle of k_private").axes[0]
    image = ax.collections[0]
    assert image.get_array().shape == (3, 4)
    np.testing.assert_allclose(image.get_array().ravel(), rows["effect"])
    largest = rows["effect"].abs().max()
    assert image.get_clim() == (-largest, largest)
    assert image.norm(0.0) == 0.5
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "1", "2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head\ndot: significant (1 of 12)", "layer")


def test_only_what_is_significant_is_marked():
    figure = effect_map(table(marked=((0, 3), (2, 1))))
    (marks,) = figure.axes[0].lines
    assert sorted(zip(*marks.get_data(), strict=True)) == [(1.5, 2.5), (3.5, 0.5)]
    assert "significant (2 of 12)" in figure.axes[0].get_xlabel()
    (none,) = effect_map(table(marked=())).axes[0].lines
    assert len(none.get_xdata()) == 0


def test_cells_without_a_value_are_hatched_and_do_not_set_the_scale():
    rows = table()
    rows.loc[5, "effect"] = math.nan
    rows = rows.drop(index=0)
    ax = effect_map(rows).axes[0]
    shown = ax.collections[0]
    assert np.argwhere(np.ma.getmaskarray(shown.get_array())).tolist() == [[0, 0], [1, 1]]
    assert ax.patch.get_hatch()  # what no cell covers shows the panel's own hatching
    assert "hatched: no value" in ax.get_xlabel()
    assert shown.get_clim()[1] == rows["effect"].abs().max()
    assert effect_map(table()).axes[0].patch.get_hatch() is None


def test_one_column_stands_for_all_heads_together():
    ax = effect_map(table(heads=1).assign(head=-1)).axes[0]
    assert ax.get_xlabel().splitlines()[0] == "all heads together"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["all"]


def test_many_heads_have_a_tick_for_some_and_a_cell_for_each():
    ax = effect_map(table(layers=40, heads=128)).axes[0]
    assert ax.collections[0].get_array().shape == (40, 128)
    assert len(ax.get_xticks()) == 32
    assert ax.get_xlabel().splitlines()[0] == "head, every 4th labelled"
    assert ax.get_ylabel() == "layer, every 2nd labelled"
    assert [t.get_text() for t in ax.get_xticklabels()][:2] == ["0", "4"]


def test_all_zero_effects_are_white():
    image = effect_map(table(marked=()).assign(effect=0.0)).axes[0].collections[0]
    assert image.get_clim() == (-1.0, 1.0)


def test_bad_tables_are_named():
    with pytest.raises(ValueError, match="lacks the column"):
        effect_map(table().drop(columns="effect"))
    with pytest.raises(ValueError, match="table is empty"):
        effect_map(table().iloc[:0])
    with pytest.raises(ValueError, match="layer 0, head 0 appears more than once"):
        effect_map(pd.concat([table(), table().iloc[:1]]))
