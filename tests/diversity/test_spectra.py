"""Spectral measures against closed forms, published numbers and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from headscope.diversity.spectra import (
    centre,
    components_for,
    cosine,
    effective_rank,
    eigenvalues,
    first_component,
    mean_off_diagonal,
    measure,
    participation_ratio,
    stable_rank,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

spectra = arrays(np.float64, st.integers(1, 12), elements=st.floats(1e-6, 1e6))
forms = st.integers(2, 7).flatmap(
    lambda heads: arrays(np.float64, (heads, 20), elements=st.floats(-10, 10, width=32)).filter(
        lambda f: (np.linalg.norm(f, axis=1) > 1e-3).all()
    )
)


def similarity_of(rows: np.ndarray) -> np.ndarray:
    return cosine(rows @ rows.T)


def test_published_numbers_of_the_spectrum_3_1():
    for sigma in ([3.0, 1.0], [3.0, 1.0, 0.0]):
        eigs = np.square(sigma)
        assert round(effective_rank(eigs, "roy"), 4) == 1.7548
        assert round(stable_rank(eigs), 4) == 1.1111
        assert round(participation_ratio(eigs), 4) == 1.2195


def test_the_two_definitions_by_hand():
    eigs = np.array([0.5, 0.3, 0.2])
    p = eigs / eigs.sum()
    q = np.sqrt(eigs) / np.sqrt(eigs).sum()
    assert effective_rank(eigs, "gram") == pytest.approx(math.exp(-(p * np.log(p)).sum()))
    assert effective_rank(eigs, "roy") == pytest.approx(math.exp(-(q * np.log(q)).sum()))


@pytest.mark.parametrize(("p", "expected"), [([1.0, 0.0], 0.0), ([0.5, 0.5, 0.0], 0.6931)])
def test_zero_probabilities_add_no_entropy(p, expected):
    assert math.log(effective_rank(np.array(p))) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("eigs", [np.zeros(4), np.zeros(1)])
def test_a_spectrum_of_zeros_is_zero_everywhere(eigs):
    found = [effective_rank(eigs), effective_rank(eigs, "roy"), participation_ratio(eigs), stable_rank(eigs)]
    assert found == [0.0] * 4
    assert components_for(eigs) == 0
    assert first_component(eigs) == 0.0


@pytest.mark.parametrize("eigs", [[1.0, math.nan], [-1.0, 2.0], [math.inf, 1.0]])
def test_impossible_eigenvalues_are_refused(eigs):
    with pytest.raises(ValueError, match="finite and >= 0"):
        effective_rank(np.array(eigs))


@pytest.mark.usefixtures("unchecked")
def test_unknown_definition_lists_the_known_ones():
    with pytest.raises(ValueError, match="gram"):
        effective_rank(np.ones(2), "sigma")  # type: ignore[arg-type]


@given(spectra, st.floats(1e-3, 1e3))
def test_ranks_lie_between_one_and_the_count_and_ignore_scale(eigs, scale):
    for rank in (effective_rank, participation_ratio, stable_rank, lambda e: effective_rank(e, "roy")):
        value = rank(eigs)
        assert 1 - 1e-9 <= value <= len(eigs) + 1e-9
        assert rank(eigs * scale) == pytest.approx(value, rel=1e-9)
        assert rank(eigs[::-1].copy()) == pytest.approx(value, rel=1e-9)


@given(spectra)
def test_order_of_the_ranks(eigs):
    # Hill numbers fall with their order: 1 (entropy), 2 (participation), infinity (stable); roy flattens first.
    assert effective_rank(eigs, "roy") >= effective_rank(eigs) - 1e-9
    assert effective_rank(eigs) >= participation_ratio(eigs) - 1e-9
    assert participation_ratio(eigs) >= stable_rank(eigs) - 1e-9


@given(st.integers(1, 40), st.sampled_from([0.5, 0.9, 1.0]))
def test_components_of_a_flat_spectrum(count, share):
    assert components_for(np.full(count, 0.3), share) == math.ceil(round(share * count, 9))


def test_extreme_scales_neither_overflow_nor_vanish():
    for scale in (1e-300, 1e300):
        eigs = np.array([3.0, 2.0, 1.0]) * scale
        assert participation_ratio(eigs) == pytest.approx(36 / 14)
        assert stable_rank(eigs) == pytest.approx(2.0)


def test_centring_is_j_g_j():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 30))
    gram, j = rows @ rows.T, np.eye(6) - np.ones((6, 6)) / 6
    np.testing.assert_allclose(centre(gram), j @ gram @ j, atol=1e-12)
    centred_rows = rows - rows.mean(0)
    np.testing.assert_allclose(centre(gram), centred_rows @ centred_rows.T, atol=1e-12)


@settings(deadline=None)
@given(forms, st.sampled_from(["gram", "roy"]))
def test_measures_keep_their_caps(rows, definition):
    found = measure(similarity_of(rows), definition)
    heads = len(rows)
    assert 1 - 1e-9 <= found.erank <= heads + 1e-9
    if found.status == "ok":
        assert 1 - 1e-9 <= found.erank_centred <= heads - 1 + 1e-9
        assert 1 <= found.components_90 <= heads - 1
    else:
        assert math.isnan(found.erank_centred)


@settings(deadline=None)
@given(forms, st.randoms(use_true_random=False))
def test_order_and_length_of_heads_do_not_matter(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    lengths = np.array([random.uniform(0.1, 10) for _ in order])
    a, b = measure(similarity_of(rows)), measure(similarity_of(rows[order] * lengths[:, None]))
    assert a.erank == pytest.approx(b.erank, rel=1e-6)
    assert a.mean_similarity == pytest.approx(b.mean_similarity, abs=1e-9)


def test_a_duplicated_head_adds_no_direction():
    rng = np.random.default_rng(1)
    rows = np.linalg.qr(rng.normal(size=(30, 4)))[0].T
    found = measure(similarity_of(np.vstack([rows, rows[:1]])))
    assert np.count_nonzero(eigenvalues(similarity_of(np.vstack([rows, rows[:1]])))) == 4
    p = np.array([2, 1, 1, 1]) / 5
    assert found.erank == pytest.approx(math.exp(-(p * np.log(p)).sum()))


def test_identical_heads_are_degenerate_not_nan_or_one():
    rows = np.tile(np.random.default_rng(2).normal(size=(1, 50)), (6, 1))
    found = measure(similarity_of(rows))
    assert found.status.startswith("degenerate: all heads have the same form")
    assert found.erank == pytest.approx(1.0)
    assert math.isnan(found.erank_centred)


@pytest.mark.parametrize("size", [1e-9, 1e-15])
def test_heads_that_differ_by_rounding_are_degenerate(size):
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(1, 200)) + size * rng.normal(size=(6, 200))
    assert measure(similarity_of(rows)).status.startswith("degenerate")


def test_heads_that_differ_by_little_still_have_their_spectrum():
    rng = np.random.default_rng(4)
    base, private = rng.normal(size=(1, 400)), rng.normal(size=(6, 400))
    close = measure(similarity_of(base + 1e-4 * private))
    # Once centred only the private parts are left, whatever their size (to first order).
    direct = private - private @ base.T * base / (base @ base.T)
    wanted = effective_rank(eigenvalues(centre(direct @ direct.T)))
    assert close.status == "ok"
    assert close.erank_centred == pytest.approx(wanted, rel=1e-3)


def test_a_zero_head_is_named():
    rows = np.random.default_rng(5).normal(size=(4, 9))
    rows[2] = 0
    found = measure(similarity_of(rows))
    assert found.status == "degenerate: the form of head 2 is zero"
    assert math.isnan(found.erank)


def test_one_head_has_nothing_left_once_centred():
    found = measure(np.ones((1, 1)))
    assert found.erank == 1.0
    assert "one head" in found.status
    assert math.isnan(mean_off_diagonal(np.ones((1, 1))))


def test_caps_of_the_spec():
    # Orthogonal heads reach H uncentred and H - 1 centred: 5/6 = 83.33 % and 17/18 = 94.44 % of H.
    for heads, percent in ((6, 83.33), (18, 94.44)):
        found = measure(np.eye(heads))
        assert found.erank == pytest.approx(heads)
        assert found.erank_centred == pytest.approx(heads - 1)
        assert round(100 * found.erank_centred / heads, 2) == percent
