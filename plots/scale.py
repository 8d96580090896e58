"""The one colour scale of many similarity maps, and what it leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

QUANTILE = 0.99
# The scale never shrinks below this: rounding noise between orthogonal heads must not look like structure.
MIN_LIMIT = 0.01
# The largest size sets the scale unless it is this many times the quantile: then few would fade all others.
OUTLIER = 1.25


@dataclass(frozen=True)
class Scale:
    """The colour scale -limit to limit, why it is that, and how many off-diagonal cells lie beyond it."""

    limit: float
    reason: str
    beyond: int
    cells: int

    @classmethod
    def of(cls, matrices: Iterable[np.ndarray]) -> Scale:
        """Choose the scale from the off-diagonal cells of some matrices."""
        sizes = np.concatenate([np.abs(matrix[~np.eye(len(matrix), dtype=bool)]) for matrix in matrices])
        # Rounding may carry a cosine past 1, which is not beyond any scale.
        sizes = np.minimum(sizes[~np.isnan(sizes)], 1.0)
        if not sizes.size:
            return cls(1.0, "no off-diagonal cell has a value", 0, 0)
        largest, robust = float(sizes.max()), float(np.quantile(sizes, QUANTILE))
        no_outliers = largest <= OUTLIER * robust
        limit = _rounded_up(max(MIN_LIMIT, largest if no_outliers else robust))
        if limit == MIN_LIMIT:
            reason = "the narrowest that is drawn"
        elif no_outliers:
            reason = "the largest off-diagonal size, rounded up"
        else:
            reason = "the 99th percentile of off-diagonal sizes, rounded up"
        return cls(limit, reason, int((sizes > limit).sum()), sizes.size)


def _rounded_up(value: float) -> float:
    """Round up to two significant digits, at most 1."""
    places = 1 - math.floor(math.log10(value))
    return min(1.0, round(math.ceil(value * 10**places - 1e-6) / 10**places, places))
