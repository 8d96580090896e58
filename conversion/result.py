"""What a conversion gives back: the model, what each step lost, cache and loss before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from ..models.hooked import HookedModel
from ..plots.terminal import conversion_table
from ..results import Picture, Result

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Conversion(Result):
    """A converted model and what it cost.

    Parameters
    ----------
    table
        One row per layer, side (``"k"``, ``"v"``) and step: ``error``, the squared error of the projections on the
        calibration inputs over their squared size, all heads of the layer together. Steps, each with all before it:
        ``svd``, ``whitened``, ``alternated``, ``aligned`` (LRKV; see `fitting.split`), or ``mean``, ``aligned``. The
        last one is what the model has.
    record
        Source with its hash, method, calibration text with its hash, cache and loss before and after, versions.
    model
        The converted model.
    """

    model: HookedModel

    stem: ClassVar[str] = "conversion"

    def title(self) -> str:
        """Return what became what."""
        old, new = (self.record[key]["attention"] for key in ("source_config", "config"))
        rank = f" of rank {new['rank']}" if "rank" in new else ""
        return f"{self.record['source']['path'] or 'a model in memory'}: {_name(old)} to {_name(new)}{rank}"

    def means(self) -> pd.DataFrame:
        """Return the mean error over layers, a row a side and step."""
        return pd.DataFrame(self.table.groupby(["side", "step"], sort=False)[["error"]].mean()).reset_index()

    def summary(self) -> str:
        """Return errors, cache and loss, a line each."""
        means = self.means().to_dict("records")
        lines = [
            f"{side.upper()}, mean error over layers: "
            + ", ".join(f"{row['step']} {row['error']:.4f}" for row in means if row["side"] == side)
            for side in dict.fromkeys(row["side"] for row in means)
        ]
        cache, loss = self.record["cache_bytes"], self.record["loss"]
        before, after = (_bytes(cache[when]) for when in ("before", "after"))
        share = 100 * cache["after"]["logical"] / cache["before"]["logical"]
        lines.append(f"cache a token: {before} -> {after} bytes at 2 an element ({share:.1f} %)")
        interval = "" if loss["low"] is None else f", 95 % interval {loss['low']:+.4f} … {loss['high']:+.4f}"
        lines.append(
            f"next-token loss: {loss['before']:.4f} -> {loss['after']:.4f} nats a token "
            f"(a window: {loss['difference']:+.4f}{interval}) on {loss['windows']} windows of {loss['text']}"
        )
        return "\n".join(lines)

    def reading(self) -> str:
        """Return what the numbers do and do not show."""
        lines = [
            "Errors are of keys and values on the calibration text itself; what they cost is the loss, on other text."
        ]
        cache = self.record["cache_bytes"]
        if cache["after"]["logical"] >= cache["before"]["logical"]:
            old, new = (self.record[key]["attention"] for key in ("source_config", "config"))
            lines.append(
                f"The cache does not shrink: LRKV keeps a residual for each of {new['n_heads']} heads, "
                f"and the source shares a key among {new['n_heads'] // (old['n_kv_heads'] or old['n_heads'])}."
            )
        return "\n".join(lines)

    def pictures(self) -> dict[str, Picture]:
        """Return nothing: the table says it."""
        return {}

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold."""
        return {
            "layer": "which layer",
            "side": "k: keys; v: values",
            "step": "what was done, with all before it; the last one is what the model has",
            "error": "squared error of the projections on the calibration inputs, over their squared size",
        }

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the mean errors."""
        return self.means(), "means over layers"

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return errors by layer, then cache, loss and what they show."""
        return [conversion_table(self.table)], [*self.summary().splitlines(), *self.reading().splitlines()]


def _name(attention: dict[str, Any]) -> str:
    groups = attention.get("n_kv_heads")
    return attention["variant"].upper() + (f" of {groups} groups" if groups not in (None, 1) else "")


def _bytes(cache: dict[str, int]) -> str:
    physical = "" if cache["logical"] == cache["physical"] else f" ({cache['physical']:,} with the rank padded to 8)"
    return f"{cache['logical']:,}{physical}"
