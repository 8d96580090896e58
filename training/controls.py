"""What is held equal between runs: trained alike, which of them are one model, and in which controls each stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..checkpoints.runs import TrainingRun
from ..models.config import ModelConfig
from ..models.variant import AttentionConfig
from .alike import first_difference
from .directory import TrainingError

SAME_PARAMETERS = 0.01
"""Models whose numbers of parameters differ by no more than this share count as equally large."""
CONTROLS = ("backbone", "parameters")
RULES = {
    "backbone": "models whose MLP is as wide as the baseline's",
    "parameters": f"models within {100 * SAME_PARAMETERS:g} % of the baseline's parameters; of several of one name the "
    "nearest",
}
"""Control -> which models stand in it."""


def check_alike(runs: Sequence[TrainingRun]) -> None:
    """Refuse runs that were not trained like the first, but for attention, the MLP's width and the seed.

    Raises
    ------
    TrainingError
        If recipe, corpus or backbone differ; names both runs and what differs.
    """
    first = runs[0]
    for run in runs[1:]:
        different = _different(run.record, first.record)
        if different:
            raise TrainingError(f"{run.path} and {first.path} were not trained alike: {different}")


def _different(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Return what makes two runs incomparable, in words; nothing if they were trained alike."""
    corpora = here["corpus"], there["corpus"]
    if corpora[0]["sha256"] != corpora[1]["sha256"]:
        return "corpus is " + " and ".join(f"{it['source']} (sha256 {it['sha256'][:12]}…)" for it in corpora)
    for what, mine, others in (
        ("recipe", *(_without(record["recipe"], "seed") for record in (here, there))),
        ("the corpus' split", *(corpus["bytes"] for corpus in corpora)),
        ("backbone", *(_backbone(record["model"]) for record in (here, there))),
    ):
        if found := first_difference(mine, others):
            return f"{what} {found}"
    return ""


def _without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


def _backbone(model: dict[str, Any]) -> dict[str, Any]:
    """Return all but attention and the MLP's width, with what the record of an older run leaves out."""
    known = ModelConfig.from_dict(model).to_dict()
    return {**_without(known, "attention"), "mlp": _without(known["mlp"], "d_mlp")}


def model_names(runs: Sequence[TrainingRun]) -> list[str]:
    """Return each run's model: the name that the first run of the same attention was given.

    Raises
    ------
    TrainingError
        If runs of one name have different attention; names both and what differs.
    """
    names: dict[AttentionConfig, str] = {}
    owner: dict[str, tuple[AttentionConfig, TrainingRun]] = {}
    found = []
    for run in runs:
        config = ModelConfig.from_dict(run.record["model"])
        name = names.setdefault(config.attention, run.record["preset"])
        attention, other = owner.setdefault(name, (config.attention, run))
        if attention != config.attention:
            there = ModelConfig.from_dict(other.record["model"]).to_dict()["attention"]
            raise TrainingError(
                f"{run.path} and {other.path} are both called {name!r} but are not one model: attention "
                f"{first_difference(config.to_dict()['attention'], there)}"
            )
        found.append(name)
    return found


def assign_controls(table: pd.DataFrame) -> pd.DataFrame:
    """Say of each run in which controls it stands, in columns ``in_backbone`` and ``in_parameters``.

    Raises
    ------
    TrainingError
        If a run stands in neither, or is given twice; names it and why.
    """
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


def by_control(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per control and run: a run that stands in both controls twice.

    A control in which one model stands alone compares nothing, and is left out but for the backbone's.
    """
    parts = {control: table[table[f"in_{control}"]].assign(control=control) for control in CONTROLS}
    if len(set(parts["parameters"]["model"])) < 2:
        del parts["parameters"]
    return pd.concat(parts.values(), ignore_index=True)
