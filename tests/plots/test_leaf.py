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


@pytest.mark.parametrize("file", sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")))
def test_nothing_else_of_headscope_is_imported(file):
    tree = ast.parse((FOLDER / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= len(Path(file).parts)  # however deep a file stands, no further up than the plots
            assert "headscope" not in (node.module or "")
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("headscope") for alias in node.names)


def test_drawing_leaves_pyplot_and_its_settings_alone(tmp_path):
    code = (
        "import sys, matplotlib as mpl, numpy\n"
        "before = {name: mpl.rcParams._get(name) for name in mpl.rcParams}\n"  # a look at the backend would choose one
        "import headscope.plots as plots\n"
        "plots.head_similarity({('qk', 'all', 0): numpy.eye(4)}).figure.savefig(sys.argv[1])\n"
        "plots.routing_maps(numpy.eye(4), numpy.eye(4), 'abcd')[0].figure.savefig(sys.argv[1])\n"
        "assert before == {name: mpl.rcParams._get(name) for name in mpl.rcParams}\n"
        "import matplotlib.pyplot\n"
        "assert not matplotlib.pyplot.get_fignums()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "map.png")], check=True)
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "name",
    [
        "capacity",
        "cost",
        "effective_rank",
        "effects",
        "explorer",
        "generation",
        "intervals",
        "order",
        "one_layer",
        "over_training",
        "pattern",
        "routing",
        "similarity",
        "spectra",
    ],
)
def test_the_examples_run(name):
    results = doctest.testmod(importlib.import_module(f"headscope.plots.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
