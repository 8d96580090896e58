"""What heads do on real inputs: where they look, what they bring, and which of the two an edit changes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checkpoints.opening import Source, model_of
from ..models.hooked import HookedModel
from ..models.layers import parse_layers
from ..plots import effect_map
from ..plots.panels import figure_of
from ..plots.terminal import behaviour_table
from ..results import Picture, Result, source_of, versions
from . import patterns
from .applying import apply, padded
from .edits import Edit, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

MEASURES = ("entropy", "distance", "previous", "duplicate", "induction", "agreement", "cka")
"""Of each head: entropy of its pattern (nats); how many positions back it looks; its attention to the token before, to
earlier equal tokens, and to what followed them (shares, over the queries that have such keys); how much of its
attention agrees with another head of its layer (mean of ``1 - total variation``); and the debiased CKA of its output
with another head's (mean)."""
CHANGES = ("where", "what")
"""Of each head under an edit: how much of its output changes because it looks elsewhere, ``|(A' - A) V| / |A V|``, and
how much because it brings something else, ``|z' - A' V| / |A V|``, which is ``|A' (V' - V)| / |A V|`` unless the edit
is at its output (root mean squares over tokens)."""
CKA_SAMPLES = 512
MEANING = {
    "layer": "which layer",
    "head": "which head",
    "entropy": "entropy of its attention (nats): 0 looks at one position only",
    "distance": "how many positions back it looks, on average",
    "previous": "share of its attention to the token before",
    "duplicate": "share of its attention to earlier equal tokens",
    "induction": "share of its attention to what followed earlier equal tokens",
    "agreement": "how much of its attention agrees with another head of its layer (mean over the others)",
    "cka": "debiased CKA of its output with another head's (mean over the others)",
    "where": "how much of its output changes because it looks elsewhere, over the output's size",
    "what": "how much of its output changes because it brings something else, over the output's size",
}
"""Column of a behaviour's table -> what it holds."""
_CAPTIONS = {
    "induction": "Colour is the share of a head's attention that goes to what followed earlier equal tokens.",
    "where": "Colour is how much of its output changes because the head looks elsewhere, as a share of it.",
    "what": "Colour is how much of its output changes because the head brings something else, as a share of it.",
}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Behaviour(Result):
    """What each head does on some text.

    Parameters
    ----------
    table
        One row per layer and head: `MEASURES`; with an edit also ``…_edited`` of each, and `CHANGES`.
    record
        What was run: checkpoint, text, edit.
    """

    stem: ClassVar[str] = "behaviour"

    def title(self) -> str:
        """Return whose behaviour on what."""
        return f"Behaviour of {self.record['checkpoint']['path'] or 'a model in memory'} on {self.record['text']}"

    def summary(self) -> str:
        """Return which head does most of what, each a line."""
        lines = []
        for name, words in (
            ("previous", "looks most at the token before"),
            ("duplicate", "looks most at earlier equal tokens"),
            ("induction", "looks most at what followed them"),
        ):
            if found := _largest(self.table, name):
                lines.append(f"{found[0]} {words}: {100 * found[1]:.0f} % of its attention.")
        return "\n".join(lines)

    def reading(self) -> str:
        """Return which heads an edit moves, and whether in where they look or in what they bring."""
        if not self.record["edit"]:
            return "No edit was made: give one to see which heads change where they look and which what they bring."
        lines = [f"Edit: {self.record['edit_text']}."]
        for name, words in (("where", "looks elsewhere"), ("what", "brings something else")):
            found = _largest(self.table, name)
            if found is None or found[1] < 5e-3:
                lines.append(f"No head {words}.")
            else:
                lines.append(f"{found[0]} {words} most: {100 * found[1]:.0f} % of its output.")
        return "\n".join(lines)

    def measured(self) -> list[str]:
        """Return how much text there was."""
        return [f"{self.record['tokens']:,} tokens in {self.record['rows']} rows."]

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold; with an edit also after it."""
        after = {f"{name}_edited": f"{MEANING[name]}; under the edit" for name in MEASURES}
        return {**MEANING, **after}

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the table, and what it shows."""
        return [behaviour_table(self.table)], [
            self.title(),
            *self.measured(),
            *self.summary().splitlines(),
            *self.reading().splitlines(),
        ]

    def pictures(self) -> dict[str, Picture]:
        """Return a map of induction scores and, with an edit, of what changed."""
        edit = self.record["edit_text"]
        maps = {"induction.png": ("induction", "induction score" + (" before the edit" if edit else ""), "share")}
        if edit:
            maps |= {
                "where.png": ("where", f"looks elsewhere under {edit}", "share of output"),
                "what.png": ("what", f"brings something else under {edit}", "share of output"),
            }
        return {
            file: Picture(lambda m=m: self._map(*m), f"Layers down, heads across. {_CAPTIONS[m[0]]}")
            for file, m in maps.items()
        }

    def _map(self, column: str, title: str, unit: str) -> Figure:
        table = self.table[["layer", "head"]].assign(effect=self.table[column], significant=False)
        whole = f"{self.title()}: {title}"
        return figure_of(effect_map(pd.DataFrame(table), title=whole, unit=unit, name=column, marked=False))


def _largest(table: pd.DataFrame, column: str) -> tuple[str, float] | None:
    """Return the head with the largest value, and the value; None where there is none."""
    known = table.dropna(subset=[column]).to_dict("records")
    if not known:
        return None
    row = max(known, key=lambda row: row[column])
    return f"L{row['layer']}H{row['head']}", row[column]


@torch.no_grad()
def behaviour(
    source: Source,
    rows: Sequence[Sequence[int]],
    *,
    edit: Edit | None = None,
    layers: str | Sequence[int] | None = None,
    text: str = "tokens",
    origin: dict[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    batch_size: int = 8,
) -> Behaviour:
    """Measure what each head does on rows of tokens, and what an edit changes of it.

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel`, or a result: then what it was
        measured on.
    rows
        Tokens of each row, no longer than the model's context.
    edit
        What to change; None: nothing is compared.
    layers
        Layers to measure, as for `report`; None: all.
    text
        What to call the text, for the record.
    origin
        Where a model in memory comes from (`Checkpoint.describe`), for the record.
    out
        Directory to save to.
    batch_size
        Rows a forward pass.

    Raises
    ------
    ValueError
        If there is no row, or one is empty or too long.
    """
    model, origin = model_of(source, origin)
    chosen = parse_layers(layers, model.config.n_layers)
    given: Rows = tuple(tuple(int(token) for token in row) for row in rows)
    if not given or not all(given):
        raise ValueError("rows should hold at least one token each, and there should be one")
    longest, n_ctx = max(map(len, given)), model.config.n_ctx
    if longest > n_ctx:
        raise ValueError(f"rows should have at most n_ctx {n_ctx} tokens but one has {longest}")
    tokens, valid = padded(given)
    before, after, change = _Seen(model, chosen, valid), _Seen(model, chosen, valid), _Changes(model, chosen)
    for start in range(0, len(given), batch_size):
        here = slice(start, start + batch_size)
        plain = _run(model, tokens[here], valid[here], chosen)
        before.add(start, tokens[here], plain)
        if edit is not None:
            with apply(model, edit, samples=range(len(given))[here]):
                edited = _run(model, tokens[here], valid[here], chosen)
            after.add(start, tokens[here], edited)
            change.add(valid[here], plain, edited)
    table = before.table()
    if edit is not None:
        table = pd.concat([table, after.table()[list(MEASURES)].add_suffix("_edited"), change.table()], axis=1)
    record = {
        "kind": "behaviour",
        "checkpoint": origin,
        "config": model.config.to_dict(),
        "versions": versions("torch", "numpy"),
        "text": text,
        "rows": len(given),
        "tokens": int(valid.sum()),
        "layers": chosen,
        "edit": None if edit is None else edit.describe(),
        "edit_text": None if edit is None else str(edit),
    }
    result = Behaviour(table=table, record=record, source=source_of(source))
    if out is not None:
        result.save(out)
    return result


Cache = dict[str, Tensor]


def _run(model: HookedModel, tokens: Tensor, valid: Tensor, layers: Sequence[int]) -> Cache:
    """Return what the chosen layers' patterns, values (of each query head) and z were, under ``layer.kind``."""
    names = [f"blocks.{layer}.attn.hook_{kind}" for layer in layers for kind in ("pattern", "v", "z")]
    device = next(model.parameters()).device
    _, cache = model.run_with_cache(
        tokens.to(device), attention_mask=valid.long().to(device), return_type=None, names_filter=names
    )
    group = torch.tensor(model.config.attention.head_to_group)
    found = {}
    for layer in layers:
        pattern, v, z = (cache[f"blocks.{layer}.attn.hook_{kind}"].cpu() for kind in ("pattern", "v", "z"))
        found |= {f"{layer}.pattern": pattern, f"{layer}.v": v[:, :, group], f"{layer}.z": z}
    return found


class _Seen:
    """Sums of every measure over batches; one batch's patterns are in memory at a time."""

    def __init__(self, model: HookedModel, layers: Sequence[int], valid: Bool[Tensor, "row pos"]) -> None:
        self._model, self._layers, self._valid = model, layers, valid
        heads = model.config.attention.n_heads
        self._sums = {(layer, name): np.zeros(heads) for layer in layers for name in MEASURES if name != "cka"}
        self._counts = dict.fromkeys(self._sums, 0.0)
        self._outputs: dict[int, list[Tensor]] = {layer: [] for layer in layers}
        # Tokens whose outputs are compared, evenly spread over the text.
        total = int(valid.sum())
        places = torch.nonzero(valid)
        self._picked = places[torch.linspace(0, total - 1, min(CKA_SAMPLES, total)).long()]

    def add(self, start: int, tokens: Int[Tensor, "batch pos"], cache: Cache) -> None:
        """Take in a batch whose first row is row `start` of the text."""
        valid = self._valid[start : start + len(tokens)]
        keys = {
            "previous": patterns.previous_keys(valid),
            "duplicate": patterns.duplicate_keys(tokens, valid),
            "induction": patterns.induction_keys(tokens, valid),
        }
        inside = (self._picked[:, 0] >= start) & (self._picked[:, 0] < start + len(tokens))
        rows, places = (self._picked[inside] - torch.tensor([start, 0])).T
        for layer in self._layers:
            pattern, count = cache[f"{layer}.pattern"], float(valid.sum())
            self._put(layer, "entropy", patterns.entropy(pattern, valid), count)
            self._put(layer, "distance", patterns.distance(pattern, valid), count)
            self._put(layer, "agreement", _others(patterns.agreement(pattern, valid)), count)
            for name, chosen in keys.items():
                self._put(layer, name, patterns.mass(pattern, chosen, valid), float((valid & chosen.any(-1)).sum()))
            self._outputs[layer].append(_written(self._model, layer, cache[f"{layer}.z"][rows, places]))

    def _put(self, layer: int, name: str, mean: Float[Tensor, " head"], count: float) -> None:
        if count:
            self._sums[layer, name] += count * mean.double().numpy()
            self._counts[layer, name] += count

    def table(self) -> pd.DataFrame:
        """Return a row a layer and head."""
        parts = []
        for layer in self._layers:
            columns = {
                name: self._sums[layer, name] / (self._counts[layer, name] or math.nan)
                for name in MEASURES
                if name != "cka"
            }
            outputs = torch.cat(self._outputs[layer]).transpose(0, 1)
            few = outputs.shape[1] < patterns.LEAST_SAMPLES
            columns["cka"] = np.full(len(outputs), np.nan) if few else _others(patterns.debiased_cka(outputs)).numpy()
            parts.append(pd.DataFrame({"layer": layer, "head": range(len(outputs)), **columns}))
        return pd.concat(parts, ignore_index=True)


class _Changes:
    """Squared sums, in the residual stream's own measure, of what an edit changes of each head's output."""

    def __init__(self, model: HookedModel, layers: Sequence[int]) -> None:
        self._model = model
        self._sums = {layer: np.zeros((3, model.config.attention.n_heads)) for layer in layers}

    def add(self, valid: Bool[Tensor, "batch pos"], before: Cache, after: Cache) -> None:
        """Take in a batch before and after the edit."""
        for layer, sums in self._sums.items():
            elsewhere = _read(after[f"{layer}.pattern"] - before[f"{layer}.pattern"], before[f"{layer}.v"])
            z = before[f"{layer}.z"]
            # What it looks at now would have brought z + elsewhere; the rest is what it brings instead.
            for i, part in enumerate((z, elsewhere, after[f"{layer}.z"] - z - elsewhere)):
                sums[i] += _written(self._model, layer, part[valid]).double().square().sum((0, 2)).numpy()

    def table(self) -> pd.DataFrame:
        """Return `CHANGES`, a row a layer and head."""
        parts = [np.sqrt(sums[1:] / sums[0]) for sums in self._sums.values()]
        where, what = np.concatenate(parts, axis=1)
        return pd.DataFrame({"where": where, "what": what})


def _others(matrix: Float[Tensor, "head head"]) -> Float[Tensor, " head"]:
    """Return each head's mean with the other heads, leaving out what is NaN; NaN where nothing is left."""
    return matrix.masked_fill(torch.eye(len(matrix), dtype=torch.bool), math.nan).nanmean(1)


def _written(
    model: HookedModel, layer: int, z: Float[Tensor, "token head width"]
) -> Float[Tensor, "token head d_model"]:
    """Return what heads add to the residual stream."""
    return torch.einsum("shd,hdm->shm", z, model.attention(layer).W_O.to(z.device, z.dtype))


def _read(pattern: Tensor, value: Tensor) -> Float[Tensor, "batch query_pos head width"]:
    return torch.einsum("bhqk,bkhd->bqhd", pattern.to(value.dtype), value)
