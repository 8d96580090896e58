"""What a few seeds can say: a mean with its interval, a paired difference, a correction for asking often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95
LEVEL = 0.05
"""Below this corrected p a difference counts as shown."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95 % interval.

    Parameters
    ----------
    mean
        NaN if there is no value, or one of them is NaN.
    low, high
        Student's interval; NaN for fewer than two values.
    p
        Two-sided, of a true mean of zero; NaN for fewer than two values.
    """

    mean: float
    low: float
    high: float
    p: float


def mean_interval(values: Sequence[float]) -> Mean:
    """Return mean, Student's 95 % interval and p of independent values.

    Examples
    --------
    >>> found = mean_interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    array = np.asarray(values, dtype=float)
    if not len(array) or np.isnan(array).any():
        return Mean(math.nan, math.nan, math.nan, math.nan)
    mean, df = float(array.mean()), len(array) - 1
    if not df:
        return Mean(mean, math.nan, math.nan, math.nan)
    error = float(array.std(ddof=1)) / math.sqrt(len(array))
    half = float(student.ppf((1 + CONFIDENCE) / 2, df)) * error
    p = float(2 * student.sf(abs(mean) / error, df)) if error else float(mean == 0)
    return Mean(mean, mean - half, mean + half, p)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down method; NaN stays NaN and is not counted.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((value, i) for i, value in enumerate(p) if not math.isnan(value))
    corrected, largest = [math.nan] * len(p), 0.0
    for rank, (value, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        corrected[i] = largest
    return corrected


def detectable(values: Sequence[float], tests: int) -> float:
    """Return the smallest mean that values with this spread would have had to have to pass the first of Holm's tests.

    Parameters
    ----------
    values
        Paired differences, one a seed.
    tests
        Tests in the family.

    Returns
    -------
    float
        NaN for fewer than two values.

    Examples
    --------
    >>> round(detectable([1.0, 2.0, 3.0], tests=1), 3)  # half of the 95 % interval
    2.484
    """
    n = len(values)
    if n < 2:
        return math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    return float(student.isf(LEVEL / tests / 2, n - 1)) * error


def first_reached(steps: Sequence[float], values: Sequence[float], threshold: float) -> float:
    """Return the step at which a falling curve first is at or below a threshold; NaN if it never is.

    Between two measured points the curve is taken as straight.

    Examples
    --------
    >>> first_reached([100, 200, 300], [3.0, 2.0, 1.0], 2.5)
    150.0
    """
    before: tuple[float, float] | None = None
    for step, value in zip(steps, values, strict=True):
        if value <= threshold:
            if before is None or value == threshold:
                return float(step)
            at, was = before
            return float(at + (step - at) * (was - threshold) / (was - value))
        before = step, value
    return math.nan
