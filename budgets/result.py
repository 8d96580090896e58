"""What a budget is: its tables, what they say, its pictures and files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from ..plots.capacity import cache_against_rank, paper_loss
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import MIB, batch_table, equal_table, model_table, parallel_table
from ..results import Picture, Result
from .columns import MEANING
from .matching import largest_rank
from .paper import losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_SHOWN = ("model", "setting", "value", "bytes_per_token", "cache_pct_mha", "kv_parameters_pct_mha", "parameters")
_CACHE_CAPTION = (
    "Cache of LRKV in percent of MHA's with the same heads. Left: it grows with the rank; right: it falls with the "
    "number of heads, down to what the rank costs. The models of this budget are marked in both panels."
)
_LOSS_CAPTION = (
    "Further left is a smaller cache, further down a lower loss, one panel a model size. These are figures that the "
    "LRKV paper prints, one run a model; nothing here was measured on the models of this budget."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Budget(Result):
    """What models cost, beside MHA with the same heads.

    Parameters
    ----------
    table
        One row a model: what a token leaves in one layer (elements) and in all (bytes), as ranks are (logical) and as
        kernels pad them (physical), and parameters.
    batches
        One row a batch and model: payload, padded and allocated bytes, arithmetic of a decode step (operations, a
        multiply-add is two; over MHA's), the floor under its time, and from how many query tokens a reading of the
        history on the floor is no lower than MHA's.
    equal
        One row a model and setting of another variant that fits into its cache, or is the next above.
    parallel
        One row a batch, model and layout over `devices`: bytes in all, on the fullest device, and moved a step.
    record
        The configurations, units, storage and device.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.budget("2.5B-lrkv", lengths="2048")
    >>> found.table[["model", "cache_elements"]].values.tolist()
    [['mha', 4608], ['2.5B-lrkv', 2236]]
    """

    batches: pd.DataFrame
    equal: pd.DataFrame
    parallel: pd.DataFrame

    stem: ClassVar[str] = "budget"

    def title(self) -> str:
        """Return which models these are."""
        return f"Budget of {', '.join(self.table['model'])}"

    def summary(self) -> str:
        """Return one line a model: bytes a token, share of MHA's cache, parameters of keys and values."""
        return "\n".join(
            f"{row['model']}: {row['bytes_per_token']:,} bytes a token ({row['bytes_per_token_physical']:,} padded), "
            f"{row['cache_pct_mha']:.2f} % of MHA's cache, {row['kv_parameters_pct_mha']:.2f} % of its K/V parameters"
            for row in self.table.to_dict("records")
        )

    def reading(self) -> str:
        """Return what to mind: norms and position channels, where a smaller cache stops helping, what is left out."""
        lines = [*self.record["notes"], *self._ranks(), *self._norms(), *self._gains()]
        lines.append(
            "A floor counts the cache and its products alone: weights, launches and latency come on top, and a kernel "
            "that reads shared rows once a head has none of LRKV's or MLA's gain."
        )
        return "\n".join(lines)

    def _ranks(self) -> list[str]:
        row = self.table.to_dict("records")[0]
        found = [(share, largest_rank(share, row["n_heads"], row["d_head"])) for share in (1 / 2, 1 / 3, 1 / 4)]
        said = [f"{rank} within {100 * share:.1f} %" for share, rank in found if rank]
        return [f"Largest LRKV rank of these heads: {', '.join(said)} of MHA's cache."] if said else []

    def _norms(self) -> list[str]:
        found = []
        for row in self.table.to_dict("records"):
            share = 100 / (2 * row["d_head"])
            if row["key_norm_elements"]:
                found.append(
                    f"{row['model']}: its joint key norm keeps one scalar a head ({share:.2f} % of MHA's cache)."
                )
            elif row["variant"] == "lrkv":
                found.append(
                    f"{row['model']}: a joint norm of keys would keep one scalar more a head, {row['n_heads']} "
                    f"elements a token and layer ({share:.2f} % of MHA's cache)."
                )
        return found

    def _gains(self) -> list[str]:
        device = self.record["device"]["name"]
        found = []
        batch = self.batches["batch"].iloc[-1]
        last = pd.DataFrame(self.batches[self.batches["batch"] == batch])
        where = f"{device}, batch {batch}" if len(set(self.batches["batch"])) > 1 else device
        for row in last.to_dict("records"):
            ends, ratio = row["gain_ends_at_queries"], row["arithmetic_ratio"]
            if row["variant"] in ("mha", "gqa", "mqa") or ends == float("inf"):
                continue
            if ends == 0:
                found.append(f"{row['model']}: its cache is no smaller than MHA's, and its floor never lower.")
                continue
            if ends < 1:
                found.append(
                    f"{row['model']}: on {where} its arithmetic leaves no gain, not even to a plain decode step."
                )
                continue
            found.append(
                f"{row['model']}: no gain once MHA's arithmetic takes {1 / ratio:.3f} of its memory time, on {where} "
                f"from {ends:.0f} query tokens a reading of the history on (a plain decode step has 1)."
            )
            rotary = row["rotary_arithmetic_ratio"]
            if not math.isnan(rotary):
                found.append(
                    f"{row['model']} has rotary positions: unless its B is closed under rotation, private keys are "
                    f"rebuilt block by block, {rotary:.1f} × MHA's arithmetic, and the gain ends at "
                    f"{ends * ratio / rotary:.0f}."
                )
        return found

    def measured(self) -> list[str]:
        """Return which device the floors are of."""
        device = self.record["device"]
        return [
            f"{device['name']}: {device['bandwidth'] / 1e12:g} TB/s, {device['flops'] / 1e12:g} TFLOP/s "
            f"({device['source']}). MiB: {MIB:,} bytes."
        ]

    def meaning(self) -> dict[str, str]:
        """Return what the columns of all four tables hold."""
        return MEANING

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return cache and parameters."""
        return pd.DataFrame(self.table[list(_SHOWN)]), ""

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return what a token leaves, batches, settings at equal cache, devices; then what to mind."""
        device = self.record["device"]
        tables = [
            model_table(self.table, self.record["element_bytes"], self.record["rank_multiple"]),
            batch_table(self.batches, self.record["page_tokens"], device["name"]),
            equal_table(self.equal),
        ]
        if self.record["devices"] > 1:
            tables.append(parallel_table(self.parallel))
        notes = self.record["notes"]
        return tables, [*notes, *self.measured(), *self.reading().splitlines()[len(notes) :]]

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and the three others."""
        others = {"budget-batches": self.batches, "budget-equal": self.equal, "budget-parallel": self.parallel}
        return {self.stem: self.table, **others}

    def pictures(self) -> dict[str, Picture]:
        """Return the two figures of a budget."""
        return {
            "cache-against-rank.png": Picture(self.plot, _CACHE_CAPTION),
            "paper-loss.png": Picture(self.plot_loss, _LOSS_CAPTION),
        }

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw cache against rank for several numbers of heads, with these models in it."""
        return figure_of(cache_against_rank(self.table, ax=ax))

    def plot_loss(self, ax: OnAxes = None) -> Figure:
        """Draw the losses that the LRKV paper prints against the cache of its settings."""
        return figure_of(paper_loss(losses(), ax=ax))
