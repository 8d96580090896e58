"""Whether two records say the same, and if not, where they first differ."""

from __future__ import annotations

from typing import Any

from ..unfinished import difference


def first_difference(here: Any, there: Any) -> str:
    """Return where two records first differ and what either says there; empty if they are alike.

    Parameters
    ----------
    here, there
        Values, or dictionaries of them to any depth; what one lacks counts as None.

    Examples
    --------
    >>> first_difference({"steps": 9, "mlp": {"d_mlp": 64}}, {"steps": 9, "mlp": {"d_mlp": 65}})
    'mlp.d_mlp is 64 and 65'
    >>> first_difference("ab", "cd")
    'is ab and cd'
    """
    found = difference(here, there)
    if found is None:
        return ""
    name, ours, theirs = found
    return f"{name} is {ours} and {theirs}".lstrip()
