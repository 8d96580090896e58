import numpy as np
import pytest
import torch
from headscope import plots
from headscope.plots.grid import choose_page
from headscope.plots.panels import figure_of
from matplotlib.backends.backend_agg import FigureCanvasAgg

BOTH = [("qk", "all"), ("ov", "all")]
MLA = [("qk", part) for part in ("content", "position", "joint", "content_d_model")] + [("ov", "all")]


def head_similarity(*given, **options):
    """The figure, whose axes are looked at."""
    return figure_of(plots.head_similarity(*given, **options))


def cosines(n_heads, seed=0, dims=40):
    heads = np.random.default_rng(seed).normal(size=(n_heads, dims))
    heads /= np.linalg.norm(heads, axis=1, keepdims=True)
    return heads @ heads.T


def layers(n_heads, n_layers, blocks=BOTH):
    return {(c, p, layer): cosines(n_heads, layer) for c, p in blocks for layer in range(n_layers)}


def constant(n_heads, value):
    return np.where(np.eye(n_heads, dtype=bool), 1.0, value)


def caption(figure):
    return "\n".join(text.get_text() for text in figure.texts)


def pixels(figure, dpi=150):
    """Draw, and return the picture."""
    figure.dpi = dpi
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def cell_colour(figure, ax, row, column, dpi=150):
    """The colour drawn at the upper left of a cell's middle, where no number stands."""
    picture = pixels(figure, dpi)
    x, y = ax.transData.transform((column - 0.35, row - 0.35))
    return picture[picture.shape[0] - 1 - int(y), int(x), :3] / 255


def drawn_texts(figure):
    """Every piece of text that can be seen, with its box."""
    texts = [*figure.texts, *figure.legends[0].get_texts()]
    for ax in figure.axes:
        texts += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        texts += [*ax.get_xticklabels(), *ax.get_yticklabels()]
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]


def test_one_panel_a_layer_in_blocks_with_titles():
    figure = head_similarity(layers(4, 3, MLA))
    assert [ax.get_title() for ax in figure.axes[:-1]] == ["layer 0", "layer 1", "layer 2"] * 5
    titles = [text.get_text() for text in figure.texts]
    for title in ("QK · content", "QK · position", "QK · joint", "QK · content_d_model", "OV"):
        assert titles.count(title) == 1


def test_qk_comes_first_and_layers_in_order_whatever_the_mapping_s_order():
    values = {("ov", 0): 0.1, ("ov", 2): 0.2, ("qk", 10): 0.3, ("qk", 9): 0.4}
    figure = head_similarity({(c, "all", layer): constant(3, v) for (c, layer), v in values.items()})
    drawn = [(ax.get_title(), ax.images[0].get_array()[0, 1]) for ax in figure.axes[:-1]]
    assert drawn == [("layer 9", 0.4), ("layer 10", 0.3), ("layer 0", 0.1), ("layer 2", 0.2)]


def test_each_panel_shows_its_matrix_with_the_diagonal_masked():
    similarity = layers(9, 2)
    figure = head_similarity(similarity)
    for ax, key in zip(figure.axes, similarity, strict=False):
        shown = ax.images[0].get_array()
        off_diagonal = ~np.eye(9, dtype=bool)
        np.testing.assert_array_equal(np.ma.getmaskarray(shown), ~off_diagonal)
        np.testing.assert_array_equal(shown[off_diagonal], similarity[key][off_diagonal])


def test_the_diagonal_is_grey_and_not_the_colour_of_one():
    figure = head_similarity({("qk", "all", 0): constant(4, 0.3)})
    red, green, blue = cell_colour(figure, figure.axes[0], 1, 1)
    assert red == green == blue
    assert 0.4 < red < 0.8
    assert cell_colour(figure, figure.axes[0], 0, 1)[0] > 2 * cell_colour(figure, figure.axes[0], 0, 1)[2]


def test_one_symmetric_scale_for_all_panels_set_by_the_largest_off_diagonal_cell():
    figure = head_similarity({("qk", "all", 0): constant(4, 0.05), ("ov", "all", 0): constant(4, -0.312)})
    assert {ax.images[0].get_clim() for ax in figure.axes[:-1]} == {(-0.32, 0.32)}
    assert figure.axes[-1].get_xlim() == (-0.32, 0.32)
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == [
        "−0.32",
        "−0.16",
        "0",
        "0.16",
        "0.32",
    ]
    assert "±0.32: the largest off-diagonal size" in caption(figure)
    assert "beyond" not in caption(figure)


def test_a_few_extreme_cells_do_not_set_the_scale_and_are_counted():
    matrix = constant(32, 0.1)
    matrix[3, 7] = matrix[7, 3] = -0.9
    figure = head_similarity({("qk", "all", 0): matrix})
    assert figure.axes[0].images[0].get_clim() == (-0.1, 0.1)
    assert "±0.1: the 99th percentile of off-diagonal sizes" in caption(figure)
    assert "2 of 992 off-diagonal cells lie beyond" in caption(figure)
    assert figure.axes[-1]._colorbar.extend == "both"


@pytest.mark.parametrize(("value", "limit"), [(0.0, 0.01), (1e-9, 0.01), (1.0, 1.0), (-1.0, 1.0), (1.004, 1.0)])
def test_scale_at_the_ends(value, limit):
    figure = head_similarity({("qk", "all", 0): constant(4, value)})
    assert figure.axes[0].images[0].get_clim() == (-limit, limit)
    assert "beyond" not in caption(figure)


def test_one_pair_of_equal_heads_among_orthogonal_ones():
    matrix = np.eye(32)
    matrix[0, 1] = matrix[1, 0] = 1.0
    figure = head_similarity({("qk", "all", 0): matrix})
    assert "±0.01: the narrowest that is drawn" in caption(figure)
    assert "2 of 992" in caption(figure)


def test_one_head_alone():
    figure = head_similarity({("qk", "all", 0): np.eye(1)})
    assert "no off-diagonal cell has a value" in caption(figure)
    pixels(figure)


def test_small_maps_have_a_number_in_every_cell():
    similarity = layers(4, 2)
    figure = head_similarity(similarity)
    for ax, matrix in zip(figure.axes, similarity.values(), strict=False):
        written = {text.get_position(): text.get_text() for text in ax.texts}
        assert len(written) == 16
        for (row, column), value in np.ndenumerate(matrix):
            assert float(written[column, row].replace("−", "-")) == pytest.approx(value, abs=0.005 + 1e-9)


def test_a_rounded_zero_has_no_sign_and_small_values_have_a_third_decimal():
    written = {text.get_text() for text in head_similarity({("qk", "all", 0): constant(3, -0.001)}).axes[0].texts}
    assert written == {"1.000", "−0.001"}
    mixed = constant(3, -0.001)
    mixed[0, 1] = 0.5
    written = {text.get_text() for text in head_similarity({("qk", "all", 0): mixed}).axes[0].texts}
    assert written == {"1.00", "0.00", "0.50"}


@pytest.mark.parametrize(("n_heads", "n_layers"), [(5, 1), (4, 5)])
def test_no_numbers_by_default_on_larger_maps_or_many(n_heads, n_layers):
    figure = head_similarity(layers(n_heads, n_layers))
    assert not any(ax.texts for ax in figure.axes)


def test_annotate_overrules_the_default():
    figure = head_similarity(layers(9, 2), annotate=True)
    assert [len(ax.texts) for ax in figure.axes[:-1]] == [81] * 4
    figure = head_similarity(layers(4, 2), annotate=False)
    assert not any(ax.texts for ax in figure.axes)


@pytest.mark.parametrize("n_heads", [4, 9])
def test_all_heads_are_labelled_where_they_fit(n_heads):
    figure = head_similarity(layers(n_heads, 15))
    for ax in figure.axes[:-1]:
        assert [tick.get_text() for tick in ax.get_xticklabels()] == [str(head) for head in range(n_heads)]
        assert [tick.get_text() for tick in ax.get_yticklabels()] == [str(head) for head in range(n_heads)]
    assert "labelled" not in caption(figure)


@pytest.mark.parametrize(
    ("n_heads", "n_layers", "stated"),
    [(16, 3, "2nd"), (64, 8, "4th"), (63, 8, "4th"), (128, 2, "8th")],
)
def test_a_stride_of_labels_is_stated(n_heads, n_layers, stated):
    figure = head_similarity(layers(n_heads, n_layers))
    assert f"every {stated} head labelled" in caption(figure)
    stride = int(stated[:-2])
    for ticks in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == [str(head) for head in range(0, n_heads, stride)]


def test_rows_without_a_value_are_hatched_and_do_not_warn():
    matrix = constant(4, 0.4)
    matrix[2, :] = matrix[:, 2] = np.nan
    figure = head_similarity({("qk", "all", 0): matrix, ("qk", "all", 1): constant(4, 0.2)})
    ax = figure.axes[0]
    assert ax.patch.get_hatch()
    for image in ax.images:  # nothing is drawn over the hatching, on the diagonal neither
        assert np.ma.getmaskarray(image.get_array())[2].all()
        assert np.ma.getmaskarray(image.get_array())[:, 2].all()
    assert ax.images[0].get_clim() == (-0.4, 0.4)
    assert sum(text.get_text() == "–" for text in ax.texts) == 7
    assert len(ax.texts) == 16
    picture = pixels(figure)
    x, y = ax.transData.transform([(1.55, 2.45), (1.85, 1.55)]).astype(int).T  # left of the cell's dash
    hatched = picture[picture.shape[0] - y[1] : picture.shape[0] - y[0], x[0] : x[1], :3]
    assert (np.ptp(hatched, axis=2) == 0).all()  # only greys
    assert np.ptp(hatched) > 50  # and not one grey
    assert [text.get_text() for text in figure.legends[0].get_texts()][1] == "no value (degenerate head)"


def test_without_undefined_cells_the_key_does_not_mention_them():
    assert len(head_similarity(layers(4, 1)).legends[0].get_texts()) == 1


def test_a_layer_without_any_value_is_drawn():
    figure = head_similarity({("qk", "all", 0): np.full((5, 5), np.nan)})
    assert figure.axes[0].images[0].get_array().mask.all()
    assert "no off-diagonal cell has a value" in caption(figure)
    pixels(figure)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_torch_tensors_of_any_type(dtype):
    tensor = torch.tensor(cosines(6), dtype=dtype, requires_grad=True)
    figure = head_similarity({("qk", "all", 0): tensor})
    shown = figure.axes[0].images[0].get_array()
    assert shown[0, 1] == pytest.approx(tensor.detach().double()[0, 1].item(), rel=1e-6)
    pixels(figure)


def test_the_caller_s_matrix_is_left_alone():
    matrix = cosines(4)
    before = matrix.copy()
    head_similarity({("qk", "all", 0): matrix})
    np.testing.assert_array_equal(matrix, before)


def test_panels_are_drawn_where_the_page_has_them():
    figure = head_similarity(layers(12, 5, MLA))
    page = choose_page([5] * 5, 12, annotated=False, max_columns=None)
    assert figure.get_size_inches().tolist() == [page.width, page.height]
    boxes = [page.box(block, index) for block in range(5) for index in range(5)]
    np.testing.assert_allclose([ax.get_position().bounds for ax in figure.axes[:-1]], boxes)


@pytest.mark.parametrize(
    ("n_heads", "n_layers", "blocks", "annotate"),
    [(4, 2, BOTH, None), (4, 1, BOTH[:1], None), (9, 2, BOTH, True), (9, 12, BOTH, None), (64, 8, BOTH, None)]
    + [(128, 1, BOTH[:1], None), (12, 4, MLA, None), (2, 20, BOTH, None)],
)
def test_no_text_is_cut_or_overlaps(n_heads, n_layers, blocks, annotate):
    figure = head_similarity(layers(n_heads, n_layers, blocks), annotate=annotate)
    pixels(figure, dpi=100)
    names, boxes = zip(*drawn_texts(figure), strict=True)
    corners = np.array([box.extents for box in boxes])
    width, height = figure.bbox.size
    inside = (corners[:, :2] >= 0).all(axis=1) & (corners[:, 2:] <= [width, height]).all(axis=1)
    assert inside.all(), [name for name, is_inside in zip(names, inside, strict=True) if not is_inside]
    apart = (corners[:, None, :2] >= corners[None, :, 2:] - 0.5).any(axis=2)
    overlap = np.triu(~(apart | apart.T), 1)
    assert not overlap.any(), [(names[a], names[b]) for a, b in np.argwhere(overlap)[:5]]


def test_max_columns_bounds_the_panels_in_a_row():
    figure = head_similarity(layers(9, 7), max_columns=3)
    lefts = {round(ax.get_position().x0, 6) for ax in figure.axes[:-1]}
    assert len(lefts) == 3
    figure = head_similarity(layers(9, 7), max_columns=1)
    assert len({round(ax.get_position().x0, 6) for ax in figure.axes[:-1]}) == 1


def test_layers_with_different_numbers_of_heads():
    figure = head_similarity({("qk", "all", 0): cosines(4), ("qk", "all", 1): cosines(7)})
    assert [len(ax.get_xticklabels()) for ax in figure.axes[:-1]] == [4, 7]


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="similarity is empty"):
        head_similarity({})
    with pytest.raises(ValueError, match=r"similarity\['qk', 'all', 3\] should be a square .* but is \(4, 5\)"):
        head_similarity({("qk", "all", 3): np.zeros((4, 5))})
    with pytest.raises(ValueError, match=r"square .* but is \(2, 4, 4\)"):
        head_similarity({("qk", "all", 3): np.zeros((2, 4, 4))})
    with pytest.raises(ValueError, match=r"square .* but is \(0, 0\)"):
        head_similarity({("qk", "all", 3): np.zeros((0, 0))})
    with pytest.raises(ValueError, match=r"\(circuit, part, layer\) but got \('qk', 3\)"):
        # Second, since the tests' type checker looks at a mapping's first key.
        head_similarity({("qk", "all", 3): np.eye(4), ("qk", 3): np.eye(4)})
    with pytest.raises(ValueError, match=r"similarity\['ov', 'all', 1\] should hold cosines .* of size 3"):
        head_similarity({("ov", "all", 1): constant(4, -3.0)})
    with pytest.raises(ValueError, match="max_columns should be at least 1 but got 0"):
        head_similarity(layers(4, 1), max_columns=0)


def test_what_does_not_fit_on_the_page_is_said():
    with pytest.raises(ValueError, match=r"with max_columns=1: draw fewer layers or allow more columns"):
        head_similarity(layers(4, 60), max_columns=1)
    with pytest.raises(ValueError, match="8 panels of 64 heads with a number in every cell .* set annotate=False"):
        head_similarity(layers(64, 4), annotate=True)


def test_alike_heads_stand_together_under_their_own_numbers():
    rng = np.random.default_rng(0)
    groups = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    heads = np.eye(3)[groups] + 0.05 * rng.normal(size=(9, 3))
    heads /= np.linalg.norm(heads, axis=1, keepdims=True)
    matrix = heads @ heads.T
    ax = plots.head_similarity({("qk", "all", 0): matrix}, order="similarity")
    order = [int(tick.get_text()) for tick in ax.get_yticklabels()]
    assert sorted(order) == list(range(9))
    assert len({tuple(groups[order][i : i + 3]) for i in (0, 3, 6)}) == 3
    assert all(len(set(groups[order][i : i + 3])) == 1 for i in (0, 3, 6))
    shown = ax.images[0].get_array()
    off_diagonal = ~np.eye(9, dtype=bool)
    np.testing.assert_array_equal(shown[off_diagonal], matrix[np.ix_(order, order)][off_diagonal])
    assert "alike ones side by side (average linkage)" in caption(ax.figure)
    assert "side by side" not in caption(head_similarity({("qk", "all", 0): matrix}))


def test_heads_without_a_value_come_last_and_opposed_ones_are_far_apart():
    from headscope.plots.order import similarity_order

    vectors = np.array([[1.0, 0.0], [-1.0, 0.05], [0.9, 0.1], [-0.9, 0.1], [0.0, 0.0]])
    with np.errstate(invalid="ignore"):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = similarity_order(unit @ unit.T).tolist()
    assert order[-1] == 4
    assert {frozenset(order[:2]), frozenset(order[2:4])} == {frozenset((0, 2)), frozenset((1, 3))}
    assert similarity_order(np.full((3, 3), np.nan)).tolist() == [0, 1, 2]
    assert similarity_order(np.eye(2)).tolist() == [0, 1]


def test_many_heads_in_order_keep_a_stated_stride():
    figure = head_similarity({("qk", "all", 0): cosines(128)}, order="similarity")
    assert "every 8th head labelled" in caption(figure)
    assert len(figure.axes[0].get_xticklabels()) == 16


def test_pages_hold_each_layer_once_on_one_scale():
    similarity = {("ov", "all", layer): constant(64, 0.01 * (layer + 1)) for layer in range(80)}
    similarity |= {("qk", *key[1:]): matrix for key, matrix in similarity.items()}
    pages = plots.similarity_pages(similarity)
    assert len(pages) > 1
    assert sum(pages, []) == list(range(80))
    drawn = [head_similarity(similarity, layers=page, annotate=False) for page in (pages[0], pages[-1])]
    for figure, page in zip(drawn, (pages[0], pages[-1]), strict=True):
        assert [ax.get_title() for ax in figure.axes[:-1]] == [f"layer {layer}" for layer in page] * 2
        assert {ax.images[0].get_clim() for ax in figure.axes[:-1]} == {(-0.8, 0.8)}
        assert f"Layers {page[0]}–{page[-1]} of 0–79." in caption(figure)
        assert "all panels and pages" in caption(figure)
        # Each head is at least three dots wide.
        box = figure.axes[0].get_position()
        assert box.width * figure.get_figwidth() * 150 / 64 > 3


@pytest.mark.parametrize("n_heads", [4, 128])
def test_no_page_holds_more_than_it_shows_well(n_heads):
    similarity = {(c, p, layer): np.eye(n_heads) for c, p in MLA for layer in range(61)}
    for page in plots.similarity_pages(similarity)[:1]:
        figure = head_similarity(similarity, layers=page)
        assert figure.get_figwidth() <= 20
        assert figure.get_figheight() <= 22


def test_layers_and_orders_that_are_not_there_are_named(unchecked):
    with pytest.raises(ValueError, match=r"layers should be among \[0, 1\] but got \[2\]"):
        head_similarity(layers(4, 2), layers=[2])
    with pytest.raises(ValueError, match="order should be one of .* but got 'size'"):
        head_similarity(layers(4, 2), order="size")
