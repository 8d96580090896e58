"""What a training run's saved steps show of its heads: when the division of labour forms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from ..plots import over_training as draw_over_training
from ..plots.panels import OnAxes, figure_of
from ..plots.style import block_title
from ..plots.terminal import over_training_table
from ..results import Picture, Result
from .result import COLUMNS as LAYER_COLUMNS
from .result import MEANING, NOT_MEASURED, describe_settings, draws_beside, told_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

FEW_DRAWS = 10
_CAPTION = (
    "Effective rank by training step, in percent of its cap: thick lines are means over layers, thin ones single "
    "layers, grey is the null of random layers. Below the grey, heads are more alike than random ones; above, less. "
    "Loss and induction are drawn at every step that the run logged them at."
)
_SHOWN = ("step", "circuit", "part", "erank_pct_heads", "erank_centred_pct_cap", "erank", "null_low", "null_high")
COLUMNS = ("step", *LAYER_COLUMNS)
"""Columns of a trajectory's table: a report's, for each saved step."""
LOGGED = {
    "validation_loss": "loss on the run's validation text, nats a token",
    "induction": "the best head's attention to what followed the last time, 0 to 1",
}
"""What is taken from a run's log, and what it holds."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trajectory(Result):
    """Head diversity over a training run.

    Parameters
    ----------
    table
        One row per saved step, layer, circuit and part; see `COLUMNS`.
    log
        Every step at which the run logged one of them: step, validation_loss (nats a token), induction (0-1).
    record
        What was measured and how.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.over_training("runs/lrkv-0", circuit="qk", null=2)
    >>> sorted(set(result.table["step"]))
    [0, 2, 4]
    """

    log: pd.DataFrame

    stem: ClassVar[str] = "over-training"

    def title(self) -> str:
        """Return which run it follows."""
        return f"Effective rank over the training run {self.record['run']}"

    def means(self) -> pd.DataFrame:
        """Return the mean over layers at each step, for each circuit and part, leaving out what does not exist."""
        numeric = [name for name in LAYER_COLUMNS if name not in NOT_MEASURED]
        return pd.DataFrame(self.table.groupby(["step", "circuit", "part"], sort=False)[numeric].mean()).reset_index()

    def summary(self) -> str:
        """Return one line a circuit and part: where the mean over layers began and where it ended."""
        return "\n".join(_summary_line(circuit, part, rows) for (circuit, part), rows in self._blocks(self.means()))

    def reading(self) -> str:
        """Return when the heads left the null, and when half of the change was done."""
        lines = [
            _reading(circuit, part, pd.DataFrame(rows.dropna(subset=["erank"])), self.record["null"])
            for (circuit, part), rows in self._blocks(self.table)
        ]
        count = len(self.record["null"]["seeds"])
        if 2 <= count < FEW_DRAWS:
            lines.append(
                f"With {count} draws of the null the tests, of all layers and steps together, see little: ask for more."
            )
        return "\n".join([*lines, *_induction(self.log)])

    def measured(self) -> list[str]:
        """Return which run was followed, and how."""
        state = "finished" if self.record["finished"] else "not finished"
        steps = self.record["steps"]
        variant = self.record["config"]["attention"]["variant"].upper()
        settings = describe_settings(self.record)
        return [f"{self.record['run']} ({len(steps)} saved steps, {state}): {variant}, {settings}"]

    def meaning(self) -> dict[str, str]:
        """Return what a report's columns hold, and the step."""
        return {"step": "optimiser steps done", **MEANING, **LOGGED}

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the means over layers."""
        return pd.DataFrame(self.means()[list(_SHOWN)]), "means over layers, by step"

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and, of a run that has one, the log."""
        return {self.stem: self.table} | ({} if self.log.empty else {f"{self.stem}-log": self.log})

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the means by step, what was measured, and what it shows."""
        lines = [*self.measured(), *self.summary().splitlines(), *self.reading().splitlines()]
        return [over_training_table(self.means(), self.log)], lines

    def pictures(self) -> dict[str, Picture]:
        """Return the figure of a trajectory."""
        return {"over-training.png": Picture(self.plot, _CAPTION)}

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw effective rank by step against its caps and null, with the loss and the induction score beside it."""
        return figure_of(draw_over_training(self.table, self.log, ax=ax))

    def _blocks(self, table: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
        keys = dict.fromkeys(zip(table["circuit"], table["part"], strict=True))
        return [(key, pd.DataFrame(table[(table["circuit"] == key[0]) & (table["part"] == key[1])])) for key in keys]


def _summary_line(circuit: str, part: str, rows: pd.DataFrame) -> str:
    first, last = rows.iloc[0], rows.iloc[-1]
    steps = f"step {first['step']} to {last['step']}"
    return (
        f"{block_title(circuit, part)}, mean over layers, {steps}: effective rank {first['erank_pct_heads']:.2f} to "
        f"{last['erank_pct_heads']:.2f} % of H, centred {first['erank_centred_pct_cap']:.2f} to "
        f"{last['erank_centred_pct_cap']:.2f} % of its cap H-1"
    )


def _reading(circuit: str, part: str, measured: pd.DataFrame, null: dict[str, Any]) -> str:
    title = block_title(circuit, part)
    if measured.empty:
        return f"{title}: no layer could be measured."
    means = pd.DataFrame(measured.groupby("step")["erank"].mean()).reset_index()
    half, since = _half_way(means, "erank"), f"since step {means['step'].iloc[0]}"
    change = (
        f"no change {since}" if half is None else f"half of the change in effective rank {since} is done by step {half}"
    )
    draws = draws_beside(measured, null, circuit, part)
    if draws.shape[1] < 2:
        return f"{title}: {change}; without a null of several draws nothing says whether it means anything."
    left = _left_for_good(measured, draws)
    if not left:
        return f"{title}: at the last step no layer can be told from random ones; {change}."
    first = min(left, key=lambda layer: left[layer])
    return (
        f"{title}: at the last step {len(left)} of {measured['layer'].nunique()} layers can be told from random ones; "
        f"the first to leave them for good is layer {first}, by step {left[first]}; {change}."
    )


def _induction(log: pd.DataFrame) -> list[str]:
    """Return how the induction score changed over the logged steps; nothing where it did not."""
    known = pd.DataFrame(log.dropna(subset=["induction"]))
    half = _half_way(known, "induction")
    if half is None:
        return []
    ends = [f"{row['induction']:.2f} (step {row['step']:.0f})" for _, row in known.iloc[[0, -1]].iterrows()]
    return [f"Induction, best head: from {' to '.join(ends)}; half of that change is done by step {half}."]


def _left_for_good(rows: pd.DataFrame, draws: np.ndarray) -> dict[int, int]:
    """Return layer -> the saved step from which it is told apart from the null, on one side, at every later one."""
    # One family of tests over layers and steps.
    side = np.sign(rows["erank"].to_numpy(dtype=float) - draws.mean(-1)) * told_apart(rows, draws)
    found = {}
    for layer in dict.fromkeys(rows["layer"]):
        here = (rows["layer"] == layer).to_numpy()
        sides, steps = side[here], rows["step"].to_numpy()[here]
        if sides[-1]:
            others = np.flatnonzero(sides != sides[-1])
            found[int(layer)] = int(steps[others[-1] + 1 if len(others) else 0])
    return found


def _half_way(table: pd.DataFrame, column: str) -> int | None:
    """Return the first step from which half of the whole change in a column is behind it; None without a change."""
    known = pd.DataFrame(table.dropna(subset=[column]))
    values = np.asarray(known[column], dtype=float)
    if len(values) < 2 or math.isclose(values[0], values[-1]):
        return None
    done = (values - values[0]) / (values[-1] - values[0])
    # The last step at which less than half was done, so that a passing wobble does not count.
    return int(known["step"].iloc[int(np.flatnonzero(done < 0.5)[-1]) + 1])
