"""Intervals against SciPy's own, p against all sign flips written out, q by its definition, and what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from headscope.interventions import statistics
from headscope.interventions.statistics import effects, proportion
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from scipy import stats

ALONE = ["effect", "low", "high", "p", "status"]
SETTINGS = {"resamples": 60, "flips": 40}


def column(values) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def tables(**shape):
    values = st.floats(-1e3, 1e3, allow_nan=False) | st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.3])
    return st_numpy.arrays(float, st_numpy.array_shapes(min_dims=2, max_dims=2, **shape), elements=values)


@pytest.mark.parametrize("n", [2, 3, 17, 100])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_is_scipys(n, confidence):
    differences = np.random.default_rng(n).exponential(size=(n, 3)) - 0.7
    found = effects(differences, confidence=confidence, seed=4, resamples=500, flips=1)
    for cell, row in found.iterrows():
        rng = np.random.default_rng(4)
        options = {"method": "BCa", "n_resamples": 500, "confidence_level": confidence, "rng": rng}
        expected = stats.bootstrap((differences[:, cell],), np.mean, **options).confidence_interval
        assert (row.low, row.high) == pytest.approx((expected.low, expected.high), rel=1e-8, abs=1e-10)
        assert row.effect == pytest.approx(differences[:, cell].mean())
    assert set(found.status) == {"ok"}
    assert set(found.n) == {n}


@pytest.mark.parametrize("unit", [1, 0.1, 0.3, 1 / 7, 1e-170, 1e150])
def test_interval_of_few_values_does_not_depend_on_how_they_round(unit):
    """Many resamples tie with the mean; sums of integers are exact, and SciPy's answer to them is that of every unit."""
    counts = np.repeat([0, 1, 2, 3], [9, 4, 2, 1])
    for confidence in np.linspace(0.5, 0.95, 46):
        rng = np.random.default_rng(0)
        options = {"n_resamples": 200, "confidence_level": confidence, "rng": rng}
        expected = stats.bootstrap((counts,), np.mean, **options).confidence_interval
        found = effects(column(counts * unit), confidence=float(confidence), resamples=200, flips=1).iloc[0]
        assert (found.low / unit, found.high / unit) == pytest.approx((expected.low, expected.high), rel=1e-9)


@given(st.lists(st.floats(-1, 1, allow_nan=False), min_size=2, max_size=40), st.permutations(range(40)))
def test_sums_that_everything_rests_on_are_exact_in_any_order(values, order):
    grid, scale = statistics._on_grid(np.array([values]))
    np.testing.assert_allclose(grid * scale, [values], rtol=0, atol=1e-13 * scale[0])
    total = 0.0
    for i in order:
        total += grid[0, i % len(values)] if i < len(values) else 0.0
    assert total == math.fsum(grid[0])


@pytest.mark.parametrize("n", [2, 3, 10, 200])
@pytest.mark.parametrize(("most", "one"), [(0.0, 1.0), (0.1, 0.1 + 2**-56), (1e9, 1e9 + 2**-20)])
def test_one_sample_unlike_all_others_still_has_its_interval(n, most, one):
    """With the mean of raw values SciPy gives NaN and warns for the last two; a step of the last bit is a step."""
    assert most != one
    plain = effects(column([0.0] * (n - 1) + [1.0]), flips=1).iloc[0]
    found = effects(column([most] * (n - 1) + [one]), flips=1).iloc[0]
    assert found.status == plain.status == "ok"
    assert plain.low == pytest.approx(0, abs=1e-9)
    assert 1 / n < plain.high <= 1
    spacing = np.spacing(one)
    assert found.low == pytest.approx(most + plain.low * (one - most), abs=spacing)
    assert found.high == pytest.approx(most + plain.high * (one - most), abs=spacing)


def test_where_bca_is_undefined_it_says_so_and_gives_the_percentiles():
    """Four resamples can all lie on one side of the mean: an infinite bias."""
    differences = np.random.default_rng(0).normal(size=(9, 60))
    found = effects(differences, confidence=0.5, resamples=4, flips=1)
    undefined = found.status == "interval: percentile, BCa undefined"
    indices = np.random.default_rng(0).integers(0, 9, (4, 9))
    means = differences[indices].mean(axis=1)
    sides = (means > differences.mean(axis=0)).sum(axis=0)
    np.testing.assert_array_equal(undefined, (sides == 0) | (sides == 4))
    assert 0 < undefined.sum() < 60
    low, high = np.quantile(means, [0.25, 0.75], axis=0)
    np.testing.assert_allclose(found.low[undefined], low[undefined], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.high[undefined], high[undefined], rtol=1e-8, atol=1e-10)
    assert set(found.status[~undefined]) == {"ok"}


@given(st.lists(st.integers(-6, 6), min_size=2, max_size=8), st.sampled_from([1, 0.1, 0.7, 1e-200]))
@example([-7, 1, 2, 2, 3], 0.1)
@example([-6, -5, -1, 6, 7], 0.1)
@settings(max_examples=60, deadline=None)
def test_p_is_the_share_of_all_sign_flips(tenths, unit):
    """Counted with integers, given with fractions: what ties has to tie, also where the sum found is zero."""
    found = effects(column(tenths) * unit, resamples=40).iloc[0]
    sums = [
        abs(sum(s * v for s, v in zip(signs, tenths, strict=True)))
        for signs in itertools.product([1, -1], repeat=len(tenths))
    ]
    assert found.p == sum(flipped >= abs(sum(tenths)) for flipped in sums) / len(sums)


def test_p_of_random_flips_is_near_that_of_all_and_never_zero():
    differences = np.random.default_rng(1).normal(0.4, size=(12, 20))
    exact = effects(differences, resamples=40, flips=4096).p
    drawn = effects(differences, resamples=40, flips=4095).p
    assert (exact * 2048 % 1 == 0).all()
    assert ((drawn * 4096).round(9) % 1 == 0).all()
    assert (exact - drawn).abs().max() < 0.03
    assert not np.array_equal(exact, drawn)
    assert effects(np.ones((40, 1)), flips=99).p[0] == 0.01


def test_q_is_benjamini_and_hochbergs():
    """The k smallest are found for the largest k whose p is at most k/m of the level."""
    differences = np.random.default_rng(2).normal(np.linspace(0, 1.5, 25), size=(9, 25))
    found = effects(differences, resamples=40)
    p = np.sort(found.p)
    for level in (0.0101, 0.0501, 0.2003, 0.5005):
        small = [k for k in range(1, 26) if p[k - 1] <= k / 25 * level]
        largest = p[max(small) - 1] if small else -1
        np.testing.assert_array_equal(found.q <= level, found.p <= largest)
    assert 0 < (found.q <= 0.0501).sum() < 25


@given(tables(min_side=2, max_side=7), st.data())
@settings(max_examples=60, deadline=None)
def test_a_cell_knows_nothing_of_the_others(table, data):
    """To the bit, for any choice of cells in any order."""
    chosen = data.draw(st.lists(st.integers(0, table.shape[1] - 1), min_size=1, max_size=5))
    whole = effects(table, bounds=(-1e3, 1e3), **SETTINGS)
    part = effects(table[:, chosen], bounds=(-1e3, 1e3), **SETTINGS)
    pd.testing.assert_frame_equal(part[ALONE], whole.loc[chosen, ALONE].reset_index(drop=True), check_exact=True)


def test_same_for_a_seed_any_layout_and_any_batch(monkeypatch):
    differences = np.random.default_rng(3).normal(0.3, size=(33, 70))

    def found(table: np.ndarray, seed: int = 1) -> pd.DataFrame:
        return effects(table, seed=seed, resamples=300, flips=500)

    expected = found(differences)
    pd.testing.assert_frame_equal(found(np.asfortranarray(differences)), expected, check_exact=True)
    for cell in range(0, 70, 7):
        alone = found(differences[:, cell : cell + 1])[ALONE]
        pd.testing.assert_frame_equal(alone, expected.loc[[cell], ALONE].reset_index(drop=True), check_exact=True)
    other = found(differences, seed=2)
    assert (other.low != expected.low).all()
    assert (other.p != expected.p).any()
    monkeypatch.setattr(statistics, "BATCH", 700)
    pd.testing.assert_frame_equal(found(differences), expected, check_exact=True)


def test_interval_of_skewed_data_covers_about_as_often_as_it_says():
    """Every cell is one experiment; its true mean is 1."""
    differences = np.random.default_rng(4).exponential(size=(40, 1500))
    found = effects(differences, resamples=1000, flips=1)
    covered = (found.low <= 1) & (found.high >= 1)
    assert 0.915 < covered.mean() < 0.965
    assert (found.low > 1).mean() < 0.05
    assert (found.high < 1).mean() < 0.05


def test_interval_of_rare_events_covers():
    """Where half of the experiments see no event at all, the boundary has to carry the interval."""
    differences = (np.random.default_rng(5).random((20, 1000)) < 0.035).astype(float)
    found = effects(differences, resamples=400, flips=1, bounds=(0, 1))
    alike = found.status == "all samples alike"
    assert 0.4 < alike.mean() < 0.6
    assert (found.low[alike] <= 0.035).all()
    assert (found.high[alike] >= 0.035).all()


def test_nothing_is_found_where_there_is_nothing():
    rng = np.random.default_rng(6)
    found = [effects(rng.normal(size=(16, 20)), seed=i, resamples=40, flips=499).q.min() < 0.05 for i in range(300)]
    assert 0.005 < np.mean(found) < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)


def test_false_discoveries_are_held_where_there_is_something():
    """5 of 20 cells have an effect: on average, at most 15/20 of the level is false."""
    rng = np.random.default_rng(7)
    planted = np.arange(20) < 5
    false, power = [], []
    for i in range(200):
        found = effects(rng.normal(1.1 * planted, size=(16, 20)), seed=i, resamples=40, flips=499).q < 0.1
        false.append((found & ~planted).sum() / max(1, found.sum()))
        power.append(found[planted].mean())
    error = np.std(false) / math.sqrt(len(false))
    assert 0 < np.mean(false) < 0.1 * 15 / 20 + 2 * error
    assert np.mean(power) > 0.6


@pytest.mark.parametrize("n", [2, 5, 30])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_at_a_boundary_the_interval_is_that_of_a_proportion(n, confidence):
    found = effects(np.tile([0.0, 1.0], (n, 1)), bounds=(0, 1), confidence=confidence)
    assert set(found.status) == {"all samples alike"}
    for row, successes in zip(found.itertuples(), (0, n), strict=True):
        assert (row.low, row.high) == pytest.approx(proportion(successes, n, confidence), abs=1e-12)
    assert found.p[0] == 1
    assert found.p[1] == pytest.approx(2 / 2**n if n < 13 else 1 / 10000)


def test_all_alike_between_the_bounds_and_without_any():
    differences = np.tile([0.1, 0.0, -1.0], (3, 1))
    share = 1 - 0.025 ** (1 / 3)
    found = effects(differences, bounds=(-1, 1))
    assert found.effect.tolist() == [0.1, 0.0, -1.0]
    assert found.low.tolist() == pytest.approx([0.1 - share * 1.1, -share, -1])
    assert found.high.tolist() == pytest.approx([0.1 + share * 0.9, share, -1 + 2 * share])
    unbounded = effects(differences)
    assert unbounded[["low", "high"]].isna().all(axis=None)
    pd.testing.assert_frame_equal(unbounded.drop(columns=["low", "high"]), found.drop(columns=["low", "high"]))
    assert found.p.tolist() == [0.25, 1, 0.25]


def test_alike_and_unlike_cells_stand_in_one_table():
    found = effects(np.array([[1, 0, 2], [1, 5, 3], [1, 1, 9]]), bounds=(0, 9))
    assert found.status.tolist() == ["all samples alike", "ok", "ok"]
    assert found.columns.tolist() == ["n", "effect", "low", "high", "p", "q", "status"]
    assert found.notna().all(axis=None)
    assert ((found.low <= found.effect) & (found.effect <= found.high)).all()


def test_one_sample_has_an_effect_only():
    found = effects(np.array([[0.5, 0.0]]), bounds=(-1, 1))
    assert found.effect.tolist() == [0.5, 0.0]
    assert found[["low", "high", "p", "q"]].isna().all(axis=None)
    assert found.status.tolist() == ["one sample: no interval"] * 2
    assert found.n.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_sample_or_no_cell_is_an_error(shape):
    with pytest.raises(ValueError, match=r"with one of each at least, but got \("):
        effects(np.zeros(shape))


def test_a_vector_is_no_table(unchecked):
    with pytest.raises(ValueError, match=r"\[sample, cell\].* but got \(3,\)"):
        effects(np.zeros(3))


@pytest.mark.parametrize("bounds", [None, (-1, 1), (-math.inf, math.inf)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(value, bounds):
    differences = np.zeros((3, 5))
    differences[2, 4] = value
    with pytest.raises(ValueError, match=f"should be finite but got {value} for sample 2 of cell 4"):
        effects(differences, bounds=bounds)


def test_what_is_out_of_bounds_is_named():
    with pytest.raises(ValueError, match=r"within the bounds \(-1, 1\) but got 1.5 for sample 1 of cell 0"):
        effects(column([0, 1.5]), bounds=(-1, 1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"confidence": 1.0}, r"confidence should be in the interval \(0, 1\) but got 1.0"),
        ({"confidence": math.nan}, "confidence should be"),
        ({"resamples": 39}, "resamples should be at least 40 for confidence 0.95 but got 39"),
        ({"flips": 0}, "flips should be at least 1 but got 0"),
        ({"bounds": (1, -1)}, r"bounds should be the smaller and the larger value but got \(1, -1\)"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        effects(np.zeros((3, 1)), **wrong)


@pytest.mark.parametrize("n", [1, 7, 40])
def test_proportion_solves_the_binomial_tails(n):
    for successes in range(n + 1):
        low, high = proportion(successes, n, 0.9)
        assert stats.binom.sf(successes - 1, n, low) == pytest.approx(0.05) if successes else low == 0
        assert stats.binom.cdf(successes, n, high) == pytest.approx(0.05) if successes < n else high == 1
    assert all(math.isnan(end) for end in proportion(0, 0))


@pytest.mark.parametrize("successes", [-1, 4])
def test_proportion_of_more_than_all_is_an_error(successes):
    with pytest.raises(ValueError, match=f"successes should be between 0 and n = 3 but got {successes}"):
        proportion(successes, 3)
    with pytest.raises(ValueError, match="confidence should be"):
        proportion(1, 3, 2.0)
