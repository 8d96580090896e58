"""What a report is: a table with a record, its reading, its pictures and its files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ..models.layers import parse_layers
from ..plots import effective_rank as draw_effective_rank
from ..plots import head_similarity as draw_head_similarity
from ..plots import similarity_pages
from ..plots import spectra as draw_spectra
from ..plots.panels import OnAxes, figure_of
from ..plots.similarity import Order
from ..plots.style import block_title
from ..plots.terminal import effective_rank_table
from ..results import Picture, Result, paged
from .spectra import shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

MEANING = {
    "layer": "which layer",
    "keys_of": "the layer whose keys and values it attends to: itself, unless it shares another one's",
    "circuit": "qk: where heads look; ov: what they bring",
    "part": "all of the score, or the part of it that is meant (MLA)",
    "n_heads": "query heads of the layer, H",
    "erank": "effective rank, in heads: how many equally important directions the heads are worth; at most H",
    "erank_centred": "the same without the mean head; at most H - 1",
    "erank_pct_heads": "effective rank in percent of H",
    "erank_centred_pct_heads": "centred effective rank in percent of H",
    "erank_centred_pct_cap": "centred effective rank in percent of its cap, H - 1",
    "null_mean": "effective rank of random layers of the same shape, in heads: mean over the draws",
    "null_low": "the lowest of the draws",
    "null_high": "the highest of the draws",
    "null_centred_mean": "centred effective rank of random layers, in heads: mean over the draws",
    "participation_ratio": "(Σλ)² / Σλ² of the centred spectrum",
    "stable_rank": "Σλ / λ₁ of the centred spectrum",
    "components_90": "components that hold 90 % of the centred variance",
    "first_component": "share of the centred variance in the first component",
    "mean_similarity": "mean cosine of two different heads",
    "status": "ok, or why a value does not exist",
}
"""Column of a report's table -> what it holds. NaN where a measure does not exist."""
COLUMNS = tuple(MEANING)
_SHOWN = (
    "layer",
    "circuit",
    "part",
    "erank",
    "erank_pct_heads",
    "null_low",
    "null_high",
    "erank_centred",
    "null_centred_mean",
)
"""Columns in a notebook."""

_SIMILARITY_CAPTION = (
    "One panel a layer, heads against heads: red where two heads' forms are alike, blue where they are opposed, white "
    "where they have nothing to do with each other. A red square is a group of heads that do nearly the same."
)
_RANK_CAPTION = (
    "Effective rank by layer: how many heads' worth of difference there is. The dashed lines are the highest values "
    "possible, the grey band is where random layers of the same shape lie (the null)."
)
_SPECTRA_CAPTION = (
    "What each component of the heads is worth, from the largest on. Were all heads unlike, each would have an even "
    "share, 1 on the left; the more the first ones have, the more alike the heads are. On the right the running sum: "
    "the fewer components it takes to reach 90 %, the fewer heads' worth of difference there is."
)
NOT_MEASURED = ("layer", "keys_of", "circuit", "part", "status", "n_heads")
"""Columns that say what was measured."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Report(Result):
    """Head diversity of a checkpoint.

    Parameters
    ----------
    table
        One row per layer, circuit and part; see `COLUMNS`. NaN where a measure does not exist (`status` says why).
    similarity
        ``(circuit, part, layer)`` -> cosine similarities ``[head, head]``.
    record
        What was measured and how: checkpoint hash, configuration, offsets, folding, definition, seeds, versions.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.report("lrkv", circuit="qk", null=0)
    >>> result.table["erank"].round(2).tolist(), result.similarity["qk", "all", 3].shape
    ([7.84, 7.95, 7.9, 6.5], (8, 8))
    """

    similarity: dict[tuple[str, str, int], np.ndarray]

    stem: ClassVar[str] = "report"

    def title(self) -> str:
        """Return whose report it is."""
        return f"Report of {self.record['checkpoint']['path'] or 'a model in memory'}"

    def means(self) -> pd.DataFrame:
        """Return each circuit's and part's mean over layers, leaving out what does not exist."""
        numeric = [name for name in COLUMNS if name not in NOT_MEASURED]
        return pd.DataFrame(self.table.groupby(["circuit", "part"], sort=False)[numeric].mean()).reset_index()

    def summary(self) -> str:
        """Return one line a circuit and part: means over layers, in percent."""
        return "\n".join(_summary_line(self.table, circuit, part) for circuit, part in self._parts())

    def reading(self) -> str:
        """Return what the numbers do and do not show, given where they lie against the null."""
        draws = len(self.record["null"]["seeds"])
        if not draws:
            return "No null was drawn: without it a high effective rank is no evidence that heads specialise."
        if draws == 1:
            return "The null is a single draw, which says nothing about how much random layers differ: ask for several."
        return "\n".join(_reading(self.table, circuit, part, self.record["null"]) for circuit, part in self._parts())

    def _parts(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys(zip(self.table["circuit"], self.table["part"], strict=True)))

    def spectra(self, *, centred: bool = False) -> pd.DataFrame:
        """Return the spectrum of each layer, circuit and part, beside the null's.

        Parameters
        ----------
        centred
            Of the heads with their mean taken away, or of the heads as they are.

        Returns
        -------
        pandas.DataFrame
            One row a component, the largest first: ``layer``, ``circuit``, ``part``, ``component`` (from 1), ``share``
            of the sum of the eigenvalues (0 to 1; NaN where there is no spectrum) and ``null_share``, its mean over
            the null's draws (NaN without a null).
        """
        parts = []
        for (circuit, part, layer), matrix in self.similarity.items():
            share = shares(matrix, centred=centred)
            null = np.full(len(share), math.nan)
            if drawn := null_shares(self.record["null"], circuit, part, layer, centred=centred):
                null = np.array(drawn, dtype=float)
            place = {"layer": layer, "circuit": circuit, "part": part, "component": np.arange(1, len(share) + 1)}
            parts.append(pd.DataFrame({**place, "share": share, "null_share": null}))
        return pd.concat(parts, ignore_index=True)

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw effective rank by layer against its bounds and null; on the caller's axes, one a panel, if given."""
        return figure_of(draw_effective_rank(self.table, ax=ax))

    def plot_similarity(
        self, layers: str | Sequence[int] | None = None, *, order: Order = "none", ax: OnAxes = None
    ) -> Figure:
        """Draw the heads' similarities, one panel a layer.

        Parameters
        ----------
        layers
            Layers to draw, as for `report`; None: all. The colour scale is that of all.
        order
            ``"similarity"``: in each panel alike heads stand together, each with its own number.
        ax
            The caller's axes, one a panel.
        """
        chosen = None if layers is None else self._layers(layers)
        return figure_of(draw_head_similarity(self.similarity, layers=chosen, order=order, ax=ax))

    def plot_spectra(
        self, layers: str | Sequence[int] | None = None, *, centred: bool = False, ax: OnAxes = None
    ) -> Figure:
        """Draw what each component of the heads is worth, and their running sum.

        Parameters
        ----------
        layers
            Layers to draw, as for `report`; None: all. Up to six are lines, more are rows of a map.
        centred
            With the heads' mean taken away.
        ax
            The caller's axes, two for each circuit and part.
        """
        table = self.spectra(centred=centred)
        if layers is not None:
            table = pd.DataFrame(table[table["layer"].isin(self._layers(layers))])
        title = f"Spectra of the heads, {'centred' if centred else 'uncentred'}"
        return figure_of(draw_spectra(table, title=title, ax=ax))

    def _layers(self, layers: str | Sequence[int]) -> list[int]:
        """Return chosen layers; IndexError names one that was not measured."""
        known = set(self.table["layer"])
        chosen = parse_layers(layers, max(known) + 1)
        if missing := [layer for layer in chosen if layer not in known]:
            raise IndexError(f"layer {missing[0]} was not measured: this report has layers {sorted(known)}")
        return chosen

    def measured(self) -> list[str]:
        """Return whose heads were compared how, and what is to be noted about it."""
        record = self.record
        variants = _variants(record["config"])
        return [f"{record['checkpoint']['path']}: {variants}, {describe_settings(record)}", *record["notes"]]

    def meaning(self) -> dict[str, str]:
        """Return `MEANING`."""
        return MEANING

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the ranks beside their null."""
        odd = ["status"] if set(self.table["status"]) - {"ok"} else []
        shared = ["keys_of"] if bool((self.table["keys_of"] != self.table["layer"]).any()) else []
        return pd.DataFrame(self.table[[_SHOWN[0], *shared, *_SHOWN[1:], *odd]]), ""

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the table, what was measured, and what it shows."""
        lines = [*self.measured(), *self.summary().splitlines(), *self.reading().splitlines()]
        return [effective_rank_table(self.table)], lines

    def pictures(self) -> dict[str, Picture]:
        """Return a report's figures: similarities (on pages, if there are many), effective rank, spectra."""
        pages = similarity_pages(self.similarity) if self.similarity else []  # what is kept of a run holds none
        found = paged("heatmap", pages, self.plot_similarity, _SIMILARITY_CAPTION)
        found["effective-rank.png"] = Picture(self.plot, _RANK_CAPTION)
        if not self.similarity:
            return found
        found["spectra.png"] = Picture(self.plot_spectra, _SPECTRA_CAPTION)
        if bool((self.table["n_heads"] > 1).any()):
            centred = f"{_SPECTRA_CAPTION} Here what all heads have in common, their mean, is taken away first."
            found["spectra-centred.png"] = Picture(lambda: self.plot_spectra(centred=True), centred)
        return found


def _variants(config: dict[str, Any]) -> str:
    kinds = config["by_layer"]["kinds"] if config["by_layer"] else [None]
    found = [(kind or {}).get("attention", config["attention"])["variant"].upper() for kind in kinds]
    return " and ".join(dict.fromkeys(found))


def describe_settings(record: dict[str, Any]) -> str:
    """Return in words how something was measured."""
    return (
        f"positions {record['offsets']['positions']}, offsets {record['offsets']['text']}, "
        f"norm gains {'folded' if record['norm_gains_folded'] else 'not folded'}, "
        f"definition {record['definition']}, null of {len(record['null']['seeds'])} draws"
    )


def _summary_line(table: pd.DataFrame, circuit: str, part: str) -> str:
    rows = pd.DataFrame(table[(table["circuit"] == circuit) & (table["part"] == part)])
    name = block_title(circuit, part)
    erank = rows["erank_pct_heads"].dropna()
    centred = rows[["erank_centred_pct_heads", "erank_centred_pct_cap"]].dropna()
    if not len(erank):
        return f"{name}: no layer could be measured"
    text = f"{name}, mean of {_layers(len(erank))}: effective rank {erank.mean():.2f} % of H"
    if not len(centred):
        return f"{text}; centred: no layer has one"
    of_heads, of_cap = centred.mean().tolist()
    fewer = "" if len(centred) == len(erank) else f" (mean of {_layers(len(centred))})"
    return f"{text}, centred{fewer} {of_heads:.2f} % of H = {of_cap:.2f} % of its cap H-1"


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _reading(table: pd.DataFrame, circuit: str, part: str, null: dict[str, Any]) -> str:
    rows = pd.DataFrame(table[(table["circuit"] == circuit) & (table["part"] == part) & table["erank"].notna()])
    name = block_title(circuit, part)
    if rows.empty:
        return f"{name}: no layer could be measured."
    draws = draws_beside(rows, null, circuit, part)
    gap = np.asarray(rows["erank"], dtype=float) - draws.mean(-1)
    apart = told_apart(rows, draws)
    count = len(gap)
    if not apart.any():
        return (
            f"{name}: none of {_layers(count)} can be told from random ones of the same shape (t-test against "
            f"{draws.shape[1]} draws, Bonferroni, 5 %): the numbers show no more than that random queries differ, and "
            "are no evidence of specialised heads."
        )
    texts = [
        f"{int(there.sum())} of {_layers(count)} {where} random ones of the same shape, by "
        f"{float(abs(gap[there]).mean()):.2g} heads on average: their heads are {what} alike"
        for there, where, what in (
            (apart & (gap < 0), "below", "more"),
            (apart & (gap > 0), "above", "less"),
        )
        if there.any()
    ]
    if not apart.all():
        texts.append(f"{int((~apart).sum())} not told from them, which is no evidence of specialised heads")
    return f"{name}: {'; '.join(texts)}."


def draws_beside(rows: pd.DataFrame, null: dict[str, Any], circuit: str, part: str) -> np.ndarray:
    """Return ``[row, draw]``, the effective ranks that a record's null has for the layer of each row."""
    key = f"{circuit}/{part}"
    own = {layer: kind["erank"] for kind in null["others"] for layer in kind["layers"]}
    return np.array([own.get(layer, null["erank"]).get(key, []) for layer in rows["layer"]], dtype=float)


def null_shares(null: dict[str, Any], circuit: str, part: str, layer: int, *, centred: bool) -> list[float | None]:
    """Return the mean shares of the components that a record's null has for a layer; nothing where none was drawn."""
    name = "shares_centred" if centred else "shares"
    own = next((kind for kind in null["others"] if layer in kind["layers"]), null)
    return own.get(name, {}).get(f"{circuit}/{part}", [])


def told_apart(rows: pd.DataFrame, draws: np.ndarray) -> np.ndarray:
    """Return which rows of one circuit and part, all measured, are no further draw of their null (`_differs`)."""
    erank, heads = np.asarray(rows["erank"], dtype=float), np.asarray(rows["n_heads"], dtype=float)
    return _differs(heads - erank, heads[0] - draws)


def _differs(short: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Whether each layer is no further draw of the null: a t-test for one new value, Bonferroni over the layers at 5 %.

    Tested is the logarithm of how much a rank falls short of its cap H: near the cap the rank itself is skewed, a small
    sum of squares, and its logarithm nearly normal. Layers of one kind share a null, so their errors go together;
    Bonferroni's bound holds all the same.
    """
    values, null = (np.log(np.maximum(x, 1e-12)) for x in (short, draws))
    count = null.shape[-1]
    gap, spread = abs(values - null.mean(-1)), null.std(-1, ddof=1) * math.sqrt(1 + 1 / count)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = 2 * student.sf(gap / spread, count - 1) < 0.05 / len(values)
    return np.where(spread == 0, gap > 0, apart)
