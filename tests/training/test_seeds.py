"""Intervals against SciPy's own, Holm's method by its definition, and crossings by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from headscope.training.seeds import first_reached, holm, mean_interval
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

VALUES = st.lists(st.floats(-10, 10, allow_nan=False), min_size=2, max_size=8)


@given(VALUES)
def test_interval_and_p_are_the_t_tests(values):
    found = mean_interval(values)
    if np.std(values) < 1e-9:
        assert found.low == pytest.approx(found.high, abs=1e-6)
        return
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)


def test_what_has_no_interval():
    single = mean_interval([2.5])
    assert single.mean == 2.5
    assert math.isnan(single.low)
    assert math.isnan(single.p)
    assert math.isnan(mean_interval([]).mean)
    assert math.isnan(mean_interval([1.0, math.nan]).mean)
    alike = mean_interval([1.0, 1.0])
    assert (alike.low, alike.high, alike.p) == (1.0, 1.0, 0.0)
    assert mean_interval([0.0, 0.0]).p == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_rejects_what_its_steps_reject(p):
    """Step down by hand: reject the smallest while it is at most alpha over the number that is left."""
    alpha = 0.05
    order = sorted(range(len(p)), key=lambda i: p[i])
    rejected = set()
    for rank, i in enumerate(order):
        if p[i] > alpha / (len(p) - rank):
            break
        rejected.add(i)
    corrected = holm(p)
    near = any(math.isclose(p[i] * (len(p) - rank), alpha, rel_tol=1e-9) for rank, i in enumerate(order))
    if not near:
        assert {i for i, value in enumerate(corrected) if value <= alpha} == rejected
    assert all(0 <= value <= 1 for value in corrected)


def test_holm_leaves_out_what_was_not_tested():
    corrected = holm([0.01, math.nan, 0.02])
    assert corrected[0] == 0.02
    assert math.isnan(corrected[1])


def test_a_threshold_is_reached_on_the_straight_line_between_points():
    steps, values = [50, 100, 150, 200], [4.0, 3.0, 3.2, 2.0]
    assert first_reached(steps, values, 3.5) == 75
    assert first_reached(steps, values, 3.0) == 100
    assert first_reached(steps, values, 2.6) == pytest.approx(175)
    assert first_reached(steps, values, 9.0) == 50
    assert math.isnan(first_reached(steps, values, 1.9))
    assert math.isnan(first_reached([], [], 1.0))
