"""Cache against rank and heads, and printed losses: what is drawn is what the tables say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from headscope import plots
from headscope.budgets.paper import RANK_ABLATION, SIZES, losses
from headscope.plots.panels import figure_of

ROWS = pd.DataFrame(
    [
        ("mha", "mha", 18, 128, "groups", 18, 100.0, 100.0),
        ("gqa", "gqa", 18, 128, "groups", 6, 33.3, 33.3),
        ("lrkv", "lrkv", 18, 128, "rank", 55, 48.52, 49.31),
    ],
    columns=["model", "variant", "n_heads", "d_head", "setting", "value", "cache_pct_mha", "cache_physical_pct_mha"],
)


def cache_against_rank(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.cache_against_rank(*given, **options))


def paper_loss(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.paper_loss(*given, **options))


def test_lines_follow_one_over_h_plus_r_over_d_head():
    left, right = cache_against_rank(ROWS).axes
    for line in left.lines:
        if line.get_label().startswith("H = "):
            heads = int(line.get_label().removeprefix("H = "))
            np.testing.assert_allclose(line.get_ydata(), 100 * (1 / heads + np.asarray(line.get_xdata()) / 128))
    for line in right.lines:
        if line.get_label().startswith("r = "):
            rank = int(line.get_label().removeprefix("r = "))
            np.testing.assert_allclose(line.get_ydata(), 100 * (1 / np.asarray(line.get_xdata()) + rank / 128))
    assert {"H = 18", "H = 4"} <= {line.get_label() for line in left.lines}
    assert "r = 55" in {line.get_label() for line in right.lines}


def test_models_stand_at_their_cache_in_both_panels():
    for ax, x in zip(cache_against_rank(ROWS).axes, (55, 18), strict=True):
        points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if line.get_marker() == "p"}
        assert points == {(x, 48.52)}
        levels = {line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":"}
        assert levels == {100.0, 33.3}
        assert "lrkv: 48.5 %" in {text.get_text() for text in ax.texts}


def test_a_budget_without_lrkv_is_drawn_too():
    left, _ = cache_against_rank(ROWS[ROWS["variant"] != "lrkv"]).axes
    assert not [line for line in left.lines if line.get_marker() == "p"]


def test_every_printed_loss_is_a_point_in_its_sizes_panel():
    table = losses()
    figure = paper_loss(table)
    assert [ax.get_title() for ax in figure.axes] == list(SIZES)
    for ax, (size, row) in zip(figure.axes, SIZES.items(), strict=True):
        drawn = {
            float(y)
            for line in ax.lines
            if line.get_label() in ("mha", "gqa", "mqa", "mla", "lrkv")
            for y in line.get_ydata()
        }
        assert drawn == set(row.losses)
        joined = [y for line in ax.lines if line.get_label() == "rank ablation" for y in line.get_ydata()]
        assert joined == (list(RANK_ABLATION.values()) if size == "128M" else [])


def test_printed_shares_of_the_rank_ablation_are_those_drawn():
    """Table 8 prints 22.9, 29.2, 41.7, 66.7 and 116.7 %."""
    found = losses()
    shares = found.loc[found["series"] == "rank ablation", "cache_pct_mha"]
    assert [round(share, 1) for share in shares] == [22.9, 29.2, 41.7, 66.7, 116.7]


def test_bad_tables_are_named():
    with pytest.raises(ValueError, match="lacks the column"):
        cache_against_rank(ROWS.drop(columns="value"))
    with pytest.raises(ValueError, match="there is no model to draw"):
        paper_loss(losses().iloc[:0])
