"""ALiBi's slopes, one a head, as two families choose them where heads are no power of two.

References
----------
Press, Smith, Lewis, Train Short, Test Long (arXiv 2108.12409), section 3.
"""

from __future__ import annotations

import math


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """Return Bloom's: those of the power of two below, then every other one of the power above."""
    below = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * index / below) for index in range(1, below + 1)]
    between = [2 ** (-8 * index / (2 * below)) for index in range(1, 2 * below, 2)]
    return tuple(first + between[: heads - below])


def mpt_slopes(heads: int, largest: int = 8) -> tuple[float, ...]:
    """Return MPT's: of the power of two above, every second one first, then those between."""
    above = 2 ** math.ceil(math.log2(heads))
    slopes = [2 ** (-largest * index / above) for index in range(1, above + 1)]
    return tuple(slopes if above == heads else (slopes[1::2] + slopes[::2])[:heads])
