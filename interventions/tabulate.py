"""From a sweep's scores to the table of an ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control

from .plan import LOOKS, LayerScores, Plan
from .statistics import FLIPS, effects

LEVEL = 0.05
MEANING = {
    "layer": "which layer",
    "head": "which head, or key/value group where the path has one a group; -1: all of them together",
    "n": "samples that were measured",
    "effect": "score with the edit minus without it, mean over samples (nats); below zero: the edit hurts",
    "low": "lower end of the effect's 95 % interval",
    "high": "upper end of the effect's 95 % interval",
    "p": "chance of an effect as large if the edit did nothing",
    "q": "p after Benjamini and Hochberg's correction over all cells",
    "status": "ok, or what is to be known about the cell",
    "accuracy": "share of right answers with the edit",
    "accuracy_change": "that share minus the one without the edit",
    "accuracy_low": "lower end of its 95 % interval, which knows its bounds where all samples are alike",
    "accuracy_high": "upper end of it",
    "random_effect": "the effect of a random direction of the same norm (nats)",
    "random_low": "lower end of its 95 % interval",
    "random_high": "upper end of it",
    "beyond_random": "score with the edit minus with the random direction (nats)",
    "beyond_low": "lower end of its 95 % interval",
    "beyond_high": "upper end of it",
    "beyond_q": "chance of a difference as large from the random direction, corrected like q",
    "shared_effect": "the effect of the same edit on the shared path, one value a layer (nats)",
    "shared_low": "lower end of its 95 % interval",
    "shared_high": "upper end of it",
    "moved": "how far the edit moves a row, in norms of the row",
    "significant": "q and beyond_q are below 0.05, and the edit does more than its control in the same direction",
}
"""Column of an ablation's table -> what it holds. Means are over the task's units."""
COLUMNS = tuple(MEANING)


def effect_table(found: Sequence[LayerScores], units: Sequence[Any], plan: Plan) -> pd.DataFrame:
    """Return a row a cell; see `COLUMNS`. Samples of one unit are averaged before anything is tested.

    Parameters
    ----------
    found
        Scores of each layer.
    units
        Of each sample, what it is a sample of.
    plan
        Whose seed is the statistics', and whether there were several looks.
    """

    def differences(of: str, other: str) -> pd.DataFrame:
        parts = [getattr(layer, of) - getattr(layer, other) for layer in found]
        return _effects(np.concatenate(parts), units, plan)

    table = pd.DataFrame([(layer.layer, head) for layer in found for head in layer.cells], columns=["layer", "head"])
    table = pd.concat([table, differences("edit", "clean")], axis=1)
    right = np.concatenate([layer.edit_accuracy for layer in found])
    before = np.concatenate([np.tile(layer.clean_accuracy, (len(layer.cells), 1)) for layer in found])
    change = _effects(right - before, units, plan, bounds=(-1.0, 1.0))
    table["accuracy"] = np.nanmean(right, 1)
    table[["accuracy_change", "accuracy_low", "accuracy_high"]] = change[["effect", "low", "high"]]
    for name, control in (("random", differences("random", "clean")), ("beyond", differences("edit", "random"))):
        table[[f"{name}_effect", f"{name}_low", f"{name}_high"]] = control[["effect", "low", "high"]]
        table[f"{name}_q"] = control["q"]
    table = table.rename(columns={"beyond_effect": "beyond_random"})
    table[["shared_effect", "shared_low", "shared_high"]] = np.nan
    beside = {layer.layer: layer.shared - layer.clean for layer in found if layer.shared is not None}
    if beside:
        values = _effects(np.stack(list(beside.values())), units, plan)
        for name in ("effect", "low", "high"):
            of_layer = dict(zip(beside, values[name], strict=True))
            table[f"shared_{name}"] = [of_layer.get(layer, np.nan) for layer in table["layer"]]
    table["moved"] = np.concatenate([layer.moved for layer in found])
    # The control has to do less on the same side: an edit that hurts less than a random direction is not special.
    same_side = np.sign(table["effect"]) == np.sign(table["beyond_random"])
    table["significant"] = (table["q"] < LEVEL) & (table["beyond_q"] < LEVEL) & same_side
    return pd.DataFrame(table[list(COLUMNS)])


def _effects(
    differences: np.ndarray, units: Sequence[Any], plan: Plan, bounds: tuple[float, float] | None = None
) -> pd.DataFrame:
    """Return `effects` of cells ``[cell, sample]``, over units; cells that a sweep left early have NaN for the rest.

    Where a sweep may stop at several looks, p is multiplied by their number and the interval's error divided by it
    (Bonferroni), so that both hold whenever it stopped.
    """
    looks = LOOKS if plan.stop_early else 1
    names = list(dict.fromkeys(units))
    if len(names) < len(units):
        chosen = [[i for i, unit in enumerate(units) if unit == name] for name in names]
        differences = np.stack([differences[:, places].mean(1) for places in chosen], axis=1)
    seen = ~np.isnan(differences)
    parts = []
    for pattern in np.unique(seen, axis=0):
        cells = np.flatnonzero((seen == pattern).all(1))
        confidence = 1 - (1 - 0.95) / looks
        options = {"seed": plan.seed, "flips": FLIPS, "confidence": confidence, "bounds": bounds}
        parts.append(effects(differences[np.ix_(cells, pattern)].T, **options).set_index(cells))
    table = pd.concat(parts).sort_index()
    p = np.minimum(looks * np.asarray(table["p"], dtype=float), 1.0)
    q, known = np.full(len(p), np.nan), ~np.isnan(p)
    if known.any():
        q[known] = false_discovery_control(p[known])
    return table.assign(p=p, q=q)


def sample_table(found: Sequence[LayerScores]) -> pd.DataFrame:
    """Return a row a cell and sample: score without the edit, with it, and with its control."""
    parts = []
    for layer in found:
        for cell, head in enumerate(layer.cells):
            values = {"clean": layer.clean, "edited": layer.edit[cell], "random": layer.random[cell]}
            rows = {"layer": layer.layer, "head": head, "sample": range(len(layer.clean)), **values}
            parts.append(pd.DataFrame(rows))
    return pd.concat(parts, ignore_index=True)
