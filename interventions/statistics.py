"""What paired samples show about many cells at once: effect, interval and p of each, corrected for their number.

A cell is whatever one intervention is done to, as a layer's head. The unit is an independently drawn sample or
document, never a token: the tokens of one document are not independent, and counting them makes every interval too
narrow.

All cells share their resamples and sign flips, so that what is found for a cell is the same whatever stands beside it;
only q, which corrects for the number of cells, knows of the others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Real
from scipy import stats

OK = "ok"
ONE_SAMPLE = "one sample: no interval"
ALIKE = "all samples alike"
PERCENTILE = "interval: percentile, BCa undefined"

FLIPS = 49_999
"""Sign flips where many cells are tested: with fewer, few cells of a large model could reach a small q."""
BATCH = 2**21
"""Numbers of one batch of resamples or flips (16 MiB); no result depends on it."""


def effects(
    differences: Real[np.ndarray, "sample cell"],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 2000,
    flips: int = 9999,
    bounds: tuple[float, float] | None = None,
) -> pd.DataFrame:
    """Return the mean paired difference of every cell, with its interval and what chance alone would do.

    Parameters
    ----------
    differences
        With the intervention minus without it, one row an independent sample.
    confidence
        Of the two-sided interval, for each cell by itself.
    seed
        Of the resamples and of the sign flips.
    resamples
        Bootstrap resamples, at least ``2 / (1 - confidence)``: the tails have to hold one.
    flips
        Random sign flips; all ``2**n`` are gone through instead if they are no more. No p is below ``1 / (flips + 1)``
        (``2 / 2**n`` where all are gone through), so a single cell among ``m`` can reach ``q <= level`` only if
        ``flips + 1 >= m / level``.
    bounds
        The smallest and the largest value that one difference can have, as ``(-1, 1)`` for accuracies.

    Returns
    -------
    pd.DataFrame
        One row a cell, in order:

        - ``n``: the number of samples.
        - ``effect``: the mean difference.
        - ``low``, ``high``: the bootstrap's BCa interval. It is narrow for few samples, as every bootstrap is.
        - ``p``: two-sided, of the sign-flip permutation test: that differences are symmetric around zero.
        - ``q``: p after Benjamini and Hochberg's correction over all cells.
        - ``status``: ``ok``, or what is different. One sample has an effect and nothing else. Samples all alike have no
          bootstrap: see `alike_interval`, NaN without ``bounds``. Where BCa's correction cannot be computed, the
          interval is the bootstrap's percentiles.

    Raises
    ------
    ValueError
        If there is no sample or no cell, a difference is not finite or not within ``bounds``, or a setting cannot be.

    References
    ----------
    Efron, Better bootstrap confidence intervals, JASA 1987. Benjamini and Hochberg, Controlling the false discovery
    rate, JRSS B 1995. Phipson and Smyth, Permutation p-values should never be zero, 2010 (random flips).

    Examples
    --------
    >>> import numpy as np
    >>> found = effects(np.array([[0.5, 0.0], [0.7, 0.0], [0.6, 0.0], [0.9, 0.0]]), bounds=(-1, 1))
    >>> found.p.tolist(), found.status.tolist()
    ([0.125, 1.0], ['ok', 'all samples alike'])
    """
    _check_settings(confidence, resamples, flips, bounds)
    _check_differences(differences, bounds)
    # One contiguous row a cell: how NumPy sums a row is then the same for one cell and for many.
    cells = np.ascontiguousarray(np.asarray(differences, dtype=float).T)
    n_cells, n = cells.shape
    effect, low, high, p, q = (np.full(n_cells, math.nan) for _ in range(5))
    alike = (cells == cells[:, :1]).all(axis=1)
    effect[alike], effect[~alike] = cells[alike, 0], cells[~alike].mean(axis=1)
    status = np.where(alike, ALIKE, OK).astype(object)
    if n == 1:
        status[:] = ONE_SAMPLE
    else:
        p = _flip_p(cells, seed, flips)
        q = stats.false_discovery_control(p)
        if bounds is not None:
            low[alike], high[alike] = alike_interval(effect[alike], n, bounds, confidence)
        if not alike.all():
            low[~alike], high[~alike], corrected = _bootstrap(cells[~alike], confidence, seed, resamples)
            status[~alike] = np.where(corrected, OK, PERCENTILE)
    columns = {"n": n, "effect": effect, "low": low, "high": high, "p": p, "q": q}
    return pd.DataFrame({**columns, "status": status.astype(str)})


def sign_flips(
    differences: Real[np.ndarray, "sample cell"], *, seed: int = 0, flips: int = FLIPS
) -> Float[np.ndarray, " cell"]:
    """Return the p-values of `effects` alone."""
    _check_differences(differences, None)
    return _flip_p(np.ascontiguousarray(np.asarray(differences, dtype=float).T), seed, flips)


def alike_interval(
    value: Float[np.ndarray, " cell"], n: int, bounds: tuple[float, float], confidence: float
) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"]]:
    """Return the interval of a mean whose ``n`` samples all have the same value.

    With probability ``(1 - confidence) / 2`` at most, ``n`` samples all miss a share of the population that is larger
    than ``pi = 1 - ((1 - confidence) / 2) ** (1 / n)``. What was not seen can be anything within the bounds, so the
    mean is at most ``value + pi * (upper - value)``, and at least the same with the lower bound. For a value that is
    itself a bound this is Clopper and Pearson's interval.

    Examples
    --------
    >>> import numpy as np
    >>> low, high = alike_interval(np.array([0.0]), 10, (0, 1), 0.95)
    >>> low.round(3).tolist(), high.round(3).tolist(), round(proportion(0, 10)[1], 3)
    ([0.0], [0.308], 0.308)
    """
    lower, upper = bounds
    share = 1 - ((1 - confidence) / 2) ** (1 / n)
    return value - share * (value - lower), value + share * (upper - value)


def proportion(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Clopper and Pearson's exact interval of a proportion; NaN for none of none.

    Raises
    ------
    ValueError
        If ``successes`` is not between 0 and ``n``, or ``confidence`` not between 0 and 1.

    References
    ----------
    Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of the binomial, 1934.

    Examples
    --------
    >>> low, high = proportion(9, 10)
    >>> round(low, 3), round(high, 3)
    (0.555, 0.997)
    """
    _check_confidence(confidence)
    if not 0 <= successes <= n:
        raise ValueError(f"successes should be between 0 and n = {n} but got {successes}")
    if n == 0:
        return math.nan, math.nan
    interval = stats.binomtest(successes, n).proportion_ci(confidence, "exact")
    return float(interval.low), float(interval.high)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence should be in the interval (0, 1) but got {confidence}")


def _check_settings(confidence: float, resamples: int, flips: int, bounds: tuple[float, float] | None) -> None:
    _check_confidence(confidence)
    fewest = math.ceil(round(2 / (1 - confidence), 6))
    if resamples < fewest:
        raise ValueError(f"resamples should be at least {fewest} for confidence {confidence} but got {resamples}")
    if flips < 1:
        raise ValueError(f"flips should be at least 1 but got {flips}")
    if bounds is not None and not bounds[0] < bounds[1]:
        raise ValueError(f"bounds should be the smaller and the larger value but got {bounds}")


def _check_differences(differences: np.ndarray, bounds: tuple[float, float] | None) -> None:
    """Name the first sample and cell whose value cannot be used."""
    if differences.ndim != 2 or not differences.size:
        shape = differences.shape
        raise ValueError(f"differences should be of shape [sample, cell], with one of each at least, but got {shape}")
    low, high, wanted = -np.finfo(float).max, np.finfo(float).max, "finite"
    if bounds is not None:
        low, high, wanted = max(low, bounds[0]), min(high, bounds[1]), f"within the bounds {bounds}"
    unusable = np.argwhere(~((differences >= low) & (differences <= high)))
    if len(unusable):
        sample, cell = unusable[0]
        value = differences[sample, cell]
        wanted = wanted if np.isfinite(value) else "finite"
        raise ValueError(f"differences should be {wanted} but got {value} for sample {sample} of cell {cell}")


def _on_grid(
    cells: Float[np.ndarray, "cell sample"],
) -> tuple[Float[np.ndarray, "cell sample"], Float[np.ndarray, " cell"]]:
    """Return cells over their largest magnitude, in steps so coarse that no sum of them rounds; and that magnitude.

    Each number is an integer below ``2**52 / n`` times one power of two. Any sum of ``n`` of them is exact, so it
    depends neither on their order nor on how a matrix product of one cell or of many is done.
    """
    scale = np.abs(cells).max(axis=1)
    steps = 2.0 ** (52 - cells.shape[1].bit_length())
    return np.rint(cells / np.where(scale > 0, scale, 1)[:, None] * steps) / steps, scale


def _bootstrap(
    cells: Float[np.ndarray, "cell sample"], confidence: float, seed: int, resamples: int
) -> tuple[Float[np.ndarray, " cell"], Float[np.ndarray, " cell"], np.ndarray]:
    """Return low and high of every cell, and whether they are BCa's (else the percentiles); no cell is all alike."""
    n = cells.shape[1]
    mean = cells.mean(axis=1)
    grid, scale = _on_grid(cells - mean[:, None])
    given = {"statistic": _mean_of(grid), "confidence_level": confidence, "batch": max(1, BATCH // n)}
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        # All resamples on one side of the mean leave the bias infinite, and the interval NaN: told below.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        rng = np.random.default_rng(seed)
        found = stats.bootstrap((np.arange(n),), n_resamples=resamples, method="BCa", rng=rng, **given)
    plain = stats.bootstrap((np.arange(n),), n_resamples=0, bootstrap_result=found, method="percentile", **given)
    low, high = found.confidence_interval
    # An acceleration too strong for the confidence turns the interval around: as useless as NaN.
    corrected = low <= high
    low = np.where(corrected, low, plain.confidence_interval.low)
    high = np.where(corrected, high, plain.confidence_interval.high)
    return mean + low * scale, mean + high * scale, corrected


def _mean_of(grid: Float[np.ndarray, "cell sample"]) -> Callable[..., np.ndarray]:
    """Return the function from indices of samples to the mean of every cell's deviations at these.

    BCa asks how many resamples lie below the observed mean and how many are equal to it. Rounding would break such ties
    at random (0.1 + 0.2 is not 0.3); rounded to 12 digits, deviations that should be zero are.
    """
    n = grid.shape[1]

    def mean(indices: Int[np.ndarray, "*batch chosen"], axis: int) -> Float[np.ndarray, "cell *batch"]:
        rows = indices.reshape(-1, indices.shape[axis])
        at = rows + n * np.arange(len(rows))[:, None]
        counts = np.bincount(at.ravel(), minlength=n * len(rows)).reshape(-1, n)
        means = grid @ counts.T.astype(float) / rows.shape[1]
        return np.round(means, 12).reshape(-1, *indices.shape[:-1])

    return mean


def _flip_p(cells: Float[np.ndarray, "cell sample"], seed: int, flips: int) -> Float[np.ndarray, " cell"]:
    """Return every cell's share of sign flips whose mean is at least as far from zero as the mean found.

    SciPy flips the signs of ones, which multiply the samples of all cells at once. It takes for equal what differs by
    some ``2e-14`` of the statistic; the 1 added here makes that a share of the cell's largest sample, so that flips
    which should be ties are, also where the mean found is zero.
    """
    grid, _ = _on_grid(cells)
    n = grid.shape[1]

    def distance(signs: Float[np.ndarray, "*batch sample"], axis: int) -> Float[np.ndarray, "*batch cell"]:
        return 1 + np.abs(signs @ grid.T) / n

    found = stats.permutation_test(
        (np.ones(n),),
        distance,
        permutation_type="samples",
        alternative="greater",
        n_resamples=flips,
        batch=max(1, BATCH // (2 * n)),
        rng=np.random.default_rng(seed),
    )
    return np.asarray(found.pvalue)
