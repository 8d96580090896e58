"""What heads do on real inputs: where they look, what they bring, and which of the two an edit changes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checkpoints import load
from ..models.hooked import HookedModel
from ..models.layers import parse_layers
from ..plots import effect_map
from ..plots.terminal import behaviour_table
from ..results import Result
from . import routing
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
because what it finds there is different, ``|A' (V' - V)| / |A V|`` (root mean squares over tokens)."""
CKA_SAMPLES = 512


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
        lines = [f"Edit: {self.record['edit']}."]
        for name, words in (("where", "looks elsewhere"), ("what", "brings something else")):
            if found := _largest(self.table, name):
                lines.append(f"{found[0]} {words} most: {100 * found[1]:.0f} % of its output.")
        return "\n".join(lines)

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the table, and what it shows."""
        lines = [f"{self.title()}: {self.record['tokens']:,} tokens in {self.record['rows']} rows."]
        return [behaviour_table(self.table)], [*lines, *self.summary().splitlines(), *self.reading().splitlines()]

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return a map of induction scores and, with an edit, of what changed."""
        maps = {"induction.png": ("induction", "induction score", "share")}
        if self.record["edit"]:
            maps |= {
                "where.png": ("where", "looks elsewhere", "share of output"),
                "what.png": ("what", "brings something else", "share of output"),
            }
        return {file: lambda m=m: self._map(*m) for file, m in maps.items()}

    def _map(self, column: str, title: str, unit: str) -> Figure:
        table = self.table[["layer", "head"]].assign(effect=self.table[column], significant=False)
        return effect_map(pd.DataFrame(table), title=f"{self.title()}: {title}", unit=unit, name=title, marked=False)


def _largest(table: pd.DataFrame, column: str) -> tuple[str, float] | None:
    """Return the head with the largest value, and the value; None where there is none."""
    known = table.dropna(subset=[column]).to_dict("records")
    if not known:
        return None
    row = max(known, key=lambda row: row[column])
    return f"L{row['layer']}H{row['head']}", row[column]


@torch.no_grad()
def behaviour(
    source: str | os.PathLike[str] | HookedModel,
    rows: Sequence[Sequence[int]],
    *,
    edit: Edit | None = None,
    layers: str | Sequence[int] | None = None,
    text: str = "tokens",
    name: str | None = None,
    out: str | os.PathLike[str] | None = None,
    batch_size: int = 8,
) -> Behaviour:
    """Measure what each head does on rows of tokens, and what an edit changes of it.

    Parameters
    ----------
    source
        A checkpoint's path or the name of one that ships, or a `HookedModel`.
    rows
        Tokens of each row, no longer than the model's context.
    edit
        What to change; None: nothing is compared.
    layers
        Layers to measure, as for `report`; None: all.
    text, name
        What to call the text, and a model in memory, for the record.
    out
        Directory to save to.
    batch_size
        Rows a forward pass.

    Raises
    ------
    ValueError
        If there is no row, or one is empty or too long.
    """
    model = (source if isinstance(source, HookedModel) else load(source)).eval()
    chosen = parse_layers(layers, model.config.n_layers)
    given: Rows = tuple(tuple(int(token) for token in row) for row in rows)
    if not given or not all(given):
        raise ValueError("rows should hold at least one token each, and there should be one")
    longest, n_ctx = max(map(len, given)), model.config.n_ctx
    if longest > n_ctx:
        raise ValueError(f"rows should have at most n_ctx {n_ctx} tokens but one has {longest}")
    tokens, valid = padded(given)
    batches = [slice(i, i + batch_size) for i in range(0, len(given), batch_size)]
    plain = [_run(model, tokens[here], valid[here], chosen) for here in batches]
    table = _table(model, plain, chosen)
    if edit is not None:
        edited = []
        for here in batches:
            with apply(model, edit, samples=range(len(given))[here]):
                edited.append(_run(model, tokens[here], valid[here], chosen))
        after = _table(model, edited, chosen)[list(MEASURES)].add_suffix("_edited")
        table = pd.concat([table, after, _changes(model, plain, edited, chosen)], axis=1)
    record = {
        "kind": "behaviour",
        "checkpoint": {**model.describe(), "path": name if isinstance(source, HookedModel) else str(source)},
        "config": model.config.to_dict(),
        "text": text,
        "rows": len(given),
        "tokens": int(valid.sum()),
        "layers": chosen,
        "edit": None if edit is None else repr(edit),
    }
    result = Behaviour(table=table, record=record)
    if out is not None:
        result.save(out)
    return result


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one batch showed: patterns, values of each head, and outputs, by layer."""

    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]
    pattern: dict[int, Float[Tensor, "batch head query_pos key_pos"]]
    value: dict[int, Float[Tensor, "batch pos head width"]]


def _run(model: HookedModel, tokens: Tensor, valid: Tensor, layers: Sequence[int]) -> _Seen:
    names = [f"blocks.{layer}.attn.hook_{kind}" for layer in layers for kind in ("pattern", "v")]
    _, cache = model.run_with_cache(tokens, attention_mask=valid.long(), return_type=None, names_filter=names)
    pattern = {layer: cache[f"blocks.{layer}.attn.hook_pattern"] for layer in layers}
    group = torch.tensor(model.config.attention.head_to_group, device=tokens.device)
    value = {layer: cache[f"blocks.{layer}.attn.hook_v"][:, :, group] for layer in layers}
    return _Seen(tokens, valid, pattern, value)


def _table(model: HookedModel, seen: Sequence[_Seen], layers: Sequence[int]) -> pd.DataFrame:
    parts = []
    for layer in layers:
        # Means over queries of each batch, weighted by how many queries it has.
        found: dict[str, list[tuple[Tensor, float]]] = {name: [] for name in MEASURES if name != "cka"}
        for batch in seen:
            pattern, valid = batch.pattern[layer], batch.valid
            keys = {
                "previous": routing.previous_keys(valid),
                "duplicate": routing.duplicate_keys(batch.tokens, valid),
                "induction": routing.induction_keys(batch.tokens, valid),
            }
            count = float(valid.sum())
            found["entropy"].append((routing.entropy(pattern, valid), count))
            found["distance"].append((routing.distance(pattern, valid), count))
            found["agreement"].append((_others(routing.agreement(pattern, valid)), count))
            for name, chosen in keys.items():
                found[name].append((routing.mass(pattern, chosen, valid), float((valid & chosen.any(-1)).sum())))
        columns = {name: _pooled(values) for name, values in found.items()}
        columns["cka"] = _others(routing.debiased_cka(_outputs(model, seen, layer))).numpy()
        parts.append(pd.DataFrame({"layer": layer, "head": range(model.config.attention.n_heads), **columns}))
    return pd.concat(parts, ignore_index=True)


def _pooled(values: Sequence[tuple[Tensor, float]]) -> np.ndarray:
    total = sum(count for _, count in values)
    kept = [mean.double().cpu().numpy() * count for mean, count in values if count]
    return np.sum(kept, axis=0) / total if total else np.full(len(values[0][0]), math.nan)


def _others(matrix: Float[Tensor, "head head"]) -> Float[Tensor, " head"]:
    """Return each head's mean with the other heads; NaN for a single head."""
    heads = len(matrix)
    return (matrix.sum(1) - matrix.diagonal()) / (heads - 1 if heads > 1 else math.nan)


def _outputs(model: HookedModel, seen: Sequence[_Seen], layer: int) -> Float[Tensor, "head sample d_model"]:
    """Return the heads' outputs at up to `CKA_SAMPLES` tokens, evenly spread."""
    z = torch.cat([_read(batch.pattern[layer], batch.value[layer])[batch.valid] for batch in seen])
    picked = torch.linspace(0, len(z) - 1, min(CKA_SAMPLES, len(z))).long()
    return torch.einsum("shd,hdm->hsm", z[picked], model.attention(layer).W_O)


def _read(pattern: Tensor, value: Tensor) -> Float[Tensor, "batch query_pos head width"]:
    return torch.einsum("bhqk,bkhd->bqhd", pattern.to(value.dtype), value)


def _changes(
    model: HookedModel, plain: Sequence[_Seen], edited: Sequence[_Seen], layers: Sequence[int]
) -> pd.DataFrame:
    rows = []
    for layer in layers:
        sums = torch.zeros(3, model.config.attention.n_heads, dtype=torch.float64)
        for before, after in zip(plain, edited, strict=True):
            a, v, a_new, v_new = before.pattern[layer], before.value[layer], after.pattern[layer], after.value[layer]
            for i, part in enumerate((_read(a, v), _read(a_new - a, v), _read(a_new, v_new - v))):
                # In the residual stream's own measure.
                written = torch.einsum("shd,hdm->shm", part[before.valid], model.attention(layer).W_O)
                sums[i] += written.double().square().sum((0, 2)).cpu()
        where, what = (sums[1] / sums[0]).sqrt(), (sums[2] / sums[0]).sqrt()
        rows.append(pd.DataFrame({"where": where.numpy(), "what": what.numpy()}))
    return pd.concat(rows, ignore_index=True)
