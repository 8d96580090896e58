"""The command: text as it comes, then the table; files; and what is said to a call that cannot be."""

from __future__ import annotations

import json

import pytest
from headscope.cli import app
from typer.testing import CliRunner


def run(*arguments: str):
    return CliRunner().invoke(app, ["probe", *arguments])


def test_it_streams_the_text_and_prints_the_heads_that_matter(tmp_path):
    found = run(
        "--prompt", "def read(path):", "--span", "name=read", "--max-new-tokens", "3", "--out", str(tmp_path / "o")
    )
    assert found.exit_code == 0, found.output
    assert "What heads looked at when" in found.output
    assert "on name" in found.output
    assert max(map(len, found.output.splitlines())) <= 130
    data = json.loads((tmp_path / "o" / "probe.json").read_text())
    assert found.output.startswith(data["record"]["generated"])
    assert (tmp_path / "o" / "span-name.png").exists()


def test_json_is_all_that_is_printed():
    found = run("gqa", "--prompt", "x =", "--max-new-tokens", "1", "--json")
    assert json.loads(found.stdout)["record"]["new_tokens"] == 1


def test_needles_are_hidden_where_asked():
    found = run("--needle", "8,16", "--samples", "4")
    assert found.exit_code == 0, found.output
    assert "8 back" in found.output
    assert "16 back" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --prompt TEXT, or --needle DISTANCES"),
        (("--needle", "a"), "--needle should be numbers like 8,32,96"),
        (("--prompt", "x", "--span", "y"), "a span should be name=start:end or name=text"),
        (("--prompt", ""), "the prompt is empty"),
        (("nowhere", "--prompt", "x"), "nowhere does not exist"),
        (("nowhere", "--prompt", "x", "--via", "transformers"), "nowhere is no directory"),
        (("--prompt", "x", "--top-p", "0.5"), "need a temperature above 0"),
    ],
)
def test_a_call_that_cannot_be_is_one_line_and_status_2(arguments, message):
    found = run(*arguments)
    assert found.exit_code == 2
    assert message in found.stderr
    assert found.stderr.count("\n") == 1
