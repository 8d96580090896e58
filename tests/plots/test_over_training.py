import numpy as np
import pandas as pd
import pytest
from headscope import plots
from headscope.plots.panels import figure_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color
from matplotlib.text import Text

BOTH = [("qk", "all"), ("ov", "all")]
MLA = [("qk", part) for part in ("content", "position", "joint", "content_d_model")]
MLA += [("ov", part) for part in ("joint", "all")]
NULL = ["null_mean", "null_low", "null_high", "null_centred_mean"]
MEAN, CENTRED = "uncentred (% of H): mean over layers", "centred (% of H − 1): mean over layers"
EACH, EACH_CENTRED = "uncentred: each layer", "centred: each layer"
NAMED, NAMED_CENTRED = f"{EACH} (L0, L1, …)", f"{EACH_CENTRED} (L0, L1, …)"
LOSS, INDUCTION = "validation loss (left axis)", "best head's induction score (right axis)"


def over_training(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.over_training(*given, **options))


def run(steps=range(0, 600, 100), layers=range(4), blocks=BOTH, n_heads=9, null=True):
    rng = np.random.default_rng(0)
    rows = []
    for circuit, part in blocks:
        for layer in layers:
            for step in steps:
                share = 0.97 - 0.2 * rng.uniform() * step / max(*steps, 1)
                rows.append(
                    {"step": step, "layer": layer, "circuit": circuit, "part": part, "n_heads": n_heads, "status": "ok"}
                    | {"erank": n_heads * share, "erank_centred": (n_heads - 1) * (share - 0.05)}
                    | {"null_mean": 0.985 * n_heads, "null_low": 0.98 * n_heads, "null_high": 0.99 * n_heads}
                    | {"null_centred_mean": 0.975 * (n_heads - 1)}
                )
    table = pd.DataFrame(rows)
    if not null:
        table[NULL] = None
    return table


def training_log():
    """Validation every 50 steps, induction every 100; in between neither."""
    step = np.arange(25, 501, 25)
    loss = np.where(step % 50 == 0, 2 + 4 * np.exp(-step / 100), np.nan)
    return pd.DataFrame(
        {"step": step, "validation_loss": loss, "induction": np.where(step % 100 == 0, step / 600, np.nan)}
    )


def lines(ax, label):
    return [line for line in ax.lines if line.get_label() == label]


def line(ax, label):
    (only,) = lines(ax, label)
    return only


def labels(ax):
    return [line.get_label() for line in ax.lines]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def note(figure):
    return figure.legends[0].get_title().get_text()


def draw(figure):
    FigureCanvasAgg(figure).draw()


def box(text):
    """The text's own box: that of an annotation reaches along its leader."""
    return Text.get_window_extent(text)


def test_one_panel_each_circuit_and_part():
    titles = [ax.get_title() for ax in over_training(run(blocks=MLA)).axes]
    assert titles == ["QK · content", "QK · position", "QK · joint", "QK · content_d_model", "OV · joint", "OV"]
    figure = over_training(run(blocks=BOTH[::-1]))
    assert [ax.get_title() for ax in figure.axes] == ["QK", "OV"]
    assert figure.get_suptitle() == "Effective rank over training"


def test_axis_labels_say_what_and_in_which_unit():
    for ax in over_training(run()).axes:
        assert ax.get_xlabel() == "step"
        assert ax.get_ylabel() == "effective rank (% of its cap)"


def test_means_and_layers_are_in_per_cent_of_their_own_caps_whatever_the_table_s_order():
    table = run(steps=[0, 10], layers=[0, 1], blocks=BOTH[:1], n_heads=5)
    table["erank"] = [4.0, 3.0, 5.0, 1.5]  # layer 0 at steps 0 and 10, then layer 1
    table["erank_centred"] = [3.0, 2.0, 4.0, 1.0]
    for rows in (table, table.iloc[::-1], table.iloc[[2, 0, 3, 1]]):
        (ax,) = over_training(rows).axes
        np.testing.assert_array_equal(line(ax, MEAN).get_xdata(), [0, 10])
        np.testing.assert_allclose(line(ax, MEAN).get_ydata(), [90.0, 45.0])
        np.testing.assert_allclose(line(ax, CENTRED).get_ydata(), [87.5, 37.5])
        np.testing.assert_allclose([one.get_ydata() for one in lines(ax, NAMED)], [[80, 60], [100, 30]])
        np.testing.assert_allclose([one.get_ydata() for one in lines(ax, NAMED_CENTRED)], [[75, 50], [100, 25]])


def test_a_number_of_heads_that_varies_is_that_of_each_row():
    table = run(steps=[0, 10], layers=[0, 1], blocks=BOTH[:1])
    table["n_heads"], table["erank"], table["erank_centred"] = [4, 4, 8, 8], [2.0, 3.0, 6.0, 6.0], [1.5, 1.5, 7.0, 3.5]
    (ax,) = over_training(table).axes
    np.testing.assert_allclose(line(ax, MEAN).get_ydata(), [62.5, 75.0])
    np.testing.assert_allclose(line(ax, CENTRED).get_ydata(), [75.0, 50.0])


def test_means_are_thick_with_markers_and_layers_thin_and_translucent():
    (ax, _) = over_training(run()).axes
    for mean, each in ((MEAN, NAMED), (CENTRED, NAMED_CENTRED)):
        assert len(lines(ax, each)) == 4
        for one in lines(ax, each):
            assert one.get_linewidth() < line(ax, mean).get_linewidth() / 2
            assert one.get_alpha() < 0.5
            assert one.get_zorder() < line(ax, mean).get_zorder()
            assert same_color(one.get_color(), line(ax, mean).get_color())
    assert not same_color(line(ax, MEAN).get_color(), line(ax, CENTRED).get_color())
    assert {line(ax, MEAN).get_marker(), line(ax, CENTRED).get_marker()} == {"o", "s"}


@pytest.mark.parametrize("n_layers", [1, 4, 6])
def test_few_layers_are_named_right_of_their_ends_without_overlap(n_layers):
    table = run(layers=range(n_layers), blocks=MLA)
    # The hardest cases: all layers end at the same value, in the middle, at the top and at the bottom of a panel.
    for part, end in (("joint", [7.2, 6.4]), ("content", [9.0, 8.0]), ("position", [4.5, 4.0])):
        table.loc[(table["part"] == part) & (table["step"] == 500), ["erank", "erank_centred"]] = end
    figure = over_training(table, training_log())
    assert {NAMED, NAMED_CENTRED} <= set(legend(figure))
    draw(figure)
    for ax in figure.axes[: len(MLA)]:
        expected = sorted([f"L{layer}" for layer in range(n_layers)] * 2)
        assert sorted(text.get_text() for text in ax.texts) == expected
        last = ax.transData.transform((500, 0))[0]
        boxes = sorted((box(text) for text in ax.texts), key=lambda one: one.y0)
        assert all(one.x0 > last for one in boxes)
        assert boxes[0].y0 > ax.get_window_extent().y0 - 8
        assert boxes[-1].y1 < ax.get_window_extent().y1 + 8
        assert all(low.y1 <= high.y0 + 1 for low, high in zip(boxes[:-1], boxes[1:], strict=True))


def test_the_names_of_layers_stand_at_their_own_lines_where_there_is_room():
    table = run(steps=[0, 500], layers=[3, 7], blocks=BOTH[:1], n_heads=10)
    table.loc[table["step"] == 500, "erank"] = [9.0, 6.0]
    table.loc[table["step"] == 500, "erank_centred"] = [6.75, 4.5]
    figure = over_training(table)
    draw(figure)
    (ax,) = figure.axes
    heights = {}
    for text in ax.texts:
        assert text.xy[0] == 500
        height = ax.transData.inverted().transform((0, (box(text).y0 + box(text).y1) / 2))[1]
        assert abs(height - text.xy[1]) < 1.5
        heights[text.get_text(), text.get_color()] = round(text.xy[1])
    blue, red = line(ax, MEAN).get_color(), line(ax, CENTRED).get_color()
    assert heights == {("L3", blue): 90, ("L7", blue): 60, ("L3", red): 75, ("L7", red): 50}


def test_a_layer_without_a_last_value_is_not_named_where_others_end():
    table = run(blocks=BOTH[:1])
    table.loc[(table["layer"] == 2) & (table["step"] == 500), "erank"] = np.nan
    (ax,) = over_training(table).axes
    blue = line(ax, MEAN).get_color()
    assert sorted(text.get_text() for text in ax.texts if text.get_color() == blue) == ["L0", "L1", "L3"]


def test_many_layers_are_named_by_the_legend_alone():
    figure = over_training(run(layers=range(30)))
    assert not any(ax.texts for ax in figure.axes)
    assert {EACH, EACH_CENTRED} <= set(legend(figure))
    assert len(lines(figure.axes[0], EACH)) == 30
    assert not any("L0" in entry for entry in legend(figure))


def test_the_null_is_a_band_and_two_grey_lines_over_the_whole_width():
    figure = over_training(run(), training_log())
    ax = figure.axes[0]
    draw(figure)
    (band,) = ax.patches
    corners = band.get_transform().transform(band.get_path().vertices)
    data = ax.get_window_extent()
    np.testing.assert_allclose([corners[:, 0].min(), corners[:, 0].max()], [data.x0, data.x1])
    heights = ax.transData.inverted().transform(corners)[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [98.0, 99.0])
    for label, percent, dash in (("null: mean", 98.5, "-"), ("null: mean, centred", 97.5, ":")):
        one = line(ax, label)
        np.testing.assert_allclose(one.get_ydata(), percent)
        ends = one.get_transform().transform(one.get_xydata())[:, 0]
        np.testing.assert_allclose(ends, [data.x0, data.x1])
        assert (one.get_linestyle() == "-") == (dash == "-")
        assert one.get_linewidth() > line(ax, MEAN).get_linewidth()
        assert 0 < float(one.get_color()) < 1  # a grey


@pytest.mark.parametrize("missing", [None, np.nan])
def test_without_a_null_none_is_drawn_and_that_is_said(missing):
    table = run()
    table[NULL] = missing
    figure = over_training(table)
    assert not any(ax.patches for ax in figure.axes)
    assert not any("null" in entry for entry in legend(figure))
    assert "The table has no null." in note(figure)
    assert "The table has no null." not in note(over_training(run()))
    draw(figure)


@pytest.mark.parametrize("n_heads", [2, 9, 128])
def test_limits_follow_the_data_and_end_at_most_slightly_above_the_cap(n_heads):
    for ax in over_training(run(n_heads=n_heads)).axes:
        low, high = ax.get_ylim()
        drawn = np.concatenate([one.get_ydata() for one in ax.lines])
        assert low < drawn.min()
        assert drawn.max() < high <= 102
        assert drawn.max() - drawn.min() > 0.75 * (high - low)


def test_limits_of_a_wide_range_end_just_above_the_cap():
    table = run(blocks=BOTH[:1])
    table.loc[0, "erank"], table.loc[1, "erank"] = 9.0, 0.9
    low, high = over_training(table).axes[0].get_ylim()
    assert 0 < low < 10
    assert 100 < high <= 102


def test_the_cap_is_drawn_where_it_is_within_the_limits():
    near = over_training(run(blocks=BOTH[:1]))
    cap = line(near.axes[0], "cap: 100 %")
    assert set(cap.get_ydata()) == {100}
    assert cap.get_linestyle() == "--"
    table = run(blocks=BOTH[:1], null=False)
    table[["erank", "erank_centred"]] /= 2
    far = over_training(table)
    assert far.axes[0].get_ylim()[1] < 60
    assert "cap: 100 %" not in labels(far.axes[0])


def test_equal_values_have_limits_all_the_same():
    table = run(blocks=BOTH[:1], null=False)
    table["erank"], table["erank_centred"] = 4.5, 4.0
    figure = over_training(table)
    low, high = figure.axes[0].get_ylim()
    assert low < 50 < high
    draw(figure)


def test_the_log_has_a_panel_with_two_axes():
    log = training_log()
    figure = over_training(run(), log.sample(frac=1, random_state=1))
    assert len(figure.axes) == 4
    left, right = figure.axes[2:]
    assert left.get_title() == "Validation loss and induction"
    assert left.get_xlabel() == "step"
    for ax, label, column, title in (
        (left, LOSS, "validation_loss", "validation loss (nats per token)"),
        (right, INDUCTION, "induction", "induction score of the best head"),
    ):
        rows = log.dropna(subset=column)
        np.testing.assert_array_equal(line(ax, label).get_xdata(), rows["step"])
        np.testing.assert_array_equal(line(ax, label).get_ydata(), rows[column])
        assert ax.get_ylabel() == title
        assert same_color(ax.yaxis.label.get_color(), line(ax, label).get_color())
        assert all(same_color(text.get_color(), line(ax, label).get_color()) for text in ax.get_yticklabels())
    assert right.get_ylim() == (0, 1)
    assert right.yaxis.get_label_position() == "right"
    assert not same_color(line(left, LOSS).get_color(), line(right, INDUCTION).get_color())
    assert line(left, LOSS).get_linestyle() != line(right, INDUCTION).get_linestyle()
    assert legend(figure)[-2:] == [LOSS, INDUCTION]


@pytest.mark.parametrize(
    "log",
    [None, pd.DataFrame(), training_log().iloc[:0], training_log().assign(validation_loss=np.nan, induction=None)],
    ids=["none", "no columns", "no rows", "no values"],
)
def test_without_a_value_in_the_log_there_is_no_panel_for_it(log):
    figure = over_training(run(), log)
    assert [ax.get_title() for ax in figure.axes] == ["QK", "OV"]
    assert not {LOSS, INDUCTION} & set(legend(figure))


def test_a_curve_without_a_value_is_left_out():
    figure = over_training(run(), training_log().assign(induction=None))
    assert [ax.get_title() for ax in figure.axes] == ["QK", "OV", "Validation loss"]
    assert legend(figure)[-1] == LOSS
    figure = over_training(run(), training_log().assign(validation_loss=[np.nan, np.inf] * 10))
    assert [ax.get_title() for ax in figure.axes] == ["QK", "OV", "Induction", ""]
    assert not figure.axes[2].yaxis.get_visible()
    assert not figure.axes[2].lines
    assert legend(figure)[-1] == INDUCTION
    assert LOSS not in legend(figure)
    draw(figure)


def test_all_panels_have_the_same_steps_and_show_all_of_them():
    log = training_log()
    log["step"] += 300
    (limits,) = {ax.get_xlim() for ax in over_training(run(), log).axes}
    assert -100 < limits[0] < 0
    assert 800 < limits[1] < 900


@pytest.mark.parametrize("last", [5, 500, 1_000_000])
def test_ticks_of_steps_are_plain_integers(last):
    figure = over_training(run(steps=[last - 4, last - 3, last]))
    draw(figure)
    shown = [int(label.get_text().replace("−", "-")) for label in figure.axes[0].get_xticklabels()]
    assert shown == sorted(set(shown))
    assert last in shown


def test_a_single_step_is_drawn_as_points():
    table = run(steps=[2000], blocks=BOTH[:1])
    figure = over_training(table)
    (ax,) = figure.axes
    assert line(ax, MEAN).get_marker() == "o"
    np.testing.assert_allclose(line(ax, MEAN).get_ydata(), [100 * table["erank"].mean() / 9])
    for one in lines(ax, NAMED):
        assert (one.get_marker(), one.get_markevery()) == (".", [True])
    draw(figure)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2000"]
    assert ax.get_xlim()[0] < 2000 < ax.get_xlim()[1]


def test_missing_values_are_left_out_of_the_means_and_marked():
    table = run(steps=[0, 10, 20], layers=[0, 1], blocks=BOTH, n_heads=4).astype({"erank": object})
    qk = table["circuit"] == "qk"
    table.loc[qk, "erank"] = [4.0, None, 2.0, 2.0, 3.0, 1.0]
    table.loc[qk & (table["step"] == 10) & (table["layer"] == 0), "status"] = "degenerate: a head's form is zero"
    figure = over_training(table)
    ax, other = figure.axes
    np.testing.assert_allclose(line(ax, MEAN).get_ydata(), [75.0, 75.0, 37.5])
    first, second = lines(ax, NAMED)
    np.testing.assert_array_equal(first.get_ydata(), [100.0, np.nan, 50.0])
    # A value between gaps has no line to either side.
    assert first.get_markevery() == [True, False, True]
    assert second.get_marker() == "None"
    marks = line(ax, "degenerate layer: a head's form is zero")
    assert (marks.get_xdata().tolist(), marks.get_marker()) == ([10], "x")
    assert not any("degenerate" in label for label in labels(other))
    assert "Means leave out missing values." in note(figure)
    assert "Means leave out" not in note(over_training(run()))
    draw(figure)
    x, y = marks.get_transform().transform(np.column_stack(marks.get_data()))[0]
    panel = ax.get_window_extent()
    assert panel.x0 < x < panel.x1
    assert panel.y0 < y < panel.y0 + 0.1 * panel.height
    assert ax.transData.transform((0, 25.0))[1] > y + 8  # the lowest value


def test_a_step_at_which_all_layers_lack_a_value_is_a_gap():
    table = run(blocks=BOTH[:1])
    table.loc[table["step"] == 200, ["erank", "erank_centred"]] = np.nan
    (ax,) = over_training(table).axes
    assert np.isnan(line(ax, MEAN).get_ydata()).tolist() == [False, False, True, False, False, False]
    assert line(ax, "degenerate layer: value missing").get_xdata().tolist() == [200]


def test_many_reasons_refer_to_the_table():
    table = run()
    table.loc[[1, 2, 3], "status"] = ["one", "two", None]
    assert "degenerate layer (reasons: column status)" in legend(over_training(table))


@pytest.mark.parametrize("null", [True, False])
def test_no_value_at_all_and_a_single_head(null):
    table = run(blocks=BOTH[:1], null=null)
    table[["erank", "erank_centred"]] = np.nan
    draw(over_training(table))
    table = run(blocks=BOTH[:1], n_heads=1, null=null)
    figure = over_training(table)
    assert np.isnan(line(figure.axes[0], CENTRED).get_ydata()).all()
    np.testing.assert_allclose(line(figure.axes[0], MEAN).get_ydata()[0], 97.0)
    draw(figure)


@pytest.mark.parametrize(
    ("n_panels", "logged"), [(1, False), (2, False), (6, False), *((count, True) for count in range(1, 9))]
)
def test_panels_legend_and_page_do_not_overlap(n_panels, logged):
    blocks = [("qk" if index < 4 else "ov", f"part {index}") for index in range(n_panels)]
    table = run(blocks=blocks)
    table.loc[0, "status"] = "degenerate: all heads have the same form, so nothing is left once centred"
    figure = over_training(table, training_log() if logged else None)
    draw(figure)
    assert len({round(ax.get_window_extent().x0) for ax in figure.axes}) <= 3
    boxes = [ax.get_tightbbox() for ax in figure.axes[:n_panels]]
    if logged:
        left, right = (ax.get_tightbbox() for ax in figure.axes[n_panels:])
        boxes.append(left.union([left, right]))
    boxes += [one.get_window_extent() for one in figure.legends]
    boxes.append(figure._suptitle.get_window_extent())
    for index, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[index + 1 :])
        assert figure.bbox.x0 <= one.x0 < one.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= one.y0 < one.y1 <= figure.bbox.y1
    # The names of layers are moved apart for panels at least this high.
    assert all(ax.get_window_extent().height * 72 / figure.dpi >= 160 for ax in figure.axes)


def test_the_legend_names_everything_once():
    figure = over_training(run(blocks=MLA), training_log())
    entries = [MEAN, NAMED, CENTRED, NAMED_CENTRED, "null: range, low to high", "null: mean", "null: mean, centred"]
    assert sorted(legend(figure)) == sorted([*entries, "cap: 100 %", LOSS, INDUCTION])
    assert len(figure.legends) == 1
    assert all(ax.get_legend() is None for ax in figure.axes)


def test_panels_with_their_own_scales_say_so():
    assert "own vertical scale" in note(over_training(run()))
    assert "own vertical scale" not in note(over_training(run(blocks=BOTH[:1])))


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"the table lacks the column\(s\) erank_centred, status; it has step, layer"):
        over_training(run().drop(columns=["erank_centred", "status"]))
    with pytest.raises(ValueError, match=r"the log lacks the column\(s\) induction; it has step, validation_loss"):
        over_training(run(), training_log().drop(columns="induction"))
    with pytest.raises(ValueError, match="the table is empty"):
        over_training(run().iloc[:0])
    with pytest.raises(ValueError, match="layer 0 appears more than once at step 300 for circuit 'qk', part 'all'"):
        over_training(pd.concat([run(), run().iloc[[3]]]))
    table = run().astype({"n_heads": float})
    table.loc[8, "n_heads"] = np.nan
    with pytest.raises(ValueError, match="n_heads is missing for step 200, layer 1"):
        over_training(table)


def test_the_caller_s_tables_are_left_alone():
    table, log = run(null=False), training_log()
    before, log_before = table.copy(deep=True), log.copy(deep=True)
    over_training(table, log)
    pd.testing.assert_frame_equal(table, before)
    pd.testing.assert_frame_equal(log, log_before)


@pytest.mark.parametrize(("count", "marked"), [(40, True), (41, False)])
def test_a_log_of_many_steps_is_a_plain_line(count, marked):
    log = pd.DataFrame({"step": range(count), "validation_loss": 3.0, "induction": 0.5})
    for ax in over_training(run(), log).axes[2:]:
        assert (ax.lines[0].get_markersize() > 0) == marked
