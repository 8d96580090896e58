"""The strongest effects with their intervals: which are drawn, in what order, and what stands beside them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from headscope import plots


def table(layers=4, heads=8, seed=0):
    rng = np.random.default_rng(seed)
    index = [(layer, head) for layer in range(layers) for head in range(heads)]
    rows = pd.DataFrame(index, columns=["layer", "head"])
    for name in ("", "random_", "shared_"):
        effect = rng.normal(size=len(rows))
        rows[f"{name}effect"], rows[f"{name}low"], rows[f"{name}high"] = effect, effect - 0.1, effect + 0.2
    return rows.assign(significant=rows["effect"].abs() > 1)


def names(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


@pytest.mark.parametrize("heads", [4, 128])
def test_the_strongest_come_first_and_it_is_said_of_how_many(heads):
    rows = table(3, heads)
    ax = plots.effect_intervals(rows, top=10)
    order = rows.loc[rows["effect"].abs().sort_values(ascending=False).index[:10]]
    assert names(ax) == [f"L{row.layer}H{row.head}" for row in order.itertuples()]
    assert ax.get_ylabel() == f"head: the 10 largest effects of {3 * heads}"
    assert ax.get_ylim() == (9.5, -0.5)
    assert plots.effect_intervals(rows, top=999).get_ylabel() == "head, by size of effect"


def test_points_and_intervals_stand_at_their_values_beside_the_controls():
    rows = table()
    ax = plots.effect_intervals(rows, top=32)
    order = rows.loc[rows["effect"].abs().sort_values(ascending=False).index]
    points = {}
    for line in ax.lines:
        points.setdefault(line.get_label(), []).extend(line.get_xdata())
    for label, column in (
        ("the edit", "effect"),
        ("a random direction of the same norm", "random_effect"),
        ("the same edit on what the layer's heads share", "shared_effect"),
    ):
        assert sorted(points[label]) == sorted(order[column])
    edit = ax.collections[0].get_segments()
    np.testing.assert_allclose([segment[:, 0] for segment in edit], order[["low", "high"]])
    assert [round(segment[0, 1] + 0.24) for segment in edit] == list(range(32))


def test_what_is_significant_is_bold_and_filled():
    rows = table()
    ax = plots.effect_intervals(rows, top=12)
    order = rows.loc[rows["effect"].abs().sort_values(ascending=False).index[:12]]
    assert [text.get_fontweight() == "bold" for text in ax.get_yticklabels()] == order["significant"].tolist()
    filled = [line for line in ax.lines if line.get_label() == "the edit" and line.get_markerfacecolor() != "white"]
    assert sorted(filled[0].get_xdata()) == sorted(order["effect"][order["significant"]])
    note = ax.figure.legends[0].get_title().get_text()
    assert note == f"Bold and filled: significant ({int(order['significant'].sum())} of the 12 drawn)."


def test_gaps_draw_nothing_and_set_no_scale():
    rows = table()
    rows.loc[3, "effect"] = math.nan
    rows.loc[5, ["low", "high"]] = math.nan
    rows[["shared_effect", "shared_low", "shared_high"]] = math.nan
    rows.loc[3, ["low", "high"]] = -500.0, 500.0
    ax = plots.effect_intervals(rows, top=100)
    assert len(names(ax)) == 31
    assert len(ax.collections[0].get_segments()) == 30
    assert not any("share" in str(line.get_label()) for line in ax.lines)
    assert max(abs(x) for x in ax.get_xlim()) < 10


def test_heads_edited_together_are_named_by_layer():
    ax = plots.effect_intervals(table(3, 1).assign(head=-1))
    assert sorted(names(ax)) == ["layer 0", "layer 1", "layer 2"]
    assert ax.get_ylabel() == "layer, by size of effect"


def test_bad_tables_are_named():
    with pytest.raises(ValueError, match="lacks the column"):
        plots.effect_intervals(table().drop(columns="random_low"))
    with pytest.raises(ValueError, match="no effect"):
        plots.effect_intervals(table().assign(effect=math.nan))
    with pytest.raises(ValueError, match="top should be at least 1 but got 0"):
        plots.effect_intervals(table(), top=0)
