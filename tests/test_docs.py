"""Every example that a reader meets is run: the Python ones here, the options of the command lines checked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import matplotlib as mpl
import pytest
from headscope.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append(pytest.param(block, id=f"{page.name}-{number}"))
    return found


@pytest.mark.parametrize("block", blocks("python"))
def test_python_examples_run(block, smollm2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    (tmp_path / "smollm2").symlink_to(smollm2)
    exec(compile(block, "example", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("block", blocks("sh"))
def test_command_lines_exist(block):
    """Each `headscope` command with its options is one the command line knows (`--help` parses them first)."""
    for line in block.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part)
            if words[:1] == ["headscope"]:
                shown = CliRunner().invoke(app, [words[1], "--help"], terminal_width=200)
                assert shown.exit_code == 0, line
                for option in (word for word in words if word.startswith("--")):
                    assert option in shown.output, f"{option} in {line!r}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
