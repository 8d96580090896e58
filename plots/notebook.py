"""A figure at the end of a notebook's cell is shown as its picture."""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.figure import Figure


def show_figures() -> None:
    """Let IPython, where this is it, show figures as pictures; what it has for them already stays.

    Elsewhere it learns that when pyplot is imported or ``%matplotlib inline`` is run. headscope does neither, so that
    without this a figure would be shown as ``<Figure size 800x600 with 9 Axes>``.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return
    pictures = shell.display_formatter.formatters["image/png"]
    try:
        pictures.lookup_by_type(Figure)
    except KeyError:
        pictures.for_type(Figure, _picture)


def _picture(figure: Figure) -> Any:
    from IPython.core.pylabtools import print_figure

    return print_figure(figure, fmt="png", base64=True)
