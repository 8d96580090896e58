import numpy as np
import pandas as pd
import pytest
from headscope import plots
from headscope.plots.panels import figure_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BOTH = [("qk", "all"), ("ov", "all")]
MLA = [("qk", part) for part in ("content", "position", "joint", "content_d_model")] + [("ov", "all")]
NULL = ["null_mean", "null_low", "null_high", "null_centred_mean"]


def effective_rank(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.effective_rank(*given, **options))


def report(layers=range(6), blocks=BOTH, n_heads=9, null=True):
    rng = np.random.default_rng(0)
    rows = []
    for circuit, part in blocks:
        for layer in layers:
            share = rng.uniform(0.85, 0.97)
            rows.append(
                {"layer": layer, "circuit": circuit, "part": part, "n_heads": n_heads, "status": "ok"}
                | {"erank": n_heads * share, "erank_centred": (n_heads - 1) * share}
                | {"null_mean": 0.985 * n_heads, "null_low": 0.98 * n_heads, "null_high": 0.99 * n_heads}
                | {"null_centred_mean": 0.98 * (n_heads - 1)}
            )
    table = pd.DataFrame(rows)
    if not null:
        table[NULL] = None
    return table


def degenerate(table, row, status):
    """The table as a report gives it: None (not NaN) where a layer has no value."""
    table = table.astype(dict.fromkeys(["erank", "erank_centred"], object))
    table.loc[row, ["erank", "erank_centred"]] = None
    table.loc[row, "status"] = status
    return table


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def draw(figure):
    FigureCanvasAgg(figure).draw()


def test_one_panel_each_circuit_and_part():
    titles = [ax.get_title() for ax in effective_rank(report(blocks=MLA)).axes]
    assert titles == ["QK · content", "QK · position", "QK · joint", "QK · content_d_model", "OV"]
    assert [ax.get_title() for ax in effective_rank(report(blocks=BOTH[::-1])).axes] == ["QK", "OV"]


def test_lines_are_the_table_s_values_by_layer_whatever_its_order():
    table = report()
    figure = effective_rank(table.sample(frac=1, random_state=1))
    for ax, circuit in zip(figure.axes, ("qk", "ov"), strict=True):
        rows = table[table["circuit"] == circuit]
        for column, label in (("erank", "effective rank"), ("erank_centred", "effective rank, centred")):
            np.testing.assert_array_equal(line(ax, label).get_xdata(), rows["layer"])
            np.testing.assert_array_equal(line(ax, label).get_ydata(), rows[column])


def test_caps_are_dashed_and_labelled_with_their_values():
    ax = effective_rank(report(n_heads=9)).axes[0]
    cap, centred = line(ax, "cap: number of heads H"), line(ax, "cap, centred: H − 1")
    assert set(cap.get_ydata()) == {9}
    assert set(centred.get_ydata()) == {8}
    assert cap.get_linestyle() == centred.get_linestyle() == "--"
    assert [text.get_text() for text in ax.texts] == ["H = 9", "H − 1 = 8"]


def test_caps_follow_a_number_of_heads_that_varies_over_layers():
    table = report(layers=range(3), blocks=BOTH[:1])
    table["n_heads"] = [9, 12, 16]
    ax = effective_rank(table).axes[0]
    assert line(ax, "cap, centred: H − 1").get_ydata().tolist() == [8, 8, 11, 11, 15, 15]
    assert [text.get_text() for text in ax.texts] == ["H = 9 to 16", "H − 1 = 8 to 15"]


def test_the_null_is_a_band_and_two_grey_lines_over_the_width_of_the_layers():
    table = report(n_heads=10)
    ax = effective_rank(table).axes[0]
    (band,) = ax.collections
    vertices = band.get_paths()[0].vertices
    assert (vertices[:, 0].min(), vertices[:, 0].max()) == (-0.5, 5.5)
    np.testing.assert_allclose([vertices[:, 1].min(), vertices[:, 1].max()], [9.8, 9.9])
    np.testing.assert_allclose(line(ax, "null: mean").get_ydata(), 9.85)
    np.testing.assert_allclose(line(ax, "null: mean, centred").get_ydata(), 0.98 * 9)
    # Thicker than the caps that lie on top at a random model's rank, and in no curve's colour.
    for name in ("null: mean", "null: mean, centred"):
        assert line(ax, name).get_linewidth() > 2 * line(ax, "cap: number of heads H").get_linewidth()
        assert line(ax, name).get_color() not in {
            line(ax, other).get_color() for other in ("effective rank", "cap, centred: H − 1")
        }


@pytest.mark.parametrize("missing", [None, np.nan])
def test_without_a_null_none_is_drawn_and_that_is_said(missing):
    table = report()
    table[NULL] = missing
    figure = effective_rank(table)
    assert not any(ax.collections for ax in figure.axes)
    assert not any("null" in entry for entry in legend(figure))
    assert "The table has no null." in figure.legends[0].get_title().get_text()
    draw(figure)


def test_the_legend_names_everything_once_and_stands_outside_the_panels():
    figure = effective_rank(report(blocks=MLA))
    entries = ["effective rank", "effective rank, centred", "cap: number of heads H", "cap, centred: H − 1"]
    entries += ["null: range, low to high", "null: mean", "null: mean, centred"]
    assert legend(figure) == entries
    assert all(ax.get_legend() is None for ax in figure.axes)
    draw(figure)
    (box,) = [legend.get_window_extent() for legend in figure.legends]
    assert not any(box.overlaps(ax.get_tightbbox()) for ax in figure.axes)
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0


def test_a_degenerate_layer_leaves_a_gap_and_a_mark_with_its_reason():
    table = degenerate(report(), 2, "all heads are zero")
    figure = effective_rank(table)
    qk, ov = figure.axes
    marks = line(qk, "degenerate layer: all heads are zero")
    assert marks.get_xdata().tolist() == [2]
    assert marks.get_marker() == "x"
    assert np.isnan(line(qk, "effective rank").get_ydata()).tolist() == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert not any("degenerate" in one.get_label() for one in ov.lines)
    assert legend(figure).count("degenerate layer: all heads are zero") == 1
    draw(figure)
    box = qk.get_window_extent()
    x, y = marks.get_transform().transform(np.column_stack(marks.get_data()))[0]
    assert box.x0 < x < box.x1
    assert box.y0 < y < box.y0 + 0.1 * box.height
    lowest = np.nanmin(line(qk, "effective rank, centred").get_ydata())
    assert qk.transData.transform((0, lowest))[1] > y + 12


def test_a_status_is_marked_though_values_are_there_and_values_missing_though_it_is_ok():
    table = report()
    table.loc[1, "status"] = "two heads are equal"
    table.loc[8, "erank_centred"] = np.nan
    qk, ov = effective_rank(table).axes
    label = "degenerate layer: value missing; two heads\nare equal"
    assert line(qk, label).get_xdata().tolist() == [1]
    assert line(ov, label).get_xdata().tolist() == [2]


def test_many_reasons_refer_to_the_table():
    table = report()
    table.loc[[1, 2, 3], "status"] = ["one", "two", None]
    assert "degenerate layer (reasons: column status)" in legend(effective_rank(table))


def test_all_layers_degenerate():
    table = report(blocks=BOTH[:1], null=False)
    for row in range(6):
        table = degenerate(table, row, "zero")
    figure = effective_rank(table)
    assert line(figure.axes[0], "degenerate layer: zero").get_xdata().tolist() == list(range(6))
    draw(figure)


@pytest.mark.parametrize("n_heads", [1, 4, 9, 128])
def test_everything_is_within_the_limits_and_differences_are_readable(n_heads):
    table = report(n_heads=n_heads)
    for ax in effective_rank(table).axes:
        low, high = ax.get_ylim()
        drawn = np.concatenate([one.get_ydata() for one in ax.lines])
        assert low < drawn.min()
        assert drawn.max() < high
        assert drawn.max() - drawn.min() > 0.75 * (high - low)


def test_axis_labels_say_what_and_in_which_unit():
    for ax in effective_rank(report()).axes:
        assert ax.get_ylabel() == "effective rank (heads)"
        assert ax.get_xlabel() == "layer"


@pytest.mark.parametrize(
    ("layers", "ticks"),
    [
        ([7], [7]),
        (range(2), [0, 1]),
        (range(12), range(12)),
        (range(30), range(0, 30, 5)),
        (range(80), range(0, 80, 10)),
        (range(0, 32, 4), range(0, 32, 4)),
        ([0, 1, 30], range(0, 31, 5)),
        (range(40, 60), range(40, 60, 2)),
    ],
)
def test_layer_ticks_are_integers_with_a_stride(layers, ticks):
    figure = effective_rank(report(layers=layers))
    draw(figure)
    for ax in figure.axes:
        assert [label.get_text() for label in ax.get_xticklabels()] == [str(tick) for tick in ticks]


def test_one_layer_has_its_numbers_and_its_null():
    table = report(layers=[7], blocks=BOTH[:1], n_heads=12)
    figure = effective_rank(table)
    (ax,) = figure.axes
    written = [text.get_text() for text in ax.texts]
    assert f"{table['erank'][0]:.2f}" in written
    assert f"{table['erank_centred'][0]:.2f}" in written
    assert line(ax, "null: mean").get_xdata().tolist() == [6.5, 7.5]
    assert ax.get_xlim() == (6.5, 7.5)
    draw(figure)


@pytest.mark.parametrize("n_heads", [4, 32, 128])
def test_the_labels_of_the_caps_do_not_touch_each_other_or_the_next_panel(n_heads):
    table = report(n_heads=n_heads)
    table.loc[0, ["erank", "erank_centred"]] = 1.0  # so that the caps are close together
    figure = effective_rank(table)
    draw(figure)
    first, second = [text.get_window_extent() for text in figure.axes[0].texts]
    assert first.y0 >= second.y1 - 1
    next_panel = figure.axes[1].yaxis.get_tightbbox(figure.canvas.get_renderer())
    assert max(first.x1, second.x1) < next_panel.x0


def test_panels_with_their_own_scales_say_so():
    assert "own vertical scale" in effective_rank(report()).legends[0].get_title().get_text()
    assert "own vertical" not in effective_rank(report(blocks=BOTH[:1])).legends[0].get_title().get_text()


def test_drawing_on_the_caller_s_axes():
    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    assert effective_rank(report(), ax=axes) is figure
    assert plots.effective_rank(report(), ax=axes).tolist() == axes.tolist()
    assert [ax.get_title() for ax in axes] == ["QK", "OV"]
    assert not figure.legends
    assert axes[0].get_legend() is None
    draw(figure)
    box = axes[1].get_legend().get_window_extent()
    assert not any(box.overlaps(ax.get_window_extent()) for ax in axes)
    assert not any(box.overlaps(text.get_window_extent()) for text in axes[1].texts)
    assert box.x1 <= figure.bbox.x1


def test_drawing_on_one_axes_in_a_subfigure():
    figure = Figure()
    ax = figure.subfigures(1, 2)[1].subplots()
    assert effective_rank(report(blocks=BOTH[:1]), ax=ax) is figure
    assert ax.get_title() == "QK"


def test_axes_that_share_their_scale_show_all_of_both():
    table = report()
    table.loc[table["circuit"] == "qk", ["erank", "erank_centred"]] = 2.0
    axes = Figure().subplots(1, 2, sharey=True)
    effective_rank(table, ax=axes)
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_ylim()[0] < 2.0
    assert axes[0].get_ylim()[1] > 9.0
    assert "own vertical scale" not in axes[1].get_legend().get_title().get_text()


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"lacks the column\(s\) erank_centred, status; it has layer"):
        effective_rank(report().drop(columns=["erank_centred", "status"]))
    with pytest.raises(ValueError, match="the table is empty"):
        effective_rank(report().iloc[:0])
    with pytest.raises(ValueError, match="layer 3 appears more than once for circuit 'qk', part 'all'"):
        effective_rank(pd.concat([report(), report().iloc[[3]]]))
    with pytest.raises(ValueError, match="there are 2 panels, one for each circuit and part: .* but has 3"):
        effective_rank(report(), ax=Figure().subplots(1, 3))
    table = report()
    table.loc[4, "n_heads"] = np.nan
    with pytest.raises(ValueError, match="n_heads is missing for layer 4"):
        effective_rank(table)


def test_the_caller_s_table_is_left_alone():
    table = degenerate(report(), 2, None)
    before = table.copy(deep=True)
    effective_rank(table)
    pd.testing.assert_frame_equal(table, before)
