"""A picture with choices: controls beside it where a notebook has widgets, and a plain function everywhere."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

WIDGET = "application/vnd.jupyter.widget-view+json"
DPI = 150
"""Dots per inch of what is drawn."""
SHOWN = 90
"""Pixels per inch at which a page shows it."""
FEW = 4
"""So many words stand side by side as buttons; more in a list."""


class Explorer:
    """A picture with choices: layer, head, distance.

    Called, it is a plain function that gives the figure of a choice. As the last line of a notebook's cell it shows the
    same figure with a control for each choice, which redraws it; without ipywidgets, and in pages made from the
    notebook, the figure alone.

    Parameters
    ----------
    draw
        Draws a choice: a keyword argument for each of `choices`.
    choices
        Name -> what can be chosen, in the order of the controls.
    start
        Name -> what is chosen at first, for some or all of them; else the first of its options.

    Raises
    ------
    ValueError
        If there is nothing to choose, or `start` names what is no choice.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> seen = []
    >>> def draw(layer, head):
    ...     seen.append((layer, head))
    ...     return Figure()
    >>> explorer = Explorer(draw, {"layer": [0, 1], "head": [0, 1, 2]}, {"head": 2})
    >>> figure, other = explorer(), explorer(layer=1)
    >>> seen
    [(0, 2), (1, 2)]
    >>> explorer
    Explorer: layer 0 of 0, 1; head 2 of 0, 1, 2
    """

    def __init__(
        self,
        draw: Callable[..., Figure],
        choices: Mapping[str, Sequence[Any]],
        start: Mapping[str, Any] | None = None,
    ) -> None:
        self._draw = draw
        self.choices = {name: tuple(options) for name, options in choices.items()}
        for name, options in self.choices.items():
            if not options:
                raise ValueError(f"{name} has no options to choose from")
        if not self.choices:
            raise ValueError("an explorer needs a choice")
        self.chosen = {name: options[0] for name, options in self.choices.items()} | self._checked(start or {})

    def __call__(self, **choice: Any) -> Figure:
        """Draw a choice; what is not named is as in `chosen`."""
        return self._draw(**(self.chosen | self._checked(choice)))

    def _checked(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in choice.items():
            if name not in self.choices:
                raise ValueError(f"{name} is no choice here: there are {', '.join(self.choices)}")
            if value not in self.choices[name]:
                raise ValueError(f"{name} should be one of {_listed(self.choices[name])} but got {value!r}")
        return dict(choice)

    def __repr__(self) -> str:
        texts = [f"{name} {self.chosen[name]} of {_listed(options)}" for name, options in self.choices.items()]
        return f"Explorer: {'; '.join(texts)}"

    def widget(self) -> Any:
        """Return the picture with its controls, an `ipywidgets.VBox`.

        Raises
        ------
        ImportError
            If ipywidgets is not installed.
        """
        import ipywidgets

        figure = self()
        picture = ipywidgets.Image(value=_png(figure), format="png", width=_width(figure))
        controls = {name: self._control(name, options) for name, options in self.choices.items()}

        def redraw(_: Any) -> None:
            choice = {name: control.value for name, control in controls.items()}
            figure = self(**choice)
            self.chosen = choice
            picture.width, picture.value = _width(figure), _png(figure)

        for control in controls.values():
            control.observe(redraw, names="value")
        return ipywidgets.VBox([ipywidgets.HBox(list(controls.values())), picture])

    def _control(self, name: str, options: tuple[Any, ...]) -> Any:
        import ipywidgets

        common = {"options": [(str(option), option) for option in options], "value": self.chosen[name]}
        if all(isinstance(option, int) for option in options):
            return ipywidgets.SelectionSlider(**common, description=name, continuous_update=False)
        if len(options) <= FEW:
            return ipywidgets.ToggleButtons(**common, style={"button_width": "auto"})
        return ipywidgets.Dropdown(**common, description=name)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the figure, and where widgets can be had the controls: a page shows what it can."""
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        if importlib.util.find_spec("ipywidgets") is None:
            figure = self()
            png, width = _png(figure), _width(figure)
        else:
            widget = self.widget()
            png, width = widget.children[-1].value, int(widget.children[-1].width)
            bundle[WIDGET] = widget._repr_mimebundle_()[WIDGET]
        bundle["image/png"] = base64.b64encode(png).decode("ascii")
        return bundle, {"image/png": {"width": width}}


def _listed(options: Sequence[Any]) -> str:
    shown = [str(option) for option in options]
    return ", ".join(shown if len(shown) <= 9 else [*shown[:4], "…", *shown[-2:]])


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()


def _width(figure: Figure) -> int:
    return round(SHOWN * float(figure.get_figwidth()))
