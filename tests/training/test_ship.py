"""A finished run becomes a checkpoint that stands by itself."""

from __future__ import annotations

import json
import shutil

import headscope as hs
import pytest
import torch
from headscope.checkpoints.runs import open_run
from headscope.training import Recipe, TrainingError, build, compare, saved_steps, ship, train


@pytest.fixture(scope="module")
def run(little, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "run"
    train(build("lrkv", "tiny"), little, root, Recipe(steps=2, batch_size=2, save_every=1))
    return root


def test_what_is_shipped_opens_reports_and_compares(run, tmp_path):
    place = ship(run, tmp_path / "model", "headscope train lrkv --size tiny")
    model, last = hs.load(place), hs.load(saved_steps(run)[2])
    assert model.config == last.config == build("lrkv", "tiny")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), last.parameters(), strict=True))
    assert model.to_tokens("def f(").tolist() == last.to_tokens("def f(").tolist()
    here, there = (hs.report(path, null=2, circuit="qk").table for path in (place, saved_steps(run)[2]))
    assert here.equals(there)
    row = compare([place], null=0).runs.iloc[0]
    assert row["model"] == "lrkv"
    assert row["loss"] == open_run(run).result["test"]["loss"]
    assert row["parameters"] == sum(p.numel() for p in model.parameters())


def test_its_record_is_the_runs(run, tmp_path):
    place = ship(run, tmp_path / "model", "how it was made")
    record = json.loads((place / "config.json").read_text())["record"]
    found = open_run(run)
    assert record["command"] == "how it was made"
    assert record["result"] == found.result
    assert record["corpus"] == found.record["corpus"]
    assert "model" not in record


def test_what_cannot_be_shipped_is_said(run, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(hs.CheckpointError, match="taken"):
        ship(run, tmp_path / "taken", "")
    kept = tmp_path / "kept"
    shutil.copytree(run, kept, ignore=shutil.ignore_patterns("steps"))
    with pytest.raises(TrainingError, match="its weights are not there"):
        ship(kept, tmp_path / "out", "")
    (kept / "result.json").unlink()
    with pytest.raises(TrainingError, match="not finished"):
        ship(kept, tmp_path / "out", "")
    assert not (tmp_path / "out").exists()
