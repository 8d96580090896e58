"""What all pictures have in common: they return what they drew on, draw where they are told to, and leave the rest alone."""

from __future__ import annotations

import io
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from headscope import plots
from headscope.plots.panels import figure_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAN = math.nan


def ranks():
    table = pd.DataFrame({"layer": [0, 1] * 2, "circuit": ["qk"] * 2 + ["ov"] * 2, "part": "all", "n_heads": 4})
    table[["erank", "erank_centred"]] = [[3.1, 2.6], [2.7, 2.2], [3.5, 2.8], [3.0, 2.5]]
    table[["null_mean", "null_low", "null_high", "null_centred_mean", "status"]] = [3.9, 3.8, 3.95, 2.9, "ok"]
    return table


def cells():
    table = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "effect": [-1.0, 0.2, NAN]})
    table[["low", "high", "significant"]] = [[-1.1, -0.9, True], [0.1, 0.3, False], [NAN, NAN, False]]
    for name in ("random", "shared"):
        table[[f"{name}_effect", f"{name}_low", f"{name}_high"]] = [-0.1, -0.2, 0.0]
    return table


def runs():
    table = pd.DataFrame({"model": ["mha", "mqa"] * 2, "control": ["backbone"] * 2 + ["parameters"] * 2, "seed": 0})
    table["loss"] = [2.6, 2.7, 2.6, 2.65]
    table["cache_bytes"] = table["cache_bytes_physical"] = [2048, 256] * 2
    return table


def capacity():
    row = {"model": "lrkv", "variant": "lrkv", "n_heads": 18, "d_head": 128, "setting": "rank", "value": 55}
    return pd.DataFrame([row | {"cache_pct_mha": 48.5, "cache_physical_pct_mha": 49.3}])


def losses():
    rows = [
        (size, model, 2.5, cache, "table") for size in ("1B", "2B") for model, cache in (("mha", 100.0), ("lrkv", 48.0))
    ]
    return pd.DataFrame(rows, columns=["size", "model", "loss", "cache_pct_mha", "series"])


def components():
    table = pd.DataFrame({"layer": 0, "circuit": ["qk"] * 2 + ["ov"] * 2, "part": "all", "component": [1, 2] * 2})
    return table.assign(share=[0.7, 0.3, 0.6, 0.4], null_share=0.5)


STEPS = pd.DataFrame({"step": [0, 0], "layer": 0, "head": [0, 1], "entropy": [0.5, NAN]})
LOOKED = pd.DataFrame({"layer": [0], "head": [0], "key_pos": [1], "weight": [0.9]})
MAPS = {("qk", "all", 0): np.eye(3), ("ov", "all", 0): torch.eye(3, dtype=torch.bfloat16)}
LOG = pd.DataFrame({"step": [0, 1], "validation_loss": [3.0, 2.0], "induction": [0.1, 0.9]})
WEIGHTS = torch.tensor([[1.0, 9.0], [0.25, 0.75]], dtype=torch.bfloat16)

PICTURES = {
    "attention_pattern": (lambda ax: plots.attention_pattern(torch.tril(WEIGHTS), ["a", "b"], ax=ax), 1),
    "cache_against_rank": (lambda ax: plots.cache_against_rank(capacity(), ax=ax), 2),
    "effect_intervals": (lambda ax: plots.effect_intervals(cells(), ax=ax), 1),
    "effect_map": (lambda ax: plots.effect_map(cells(), ax=ax), 1),
    "effective_rank": (lambda ax: plots.effective_rank(ranks(), ax=ax), 2),
    "head_similarity": (lambda ax: plots.head_similarity(MAPS, ax=ax), 2),
    "looked_map": (lambda ax: plots.looked_map(LOOKED, ["a", "b"], ax=ax), 1),
    "loss_against_cache": (lambda ax: plots.loss_against_cache(runs(), ax=ax), 2),
    "one_layer": (lambda ax: plots.one_layer(torch.eye(3, dtype=torch.bfloat16), {"all": [1 / 3] * 3}, ax=ax), 2),
    "over_training": (lambda ax: plots.over_training(ranks().assign(step=0), LOG, ax=ax), 3),
    "paper_loss": (lambda ax: plots.paper_loss(losses(), ax=ax), 2),
    "routing_maps": (lambda ax: plots.routing_maps(WEIGHTS, WEIGHTS, ["a", "b"], ax=ax), 3),
    "spectra": (lambda ax: plots.spectra(components(), ax=ax), 4),
    "step_map": (lambda ax: plots.step_map(STEPS, "entropy", label="entropy", tokens=["a"], ax=ax), 1),
}


def test_every_picture_is_among_these():
    assert set(PICTURES) == {name for name in plots.__all__ if not name.endswith("_pages")}


@pytest.fixture(params=PICTURES)
def picture(request):
    return PICTURES[request.param]


def drawn_on(found) -> list[Axes]:
    return [found] if isinstance(found, Axes) else list(found)


def test_what_was_drawn_on_comes_back(picture):
    draw, count = picture
    settings = {name: plt.rcParams._get(name) for name in plt.rcParams}  # a plain look at the backend would choose one
    found = draw(None)
    assert settings == {name: plt.rcParams._get(name) for name in plt.rcParams}
    assert isinstance(found, Axes) == (count == 1)
    assert len(drawn_on(found)) == count
    assert all(isinstance(ax, Axes) and ax.has_data() for ax in drawn_on(found))
    figure = figure_of(found)
    assert isinstance(figure, Figure)
    assert figure.axes[:count] == drawn_on(found)
    assert plt.get_fignums() == []
    figure.savefig(io.BytesIO(), dpi=40)


def test_the_caller_s_axes_are_drawn_on(picture):
    draw, count = picture
    figure = Figure(figsize=(5 * count, 4), layout="constrained")
    axes = figure.subfigures(2, 1)[1].subplots(1, count, squeeze=False)[0]
    given = axes[0] if count == 1 else axes
    found = draw(given)
    assert drawn_on(found) == list(axes)
    assert figure_of(found) is figure
    assert all(ax.has_data() for ax in axes)
    figure.savefig(io.BytesIO(), dpi=40)
    with pytest.raises(ValueError, match=rf"ax should hold as many Axes but has {count + 1}"):
        draw(Figure().subplots(1, count + 1))
    with pytest.raises(ValueError, match="ax should be one Axes or several but holds 'here'"):
        draw(np.array(["here"] * count, dtype=object))


@pytest.mark.parametrize("on", [None, 1])
def test_a_name_is_no_formula(on):
    """A token or a path in a title may hold what a font would take for one, or for a broken one."""
    title = "where heads looked when '$$' was chosen: $x_{"
    ax = None if on is None else Figure().subplots()
    panel = plots.looked_map(LOOKED, ["a", "b"], title=title, ax=ax)
    panel.figure.savefig(io.BytesIO())
    words = panel.get_title() or panel.figure.get_suptitle()
    assert words.replace(r"\$", "$") == title


def test_an_axes_can_be_drawn_on_twice():
    ax = Figure().subplots()
    plots.effect_map(cells(), ax=ax)
    ax.clear()
    again = plots.effect_map(cells().assign(effect=1.0), ax=ax)
    assert again is ax
    ax.figure.savefig(io.BytesIO())
