"""Effective rank over the saved steps of a training run: when the division of labour forms."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from ..checkpoints import open_checkpoint
from ..checkpoints.runs import open_run
from ..errors import CheckpointError
from ..models.layers import parse_layers
from ..plots import over_training as draw_over_training
from ..plots.panels import OnAxes, figure_of
from ..plots.style import block_title
from ..plots.terminal import over_training_table
from ..results import Picture, Result
from ..unfinished import Unfinished
from .offsets import Offsets
from .result import COLUMNS as LAYER_COLUMNS
from .result import MEANING, NOT_MEASURED, describe_settings, draws_beside, told_apart
from .settings import Circuit, Progress, Settings, Steps, kinds_of_layers
from .spectra import Definition

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

FEW_DRAWS = 10
_CAPTION = (
    "Effective rank by training step, in percent of its cap: thick lines are means over layers, thin ones single "
    "layers, grey is the null of random layers. Below the grey, heads are more alike than random ones; above, less."
)
_SHOWN = ("step", "circuit", "part", "erank_pct_heads", "erank_centred_pct_cap", "erank", "null_low", "null_high")
COLUMNS = ("step", *LAYER_COLUMNS)
"""Columns of a trajectory's table: a report's, for each saved step."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trajectory(Result):
    """Head diversity over a training run.

    Parameters
    ----------
    table
        One row per saved step, layer, circuit and part; see `COLUMNS`.
    log
        The run's log at the saved steps that have one: step, validation_loss (nats a token), induction (0-1).
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
        if (formed := _half_way(self.log, "induction")) is not None:
            best = self.log["induction"].dropna().iloc[-1]
            lines.append(
                f"Induction: the best head's score passes half of its last value ({best:.2f}) at step {formed}."
            )
        return "\n".join(lines)

    def measured(self) -> list[str]:
        """Return which run was followed, and how."""
        state = "finished" if self.record["finished"] else "not finished"
        steps = self.record["steps"]
        variant = self.record["config"]["attention"]["variant"].upper()
        settings = describe_settings(self.record)
        return [f"{self.record['run']} ({len(steps)} saved steps, {state}): {variant}, {settings}"]

    def meaning(self) -> dict[str, str]:
        """Return what a report's columns hold, and the step."""
        return {"step": "optimiser steps when the weights were saved", **MEANING}

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the means over layers."""
        return pd.DataFrame(self.means()[list(_SHOWN)]), "means over layers, by step"

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


def over_training(
    run: str | os.PathLike[str] | Result,
    *,
    circuit: Circuit = "both",
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    layers: str | Sequence[int] | None = None,
    definition: Definition = "gram",
    null: int = 20,
    fold_norm: bool = True,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Measure how different the heads of each layer are at every saved step of a training run.

    Parameters
    ----------
    run
        Directory of a run of ``headscope train``, finished or not, or of another trainer that leaves
        ``checkpoint-200/`` and so on.
    circuit, offsets, layers, definition, null, fold_norm, out, progress
        As for `report`.

    Raises
    ------
    CheckpointError
        If there is no run, a saved step cannot be read, or the steps are of different architectures.
    ValueError, IndexError
        As for `report`.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.over_training("runs/lrkv-0", circuit="qk", null=2)
    >>> result.table[["step", "layer"]].iloc[0].tolist()
    [0, 0]
    """
    settings = Settings.parse(circuit, offsets, definition, null, fold_norm)
    found = open_run(run)
    if not found.steps:
        raise CheckpointError(
            f"{found.path} holds the record of a run without its weights: there are no steps to follow"
        )
    saved = {step: open_checkpoint(path) for step, path in found.steps.items()}
    first, last = next(iter(saved.values())), list(saved.values())[-1]
    for step, checkpoint in saved.items():
        if checkpoint.config != first.config:
            raise CheckpointError(f"{found.steps[step]} is of another architecture than {first.path}")
    chosen = parse_layers(layers, first.config.n_layers)
    if out is not None:
        Path(out).expanduser().mkdir(parents=True, exist_ok=True)
    steps = Steps(len(saved) + null * len(kinds_of_layers(first.config, chosen)), progress)
    drawn = settings.draw(first.config, chosen, steps.done, Unfinished(None))
    rows: list[dict[str, Any]] = []
    for step, checkpoint in saved.items():
        for layer in chosen:
            factors = checkpoint.factors(layer, fold_norm=fold_norm)
            for (name, part), similarity in settings.similarities(factors).items():
                row = settings.row(similarity, drawn.of(layer, (name, part)))
                what = {"layer": layer, "keys_of": checkpoint.config.keys_of(layer), "circuit": name, "part": part}
                rows.append({"step": step, **what, **row})
        steps.done(f"step {step}")
    record = {
        "kind": "effective rank over training",
        "run": str(found.path),
        "training": found.record,
        "finished": found.result is not None,
        "steps": list(saved),
        "last_checkpoint": last.describe(),
        "layers": chosen,
        **settings.describe(first.config, drawn),
    }
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    result = Trajectory(table=table, log=_at_steps(found.log, list(saved)), record=record, source=str(found.path))
    if out is not None:
        result.save(out)
    return result


LOGGED = ("step", "validation_loss", "induction")


def _at_steps(log: pd.DataFrame, steps: list[int]) -> pd.DataFrame:
    """Return what the log says of the saved steps; empty if there is no log of ours."""
    if not set(LOGGED) <= set(log.columns):
        return pd.DataFrame(columns=list(LOGGED))
    return pd.DataFrame(log.loc[log["step"].isin(steps), list(LOGGED)]).reset_index(drop=True)


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
    half = _half_way(means, "erank")
    change = (
        "no change over the run" if half is None else f"half of the change in effective rank is done by step {half}"
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
