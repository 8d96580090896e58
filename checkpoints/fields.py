"""Reading numbers out of a foreign configuration: a value that cannot be is refused by its own name."""

from __future__ import annotations

import math
from typing import Any

from ..errors import CheckpointError


def count(name: str, value: Any) -> int:
    """Return `value` if it is an integer above zero; CheckpointError names the field otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"{name!r} should be an integer > 0 but is {value!r}")
    return value


def number(name: str, value: Any) -> float:
    """Return `value` if it is a finite number; CheckpointError names the field otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CheckpointError(f"{name!r} should be a finite number but is {value!r}")
    return value
