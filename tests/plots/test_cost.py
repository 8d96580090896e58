import math

import numpy as np
import pandas as pd
import pytest
from headscope import plots
from headscope.plots.panels import figure_of
from matplotlib.backends.backend_agg import FigureCanvasAgg

SIZES = {"mha": (2048, 2048), "gqa": (512, 512), "mqa": (256, 256), "mla": (512, 512), "lrkv": (1024, 1280)}
LOSSES = {"mha": 2.63, "gqa": 2.665, "mqa": 2.70, "mla": 2.655, "lrkv": 2.64}
BOTH = ("backbone", "parameters")
CUT = "Bars that end in an arrow are cut off"


def loss_against_cache(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.loss_against_cache(*given, **options))


def table(models=tuple(SIZES), seeds=3, controls=BOTH, spread=0.005, seed=0):
    """As a study gives it: MHA is trained once, and belongs to both controls."""
    rng = np.random.default_rng(seed)
    rows = []
    for control in controls:
        for model in models:
            if control == "parameters" and model == "mha":
                rows += [{**row, "control": control} for row in rows if row["model"] == model]
                continue
            for index in range(seeds):
                loss = LOSSES[model] - 0.01 * (control == "parameters") + spread * rng.standard_normal()
                row = {"model": model, "control": control, "seed": index, "loss": loss}
                rows.append(row | dict(zip(("cache_bytes", "cache_bytes_physical"), SIZES[model], strict=True)))
    return pd.DataFrame(rows)


def with_losses(losses):
    """One panel of runs with given losses, by model."""
    runs = pd.concat([table([model], len(values), ["backbone"]) for model, values in losses.items()])
    return runs.assign(loss=np.concatenate(list(losses.values())))


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def labels(ax):
    """The models' names: arrows at the end of a bar are texts without a text."""
    return [text for text in ax.texts if text.get_text()]


def arrows(ax):
    return [text for text in ax.texts if not text.get_text()]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def note(figure):
    return figure.legends[0].get_title().get_text()


def draw(figure):
    FigureCanvasAgg(figure).draw()


def test_one_panel_each_control_on_the_same_axes():
    figure = loss_against_cache(table().iloc[::-1])
    assert [ax.get_title() for ax in figure.axes] == ["same backbone", "same parameters"]
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()
    assert figure.get_suptitle() == "Loss against cache"
    for control, title in zip(BOTH, ("same backbone", "same parameters"), strict=True):
        runs = table(["gqa", "lrkv"], controls=[control])
        assert [ax.get_title() for ax in loss_against_cache(runs).axes] == [title]


def test_axes_say_what_and_in_which_unit_and_the_cache_has_plain_numbers():
    figure = loss_against_cache(table())
    draw(figure)
    for ax in figure.axes:
        assert ax.get_xlabel() == "cache (bytes a token, all layers)"
        assert ax.get_xscale() == "log"
        assert [label.get_text() for label in ax.get_xticklabels()] == ["256", "512", "1,024", "2,048"]
    assert figure.axes[0].get_ylabel() == "test loss (nats a token)"


@pytest.mark.parametrize(("low", "high"), [(2304, 2304), (300, 301), (64, 2**20)])
def test_any_range_of_caches_has_a_few_ticks(low, high):
    runs = table(["mqa", "mha"])
    for column in ("cache_bytes", "cache_bytes_physical"):
        runs[column] = np.where(runs["model"] == "mqa", low, high)
    figure = loss_against_cache(runs)
    draw(figure)
    ax = figure.axes[0]
    left, right = ax.get_xlim()
    assert left < low <= high < right
    assert 2 <= sum(left <= tick <= right for tick in ax.get_xticks()) <= 8
    assert all(math.log2(tick).is_integer() for tick in ax.get_xticks())


def test_dots_are_the_runs_at_their_cache_whatever_their_order():
    runs = table()
    ax, other = loss_against_cache(runs.sample(frac=1, random_state=1)).axes
    for model, name in (("gqa", "GQA: runs"), ("lrkv", "LRKV: runs")):
        for control, panel in zip(BOTH, (ax, other), strict=True):
            mine = runs[(runs["model"] == model) & (runs["control"] == control)]
            dots = lines(panel)[name]
            assert sorted(dots.get_ydata()) == sorted(mine["loss"])
            assert set(dots.get_xdata()) == {SIZES[model][0]}


def test_mean_and_interval_are_the_ones_worked_out_by_hand():
    # Three seeds: mean 2.7, standard deviation 0.01, and Student's t for 2 degrees of freedom at 97.5 % is 4.30265.
    ax = loss_against_cache(with_losses({"gqa": [2.69, 2.71, 2.70], "mqa": [2.9, 2.92, 2.94]})).axes[0]
    mean = lines(ax)["GQA: mean"]
    np.testing.assert_allclose(mean.get_data(), [[512], [2.7]])
    half = 4.302653 * 0.01 / math.sqrt(3)
    np.testing.assert_allclose(lines(ax)["GQA: interval"].get_ydata(), [2.7 - half, 2.7 + half], rtol=1e-7)
    # Two seeds 0.02 apart: half of it, times t for 1 degree of freedom, 12.7062.
    ax = loss_against_cache(with_losses({"gqa": [2.69, 2.71], "mqa": [2.9, 2.91]})).axes[0]
    ends = [2.7 - 0.01 * 12.706205, 2.7 + 0.01 * 12.706205]
    np.testing.assert_allclose(lines(ax)["GQA: interval"].get_ydata(), ends, rtol=1e-7)


def test_everything_that_is_not_cut_off_is_within_the_panel():
    for ax in loss_against_cache(table(spread=0.02)).axes:
        low, high = ax.get_ylim()
        left, right = ax.get_xlim()
        for line in ax.lines:
            assert low < min(line.get_ydata()) <= max(line.get_ydata()) < high
            assert left < min(line.get_xdata()) <= max(line.get_xdata()) < right
        assert not arrows(ax)
    assert CUT not in note(loss_against_cache(table()))


def test_mha_is_in_both_panels():
    figure = loss_against_cache(table())
    first, second = (lines(ax) for ax in figure.axes)
    for name in ("MHA: runs", "MHA: mean", "MHA: interval"):
        np.testing.assert_array_equal(first[name].get_data(), second[name].get_data())
    assert "In both panels are the same runs of MHA." in note(figure)
    # Other variants stay in their own panel.
    runs = table()
    figure = loss_against_cache(runs[(runs["model"] != "mqa") | (runs["control"] == "backbone")])
    assert ["MQA: mean" in lines(ax) for ax in figure.axes] == [True, False]


def test_a_control_without_runs_has_no_panel():
    runs = table()
    (ax,) = loss_against_cache(runs[runs["control"] == "parameters"]).axes
    assert ax.get_title() == "same parameters"
    assert {"MHA: mean", "LRKV: mean"} <= set(lines(ax))


def test_a_single_seed_has_no_bar_and_that_is_said():
    figure = loss_against_cache(table(["mha", "mqa"], seeds=1))
    assert not any("interval" in name for ax in figure.axes for name in lines(ax))
    assert legend(figure) == ["one run (seed)", "mean (of one seed: no interval)"]
    mixed = pd.concat([table(["mha"]), table(["mqa"], seeds=1)])
    figure = loss_against_cache(mixed)
    assert {"MHA: interval"} == {name for name in lines(figure.axes[0]) if "interval" in name}
    assert "A model without a bar has one seed." in note(figure)
    draw(figure)


def test_one_run_alone():
    figure = loss_against_cache(with_losses({"gqa": [2.7]}))
    draw(figure)
    low, high = figure.axes[0].get_ylim()
    assert low < 2.7 < high


def test_a_bar_far_longer_than_the_dots_spread_is_cut_off_with_arrows_and_that_is_said():
    # All dots span 0.1; MQA's bar is 1.27 long, GQA's 0.25.
    figure = loss_against_cache(with_losses({"mqa": [2.7, 2.8], "gqa": [2.72, 2.74]}))
    (ax,) = figure.axes
    low, high = ax.get_ylim()
    assert high - low < 0.4
    assert lines(ax)["MQA: interval"].get_ydata() == pytest.approx([low, high])
    assert sorted(arrow.xy[1] for arrow in arrows(ax)) == pytest.approx([low, high])
    assert {arrow.xy[0] for arrow in arrows(ax)} == {256}
    assert note(figure).count(CUT) == 1
    assert lines(ax)["GQA: interval"].get_markevery() == [0, 1]  # both ends are there, with their caps
    assert lines(ax)["MQA: interval"].get_markevery() == []
    draw(figure)


def test_a_bar_of_not_quite_three_times_the_dots_spread_sets_the_scale():
    # t = 12.706 for two seeds: the bar is 12.706 times their distance, here 2.8 times the span of all dots.
    distance = 2.8 / 12.7062
    figure = loss_against_cache(with_losses({"gqa": [2.0, 2.0 + distance], "mha": [1.6, 2.6], "mqa": [1.7, 1.7]}))
    low, high = figure.axes[0].get_ylim()
    middle = 2.0 + distance / 2
    assert low < middle - 1.4 < middle + 1.4 < high
    assert len(arrows(figure.axes[0])) == 2  # MHA's
    assert lines(figure.axes[0])["GQA: interval"].get_markevery() == [0, 1]


def test_a_thin_line_leads_to_the_physical_cache_where_it_differs():
    figure = loss_against_cache(table())
    padded = {name: line for name, line in lines(figure.axes[0]).items() if "padded" in name}
    assert list(padded) == ["LRKV: padded cache"]
    (line,) = padded.values()
    assert list(line.get_xdata()) == [1024, 1280]
    assert line.get_markevery() == [1]
    assert line.get_ydata()[0] == line.get_ydata()[1] == lines(figure.axes[0])["LRKV: mean"].get_ydata()[0]
    assert not any("padded" in entry for entry in legend(loss_against_cache(table(["mha", "mla"]))))


def test_the_legend_names_dot_bar_and_line_and_stands_outside_the_panels():
    figure = loss_against_cache(table())
    padded = "line to the tick: cache with ranks padded for kernels"
    assert legend(figure) == ["one run (seed)", "mean and 95 % t-interval over 3 seeds", padded]
    more = pd.concat([table(["mha"], seeds=5), table(["mqa"], seeds=2)])
    assert legend(loss_against_cache(more))[1] == "mean and 95 % t-interval over 2 to 5 seeds"
    for controls in (BOTH, BOTH[:1]):
        figure = loss_against_cache(table(controls=controls))
        draw(figure)
        box = figure.legends[0].get_window_extent()
        assert not any(box.overlaps(ax.get_tightbbox()) for ax in figure.axes)
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0


def test_each_variant_has_one_colour_and_one_marker_in_both_panels():
    first, second = (lines(ax) for ax in loss_against_cache(table()).axes)
    means = [name for name in first if "mean" in name]
    assert len(means) == 5
    for what in ("get_marker", "get_markeredgecolor"):
        looks = [getattr(first[name], what)() for name in means]
        assert len(set(looks)) == 5
        assert looks == [getattr(second[name], what)() for name in means]


def test_names_are_upper_case_for_known_variants_and_ranks_share_their_variant_s_look():
    runs = pd.concat(
        [table(["mha"]), table(["lrkv"]).assign(model="lrkv-r4", cache_bytes=600), table(["lrkv"])]
        + [table(["mqa"]).assign(model=name) for name in ("mystery", "slow-one")]
    )
    ax = loss_against_cache(runs).axes[0]
    assert [label.get_text() for label in labels(ax)] == ["MHA", "LRKV r4", "LRKV", "mystery", "slow-one"]
    ours = [lines(ax)[name] for name in ("LRKV r4: mean", "LRKV: mean", "mystery: mean", "slow-one: mean")]
    looks = [(line.get_marker(), line.get_markeredgecolor()) for line in ours]
    assert looks[0] == looks[1]
    assert len(set(looks)) == 3


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("gap", [0.0, 0.002, 0.01])
def test_labels_touch_neither_each_other_nor_a_mean_though_gqa_and_mla_have_the_same_cache(seeds, gap):
    runs = table(seeds=seeds, seed=seeds)
    mla = runs["model"] == "mla"
    runs.loc[mla, "loss"] = runs.loc[runs["model"] == "gqa", "loss"].to_numpy() - gap
    figure = loss_against_cache(runs)
    draw(figure)
    for ax in figure.axes:
        boxes = {label.get_text(): label.get_window_extent() for label in labels(ax)}
        assert set(boxes) == {"MHA", "GQA", "MQA", "MLA", "LRKV"}
        for name, box in boxes.items():
            assert not any(box.overlaps(other) for key, other in boxes.items() if key != name)
            means = [ax.transData.transform((line.get_xdata()[0], line.get_ydata()[0])) for line in ax.lines]
            assert not any(box.contains(*mean) for mean in means)
            frame = ax.get_window_extent()
            assert frame.x0 <= box.x0 < box.x1 <= frame.x1
            # Near enough to be read as the label of its mean: within some 30 points.
            own = ax.transData.transform(np.ravel(lines(ax)[f"{name}: mean"].get_data()))
            reach = 30 * figure.dpi / 72
            assert box.padded(reach).contains(*own)


def test_labels_of_many_ranks_do_not_touch():
    ranks = [table(["lrkv"]).assign(model=f"lrkv-r{r}", cache_bytes=256 + 96 * r) for r in (1, 2, 4)]
    ranks = [runs.assign(loss=runs["loss"] + 0.06 - 0.02 * index) for index, runs in enumerate(ranks)]
    figure = loss_against_cache(pd.concat([table(), *ranks]))
    draw(figure)
    for ax in figure.axes:
        boxes = [label.get_window_extent() for label in labels(ax)]
        assert len(boxes) == 8
        assert not any(one.overlaps(other) for index, one in enumerate(boxes) for other in boxes[:index])


def test_errors_name_what_is_wrong():
    runs = table()
    with pytest.raises(ValueError, match=r"lacks the column\(s\) seed, loss; it has model"):
        loss_against_cache(runs.drop(columns=["seed", "loss"]))
    with pytest.raises(ValueError, match="the table is empty"):
        loss_against_cache(runs.iloc[:0])
    with pytest.raises(ValueError, match="model 'gqa', control 'backbone', seed 1 appears more than once"):
        loss_against_cache(pd.concat([runs, runs.iloc[[4]]]))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("loss", math.nan, "the loss of model 'gqa', seed 1 is nan"),
        ("loss", math.inf, "the loss of model 'gqa', seed 1 is inf"),
        ("control", "width", "control should be backbone or parameters but model 'gqa' has 'width'"),
        ("cache_bytes", 0, "cache_bytes of model 'gqa' should be positive but seed 1 has 0"),
        ("cache_bytes_physical", math.nan, "cache_bytes_physical of model 'gqa' should be positive but seed 1 has nan"),
        ("cache_bytes", 500, "cache_bytes of model 'gqa', control 'backbone', differs between its seeds"),
    ],
)
def test_errors_name_the_model_whose_value_is_wrong(column, value, message):
    runs = table().astype({"cache_bytes": float, "cache_bytes_physical": float})
    runs.loc[4, column] = value
    with pytest.raises(ValueError, match=message):
        loss_against_cache(runs)


def test_the_caller_s_table_is_left_alone():
    runs = table().assign(extra="kept")
    before = runs.copy(deep=True)
    loss_against_cache(runs)
    pd.testing.assert_frame_equal(runs, before)
