import itertools

import numpy as np
import pytest
from headscope.plots.grid import MAX_HEIGHT, MAX_WIDTH, TICK_POINTS, choose_page, tick_stride

SHAPES = list(itertools.product([(1,), (2, 2), (30, 30), (80, 80), (61,) * 5, (3, 7, 1)], [1, 4, 9, 64, 128]))


@pytest.mark.parametrize(("counts", "n_heads"), SHAPES)
def test_the_page_is_bounded_and_panels_are_square_and_apart(counts, n_heads):
    page = choose_page(counts, n_heads, annotated=False, max_columns=None)
    assert page.width <= MAX_WIDTH <= 4000 / 150
    assert page.height <= MAX_HEIGHT <= 6000 / 150
    assert page.panel * 150 >= n_heads  # at least a pixel a head
    boxes = [page.box(block, index) for block, count in enumerate(counts) for index in range(count)]
    left, bottom, width, height = np.array(boxes).T * [
        [page.width],
        [page.height],
        [page.width],
        [page.height],
    ]
    np.testing.assert_allclose([width, height], page.panel)
    assert (left >= 0).all()
    assert (left + width <= page.width).all()
    assert (bottom >= 0).all()
    assert (bottom + height <= page.height).all()
    gap = page.panel + 0.2  # room for labels between panels
    apart = (np.abs(left[:, None] - left) >= gap) | (np.abs(bottom[:, None] - bottom) >= gap)
    assert (apart | np.eye(len(boxes), dtype=bool)).all()


@pytest.mark.parametrize(("counts", "n_heads"), SHAPES)
def test_each_row_and_column_of_a_block_has_one_outer_panel(counts, n_heads):
    page = choose_page(counts, n_heads, annotated=False, max_columns=None)
    for block, count in enumerate(counts):
        outer = np.array([page.is_outer(block, index) for index in range(count)])
        boxes = np.array([page.box(block, index) for index in range(count)]).round(9)
        assert outer[:, 0].sum() == len(set(boxes[:, 1]))
        assert outer[:, 1].sum() == len(set(boxes[:, 0]))


@pytest.mark.parametrize("max_columns", [1, 2, 3, 5, 8])
def test_at_most_max_columns_side_by_side(max_columns):
    page = choose_page((7, 7), 4, annotated=False, max_columns=max_columns)
    lefts = {round(page.box(block, index)[0], 9) for block in range(2) for index in range(7)}
    assert len(lefts) <= max_columns


def test_short_blocks_stand_side_by_side():
    page = choose_page((1, 1), 4, annotated=True, max_columns=None)
    assert page.box(0, 0)[1] == page.box(1, 0)[1]
    assert page.block_corner(0)[1] == page.block_corner(1)[1]


def test_cells_with_numbers_are_large_enough_to_read():
    page = choose_page((6, 6), 12, annotated=True, max_columns=None)
    assert page.panel / 12 >= 0.3


@pytest.mark.parametrize("n_heads", [1, 2, 9, 10, 11, 16, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("panel", [0.5, 1.5, 3.6])
def test_the_stride_is_the_smallest_power_of_two_whose_labels_do_not_touch(n_heads, panel):
    stride = tick_stride(n_heads, panel)
    assert stride & (stride - 1) == 0
    digit = 0.64 * TICK_POINTS  # DejaVu Sans

    def fits(stride):
        apart = stride * panel * 72 / n_heads
        return apart >= digit * len(str(n_heads - 1)) + 0.3 * TICK_POINTS and apart >= 1.2 * TICK_POINTS

    assert fits(stride)
    if stride > 1:
        assert not fits(0.9 * stride / 2)
