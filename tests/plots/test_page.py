"""The page without a browser: numbers as they are shown, what a page holds, what it escapes, what a notebook gets."""

import base64
import doctest
import hashlib
import html
import importlib
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from headscope.plots import page as pages
from headscope.plots.page import document
from headscope.plots.page.columns import Column, columns_of, number
from headscope.plots.page.short import ROWS

HOSTILE = "<script>x</script></script><!-- \" ' & ]]> \u202eabc"
PART = {"title": "t", "measured": [], "summary": [], "reading": [], "pictures": [], "tables": [], "record": {}}


def part(**given):
    return pages.Part(**(PART | given))


def data(text):
    """Return the tables that a page's script reads."""
    found = re.findall(r'<script type="application/json" id="[^"]*">(.*?)</script>', text, re.DOTALL)
    return [json.loads(block)["columns"] for block in found]


@pytest.mark.parametrize("name", ["columns", "document", "short"])
def test_the_examples_run(name):
    results = doctest.testmod(importlib.import_module(f"headscope.plots.page.{name}"))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize(
    ("value", "decimals", "shown"),
    [
        (0.0, 3, "0.000"),
        (-0.0, 3, "0.000"),
        (0.0625, 3, "0.063"),  # halves away from zero, as JavaScript does
        (-0.0625, 3, "-0.063"),
        (2.5, 0, "3"),
        (0.00049, 3, "4.9e-4"),
        (1e-300, 6, "1.0e-300"),
        (9999.5, 1, "9999.5"),
        (12345.678, 1, "12,345.7"),
        (1234567, 0, "1,234,567"),
        (2**53 - 1, 0, "9,007,199,254,740,991"),
        (1.25e12, 2, "1.3e12"),
        (math.inf, 2, "∞"),
        (-math.inf, 2, "-∞"),
    ],
)
def test_numbers_are_rounded_for_the_eye(value, decimals, shown):
    assert number(value, decimals) == shown


@pytest.mark.parametrize(
    ("values", "kind", "decimals"),
    [
        ([1, 2, 3], "number", 0),
        ([1.0, math.nan, 3.0], "number", 0),
        ([0.1234, 0.2], "number", 4),
        ([12.5, 0.2], "number", 2),
        ([1e-9, 2e-9], "number", 6),
        ([math.inf, 0.5], "number", 4),
        ([True, None], "bool", 0),
        (pd.array([1, None], dtype="Int64"), "number", 0),
        ([None, math.nan], "text", 0),
        ([2**60, 1], "text", 0),  # a double cannot hold it
        (["a", 1], "text", 0),
        ([[1, 2]], "text", 0),
        ([], "text", 0),
    ],
)
def test_kinds_of_columns(values, kind, decimals):
    column = Column.of("x", pd.Series(values))
    assert (column.kind, column.decimals) == (kind, decimals)


def test_a_page_holds_every_value_in_full():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=50) ** 9, "b": [*"xyz"] * 16 + [None, HOSTILE]})
    table.loc[3, "a"] = math.nan
    a, b = data(pages.page([part(tables=[pages.Table("t", table)])]))[0]
    assert [math.nan if v is None else v for v in a["values"]] == pytest.approx(table["a"].tolist(), rel=0, nan_ok=True)
    assert b["values"] == [*table["b"][:-2], None, HOSTILE]


def test_nothing_that_is_filled_in_is_markup():
    picture = pages.Drawn(HOSTILE, HOSTILE, None, HOSTILE)
    table = pages.Table(HOSTILE, pd.DataFrame({HOSTILE: [HOSTILE]}), {HOSTILE: HOSTILE})
    words = {name: [HOSTILE] for name in ("measured", "summary", "reading")}
    record = {"versions": {HOSTILE: HOSTILE}, HOSTILE: [HOSTILE]}
    plain = pages.page(
        [
            part(
                tables=[pages.Table("n", pd.DataFrame({"n": ["v"]}), {"n": "m"})],
                pictures=[pages.Drawn("n", "c", None, "p")],
                summary=["s"],
                measured=["m"],
                reading=["r"],
                record={"versions": {"v": "w"}},
            )
        ]
    )
    text = pages.page([part(title=HOSTILE, pictures=[picture], tables=[table], record=record, **words)])
    tags = re.compile(r"<(/?\w+)")
    assert tags.findall(text) == tags.findall(plain).copy()
    assert "<!--" not in text.split("<body>")[1]
    assert data(text)[0][0]["values"] == [HOSTILE]


def test_what_no_file_can_hold_is_replaced():
    text = pages.page([part(title="half \udce4 pair")])
    assert "half ? pair" in text
    assert text.encode("utf-8")


def test_the_policy_allows_the_pages_own_style_and_script_alone():
    text = pages.page([part()])
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1))
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_a_table_beyond_all_bounds_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(document, "MOST_CELLS", 100)
    table = pages.Table("big", pd.DataFrame({"a": range(60), "b": range(60)}))
    text = pages.page([part(tables=[table])])
    assert "the first 50 of 60 rows" in text
    assert len(data(text)[0][0]["values"]) == 50


def test_a_picture_that_cannot_be_drawn_says_why():
    text = pages.page([part(pictures=[pages.Drawn("the map", "Red is much.", None, "too many <layers>")])])
    assert "The picture the map could not be drawn: too many &lt;layers&gt;" in text
    assert "<img" not in text


@pytest.mark.parametrize("table", [pd.DataFrame(), pd.DataFrame({"a": []}), pd.DataFrame({"a": [None]})])
def test_tables_without_anything(table):
    assert "<!doctype html>" in pages.page([part(tables=[pages.Table("empty", table)])])
    assert "<div" in pages.short("nothing", [], table)


def test_two_columns_of_one_name():
    assert [c.values for c in columns_of(pd.DataFrame([[1, 2]], columns=["a", "a"]))] == [(1,), (2,)]


def test_a_notebook_gets_at_most_twenty_rows_and_is_told_of_the_rest():
    table = pd.DataFrame({"n": range(1000, 1100), "text": HOSTILE})
    both, first = pages.short("a < b", ["x & y"], table), pages.short("t", [], table, order="largest first")
    for text, last in ((both, 1099), (first, 1019)):
        shown = [int(n) for n in re.findall(r">(1\d{3})</td>", text)]
        assert len(shown) == ROWS
        assert (shown[0], shown[-1]) == (1000, last)
        assert "20 of 100 rows" in text
        assert "<script" not in text
    assert "80 rows between" in both
    assert "largest first" in first
    assert "a &lt; b" in both
    assert "x &amp; y" in both
