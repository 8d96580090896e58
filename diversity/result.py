"""What a report is: a table with a record, its reading, its pictures and its files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ..plots import effective_rank as draw_effective_rank
from ..plots import head_similarity as draw_head_similarity
from ..plots.terminal import effective_rank_table
from ..results import Picture, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

COLUMNS = (
    "layer",
    "circuit",
    "part",
    "n_heads",
    "erank",
    "erank_centred",
    "erank_pct_heads",
    "erank_centred_pct_heads",
    "erank_centred_pct_cap",
    "null_mean",
    "null_low",
    "null_high",
    "null_centred_mean",
    "participation_ratio",
    "stable_rank",
    "components_90",
    "first_component",
    "mean_similarity",
    "status",
)
"""Columns of a report's table. Percentages are 0-100; ``null_*`` are in heads, as ``erank`` is."""

_SIMILARITY_CAPTION = (
    "One panel a layer, heads against heads: red where two heads' forms are alike, blue where they are opposed, white "
    "where they have nothing to do with each other. A red square is a group of heads that do nearly the same."
)
_RANK_CAPTION = (
    "Effective rank by layer: how many heads' worth of difference there is. The dashed lines are the highest values "
    "possible, the grey band is where random layers of the same shape lie (the null)."
)


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
        numeric = [name for name in COLUMNS if name not in ("layer", "circuit", "part", "status", "n_heads")]
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

    def plot(self) -> Figure:
        """Draw effective rank by layer against its bounds and null."""
        return draw_effective_rank(self.table)

    def plot_similarity(self) -> Figure:
        """Draw the heads' similarities, one panel a layer."""
        return draw_head_similarity(self.similarity)

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the table, what was measured, and what it shows."""
        record = self.record
        measured = (
            f"{record['checkpoint']['path']}: {record['config']['attention']['variant'].upper()}, "
            f"{describe_settings(record)}"
        )
        lines = [measured, *record["notes"], *self.summary().splitlines(), *self.reading().splitlines()]
        return [effective_rank_table(self.table)], lines

    def pictures(self) -> dict[str, Picture]:
        """Return the two figures of a report."""
        return {
            "heatmap.png": Picture(self.plot_similarity, _SIMILARITY_CAPTION),
            "effective-rank.png": Picture(self.plot, _RANK_CAPTION),
        }


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


def block_title(circuit: str, part: str) -> str:
    """Name a circuit and part in a sentence."""
    return circuit.upper() if part == "all" else f"{circuit.upper()} {part}"


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
