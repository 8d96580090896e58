"""A run end to end, killed and resumed to the same bits, and never overwritten."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import headscope as hs
import pytest
import torch
from headscope.cli import app
from headscope.training import PRESETS, Recipe, TrainingError, build, from_path, saved_steps, train
from headscope.training.optimiser import Optimisers, rate
from headscope.training.tokens import batch
from safetensors.torch import load_file
from typer.testing import CliRunner

RECIPE = Recipe(steps=48, batch_size=4, save_every=7, validate_every=16, seed=3)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(saved_steps(run)[RECIPE.steps] / "model.safetensors")


def losses(run: Path) -> list[tuple[str, ...]]:
    with (run / "log.csv").open(newline="") as handle:
        return [(row["step"], row["train_loss"], row["validation_loss"]) for row in csv.DictReader(handle)]


@pytest.fixture(scope="module")
def run(text, tmp_path_factory) -> Path:
    """An undisturbed run of the tiny LRKV model."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    train(build("lrkv", "tiny"), from_path(text), directory, RECIPE, preset="lrkv")
    return directory


def test_a_tiny_preset_learns_end_to_end(run, text):
    result = json.loads((run / "result.json").read_text())
    log = losses(run)
    assert len(log) == RECIPE.steps
    assert float(log[-1][2]) < float(log[15][2]) < 5.7
    assert result["test"]["bits_per_byte"] < 5
    assert set(result["baselines"]) == {"bigram", "gzip", "xz"}
    assert result["tokens"] == RECIPE.steps * RECIPE.batch_size * 32
    assert list(saved_steps(run)) == [0, 7, 14, 21, 28, 35, 42, 48]
    record = json.loads((run / "run.json").read_text())
    assert record["corpus"]["sha256"] == from_path(text).sha256
    assert record["recipe"]["seed"] == 3
    assert not list(run.glob("*resume*"))


def test_a_saved_step_is_a_checkpoint_like_any_other(run):
    model = hs.load(saved_steps(run)[48])
    assert model.config == build("lrkv", "tiny")
    assert isinstance(model.to_string(model("def f(", return_type="logits")[0, -1].argmax()), str)
    assert hs.report(saved_steps(run)[48], null=1).record["config"]["attention"]["rank"] == 2


def command(text: Path, directory: Path, *extra: str) -> list[str]:
    recipe = ["--steps", "48", "--batch-size", "4", "--save-every", "7", "--seed", "3"]
    where = ["--size", "tiny", "--text", str(text), "--out", str(directory)]
    return [sys.executable, "-m", "headscope", "train", "lrkv", *where, *recipe, *extra]


def test_killed_at_any_moment_it_resumes_to_the_same_bits(text, tmp_path):
    """Killed while it saves and while it steps, the run ends with the weights and losses of an undisturbed one."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(text, whole), check=True, capture_output=True)
    deaths, wait = 0, 0.0
    for _ in range(40):
        extra = ["--resume"] if (killed / "run.json").exists() else []
        process = subprocess.Popen(command(text, killed, *extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Let it come a little further each time, then kill it wherever it is.
        before = len(saved_steps(killed))
        while process.poll() is None and len(saved_steps(killed)) < before + 2:
            time.sleep(0.002)
        time.sleep(wait)
        wait += 0.004
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            deaths += 1
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err.decode()
        if (killed / "result.json").exists():
            break
    assert deaths >= 2
    expected, found = weights(whole), weights(killed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(killed) == losses(whole)


def test_an_existing_directory_is_never_overwritten(run, text, tmp_path):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    corpus = from_path(text)
    with pytest.raises(TrainingError, match="exists already"):
        train(build("lrkv", "tiny"), corpus, run, RECIPE)
    with pytest.raises(TrainingError, match="finished run"):
        train(build("lrkv", "tiny"), corpus, run, RECIPE, preset="lrkv", resume=True)
    with pytest.raises(TrainingError, match="no run to resume"):
        train(build("lrkv", "tiny"), corpus, tmp_path / "new", RECIPE, resume=True)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_seeds_differ_and_variants_see_the_same_batches(little, tmp_path, monkeypatch):
    seen: dict[str, list[torch.Tensor]] = {}

    def recorded(*arguments, **named):
        windows = batch(*arguments, **named)
        seen.setdefault(place.name, []).append(windows)
        return windows

    monkeypatch.setattr("headscope.training.run.batch", recorded)
    monkeypatch.setattr("headscope.training.run.evaluate", lambda model, corpus, seed: {})
    corpus, short = little, {"steps": 2, "batch_size": 2, "save_every": 2}
    runs = [(preset, preset, 0) for preset in PRESETS] + [("again", "mha", 0), ("other", "mha", 1)]
    for name, preset, seed in runs:
        place = tmp_path / name
        train(build(preset, "tiny"), corpus, place, Recipe(seed=seed, **short))
    first = torch.stack(seen["mha"])
    assert first.shape == (2, 2, 32)
    assert not torch.equal(first[0], first[1])
    assert all(torch.equal(torch.stack(seen[preset]), first) for preset in PRESETS)
    assert not torch.equal(torch.stack(seen["other"]), first)
    a, b, c = (load_file(saved_steps(tmp_path / n)[2] / "model.safetensors") for n in ("mha", "again", "other"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["embed.weight"], c["embed.weight"])


def test_optimisers_take_each_parameter_once_and_their_state_makes_the_trip():
    torch.manual_seed(0)
    model, twin = hs.HookedModel(build("lrkv", "tiny")), hs.HookedModel(build("lrkv", "tiny"))
    twin.load_state_dict(model.state_dict())
    first, second = Optimisers(model, 0.02, 0.004, 0.01), Optimisers(twin, 0.02, 0.004, 0.01)
    tokens = torch.randint(300, (2, 32))
    for step in range(4):
        if step == 2:
            twin.load_state_dict(model.state_dict())
            second.load({name: tensor.clone() for name, tensor in first.state().items()})
        for net, optimisers in ((model, first), (twin, second)):
            if net is model or step >= 2:
                net(tokens, return_type="loss").backward()
                optimisers.step(0.5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    kinds = {name.split("//")[0]: name.split("//")[1] for name in first.state()}
    assert set(kinds) == {name for name, _ in model.named_parameters()}
    assert kinds["blocks.0.attn.q.weight"] == "momentum_buffer"
    assert kinds["blocks.0.attn.k.B"] != "momentum_buffer"


def test_the_rate_rises_stays_and_falls_to_zero():
    assert rate(0.025) == pytest.approx(0.5)
    assert rate(0.3) == 1.0
    assert rate(0.75) == pytest.approx(0.5)
    assert rate(1.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("field", ["steps", "batch_size", "save_every", "validate_every", "threads"])
def test_impossible_recipes_are_refused(field):
    with pytest.raises(ValueError, match=f"{field} should be > 0"):
        Recipe(**{field: 0})


def test_the_command_says_what_is_wrong(text, tmp_path):
    environment = {**os.environ, "COLUMNS": "200"}
    for arguments, words in (
        (["gpt"], "preset should be one of"),
        (["gqa", "--rank", "3"], "belong to lrkv"),
        (["mha", "--text", str(tmp_path / "nothing")], "does not exist"),
    ):
        line = [sys.executable, "-m", "headscope", "train", *arguments, "--out", str(tmp_path / "out")]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_ends_with_what_came_out(text, tmp_path):
    (folder := tmp_path / "text").mkdir()
    for file in text.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "table.csv").write_text("1,2\n")
    arguments = ["train", "lrkv", "--size", "tiny", "--cache-ratio", "0.9", "--same-parameters", "--text", str(folder)]
    ending = ["--steps", "2", "--batch-size", "2", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*arguments, *ending])
    assert done.exit_code == 0, done.output
    lines, result = done.stdout.splitlines(), json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(lines) == 4
    assert f"{result['test']['loss']:.4f} nats a token" in lines[0]
    assert f"bigram {result['baselines']['bigram']:.3f}" in lines[0]
    assert f"the second time {result['induction']['second_loss']:.3f}" in lines[1]
    assert lines[2].endswith("of the processor")
    assert lines[3] == str(saved_steps(tmp_path / "run")[2])
    assert done.stderr.startswith(f"note: {folder}: passed over are 1 files or folders (another suffix: 1)")
    assert done.stderr.count("\n") == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["preset"] == "lrkv-r5"
    assert record["corpus"]["skipped"] == {"another suffix": 1}
