"""A notebook shows figures as pictures though nothing has asked matplotlib for it."""

from __future__ import annotations

import subprocess
import sys

SESSION = """
import base64, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
{before}
import headscope.plots as plots, numpy
figure = plots.head_similarity({{("qk", "all", 0): numpy.eye(4)}})
figure = getattr(figure, "figure", figure)
data, _ = shell.display_formatter.format(figure)
sys.stdout.write(data["image/png"])
"""


def shown(before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", SESSION.format(before=before)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_figure_is_shown_as_its_picture():
    assert shown().startswith("iVBORw0KGgo")  # PNG in base64


def test_what_the_session_has_for_figures_stays():
    before = (
        "from matplotlib.figure import Figure\n"
        "shell.display_formatter.formatters['image/png'].for_type(Figure, lambda figure: 'mine')"
    )
    assert shown(before) == "mine"
