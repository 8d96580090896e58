"""Runs of matched models side by side: loss and cache, diversity and null, steps saved, and the seeds' spread."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pandas as pd

from ..checkpoints.runs import TrainingRun, carried_run, open_run
from ..diversity import Offsets
from ..diversity.settings import Progress
from ..models.config import ModelConfig
from ..models.hooked import n_parameters
from ..models.variant import ELEMENT_BYTES, RANK_MULTIPLE
from ..plots import loss_against_cache
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import comparison_tables
from ..results import Picture, Result, source_of, versions
from .columns import MEANING, MEASURED
from .kept import last_report
from .run import TrainingError
from .seeds import first_reached, holm, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

SAME_PARAMETERS = 0.01
"""Models whose numbers of parameters differ by no more than this share count as equally large."""
CONTROLS = ("backbone", "parameters")

SIZES = ("parameters", "kv_parameters", "cache_bytes", "cache_bytes_physical")
"""What a model has whatever its seed; cache in bytes a token over all layers."""
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
NULLS = ("qk_null_pct_heads", "qk_null_centred_pct_cap", "ov_null_pct_heads", "ov_null_centred_pct_cap")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison(Result):
    """Models trained alike, side by side.

    Parameters
    ----------
    table
        One row per control and model: seeds, `SIZES`, `NULLS`, and ``_mean``, ``_low``, ``_high`` of each of `MEASURED`
        (no interval from a single seed).
    runs
        One row per run.
    reach
        Per control, model and baseline: at which step the model's validation loss is first at or below the baseline's
        last one, seed by seed, then ``step_mean``, ``step_low``, ``step_high`` where every seed came there.
    differences
        Per control and pair of models: the paired difference in loss, its interval, and p after Holm's correction.
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
        """Return which differences in loss are larger than the seeds' spread, and which are not."""
        lines = [line for control in CONTROLS for line in self._differences(control)]
        return "\n".join(lines) or "One model: there is nothing to compare."

    def _differences(self, control: str) -> list[str]:
        found = pd.DataFrame(self.differences[self.differences["control"] == control]).to_dict("records")
        if not found:
            return []
        known = [row for row in found if not math.isnan(row["p"])]
        if not known:
            return [f"Same {control}: a single seed says nothing about the spread, so no difference can be judged."]
        apart = [_pair(row) for row in known if row["p_holm"] < 0.05]
        inside = [_pair(row) for row in known if not row["p_holm"] < 0.05]
        fewest, most = (pick(row["seeds"] for row in known) for pick in (min, max))
        n = f"n={fewest}" if fewest == most else f"n={fewest}–{most}"
        rule = f"paired by seed, {n}, Holm over {len(known)} pairs, 5 %"
        lines = [
            f"Same {control}, apart by more than the seeds' spread ({rule}): {'; '.join(apart) or 'no pair'}.",
            f"Same {control}, inside the seeds' spread: {'; '.join(inside) or 'no pair'}.",
        ]
        if few := len(found) - len(known):
            pairs = "1 pair has" if few == 1 else f"{few} pairs have"
            lines.append(f"Same {control}, not judged: {pairs} fewer than two seeds in common.")
        return lines

    def measured(self) -> list[str]:
        """Return what the same test split costs without a network."""
        known = self.record["baselines_bits_per_byte"]
        without = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
        return [f"The same test split without a network, bits/byte: {without}."]

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold."""
        return MEANING

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return loss and cache."""
        return pd.DataFrame(self.table[list(_SHOWN)]), ""

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the tables a control, what needs no network beside them, and which differences stand."""
        lines = [*self.measured(), *self.reading().splitlines()]
        return comparison_tables(self.table, self.reach), lines

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and the three others."""
        others = {"runs": self.runs, "reach": self.reach, "differences": self.differences}
        return {self.stem: self.table, **others}

    def pictures(self) -> dict[str, Picture]:
        """Return the figure of a comparison."""
        return {"loss-against-cache.png": Picture(self.plot, _CAPTION)}

    def plot(self, ax: OnAxes = None) -> Figure:
        """Draw each model's loss against its cache."""
        return figure_of(loss_against_cache(_by_control(self.runs), ax=ax))


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
    for run in opened[1:]:
        _check_alike(opened[0], run)
    if out is not None:
        Path(out).expanduser().mkdir(parents=True, exist_ok=True)
    measured = []
    for done, run in enumerate(opened):
        measured.append(_measure(run, offsets, null))
        if progress is not None:
            progress(done + 1, len(opened), run.path.name)
    table = _assign_controls(pd.DataFrame(measured))
    curves = {(row["path"]): run.log for row, run in zip(measured, opened, strict=True)}
    by_control = _by_control(table)
    first = opened[0]
    record = {
        "kind": "comparison of training runs",
        "runs": [str(run.path) for run in opened],
        "recipe": {name: value for name, value in first.record["recipe"].items() if name != "seed"},
        "corpus": first.record["corpus"],
        "baselines_bits_per_byte": (first.result or {})["baselines"],
        "offsets": str(Offsets.parse(offsets)).lower(),
        "null_draws": null,
        "rules": _RULES,
        "trained_with": first.record["versions"],
        "versions": versions("torch", "numpy", "scipy", "pandas"),
    }
    result = Comparison(
        table=_group(by_control),
        runs=table,
        reach=_reach(by_control, curves),
        differences=_differences(by_control),
        record=record,
    )
    if out is not None:
        result.save(out)
    return result


_RULES = {
    "interval": "Student's 95 % interval of the mean over seeds; none from one seed",
    "backbone": "models whose MLP is as wide as the baseline's",
    "parameters": "models within 1 % of the baseline's parameters; of several of one preset the nearest",
    "cache_bytes": "2 bytes an element; physical: ranks padded to a multiple of 8",
    "effective_rank": "mean over layers at the last step; MLA's part content_d_model, all others' part all",
    "reach": "first step at which the validation loss, straight between logged points, is at or below the last "
    "validation loss of the baseline's run with the same seed",
    "difference": "test loss, paired by seed; t-test, Holm's correction over the pairs of a control",
}


def _opened(given: str | os.PathLike[str] | Result) -> TrainingRun:
    path = source_of(given)
    run = (carried_run(path) if isinstance(path, str | os.PathLike) else None) or open_run(given)
    if not run.record:
        raise TrainingError(f"{path} has no run.json: only runs of headscope train are compared")
    if run.result is None:
        raise TrainingError(f"{path} is not finished: go on with headscope train … --resume")
    return run


def _check_alike(first: TrainingRun, run: TrainingRun) -> None:
    for what, here, there in (
        ("recipe", _without(run.record["recipe"], "seed"), _without(first.record["recipe"], "seed")),
        ("corpus", run.record["corpus"]["sha256"], first.record["corpus"]["sha256"]),
        ("backbone", _backbone(run.record["model"]), _backbone(first.record["model"])),
    ):
        if here != there:
            raise TrainingError(
                f"{run.path} and {first.path} were not trained alike: {what} {_first_difference(here, there)}"
            )


def _without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


def _backbone(model: dict[str, Any]) -> dict[str, Any]:
    """Return all but attention and the MLP's width, with what the record of an older run leaves out."""
    known = ModelConfig.from_dict(model).to_dict()
    return {**_without(known, "attention"), "mlp": _without(known["mlp"], "d_mlp")}


def _first_difference(here: Any, there: Any) -> str:
    if not isinstance(here, dict) or not isinstance(there, dict):
        return f"is {here} and {there}"
    name = next(key for key in {**here, **there} if here.get(key) != there.get(key))
    return f"{name} is {here.get(name)} and {there.get(name)}"


def _measure(run: TrainingRun, offsets: Any, null: int) -> dict[str, Any]:
    """Return a run's row."""
    record, result = run.record, run.result or {}
    config = ModelConfig.from_dict(record["model"])
    heads = last_report(run, offsets, null).means().set_index(["circuit", "part"])
    n_heads = config.attention.n_heads
    row = {
        "model": record["preset"],
        "seed": record["recipe"]["seed"],
        "path": str(run.path),
        "d_mlp": record["model"]["mlp"]["d_mlp"],
        "parameters": n_parameters(config),
        "kv_parameters": config.n_layers * config.attention.kv_parameters(config.d_model),
        "cache_bytes": ELEMENT_BYTES * config.n_layers * config.attention.cache_width(),
        "cache_bytes_physical": ELEMENT_BYTES * config.n_layers * config.attention.cache_width(RANK_MULTIPLE),
        "loss": result["test"]["loss"],
        "bits_per_byte": result["test"]["bits_per_byte"],
        "induction": result["induction"]["best"],
        "repeated_loss": result["induction"]["second_loss"],
        "seconds": result["seconds"],
        "tokens": result["tokens"],
        "steps": record["recipe"]["steps"],
    }
    for circuit in ("qk", "ov"):
        part = "content_d_model" if (circuit, "content_d_model") in heads.index else "all"
        found = heads.loc[(circuit, part)]
        row[f"{circuit}_part"] = part
        row[f"{circuit}_erank_pct_heads"] = float(found["erank_pct_heads"])
        row[f"{circuit}_centred_pct_cap"] = float(found["erank_centred_pct_cap"])
        row[f"{circuit}_null_pct_heads"] = 100 * float(found["null_mean"]) / n_heads
        row[f"{circuit}_null_centred_pct_cap"] = (
            100 * float(found["null_centred_mean"]) / (n_heads - 1) if n_heads > 1 else math.nan
        )
    return row


def _assign_controls(table: pd.DataFrame) -> pd.DataFrame:
    """Say of each run in which controls it stands, in columns ``in_backbone`` and ``in_parameters``."""
    mha = pd.DataFrame(table[table["model"] == "mha"])
    baseline = table.iloc[:1] if mha.empty else mha
    width = baseline["d_mlp"].min()
    wanted = baseline.loc[baseline["d_mlp"] == width, "parameters"].iloc[0]
    off = (table["parameters"] / wanted - 1).abs()
    nearest = off == off.groupby(table["model"]).transform("min")
    table = table.assign(in_backbone=table["d_mlp"] == width, in_parameters=nearest & (off <= SAME_PARAMETERS))
    for row, share in zip(table.to_dict("records"), off, strict=True):
        if not (row["in_backbone"] or row["in_parameters"]):
            raise TrainingError(
                f"{row['path']} is in neither control: its MLP is {row['d_mlp']} wide, not {width}, and its "
                f"{row['parameters']:,} parameters are {100 * share:.1f} % off the baseline's {wanted:,}"
            )
    twice = pd.DataFrame(table[table.duplicated(["model", "d_mlp", "seed"])])
    if len(twice):
        row = twice.iloc[0]
        raise TrainingError(f"{row['path']} is another run of {row['model']} with seed {row['seed']}: give each once")
    return table


def _by_control(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per control and run: a run that stands in both controls twice.

    A control in which one model stands alone compares nothing, and is left out but for the backbone's.
    """
    parts = {control: table[table[f"in_{control}"]].assign(control=control) for control in CONTROLS}
    if len(set(parts["parameters"]["model"])) < 2:
        del parts["parameters"]
    return pd.concat(parts.values(), ignore_index=True)


def _group(by_control: pd.DataFrame) -> pd.DataFrame:
    found = []
    for key, runs in by_control.groupby(["control", "model"], sort=False):
        control, model = cast(tuple[str, str], key)
        first = runs.iloc[0]
        row: dict[str, Any] = {"control": control, "model": model, "seeds": len(runs)}
        row |= {name: int(first[name]) for name in SIZES}
        row |= {name: float(first[name]) for name in NULLS}
        for name in MEASURED:
            mean = mean_interval(runs[name].tolist())
            row |= {f"{name}_mean": mean.mean, f"{name}_low": mean.low, f"{name}_high": mean.high}
        found.append(row)
    return pd.DataFrame(found)


def _reach(by_control: pd.DataFrame, curves: dict[str, pd.DataFrame]) -> pd.DataFrame:
    found = []
    for control, runs in by_control.groupby("control", sort=False):
        paths = {(row["model"], row["seed"]): row["path"] for row in runs.to_dict("records")}
        models = list(dict.fromkeys(runs["model"]))
        for model in models:
            for baseline in (other for other in models if other != model):
                both = (s for m, s in paths if m == model and (baseline, s) in paths)
                seeds = sorted(s for s in both if all(len(curves[paths[m, s]]) for m in (model, baseline)))
                steps = [_steps_to(curves[paths[model, s]], curves[paths[baseline, s]]) for s in seeds]
                mean = mean_interval(steps)
                reached = sum(not math.isnan(step) for step in steps)
                row = {"control": control, "model": model, "baseline": baseline, "seeds": len(seeds)}
                row |= {"reached": reached, "step_mean": mean.mean, "step_low": mean.low, "step_high": mean.high}
                row["saved_pct"] = 100 * (1 - mean.mean / int(runs["steps"].iloc[0]))
                found.append(row)
    names = ("control", "model", "baseline", "seeds", "reached", "step_mean", "step_low", "step_high", "saved_pct")
    return pd.DataFrame(found, columns=list(names))


def _steps_to(curve: pd.DataFrame, baseline: pd.DataFrame) -> float:
    here, there = (log.dropna(subset=["validation_loss"]) for log in (curve, baseline))
    threshold = float(there["validation_loss"].iloc[-1])
    return first_reached(here["step"].tolist(), here["validation_loss"].tolist(), threshold)


def _differences(by_control: pd.DataFrame) -> pd.DataFrame:
    found = []
    for control, runs in by_control.groupby("control", sort=False):
        losses = runs.pivot_table(index="seed", columns="model", values="loss", sort=False)
        here = []
        for model, other in combinations(losses.columns, 2):
            values = (losses[model] - losses[other]).dropna().tolist()
            mean = mean_interval(values)
            row = {"control": control, "model": model, "other": other, "seeds": len(values)}
            here.append({**row, "difference": mean.mean, "low": mean.low, "high": mean.high, "p": mean.p})
        corrected = holm([row["p"] for row in here])
        found += [{**row, "p_holm": p} for row, p in zip(here, corrected, strict=True)]
    names = ("control", "model", "other", "seeds", "difference", "low", "high", "p", "p_holm")
    return pd.DataFrame(found, columns=list(names))


def _pair(row: dict[str, Any]) -> str:
    return f"{row['model']} − {row['other']} {row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
