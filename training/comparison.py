"""Runs of matched models side by side: loss and cache, diversity and null, steps saved, and the seeds' spread."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from ..checkpoints.runs import TrainingRun, carried_run, open_run
from ..diversity import Offsets
from ..diversity.settings import Progress
from ..models.factors import ALL
from ..models.variant import ELEMENT_BYTES, RANK_MULTIPLE
from ..plots import loss_against_cache
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import comparison_tables
from ..results import Picture, Result, source_of, versions
from .columns import MEANING, TESTED_AS
from .controls import CONTROLS, SAME_PARAMETERS, assign_controls, by_control, check_alike, model_names
from .controls import RULES as CONTROL_RULES
from .directory import TrainingError
from .kept import finished
from .measuring import measure
from .seeds import CONFIDENCE, LEVEL
from .tabulate import difference_table, model_table, reach_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_SHOWN = (
    "control",
    "model",
    "seeds",
    "cache_bytes",
    "parameters",
    "loss_mean",
    "loss_low",
    "loss_high",
    "bits_per_byte_mean",
)
_CAPTION = (
    "Further left is a smaller cache, further down a lower test loss. Small dots are runs, the larger marker is the "
    "mean over a model's seeds and the bar its 95 % interval; whether two models differ is tested seed by seed, in the "
    "table of differences."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison(Result):
    """Models trained alike, side by side.

    Parameters
    ----------
    table
        One row per control and model: seeds, sizes, nulls, and ``_mean``, ``_low``, ``_high`` of what runs measured (no
        interval from a single seed); see `meaning`.
    runs
        One row per run.
    reach
        Per control, model and baseline: at which step the model's validation loss is first at or below the baseline's
        last one, seed by seed, then ``step_mean``, ``step_low``, ``step_high`` where every seed came there.
    differences
        Per control, measure and pair of models: the paired difference, its interval, p after Holm's correction, and
        the difference that these seeds could have shown.
    record
        What was compared and by which rules.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.compare(["runs/mha-0", "runs/lrkv-0"], null=2)
    >>> result.table.loc[result.table["control"] == "backbone", "model"].tolist()
    ['mha', 'lrkv']
    """

    runs: pd.DataFrame
    reach: pd.DataFrame
    differences: pd.DataFrame

    stem: ClassVar[str] = "compare"

    def title(self) -> str:
        """Return how many runs of how many models these are."""
        return f"{len(self.runs)} runs of {self.runs['model'].nunique()} variants"

    def summary(self) -> str:
        """Return one line a control and model: loss, bits per byte, cache."""
        return "\n".join(
            f"{row['model']} (same {row['control']}): {row['loss_mean']:.4f} nats a token, "
            f"{row['bits_per_byte_mean']:.4f} bits a byte, {row['cache_bytes']:,} bytes of cache a token"
            for row in self.table.to_dict("records")
        )

    def reading(self) -> str:
        """Return which differences the seeds show, which they do not, and how large those could be."""
        if len(set(self.runs["model"])) < 2:
            return "One model: there is nothing to compare."
        lines = [line for control in CONTROLS for line in self._differences(control)]
        if "parameters" not in set(self.table["control"]):
            lines.append(
                f"Same parameters: no two models are equally large (within {100 * SAME_PARAMETERS:g} %), so this "
                "control is missing; headscope train … --same-parameters makes its models."
            )
        return "\n".join(lines)

    def _differences(self, control: str) -> list[str]:
        here = self.differences[self.differences["control"] == control]
        losses = pd.DataFrame(here[here["measure"] == "loss"]).to_dict("records")
        if not losses:
            return []
        known = [row for row in losses if not math.isnan(row["p"])]
        if not known:
            return [f"Same {control}: a single seed says nothing about the spread, so no difference can be judged."]
        apart, others = ([row for row in known if (row["p_holm"] < LEVEL) == stands] for stands in (True, False))
        fewest, most = (pick(row["seeds"] for row in known) for pick in (min, max))
        n = f"n={fewest}" if fewest == most else f"n={fewest}–{most}"
        rule = f"paired by seed, {n}, Holm's correction, {100 * LEVEL:g} %"
        shown = "; ".join(
            f"{_pair(row)} {row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]" for row in apart
        )
        lines = [f"Same {control}, test losses apart beyond the seeds' spread ({rule}): {shown or 'no pair'}."]
        if others:
            least, largest = (pick(row["detectable"] for row in others) for pick in (min, max))
            needed = f"{least:.2g} nats" if len(others) == 1 else f"{least:.2g} to {largest:.2g} nats, by pair"
            lines.append(
                f"Same {control}, not told apart: {', '.join(map(_pair, others))}. With the spread of these seeds it "
                f"takes a difference of {needed}; a smaller one may be there."
            )
        if few := len(losses) - len(known):
            names = "1 pair has" if few == 1 else f"{few} pairs have"
            lines.append(f"Same {control}, not judged: {names} fewer than two seeds in common.")
        return [*lines, self._beside_loss(control)]

    def _beside_loss(self, control: str) -> str:
        """Return what else is apart, by the same rule."""
        here = self.differences[self.differences["control"] == control]
        said = []
        for name, words in TESTED_AS.items():
            rows = pd.DataFrame(here[(here["measure"] == name) & (here["p_holm"] < LEVEL)]).to_dict("records")
            pairs = "; ".join(f"{_pair(row)} {row['difference']:+.3g}" for row in rows)
            said.append(f"{words}: {pairs or 'no pair'}")
        return f"Same {control}, apart by the same rule in {'; '.join(said)}."

    def measured(self) -> list[str]:
        """Return what the same test split costs without a network."""
        known = self.record["baselines_bits_per_byte"]
        without = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
        lines = [f"The same test split without a network, bits/byte: {without}."]
        mixed = [f"{name} {', '.join(seen)}" for name, seen in self.record["trained_with"].items() if len(seen) > 1]
        return lines + ([f"Trained with different versions: {'; '.join(mixed)}."] if mixed else [])

    def legend(self) -> list[str]:
        """Return what a reader of the terminal's tables has to know."""
        rules = self.record["rules"]
        parts = sorted(set(self.table["qk_part"]) | set(self.table["ov_part"]))
        other = [part for part in parts if part != ALL]
        of = "".join(f", of mla part {part} (between residual streams, positions left out)" for part in other)
        return [
            f"Cache: bytes that a token leaves over all layers, {ELEMENT_BYTES} an element; in brackets, where more, "
            f"with ranks padded to a multiple of {RANK_MULTIPLE}. K/V: weights that make keys and values. Induction: "
            "the best head's attention to what followed an equal token. Minutes: by the clock, with whatever else the "
            "machine did.",
            f"Effective rank: {rules['effective_rank']}{of}. Null: random layers of the same architecture; below: "
            "layers lower than all of its draws, mean over seeds.",
            f"Saved: steps left at the {rules['reach']}. In brackets the seeds; 1 of 2: only one "
            "of two came there; –: a run has no log.",
            "Difference: the interval is each pair's own; p (Holm) is corrected for all pairs; takes: what a "
            "difference would have to be to pass with this spread over seeds.",
        ]

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold."""
        return MEANING

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return loss and cache."""
        return pd.DataFrame(self.table[list(_SHOWN)]), ""

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the tables a control, what needs no network beside them, and which differences stand."""
        lines = [*self.legend(), *self.measured(), *self.reading().splitlines()]
        return comparison_tables(self.table, self.reach, self.differences), lines

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and the three others."""
        others = {"runs": self.runs, "reach": self.reach, "differences": self.differences}
        return {self.stem: self.table, **others}

    def pictures(self) -> dict[str, Picture]:
        """Return the figure of a comparison."""
        return {"loss-against-cache.png": Picture(self.plot, _CAPTION)}

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw each model's loss against its cache."""
        return figure_of(loss_against_cache(by_control(self.runs), ax=ax))


def compare(
    runs: Sequence[str | os.PathLike[str] | Result],
    *,
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    null: int = 20,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare finished runs that were trained alike but for attention (and seed).

    Two controls: the same *backbone* (all but attention is alike, MLP width too), and the same number of *parameters*
    (within 1 % of the baseline's; where several models of a preset are, the nearest). The baseline is ``mha``, or the
    first run's model if there is none. A model can stand in both.

    Parameters
    ----------
    runs
        Directories of finished runs, what `keep` kept of them, trajectories, whose runs they then are, or checkpoints
        that carry their run's record, as the models that ship do, by directory or name (``"lrkv"``); these have no log,
        and count for nothing in `reach`.
    offsets, null
        As for `report`, which measures each run's last step.
    out
        Directory to save to.
    progress
        Called with (runs done, runs in all, which).

    Raises
    ------
    CheckpointError
        If a directory is no run.
    TrainingError
        If a run is unfinished, given twice, not trained like the first, or in neither control; names run and reason.

    Examples
    --------
    >>> import headscope as hs
    >>> result = hs.compare(["runs/mha-0", "runs/lrkv-0"], null=2)
    >>> result.table["model"].tolist()
    ['mha', 'lrkv']
    """
    if not runs:
        raise ValueError("there is no run to compare")
    opened = [_opened(run) for run in runs]
    check_alike(opened)
    names = model_names(opened)
    if out is not None:
        Path(out).expanduser().mkdir(parents=True, exist_ok=True)
    measured = []
    for done, (run, name) in enumerate(zip(opened, names, strict=True)):
        measured.append(measure(run, name, offsets, null))
        if progress is not None:
            progress(done + 1, len(opened), run.path.name)
    table = assign_controls(pd.DataFrame(measured))
    curves = {(row["path"]): run.log for row, run in zip(measured, opened, strict=True)}
    rows = by_control(table)
    first = opened[0]
    record = {
        "kind": "comparison of training runs",
        "runs": [str(run.path) for run in opened],
        "recipe": {name: value for name, value in first.record["recipe"].items() if name != "seed"},
        "corpus": first.record["corpus"],
        "baselines_bits_per_byte": finished(first)["baselines"],
        "offsets": str(Offsets.parse(offsets)).lower(),
        "null_draws": null,
        "rules": RULES,
        "trained_with": _trained_with(opened),
        "versions": versions("torch", "numpy", "scipy", "pandas"),
    }
    result = Comparison(
        table=model_table(rows),
        runs=table,
        reach=reach_table(rows, curves),
        differences=difference_table(rows),
        record=record,
    )
    if out is not None:
        result.save(out)
    return result


RULES = {
    **CONTROL_RULES,
    "interval": f"Student's {100 * CONFIDENCE:g} % interval of the mean over seeds; none from one seed",
    "cache_bytes": f"{ELEMENT_BYTES} bytes an element; physical: ranks padded to a multiple of {RANK_MULTIPLE}",
    "effective_rank": "mean over layers at the last step",
    "reach": "first step at which the validation loss, straight between logged points, is at or below the last "
    "validation loss of the baseline's run with the same seed",
    "difference": "paired by seed; t-test, Holm's correction over a measure's pairs in both controls",
}
"""What a comparison's numbers are, for its record."""


def _opened(given: str | os.PathLike[str] | Result) -> TrainingRun:
    path = source_of(given)
    run = (carried_run(path) if isinstance(path, str | os.PathLike) else None) or open_run(given)
    if not run.record:
        raise TrainingError(f"{path} has no run.json: only runs of headscope train are compared")
    finished(run)
    return run


def _trained_with(runs: Sequence[TrainingRun]) -> dict[str, list[str]]:
    """Return each package's versions among the runs."""
    names = dict.fromkeys(name for run in runs for name in run.record["versions"])
    return {name: sorted({run.record["versions"].get(name, "?") for run in runs}) for name in names}


def _pair(row: dict[str, Any]) -> str:
    return f"{row['model']} − {row['other']}"
