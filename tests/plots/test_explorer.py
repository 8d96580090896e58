"""An explorer is a plain function of its choices; its controls call the same function."""

from __future__ import annotations

import base64
import builtins
import importlib.util
import io

import matplotlib.image
import numpy as np
import pytest
from headscope.plots.explorer import WIDGET, Explorer
from matplotlib.figure import Figure


def drawn(layer: int, circuit: str) -> Figure:
    """A figure that says what was chosen, by its size and its title."""
    figure = Figure(figsize=(2 + layer, 2))
    figure.suptitle(f"{layer} {circuit}")
    return figure


CHOICES = {"layer": range(3), "circuit": ["QK", "OV"]}


def pixels(png: bytes) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(png))


def as_drawn(layer: int, circuit: str) -> np.ndarray:
    file = io.BytesIO()
    drawn(layer, circuit).savefig(file, format="png", dpi=150)
    return pixels(file.getvalue())


def test_a_call_draws_what_is_asked_and_keeps_the_rest_as_chosen():
    explorer = Explorer(drawn, CHOICES, {"circuit": "OV"})
    assert explorer().get_suptitle() == "0 OV"
    assert explorer(layer=2).get_suptitle() == "2 OV"
    assert explorer(layer=1, circuit="QK").get_suptitle() == "1 QK"
    assert explorer.chosen == {"layer": 0, "circuit": "OV"}


def test_controls_redraw_with_the_same_function():
    explorer = Explorer(drawn, CHOICES)
    widget = explorer.widget()
    (controls, picture), (layer, circuit) = widget.children, widget.children[0].children
    np.testing.assert_array_equal(pixels(picture.value), as_drawn(0, "QK"))
    layer.value = 2
    np.testing.assert_array_equal(pixels(picture.value), as_drawn(2, "QK"))
    assert picture.width == str(90 * 4)
    circuit.value = "OV"
    np.testing.assert_array_equal(pixels(picture.value), as_drawn(2, "OV"))
    assert explorer.chosen == {"layer": 2, "circuit": "OV"}
    assert explorer().get_suptitle() == "2 OV"  # what the controls say is what a call draws
    assert len(controls.children) == 2


def test_many_words_stand_in_a_list_few_side_by_side_and_numbers_on_a_slider():
    kinds = [
        type(Explorer(lambda x: drawn(0, "QK"), {"x": options}).widget().children[0].children[0]).__name__
        for options in ("ab", "abcdefg", range(9))
    ]
    assert kinds == ["ToggleButtons", "Dropdown", "SelectionSlider"]


def test_a_page_without_controls_has_the_figure():
    bundle, size = Explorer(drawn, CHOICES, {"layer": 1})._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png", WIDGET}
    np.testing.assert_array_equal(pixels(base64.b64decode(bundle["image/png"])), as_drawn(1, "QK"))
    assert size == {"image/png": {"width": 270}}


def test_without_ipywidgets_the_figure_is_shown_and_a_widget_says_what_is_missing(monkeypatch):
    real, found = builtins.__import__, importlib.util.find_spec

    def refuse(name, *rest):
        if name.split(".")[0] == "ipywidgets":
            raise ModuleNotFoundError("No module named 'ipywidgets'", name="ipywidgets")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ipywidgets" else found(name))
    explorer = Explorer(drawn, CHOICES)
    bundle, _ = explorer._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    np.testing.assert_array_equal(pixels(base64.b64decode(bundle["image/png"])), as_drawn(0, "QK"))
    with pytest.raises(ImportError, match="ipywidgets"):
        explorer.widget()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Explorer(drawn, {}), "needs a choice"),
        (lambda: Explorer(drawn, {"layer": []}), "layer has no options"),
        (lambda: Explorer(drawn, CHOICES, {"head": 1}), "head is no choice here: there are layer, circuit"),
        (lambda: Explorer(drawn, CHOICES)(layer=3), "layer should be one of 0, 1, 2 but got 3"),
        (lambda: Explorer(drawn, {"x": range(99)})(x=-1), r"x should be one of 0, 1, 2, 3, …, 97, 98 but got -1"),
    ],
)
def test_what_cannot_be_chosen_is_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()
