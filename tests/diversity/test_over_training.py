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
from headscope.checkpoints import Checkpoint
from headscope.cli import app
from headscope.diversity import settings as measuring
from headscope.diversity.trajectory import _half_way, _left_for_good
from typer.testing import CliRunner

CONFIG = hs.ModelConfig(
    d_model=24, n_layers=2, d_vocab=20, n_ctx=8, attention=hs.LRKVConfig(n_heads=4, d_head=6, rank=2)
)

# Validated every 4 steps, saved every 10, with induction: most of what is logged is logged between saved steps.
LOG = """step,tokens,seconds,train_loss,validation_loss,induction
3,1,1,4.2,,
4,1,1,4.1,4.0,
8,2,2,3.8,3.7,
10,2,2,3.5,,0.1
12,3,2,3.5,3.5,
16,3,3,3.3,3.3,
20,4,3,3.0,3.1,0.5
"""


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
    (root / "log.csv").write_text(LOG)
    return root


def test_every_step_is_its_own_report(run):
    found = hs.over_training(run, null=3, offsets="0:3")
    assert list(dict.fromkeys(found.table["step"])) == [0, 10, 20]
    for step in (0, 10, 20):
        alone = hs.report(run / "steps" / f"step-{step:06d}", null=3, offsets="0:3").table
        here = found.table[found.table["step"] == step].drop(columns="step").reset_index(drop=True)
        pd.testing.assert_frame_equal(here, alone)
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
        "over-training-log.csv",
        "over-training-log.parquet",
    }
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "over-training-log.parquet"), found.log)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "over-training.parquet"), found.table)
    assert set(found.table["layer"]) == {1}
    titles = [ax.get_title() for ax in found.plot().axes]
    assert titles[0] == "QK"


def test_the_whole_log_is_drawn_and_the_table_has_saved_steps_alone(run):
    found = hs.over_training(run, null=0, circuit="qk")
    assert list(found.log["step"]) == [4, 8, 10, 12, 16, 20]  # at step 3 neither was logged
    _, left, right = found.plot().axes
    (loss,), (induction,) = left.lines, right.lines
    assert loss.get_xydata().tolist() == [[4, 4.0], [8, 3.7], [12, 3.5], [16, 3.3], [20, 3.1]]
    assert induction.get_xydata().tolist() == [[10, 0.1], [20, 0.5]]
    ((table,), _) = found.terminal()
    step, loss, induction = (list(column.cells) for column in table.columns[:3])
    assert (step, loss, induction) == (["0", "10", "20"], ["–", "–", "3.100"], ["–", "0.10", "0.50"])


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        # Half of the change from 0.2 to 0.8 is at 0.5; half of the last value, 0.4, would be a step earlier.
        (
            {10: 0.2, 12: 0.45, 16: 0.55, 20: 0.8},
            "from 0.20 (step 10) to 0.80 (step 20); half of that change is done by",
        ),
        ({0: 0.2, 12: 0.45, 16: 0.55, 20: 0.8}, "from 0.20 (step 0) to 0.80 (step 20); half of that change is done by"),
        ({0: 0.8, 12: 0.6, 16: 0.4, 20: 0.2}, "from 0.80 (step 0) to 0.20 (step 20); half of that change is done by"),
    ],
    ids=["from the first saved step", "from the start", "falling"],
)
def test_the_induction_sentence_says_what_is_halved_and_from_where(run, tmp_path, scores, sentence):
    there = tmp_path / "run"
    shutil.copytree(run, there)
    lines = [f"{step},1,1,3.0,3.0,{score}" for step, score in scores.items()]
    (there / "log.csv").write_text("\n".join([LOG.splitlines()[0], *lines]) + "\n")
    reading = hs.over_training(there, null=0, circuit="qk").reading().splitlines()
    assert reading[-1] == f"Induction, best head: {sentence} step 16."
    assert "half of the change in effective rank since step 0 is done by step" in reading[0]


def test_without_a_change_in_induction_nothing_is_said_of_it(run, tmp_path):
    there = tmp_path / "run"
    shutil.copytree(run, there)
    for lines in (["20,1,1,3.0,3.0,0.5"], ["10,1,1,3.0,3.0,0.5", "20,1,1,3.0,3.0,0.5"], []):
        (there / "log.csv").write_text("\n".join([LOG.splitlines()[0], *lines]) + "\n")
        found = hs.over_training(there, null=0, circuit="qk", layers="0")
        assert "Induction" not in found.reading()
        assert set(found.files()) >= ({"over-training-log.csv"} if lines else set())
        assert ("over-training-log" in found.to_dict()) == bool(lines)


class Killed(Exception):
    """Stands for a kill."""


def killed_at(wanted: str):
    def progress(done: int, total: int, what: str) -> None:
        if what == wanted:
            raise Killed

    return progress


def test_a_killed_report_of_a_run_goes_on_and_measures_nothing_twice(run, tmp_path, monkeypatch):
    there, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(run, there)
    whole = hs.over_training(there, null=2, circuit="qk")
    read, drawn = Checkpoint.factors, measuring.random_factors
    measured: list[tuple[str, int]] = []
    seeds: list[int] = []

    def factors(checkpoint, layer, **options):
        measured.append((checkpoint.path.name, layer))
        return read(checkpoint, layer, **options)

    def random_factors(config, seed, **options):
        seeds.append(seed)
        return drawn(config, seed, **options)

    monkeypatch.setattr(Checkpoint, "factors", factors)
    monkeypatch.setattr(measuring, "random_factors", random_factors)
    with pytest.raises(Killed):
        hs.over_training(there, null=2, circuit="qk", out=out, progress=killed_at("step 10, layer 0"))
    assert measured == [("step-000000", 0), ("step-000000", 1), ("step-000010", 0)]
    with pytest.raises(hs.HeadscopeError, match=r"unfinished report over training whose null is 2, not 3"):
        hs.over_training(there, null=3, circuit="qk", out=out)
    with pytest.raises(hs.HeadscopeError, match=r"whose kind is effective rank over training, not effective-rank"):
        hs.report(there / "steps" / "step-000010", null=2, circuit="qk", out=out)
    resumed = hs.over_training(there, null=2, circuit="qk", out=out)
    assert measured[3:] == [("step-000010", 1), ("step-000020", 0), ("step-000020", 1)]
    assert seeds == [0, 1]
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)
    assert resumed.record == whole.record
    assert not (out / "unfinished").exists()


def test_a_step_saved_anew_or_since_the_kill_is_measured(run, tmp_path):
    there, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(run, there)
    with pytest.raises(Killed):
        hs.over_training(there, null=0, out=out, progress=killed_at("step 20, layer 1"))
    shutil.rmtree(there / "steps" / "step-000010")
    hs.save(model(7), there / "steps" / "step-000010")
    hs.save(model(8), there / "steps" / "step-000030")
    resumed = hs.over_training(there, null=0, out=out)
    pd.testing.assert_frame_equal(resumed.table, hs.over_training(there, null=0).table, check_exact=True)
    assert [row["step"] for row in resumed.record["checkpoints"]] == resumed.record["steps"] == [0, 10, 20, 30]
    hashes = [row["sha256"] for row in resumed.record["checkpoints"]]
    assert hashes == [hs.open_checkpoint(there / "steps" / f"step-{s:06d}").store.sha256() for s in (0, 10, 20, 30)]


def test_progress_counts_draws_and_layers_of_steps(run):
    steps = []
    hs.over_training(run, null=1, layers="1", progress=lambda *told: steps.append(told))
    texts = ["null 0", "step 0, layer 1", "step 10, layer 1", "step 20, layer 1"]
    assert steps == [(i + 1, 4, text) for i, text in enumerate(texts)]


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
