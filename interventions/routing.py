"""Where one head looks on one text, before and after an edit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..checkpoints.opening import Source, model_of
from ..models.hooked import HookedModel
from ..models.layers import parse_layers
from ..plots import routing_maps
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import routing_table
from ..results import Picture, Result, source_of, versions
from . import patterns
from .applying import apply
from .edits import Edit
from .plan import edit_from_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

SHOWN = 10
"""Pairs of query and key in the terminal's table."""
UNMOVED = 1e-5
"""Total variation below which a pattern is the same: what another order of sums makes of it."""
MEANING = {
    "query_pos": "position that looks",
    "key_pos": "position looked at",
    "weight": "attention without the edit",
    "weight_edited": "attention with it",
    "position": "position in the text",
    "token": "the token's number",
    "text": "the token's text",
}
"""Column -> what it holds."""
_CAPTION = (
    "Each row is a query, each column a key that it may look at (grey lies in its future); a row's weights sum to 1. "
    "Left without the edit, in the middle with it, right the change: red is looked at more under the edit, blue less."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Routing(Result):
    """One head's attention on one text, before and after an edit.

    Parameters
    ----------
    table
        One row per query and key that is not in its future: ``query_pos``, ``key_pos``, ``weight`` without the edit and
        ``weight_edited`` with it.
    tokens
        One row a position: ``position``, ``token``, ``text``.
    record
        What was run: checkpoint, layer, head, edit; ``entropy`` and ``distance`` before and after (means over queries,
        in nats and positions), and ``moved`` (mean total variation, 0 to 1).

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.routing("lrkv", "import os", layer=2, head=5, edit="zero:q:2:5")
    >>> found.head, len(found.table)  # 2 tokens: 1 + 2 pairs of query and key
    ('L2H5', 3)
    """

    tokens: pd.DataFrame

    stem: ClassVar[str] = "routing"

    @property
    def head(self) -> str:
        """The head's name, such as L2H5."""
        return f"L{self.record['layer']}H{self.record['head']}"

    def title(self) -> str:
        """Return whose routing this is, and what was edited."""
        where = self.record["checkpoint"]["path"] or "a model in memory"
        return f"{self.head} of {where}: {self.record['edit_text']}"

    def summary(self) -> str:
        """Return how sharp and how far back the head looks, how much of it moves, and what moves most."""
        entropy, distance = self.record["entropy"], self.record["distance"]
        row = self.moved(1).to_dict("records")[0]
        return (
            f"Over {len(self.tokens)} queries: entropy {entropy[0]:.2f} → {entropy[1]:.2f} nats, looks "
            f"{distance[0]:.1f} → {distance[1]:.1f} positions back.\n"
            f"{100 * self.record['moved']:.1f} % of a query's attention moves on average; most of all at query "
            f"{self._named(row['query_pos'])}, key {self._named(row['key_pos'])}: {100 * row['weight']:.0f} % → "
            f"{100 * row['weight_edited']:.0f} %."
        )

    def reading(self) -> str:
        """Return whether the edit reaches where this head looks, and what one text cannot show."""
        if self.record["moved"] < UNMOVED:
            return (
                f"The pattern is the same: this edit does not reach where {self.head} looks. Only queries and keys of "
                "its own layer do, and anything of the layers before."
            )
        return (
            "This is one text: whether the head looks elsewhere in general is measured over many "
            "(headscope report --text FILE --edit …)."
        )

    def moved(self, count: int) -> pd.DataFrame:
        """Return the pairs of query and key whose weight changes most, with the change."""
        table = self.table.assign(change=self.table["weight_edited"] - self.table["weight"])
        order = pd.Series(-table["change"].abs()).sort_values(kind="stable").index
        return pd.DataFrame(table.loc[order[:count]])

    def measured(self) -> list[str]:
        """Return which head was watched under which edit, on how much text."""
        return [f"{self.head} on {len(self.tokens)} tokens; edit: {self.record['edit_text']}."]

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold."""
        return MEANING

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the pairs of query and key whose weight changes most."""
        return self.moved(len(self.table)), "what moves most first"

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return what moves most, and what it shows."""
        texts = [str(text) for text in self.tokens["text"]]
        lines = [f"{self.title()}.", *self.summary().splitlines(), self.reading()]
        return [routing_table(self.moved(SHOWN), texts, f"Where {self.head} looks: what moves most")], lines

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and the tokens."""
        return {self.stem: self.table, "tokens": self.tokens}

    def pictures(self) -> dict[str, Picture]:
        """Return the patterns before and after, and their difference."""
        return {"routing.png": Picture(self.plot, _CAPTION)}

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw the pattern before and after the edit, and the change; on three axes of the caller's, if given."""
        before, after = (self._square(column) for column in ("weight", "weight_edited"))
        texts = [str(text) for text in self.tokens["text"]]
        return figure_of(routing_maps(before, after, texts, title=self.title(), ax=ax))

    def _square(self, column: str) -> np.ndarray:
        square = np.zeros((len(self.tokens),) * 2)
        square[self.table["query_pos"], self.table["key_pos"]] = self.table[column]
        return square

    def _named(self, position: Any) -> str:
        return f"{int(position)} ({str(self.tokens['text'].iloc[int(position)])!r})"


@torch.no_grad()
def routing(
    source: Source,
    text: str | Sequence[int],
    *,
    layer: int,
    head: int,
    edit: Edit | str,
    seed: int = 0,
    origin: dict[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Routing:
    r"""Return where a head looks on a text, before and after an edit.

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel`, or a result: then what it was
        measured on.
    text
        A text, or the numbers of its tokens.
    layer, head
        Which head is watched. The edit may be anywhere.
    edit
        What to change: an edit, or a text like ``shuffle:v_private:2:5`` (how, path, layers, heads), whose mean is that
        over this text.
    seed
        Of what is random in an edit that comes as a text.
    origin
        Where a model in memory comes from (`Checkpoint.describe`), for the record.
    out
        Directory to save to.

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be read.
    TokenizerError
        If a text comes and the model has no tokenizer.
    ValueError, IndexError
        If the text is empty or longer than the model's context, a layer or head does not exist, or the edit cannot be.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.routing("lrkv", "def f(a):\n    return a\n", layer=3, head=3, edit="shuffle:k_private:3:3")
    >>> bool(found.record["moved"] > 0.01)
    True
    """
    model, origin = model_of(source, origin)
    (layer,) = parse_layers([layer], model.config.n_layers)
    if not 0 <= head < model.config.attention.n_heads:
        raise IndexError(f"head {head} does not exist: layer {layer} has heads 0–{model.config.attention.n_heads - 1}")
    row = _row(model, text)
    change = _edit(edit, row, model.config.n_layers, seed)
    before = _pattern(model, row, layer, head)
    with apply(model, change):
        after = _pattern(model, row, layer, head)
    query_pos, key_pos = np.tril_indices(len(row))
    weights = {"weight": before[query_pos, key_pos].numpy(), "weight_edited": after[query_pos, key_pos].numpy()}
    texts = [str(token) for token in row] if model.tokenizer is None else model.to_str_tokens(torch.tensor(row))
    record = {
        "kind": "routing",
        "checkpoint": origin,
        "config": model.config.to_dict(),
        "layer": layer,
        "head": head,
        "edit": change.describe(),
        "edit_text": str(change),
        "seed": seed,
        "versions": versions("torch", "numpy"),
        **_measured(before, after),
    }
    result = Routing(
        table=pd.DataFrame({"query_pos": query_pos, "key_pos": key_pos, **weights}),
        tokens=pd.DataFrame({"position": range(len(row)), "token": row, "text": texts}),
        record=record,
        source=source_of(source),
    )
    if out is not None:
        result.save(out)
    return result


def _row(model: HookedModel, text: str | Sequence[int]) -> tuple[int, ...]:
    row = model.to_tokens(text)[0].tolist() if isinstance(text, str) else [int(token) for token in text]
    if not 0 < len(row) <= model.config.n_ctx:
        raise ValueError(f"text should have between 1 and n_ctx {model.config.n_ctx} tokens but has {len(row)}")
    return tuple(row)


def _edit(edit: Edit | str, row: tuple[int, ...], n_layers: int, seed: int) -> Edit:
    if isinstance(edit, Edit):
        return edit
    if edit.startswith("resample"):
        raise ValueError("resampling needs other rows than this text: give Resample(path=…, donors=rows) as the edit")
    return edit_from_text(edit, (row,), n_layers, seed)


def _pattern(model: HookedModel, row: tuple[int, ...], layer: int, head: int) -> Float[Tensor, "query_pos key_pos"]:
    name = f"blocks.{layer}.attn.hook_pattern"
    device = next(model.parameters()).device
    tokens = torch.tensor([row], device=device)
    _, cache = model.run_with_cache(tokens, return_type=None, names_filter=name)
    return cache[name][0, head].double().cpu()


def _measured(
    before: Float[Tensor, "query_pos key_pos"], after: Float[Tensor, "query_pos key_pos"]
) -> dict[str, float | list[float]]:
    both = torch.stack((before, after))[None]  # two heads of one sample, for `patterns`
    valid = torch.ones(1, len(before), dtype=torch.bool)
    return {
        "entropy": patterns.entropy(both, valid).tolist(),
        "distance": patterns.distance(both, valid).tolist(),
        "moved": float(0.5 * (after - before).abs().sum(-1).mean()),
    }
