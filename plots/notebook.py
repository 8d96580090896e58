"""A figure at the end of a notebook's cell is shown as its picture."""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.figure import Figure


def show_figures() -> None:
    """Let IPython, where this is it, show figures as pictures; what it has for them already stays.

    Elsewhere it learns that from ``%matplotlib inline``. headscope chooses no backend, so that without this a figure,
    the user's own too, would be shown as ``<Figure size 800x600 with 9 Axes>``.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return
    formatters = shell.display_formatter.formatters
    if not any(_knows(each) for name, each in formatters.items() if name.startswith("image/")):
        formatters["image/png"].for_type(Figure, _picture)


def _knows(formatter: Any) -> bool:
    try:
        formatter.lookup_by_type(Figure)
    except KeyError:
        return False
    return True


def _picture(figure: Figure) -> Any:
    from IPython.core.pylabtools import print_figure

    return print_figure(figure, fmt="png", base64=True)
