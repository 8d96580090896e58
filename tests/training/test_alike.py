"""Where two records first differ, in words."""

from __future__ import annotations

import pytest
from headscope.training.alike import first_difference


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}, ""),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b is 2 and 3"),
        ({"b": {"c": {"d": 2, "e": 0}}}, {"b": {"c": {"d": 3, "e": 1}}}, "b.c.d is 2 and 3"),
        ({"b": {"c": 2}}, {"b": 7}, "b is {'c': 2} and 7"),
        ({"a": 1}, {}, "a is 1 and None"),
        ({}, {"a": 1}, "a is None and 1"),
        ("ab", "cd", "is ab and cd"),
        ("ab", "ab", ""),
    ],
)
def test_the_first_difference_is_named_by_its_place(here, there, words):
    assert first_difference(here, there) == words
