"""A comparison's tables out of its runs' rows: means over seeds, steps to another's loss, paired differences."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, cast

import pandas as pd

from .columns import MEASURED, TESTED_AS
from .seeds import detectable, first_reached, holm, mean_interval

SIZES = ("parameters", "kv_parameters", "cache_bytes", "cache_bytes_physical")
"""What a model has whatever its seed; cache in bytes a token over all layers."""
NULLS = ("qk_null_pct_heads", "qk_null_centred_pct_cap", "ov_null_pct_heads", "ov_null_centred_pct_cap")
OF_THE_REPORT = ("n_layers", "qk_part", "ov_part")
"""What effective rank is the mean over."""
TESTED = ("loss", *TESTED_AS)
"""What is tested for differences between models, each a family of tests of its own."""


def model_table(by_control: pd.DataFrame) -> pd.DataFrame:
    """Return a row a control and model: sizes, nulls, and mean and interval over seeds of what runs measured."""
    found = []
    for key, runs in by_control.groupby(["control", "model"], sort=False):
        control, model = cast(tuple[str, str], key)
        first = runs.iloc[0]
        row: dict[str, Any] = {"control": control, "model": model, "seeds": len(runs)}
        row |= {name: int(first[name]) for name in SIZES}
        for name in MEASURED:
            mean = mean_interval(runs[name].tolist())
            row |= {f"{name}_mean": mean.mean, f"{name}_low": mean.low, f"{name}_high": mean.high}
        row |= {name: float(first[name]) for name in NULLS}
        row |= {name: first[name] for name in OF_THE_REPORT}
        found.append(row)
    return pd.DataFrame(found)


def reach_table(by_control: pd.DataFrame, curves: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row a control, model and baseline: when the model has come as far as the baseline comes at all.

    Parameters
    ----------
    by_control
        A row a control and run.
    curves
        Path of a run -> its log; empty where a run has none, which then counts for nothing.
    """
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
                row = {"control": control, "model": model, "baseline": baseline, "seeds": len(seeds)}
                row["reached"] = sum(not math.isnan(step) for step in steps)
                row |= {"step_mean": mean.mean, "step_low": mean.low, "step_high": mean.high}
                # The later the step, the less is saved: the ends change places.
                ends = {"mean": mean.mean, "low": mean.high, "high": mean.low}
                whole = int(runs["steps"].iloc[0])
                row |= {f"saved_pct_{end}": 100 * (1 - step / whole) for end, step in ends.items()}
                found.append(row)
    ends = [f"{what}_{end}" for what in ("step", "saved_pct") for end in ("mean", "low", "high")]
    return pd.DataFrame(found, columns=["control", "model", "baseline", "seeds", "reached", *ends])


def _steps_to(curve: pd.DataFrame, baseline: pd.DataFrame) -> float:
    here, there = (log.dropna(subset=["validation_loss"]) for log in (curve, baseline))
    threshold = float(there["validation_loss"].iloc[-1])
    return first_reached(here["step"].tolist(), here["validation_loss"].tolist(), threshold)


def difference_table(by_control: pd.DataFrame) -> pd.DataFrame:
    """Return a row a control, measure and pair of models: the difference paired by seed, and whether it stands.

    Each measure is a family of tests, over both controls together; a pair of the same runs in both is one test.
    """
    found = [row for measure in TESTED for row in _family(by_control, measure)]
    names = ("control", "measure", "model", "other", "seeds", "difference", "low", "high", "p", "p_holm", "detectable")
    table = pd.DataFrame(found, columns=list(names))
    # A control's measures one below the other, as its models stand.
    return table.sort_values("control", key=lambda c: c.map(list(by_control["control"]).index), kind="stable")


def _family(by_control: pd.DataFrame, measure: str) -> list[dict[str, Any]]:
    found: list[tuple[dict[str, Any], list[float], frozenset[str]]] = []
    for control, runs in by_control.groupby("control", sort=False):
        values, paths = (
            runs.pivot_table(index="seed", columns="model", values=name, aggfunc="first", sort=False)
            for name in (measure, "path")
        )
        for model, other in combinations(paths.columns, 2):
            both = paths[[model, other]].dropna()
            pairs = (values[model] - values[other])[both.index].tolist()
            mean = mean_interval(pairs)
            row = {"control": control, "measure": measure, "model": model, "other": other, "seeds": len(pairs)}
            row |= {"difference": mean.mean, "low": mean.low, "high": mean.high, "p": mean.p}
            found.append((row, pairs, frozenset(both.to_numpy().ravel())))
    tests = {runs: row["p"] for row, _, runs in found}
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    count = sum(not math.isnan(p) for p in tests.values())
    return [{**row, "p_holm": corrected[runs], "detectable": detectable(pairs, count)} for row, pairs, runs in found]
