"""The verb: what of a result or a model can be chosen, and what is drawn for a choice."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ..checkpoints.opening import Source, model_of, opened_source
from ..diversity import Report, measure
from ..diversity.settings import Reportable, Settings
from ..diversity.spectra import shares
from ..models.hooked import HookedModel
from ..plots import attention_pattern, one_layer
from ..plots.explorer import Explorer
from ..plots.panels import figure_of
from ..plots.style import block_title
from ..probing import Probe
from ..results import Result

NEAR = 256
"""Every distance below is offered; beyond it those that double."""


def explore(source: Source, text: str | None = None, **start: Any) -> Explorer:
    r"""Return a picture of a result or a model, with what can be chosen in it.

    In a notebook it shows itself with controls (`ipywidgets`); called, as in ``explore(report)(layer=3)``, it is a
    plain function that returns the figure of a choice, everywhere.

    Parameters
    ----------
    source
        A `Report` (choose layer and circuit), a `Probe` (which new token), any other result (which of its pictures); or
        a model, by path, opened or in memory: similarities and spectrum by layer, circuit and distance between query
        and key.
    text
        What the model, or a result's model, reads: its attention patterns by layer and head.
    start
        What is chosen at first, such as ``layer=3``.

    Raises
    ------
    ValueError
        If there is nothing to choose, `start` cannot be chosen, or the source is nothing of the kind.
    CheckpointError
        If the checkpoint cannot be read.

    Examples
    --------
    >>> import headscope as hs
    >>> explorer = hs.explore("lrkv", "for i in range(3):\n    print(i)\n", layer=2)
    >>> explorer.choices
    {'layer': (0, 1, 2, 3), 'head': (0, 1, 2, 3, 4, 5, 6, 7)}
    >>> explorer(head=5).axes[0].get_xlabel()
    'key: looks at'
    """
    if text is not None:
        model, _ = model_of(source)
        return _patterns(model, text, start)
    if isinstance(source, Result):
        return _of_result(source, start)
    return _forms(opened_source(source), start)


def _of_result(result: Result, start: dict[str, Any]) -> Explorer:
    if isinstance(result, Report):
        return _similarities(result, start)
    if isinstance(result, Probe) and len(result.strongest):
        steps = sorted(set(result.table["step"].astype(int)))
        return Explorer(lambda step: result.looked(step), {"step": steps}, start)
    pictures = {name.removesuffix(".png"): picture for name, picture in result.pictures().items()}
    if not pictures:
        raise ValueError(f"{result.title()} has no picture to explore: its table says it")
    return Explorer(lambda picture: pictures[picture].draw(), {"picture": list(pictures)}, start)


def _similarities(report: Report, start: dict[str, Any]) -> Explorer:
    blocks = {block_title(circuit, part): (circuit, part) for circuit, part, _ in report.similarity}
    if not blocks:
        raise ValueError("this report holds no similarities: measure the checkpoint again")
    distance = report.record["offsets"]["text"]

    def draw(layer: int, circuit: str) -> Figure:
        return _draw_layer(report.similarity[(*blocks[circuit], layer)], layer, circuit, distance)

    layers = sorted({layer for *_, layer in report.similarity})
    return Explorer(draw, {"layer": layers, "circuit": list(blocks)}, start)


def _forms(source: Reportable, start: dict[str, Any]) -> Explorer:
    factors = lru_cache(maxsize=1)(source.factors)  # one layer's in memory at a time, as in a report

    def measured(layer: int, offset: int | None) -> dict[str, np.ndarray]:
        settings = Settings.parse("both", offset, "gram", null=0, fold_norm=True)
        return {block_title(*key): matrix for key, matrix in settings.similarities(factors(layer)).items()}

    def draw(layer: int, circuit: str, offset: int | None = None) -> Figure:
        turns = source.config.at(layer).rotary is not None
        return _draw_layer(measured(layer, offset)[circuit], layer, circuit, str(offset).lower() if turns else "none")

    choices: dict[str, Any] = {"layer": range(source.config.n_layers), "circuit": list(measured(0, None))}
    if any(source.config.at(layer).rotary is not None for layer in range(source.config.n_layers)):
        n_ctx = source.config.n_ctx
        far = (NEAR << i for i in range(n_ctx.bit_length()))
        choices["offset"] = [*range(min(NEAR, n_ctx)), *(distance for distance in far if distance < n_ctx)]
    return Explorer(draw, choices, start)


def _draw_layer(similarity: np.ndarray, layer: int, circuit: str, distance: str) -> Figure:
    found, heads = measure(similarity), len(similarity)
    where = f", distance {distance}" if circuit.startswith("QK") and distance != "none" else ""
    worth = found.status
    if worth == "ok":
        centred = f"centred {found.erank_centred:.2f} of at most {heads - 1}"
        worth = f"effective rank {found.erank:.2f} of at most {heads}, {centred}"
    spectra = {"uncentred": shares(similarity, centred=False), "centred": shares(similarity, centred=True)}
    return figure_of(one_layer(similarity, spectra, title=f"Layer {layer}, {circuit}{where}: {worth}"))


@torch.no_grad()
def _patterns(model: HookedModel, text: str, start: dict[str, Any]) -> Explorer:
    tokens = model.to_tokens(text)
    if not 0 < tokens.shape[1] <= model.config.n_ctx:
        raise ValueError(f"text should have between 1 and n_ctx {model.config.n_ctx} tokens but has {tokens.shape[1]}")
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    _, cache = model.run_with_cache(tokens, return_type=None, names_filter=names)
    patterns = [cache[name][0].float().cpu().numpy() for name in names]
    words = [str(model.to_string(token[None])) for token in tokens[0]]

    def draw(layer: int, head: int) -> Figure:
        return figure_of(attention_pattern(patterns[layer][head], words, title=f"Attention of L{layer}H{head}"))

    heads = range(model.config.attention.n_heads)
    return Explorer(draw, {"layer": range(model.config.n_layers), "head": heads}, start)
