"""Every example that a reader meets is run: those of the pages and of the public names; command lines are parsed."""

from __future__ import annotations

import doctest
import inspect
import re
import shlex
import sys
import sysconfig
from pathlib import Path

import headscope as hs
import matplotlib as mpl
import pytest
from headscope.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def registries():
    """What an example adds to headscope is there for that example alone."""
    from headscope.checkpoints.families import FAMILIES
    from headscope.models import attention, variant

    known = (variant.VARIANTS, attention._MODULES, FAMILIES)
    before = [dict(each) for each in known]
    yield
    for each, was in zip(known, before, strict=True):
        each.clear()
        each.update(was)


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append(pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}"))
    return found


@pytest.mark.parametrize("block", blocks("python"))
def test_python_examples_run(block, smollm2, registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    (tmp_path / "smollm2").symlink_to(smollm2)
    exec(compile(block, "example", "exec", dont_inherit=True), {"__name__": "example"})


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


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with `runs/mha-0` and `runs/lrkv-0`, finished and very short."""
    from headscope import training

    place = tmp_path_factory.mktemp("examples")
    corpus = training.from_path(Path(sysconfig.get_paths()["stdlib"]) / "asyncio")
    for preset in ("mha", "lrkv"):
        config, recipe = training.build(preset, "tiny"), training.Recipe(steps=4, save_every=2)
        training.train(config, corpus, place / "runs" / f"{preset}-0", recipe, preset=preset)
    return place


@pytest.mark.parametrize("name", hs.__all__)
def test_a_public_name_has_an_example_that_runs(name, runs, monkeypatch):
    monkeypatch.chdir(runs)
    found = getattr(hs, name)
    globs = dict(vars(sys.modules[found.__module__]))
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(found) or "", globs, name, None, 0)
    assert example.examples, f"headscope.{name} shows no example"
    assert doctest.DocTestRunner().run(example).failed == 0
