"""A trajectory is the reports of its saved steps, one after another; and its reading on made-up ranks."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import headscope as hs
import numpy as np
import pandas as pd
import pytest
import torch
from headscope.cli import app
from headscope.diversity.over_training import _half_way, _left_for_good
from typer.testing import CliRunner

CONFIG = hs.ModelConfig(
    d_model=24, n_layers=2, d_vocab=20, n_ctx=8, attention=hs.LRKVConfig(n_heads=4, d_head=6, rank=2)
)


def model(seed: int, config: hs.ModelConfig = CONFIG) -> hs.HookedModel:
    torch.manual_seed(seed)
    return hs.HookedModel(config)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run's directory as the trainer leaves it, with three steps that are three random models."""
    root = tmp_path_factory.mktemp("runs") / "run"
    for step in (0, 10, 20):
        hs.save(model(step), root / "steps" / f"step-{step:06d}")
    (root / "run.json").write_text(json.dumps({"preset": "lrkv"}))
    (root / "log.csv").write_text(
        "step,tokens,seconds,train_loss,validation_loss,induction\n5,1,1,4.0,,\n10,2,2,3.5,3.6,0.1\n20,4,3,3.0,3.1,0.5\n"
    )
    return root


def test_every_step_is_its_own_report(run):
    found = hs.over_training(run, null=3, offsets="0:3")
    assert list(dict.fromkeys(found.table["step"])) == [0, 10, 20]
    for step in (0, 10, 20):
        alone = hs.report(run / "steps" / f"step-{step:06d}", null=3, offsets="0:3").table
        here = found.table[found.table["step"] == step].drop(columns="step").reset_index(drop=True)
        pd.testing.assert_frame_equal(here, alone)
    assert list(found.log["induction"]) == [0.1, 0.5]
    mean = found.means().set_index(["step", "circuit"]).loc[(20, "qk"), "erank_pct_heads"]
    rows = found.table[(found.table["step"] == 20) & (found.table["circuit"] == "qk")]
    assert mean == pytest.approx(rows["erank_pct_heads"].mean())
    assert found.record["training"] == {"preset": "lrkv"}
    assert found.record["finished"] is False


def test_files_and_figure_come_from_the_same_result(run, tmp_path):
    found = hs.over_training(run, null=2, circuit="qk", layers="1", out=tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "over-training.json",
        "over-training.csv",
        "over-training.parquet",
        "over-training.png",
    }
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "over-training.parquet"), found.table)
    assert set(found.table["layer"]) == {1}
    titles = [ax.get_title() for ax in found.plot().axes]
    assert titles[0] == "QK"


def test_the_command_follows_a_run_and_reports_a_step(run):
    result = CliRunner().invoke(app, ["report", str(run), "--null", "3"])
    assert result.exit_code == 0, result.output
    assert "Effective rank over training" in result.output
    assert "3 saved steps, not finished" in result.output
    assert max(map(len, result.output.splitlines())) <= 100
    alone = CliRunner().invoke(app, ["report", str(run / "steps" / "step-000010"), "--null", "1", "--json"])
    assert json.loads(alone.stdout)["record"]["kind"] == "effective-rank report"


def test_another_trainers_checkpoints_are_followed_without_a_log(run, tmp_path):
    for step, name in ((10, "checkpoint-10"), (9, "checkpoint-9")):
        shutil.copytree(run / "steps" / f"step-{(10 if step == 10 else 20):06d}", tmp_path / name)
    found = hs.over_training(tmp_path, null=0)
    assert list(dict.fromkeys(found.table["step"])) == [9, 10]
    assert found.log.empty
    assert "without a null" in found.reading()
    found.plot()


def test_bad_runs_are_named(run, tmp_path):
    with pytest.raises(hs.CheckpointError, match="does not exist"):
        hs.over_training(tmp_path / "nowhere")
    with pytest.raises(hs.CheckpointError, match="holds no saved step"):
        hs.over_training(tmp_path)
    with pytest.raises(hs.CheckpointError, match="is a training run: name a saved step"):
        hs.report(run)
    mixed = tmp_path / "mixed"
    shutil.copytree(run, mixed)
    wider = CONFIG.with_(attention=hs.GroupedConfig(n_heads=4, d_head=6))
    hs.save(model(0, wider), mixed / "steps" / "step-000030")
    with pytest.raises(hs.CheckpointError, match="step-000030 is of another architecture"):
        hs.over_training(mixed)
    (mixed / "run.json").write_text("{")
    with pytest.raises(hs.CheckpointError, match=r"run\.json"):
        hs.over_training(mixed)


def test_half_of_the_change_is_behind_for_good():
    table = pd.DataFrame({"step": [0, 1, 2, 3, 4], "x": [0.0, 6.0, 4.0, 7.0, 10.0]})
    assert _half_way(table, "x") == 3  # at step 1 too, but not at step 2
    assert _half_way(table.assign(x=1.0), "x") is None
    assert _half_way(table.assign(x=[math.nan, 8.0, 4.0, math.nan, 2.0]), "x") == 2
    assert _half_way(table.iloc[:0], "x") is None


def test_a_layer_leaves_the_null_for_good_on_one_side():
    draws = 8 - 0.01 * np.exp(0.2 * np.random.default_rng(0).standard_normal(20))
    inside = float(draws.mean())
    paths = {
        0: [inside, 7.0, 6.0, 5.0],
        1: [7.9999, 7.0, inside, 6.0],
        2: [7.0, 7.0, 7.0, inside],
        3: [7.99999, 6, 6, 6],
    }
    rows = [
        {"layer": layer, "step": step, "erank": float(value), "n_heads": 8}
        for step in range(4)
        for layer, value in ((layer, path[step]) for layer, path in paths.items())
    ]
    assert _left_for_good(pd.DataFrame(rows), draws) == {0: 1, 1: 3, 3: 1}
