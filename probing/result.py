"""What a probe of a generation gives back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from ..plots.generation import head_pages, looked_map, step_map
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import probe_table
from ..results import Picture, Result, paged

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

SHOWN = 12
"""Heads in the terminal's table."""

MEANING = {
    "step": "step 0 chose the first new token",
    "query_pos": "position whose query looked",
    "layer": "which layer",
    "head": "which head",
    "entropy": "entropy of its attention (nats): 0 looks at one position only",
    "distance": "how many positions back it looks, on average",
    "lift_shared": "how far the shared part of the score lifts what it looks at above the average position (nats)",
    "lift_private": "the same of the private part",
    "output_shared": "length of the shared part of what the head adds to the residual stream",
    "output_private": "length of the private part of it",
    "private_share": "the private part's share of both lengths",
    "top_position": "the position that it looks at most",
    "top_weight": "its attention to that position",
    "place": "0 is the strongest position",
    "key_pos": "the position looked at",
    "weight": "attention to it",
    "position": "position in the sequence",
    "token": "the token's number",
    "text": "the token's text",
    "new": "whether it was generated",
}
"""Column -> what it holds."""
_MAP = "Heads down, layer by layer, and the new tokens across, each at the step that chose it."
_ENTROPY = "Low entropy: the head looks at few positions; high: its attention is spread out."
_LOOKED = (
    "Where each head looked when the first new token was chosen: heads down, positions across. The darker a cell, the "
    "more attention; white is what is not among a head's strongest positions."
)
_PRIVATE = (
    "Colour is the private part's share of what a head adds to the residual stream: at 0 all of it comes from what "
    "heads share."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Probe(Result):
    """What each head looked at, token by token.

    Parameters
    ----------
    table
        One row per step, layer and head. Step 0 chose the first new token, and its query stands at the prompt's last
        position. ``entropy`` (nats) and ``distance`` (positions) of the attention; ``lift_NAME``: how far that part of
        the score lifts what is looked at above the average position (nats); ``output_NAME``: length of that part of
        what the head adds to the residual stream; ``private_share``: the private part's share of both lengths;
        ``mass_NAME``: attention to a span; ``top_position`` and ``top_weight``: where it looks most.
    strongest
        The strongest positions of each, one row a position.
    tokens
        Prompt and new tokens, one row a position: number, text, whether it is new.
    record
        What was run.
    """

    strongest: pd.DataFrame
    tokens: pd.DataFrame

    stem: ClassVar[str] = "probe"

    @property
    def text(self) -> str:
        """The new text."""
        return self.record["generated"]

    def title(self) -> str:
        """Return whose generation this is."""
        return f"Generation of {self.record['checkpoint']['path'] or 'a model in memory'}"

    def summary(self) -> str:
        """Return what was generated, and which head looked hardest at what when the first new token was chosen."""
        first = self._first()
        shown = self.text if len(self.text) <= 80 else f"{self.text[:60]} … {self.text[-15:]}"
        lines = [f"Tokens of prompt: {self.record['prompt_tokens']}; then {shown!r}."]
        reached, known = len(self.tokens), self.record.get("n_ctx") or math.inf
        if reached > known:
            lines.append(f"Beyond position {known} the model is outside of its context: nothing there means much.")
        if "top_weight" in first:
            row = first.loc[first["top_weight"].idxmax()]
            lines.append(
                f"When it chose {self._token(self.record['prompt_tokens'])!r}, {_name(row)} looked hardest: "
                f"{100 * row['top_weight']:.0f} % at position {int(row['top_position'])} "
                f"({self._token(int(row['top_position']))!r})."
            )
        for span in self.record["spans"]:
            row = first.loc[first[f"mass_{span['name']}"].idxmax()]
            mass = row[f"mass_{span['name']}"]
            even = (span["stop"] - span["start"]) / self.record["prompt_tokens"]
            lines.append(
                f"Span {span['name']}: {_name(row)} gives it most, {100 * mass:.0f} % (all alike would be "
                f"{100 * even:.0f} %)."
            )
        return "\n".join(lines)

    def reading(self) -> str:
        """Return what private parts did, or why there are none."""
        if "private_share" not in self.table:
            return self.record["without_private"]
        first = self._first()
        row = first.loc[first["private_share"].idxmax()]
        lifted = first.loc[first["lift_private"].idxmax()]
        average, most = self.table["private_share"].mean(), row["private_share"]
        return (
            f"Private share of what heads add to the residual stream: {100 * average:.0f} % on average; at the first "
            f"new token most in {_name(row)}, {100 * most:.0f} %. Private keys steer {_name(lifted)} most: they lift "
            f"what it looks at by {lifted['lift_private']:.2f} nats above the average position, shared ones by "
            f"{lifted['lift_shared']:.2f}."
        )

    def measured(self) -> list[str]:
        """Return what it went on from."""
        chosen = self.record["sampling"]
        how = "the likeliest token each time" if not chosen["temperature"] else f"sampled, {chosen}"
        prompt = self.record["prompt"]
        return [f"Prompt: {prompt!r}; {how}." if prompt else f"Prompt of tokens; {how}."]

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold, those of each span too."""
        spans = {f"mass_{span['name']}": f"attention to the span {span['name']}" for span in self.record["spans"]}
        return {**MEANING, **spans}

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the heads that matter when the first new token is chosen."""
        rows, by = self._ranked()
        return rows, f"when the first new token was chosen, {by}"

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the heads that matter at the first new token, and what they show."""
        first, by = self._ranked()
        shown = first.head(SHOWN)
        names = {int(row["position"]): row["text"] for row in self.tokens.to_dict("records")}
        spans = [span["name"] for span in self.record["spans"]]
        title = f"What heads looked at when {self._token(self.record['prompt_tokens'])!r} was chosen"
        if len(first) > len(shown):
            title += f" ({len(shown)} of {len(first)} heads, {by})"
        lines = [*self.summary().splitlines(), self.reading()]
        return [probe_table(pd.DataFrame(shown), names, spans, title)], lines

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table, the strongest positions and the tokens."""
        return {self.stem: self.table, "strongest": self.strongest, "tokens": self.tokens}

    def pictures(self) -> dict[str, Picture]:
        """Return entropy by head and step, where the first new token looked, each span's mass, and private shares."""
        pages = head_pages(zip(self.table["layer"], self.table["head"], strict=True))

        def maps(file: str, column: str, label: str, caption: str, top: float | None = None) -> dict[str, Picture]:
            return paged(file, pages, lambda layers: self.map(column, label, top, layers=layers), f"{_MAP} {caption}")

        drawn = maps("entropy", "entropy", "entropy (nats)", _ENTROPY)
        if len(self.strongest):
            drawn |= paged("looked", pages, lambda layers: self.looked(layers=layers), _LOOKED)
        for name in (span["name"] for span in self.record["spans"]):
            caption = f"Colour is the share of a head's attention that goes to the span {name}."
            drawn |= maps(f"span-{name}", f"mass_{name}", f"attention to {name}", caption, 1.0)
        if "private_share" in self.table:
            drawn |= maps("private-share", "private_share", "private share of the output", _PRIVATE, 1.0)
        return drawn

    def map(
        self,
        column: str,
        label: str,
        top: float | None = None,
        *,
        layers: Sequence[int] | None = None,
        ax: OnAxes = None,
    ) -> Figure:
        """Draw a column of the table, heads down and new tokens across; of all layers, or of some on the same scale."""
        new = self.tokens[self.tokens["new"]]["text"].tolist()
        words = {"label": label, "title": f"{self.title()}: {label}"}
        return figure_of(step_map(self.table, column, tokens=new, top=top, layers=layers, ax=ax, **words))

    def looked(self, step: int = 0, *, layers: Sequence[int] | None = None, ax: OnAxes = None) -> Figure:
        """Draw where each head looked when a step's token was chosen; of all layers, or of some."""
        upto = self.tokens[self.tokens["position"] < self.record["prompt_tokens"] + step]
        rows = pd.DataFrame(self.strongest[self.strongest["step"] == step])
        chosen = self._token(self.record["prompt_tokens"] + step)
        title = f"{self.title()}: where heads looked when {chosen!r} was chosen"
        return figure_of(looked_map(rows, upto["text"].tolist(), title=title, layers=layers, ax=ax))

    def _first(self) -> pd.DataFrame:
        return pd.DataFrame(self.table[self.table["step"] == 0])

    def _ranked(self) -> tuple[pd.DataFrame, str]:
        """Return the first new token's rows with what looks hardest first, and by what."""
        first = self._first()
        by = f"mass_{self.record['spans'][0]['name']}" if self.record["spans"] else "top_weight"
        if by not in first:
            return first, "by layer"
        return first.sort_values(by, ascending=False), f"by {by.replace('_', ' ')}"

    def _token(self, position: int) -> str:
        return str(self.tokens["text"].iloc[position])


def _name(row: Any) -> str:
    return f"L{int(row['layer'])}H{int(row['head'])}" if not math.isnan(row["layer"]) else "no head"
