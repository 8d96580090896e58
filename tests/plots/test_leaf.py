"""The plots stand alone: nothing of pyplot, nothing of the rest of headscope, and their examples run."""

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import headscope.plots
import pytest

FOLDER = Path(headscope.plots.__file__).parent


@pytest.mark.parametrize(
    "name",
    [
        "budget_tables",
        "capacity",
        "cost",
        "effective_rank",
        "effects",
        "explorer",
        "grid",
        "labels",
        "one_layer",
        "over_training",
        "pattern",
        "similarity",
        "style",
        "terminal",
        "variants",
    ],
)
def test_nothing_else_of_headscope_is_imported(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1
            assert "headscope" not in (node.module or "")
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("headscope") for alias in node.names)


def test_drawing_leaves_pyplot_alone_and_needs_no_backend(tmp_path):
    code = (
        "import sys, numpy, headscope.plots as plots\n"
        "figure = plots.head_similarity({('qk', 'all', 0): numpy.eye(4)})\n"
        "figure.savefig(sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "map.png")], check=True)
    assert (tmp_path / "map.png").stat().st_size > 1000


EXAMPLES = (
    "capacity",
    "cost",
    "effective_rank",
    "effects",
    "explorer",
    "one_layer",
    "over_training",
    "pattern",
    "similarity",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_run(name):
    results = doctest.testmod(importlib.import_module(f"headscope.plots.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
