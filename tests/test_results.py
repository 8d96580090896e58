"""What every result can do: pages from Python and from the command line, and the view in a notebook."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import headscope as hs
import pandas as pd
import pytest
from headscope.cli import app
from headscope.results import Picture, Result, html_page
from typer.testing import CliRunner


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Made(Result):
    stem: ClassVar[str] = "made"

    def title(self):
        return "made <here>"

    def summary(self):
        return "one\ntwo"

    def reading(self):
        return "look"

    def pictures(self):
        def fails():
            raise ValueError("64 panels do not fit")

        return {"big-map.png": Picture(fails, "Red is much.")}

    def terminal(self):
        return [], []


MADE = Made(table=pd.DataFrame({"a": [1, 2]}), record={"seed": 0})


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_picture_that_fails_costs_no_page_and_is_not_passed_over():
    text = MADE.to_html()
    assert "The picture big map could not be drawn: 64 panels do not fit" in text
    assert "made &lt;here&gt;" in text
    assert text.count("<li>") == 3


def test_a_bug_is_no_missing_picture():
    class Broken(Made):
        def pictures(self):
            return {"x.png": Picture(lambda: [][0], "")}

    with pytest.raises(IndexError):
        Broken(table=MADE.table, record={}).to_html()


def test_a_page_is_replaced_whole(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    assert MADE.save_html(path) == path
    assert path.read_text(encoding="utf-8") == MADE.to_html()
    assert list(tmp_path.iterdir()) == [path]


def test_results_stand_on_one_page_one_after_another():
    text = html_page([MADE, hs.audit()])
    assert text.index("made &lt;here&gt;</h1>") < text.index("Audit of")
    assert text.count("<article") == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: hs.report("lrkv", layers="0", null=0),
        lambda: hs.ablate("lrkv", layers="0", heads=(0,), samples=2),
        lambda: hs.probe("lrkv", "def f(", spans=["all=0:2"], max_new_tokens=2),
        hs.budget,
        hs.audit,
    ],
    ids=["report", "ablate", "probe", "budget", "audit"],
)
def test_every_column_is_explained_and_every_result_shows_itself(make):
    result = make()
    columns = {str(column) for table in result.tables().values() for column in table.columns}
    assert columns <= set(result.meaning())
    shown = result._repr_html_()
    assert result.title().split()[0] in shown
    assert shown.count("<tr>") <= 23
    assert all(picture.caption.endswith(".") for picture in result.pictures().values())


def test_html_on_the_command_line_goes_beside_json_and_out(tmp_path):
    page = tmp_path / "budget.html"
    page.write_text("old")
    done = run("budget", "--html", page, "--json", "--out", tmp_path / "saved")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["record"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "saved" / "budget.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_report_and_what_heads_do_on_a_text_stand_on_one_page(tmp_path):
    (tmp_path / "text.txt").write_text("def add(a, b):\n    return a + b\n" * 40)
    page = tmp_path / "both.html"
    done = run("report", "lrkv", "--layers", "0", "--null", 0, "--text", tmp_path / "text.txt", "--html", page)
    assert done.exit_code == 0, done.output
    assert done.output.rstrip().endswith("both.html")
    assert page.read_text(encoding="utf-8").count("<article") == 2


@pytest.mark.parametrize("verb", [("report",), ("ablate",), ("probe", "--prompt", "x"), ("compare", "nowhere"), ("budget",), ("budget", "audit"), ("convert", "mha", "made")])  # fmt: skip
@pytest.mark.parametrize(
    ("place", "message"), [("none/page.html", "there is no directory"), ("", "should be a file but")]
)
def test_where_no_page_can_be_is_said_before_the_work(verb, place, message, tmp_path):
    done = run(*verb, "--html", tmp_path / place)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())
