"""In what two records differ."""

from __future__ import annotations

from typing import Any


def first_difference(here: Any, there: Any) -> str:
    """Return the first difference of two values in words.

    Examples
    --------
    >>> first_difference({"steps": 10, "seed": 0}, {"steps": 20, "seed": 0})
    'steps is 10 and 20'
    """
    if not isinstance(here, dict) or not isinstance(there, dict):
        return f"is {here} and {there}"
    name = next(key for key in {**here, **there} if here.get(key) != there.get(key))
    return f"{name} is {here.get(name)} and {there.get(name)}"
