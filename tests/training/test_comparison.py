"""Comparisons against what the runs hold, counted and computed again by other means."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import headscope as hs
import numpy as np
import pandas as pd
import pytest
import torch
from headscope.checkpoints.runs import open_run
from headscope.cli import app
from headscope.models.hooked import n_parameters
from headscope.training import Recipe, TrainingError, build, compare, from_path, matched, saved_steps, train
from headscope.training.columns import MEASURED
from headscope.training.controls import by_control
from headscope.training.kept import keep, last_report
from headscope.training.presets import BACKBONES, PRESETS
from headscope.training.tabulate import difference_table
from scipy import stats
from typer.testing import CliRunner

STEPS, SEEDS = 24, (0, 1, 2)


def made(root: Path, text: Path, preset: str, seed: int, *, same: bool = False, **changed: int) -> Path:
    recipe = Recipe(**{"steps": STEPS, "batch_size": 4, "save_every": 12, "validate_every": 4, "seed": seed, **changed})
    config = matched(preset, "tiny") if same else build(preset, "tiny")
    place = root / f"{preset}-{'same-' if same else ''}{seed}"
    train(config, from_path(text), place, recipe, preset=preset)
    return place


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory) -> dict[str, Path]:
    """Three seeds of three variants, and MQA once more as large as MHA."""
    root = tmp_path_factory.mktemp("compared")
    wanted = [(preset, seed, False) for preset in ("mha", "mqa", "lrkv") for seed in SEEDS]
    wanted += [("mqa", seed, True) for seed in SEEDS]
    return {p.name: p for p in (made(root, text, preset, seed, same=same) for preset, seed, same in wanted)}


@pytest.fixture(scope="module")
def compared(runs) -> hs.Comparison:
    return compare(list(runs.values()), null=3)


def cell(table: pd.DataFrame, name: str, **where: object):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table[name].iloc[0]


def test_means_and_intervals_are_of_what_each_run_measured(compared, runs):
    results = [json.loads((runs[f"lrkv-{seed}"] / "result.json").read_text()) for seed in SEEDS]
    losses = [result["test"]["loss"] for result in results]
    row = {"control": "backbone", "model": "lrkv"}
    assert cell(compared.table, "loss_mean", **row) == pytest.approx(np.mean(losses))
    low, high = stats.t.interval(0.95, 2, np.mean(losses), stats.sem(losses))
    assert (cell(compared.table, "loss_low", **row), cell(compared.table, "loss_high", **row)) == pytest.approx(
        (low, high)
    )
    assert cell(compared.table, "induction_mean", **row) == pytest.approx(
        np.mean([result["induction"]["best"] for result in results])
    )
    report = hs.report(saved_steps(runs["lrkv-1"])[STEPS], null=3).means().set_index("circuit")
    here = compared.runs[compared.runs["path"] == str(runs["lrkv-1"])].iloc[0]
    assert here["qk_centred_pct_cap"] == pytest.approx(report.loc["qk", "erank_centred_pct_cap"])
    assert here["ov_null_pct_heads"] == pytest.approx(100 * report.loc["ov", "null_mean"] / 4)
    layers = hs.report(saved_steps(runs["lrkv-1"])[STEPS], null=3).table.query("circuit == 'ov'")
    assert here["ov_below_null"] == (layers["erank"] < layers["null_low"]).sum()
    assert {f"{name}_mean" for name in MEASURED} <= set(compared.table.columns)


def test_each_control_holds_the_models_that_are_alike_in_it(compared, runs):
    backbone = compared.table[compared.table["control"] == "backbone"]
    same = compared.table[compared.table["control"] == "parameters"]
    assert list(backbone["model"]) == ["mha", "mqa", "lrkv"]
    assert set(same["model"]) == {"mha", "mqa"}
    wanted = cell(same, "parameters", model="mha")
    assert abs(cell(same, "parameters", model="mqa") / wanted - 1) < 0.01
    assert cell(backbone, "parameters", model="mqa") < 0.99 * wanted


def test_differences_are_paired_by_seed(compared, runs):
    loss = {name: json.loads((path / "result.json").read_text())["test"]["loss"] for name, path in runs.items()}
    pairs = [loss[f"mha-{seed}"] - loss[f"mqa-{seed}"] for seed in SEEDS]
    row = {"control": "backbone", "measure": "loss", "model": "mha", "other": "mqa"}
    test = stats.ttest_rel([loss[f"mha-{s}"] for s in SEEDS], [loss[f"mqa-{s}"] for s in SEEDS])
    assert cell(compared.differences, "difference", **row) == pytest.approx(np.mean(pairs))
    assert cell(compared.differences, "p", **row) == pytest.approx(test.pvalue)
    assert cell(compared.differences, "p_holm", **row) >= cell(compared.differences, "p", **row)
    # Three pairs of one backbone, and MHA with the wider MQA: a family of four, each by Holm's own definition.
    tested = compared.differences.query("measure == 'loss'").sort_values("p")
    assert len(tested) == 4
    by_hand = np.maximum.accumulate(np.minimum(1, tested["p"].to_numpy() * np.arange(4, 0, -1)))
    np.testing.assert_allclose(tested["p_holm"], by_hand)
    least = stats.t.ppf(1 - 0.05 / 4 / 2, 2) * stats.sem(pairs)
    assert cell(compared.differences, "detectable", **row) == pytest.approx(least)
    assert "paired by seed, n=3, Holm's correction, 5 %" in compared.reading()


def test_a_pair_of_the_same_runs_in_both_controls_is_one_test(runs):
    """Models as large as each other stand in both; corrected as two tests, one difference would have two verdicts."""
    table = compare([runs[f"{name}-{seed}"] for name in ("mha", "mqa") for seed in SEEDS], null=0).runs
    rows = by_control(table.assign(in_parameters=True))
    found = difference_table(rows).query("measure == 'loss'")
    assert list(found["control"]) == ["backbone", "parameters"]
    assert list(found["p_holm"]) == [found["p"].iloc[0]] * 2


def test_differences_of_other_measures_are_paired_the_same_way(compared):
    heads = compared.runs[compared.runs["in_backbone"]].set_index(["model", "seed"])["ov_centred_pct_cap"]
    row = {"control": "backbone", "measure": "ov_centred_pct_cap", "model": "mha", "other": "lrkv"}
    by_hand = np.mean([heads["mha", seed] - heads["lrkv", seed] for seed in SEEDS])
    assert cell(compared.differences, "difference", **row) == pytest.approx(by_hand)
    assert "Same backbone, apart by the same rule in induction score: " in compared.reading()


def test_steps_to_a_baselines_last_loss_by_hand(compared, runs):
    def curve(name: str) -> list[tuple[int, float]]:
        with (runs[name] / "log.csv").open(newline="") as handle:
            return [
                (int(r["step"]), float(r["validation_loss"])) for r in csv.DictReader(handle) if r["validation_loss"]
            ]

    steps = []
    for seed in SEEDS:
        threshold, here = curve(f"mha-{seed}")[-1][1], curve(f"lrkv-{seed}")
        fine = np.linspace(here[0][0], here[-1][0], 20001)
        below = fine[np.interp(fine, *zip(*here, strict=True)) <= threshold]
        steps.append(below[0] if len(below) else math.nan)
    row = {"control": "backbone", "model": "lrkv", "baseline": "mha"}
    assert cell(compared.reach, "reached", **row) == sum(not math.isnan(s) for s in steps)
    assert not all(map(math.isnan, steps))
    assert cell(compared.reach, "step_mean", **row) == pytest.approx(np.mean(steps), abs=2e-3, nan_ok=True)
    mine = compared.reach[(compared.reach["model"] == "mqa") & (compared.reach["baseline"] == "mqa")]
    assert mine.empty


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_sizes_are_what_modules_and_caches_have(preset):
    """Counted on the model itself: parameters by name, and what a token leaves in the hooks that a cache would keep."""
    config = build(preset, "tiny")
    model = hs.HookedModel(config)
    attention = model.attention(0)
    names = {"mla": ("kv_down.weight", "k_up.weight", "v_up.weight", "k_rot.weight")}.get(preset, ("k.", "v."))
    counted = sum(p.numel() for name, p in attention.named_parameters() if name.startswith(names))
    assert config.attention.kv_parameters(config.d_model) == counted
    kept = {
        "mla": ("hook_latent", "hook_k_rot"),
        "lrkv": ("hook_k_shared", "hook_k_coords", "hook_v_shared", "hook_v_coords"),
    }.get(preset, ("hook_k", "hook_v"))
    _, cache = model.run_with_cache(torch.zeros(1, 1, dtype=torch.long))
    assert config.attention.cache_width() == sum(cache[f"blocks.0.attn.{name}"].numel() for name in kept)
    rank = getattr(config.attention, "rank", None)
    padded = config.attention.cache_width(8)
    assert padded == (2 * (8 + 4 * 8) if rank else config.attention.cache_width())
    assert n_parameters(config) == sum(p.numel() for p in model.parameters())


def test_cache_of_the_reference_models():
    """Two bytes an element, four layers: 8 heads of 16 are 2,048 bytes a token; half, a quarter, an eighth of it."""
    found = {name: 2 * 4 * build(name).attention.cache_width() for name in PRESETS}
    assert found == {"mha": 2048, "gqa": 512, "mqa": 256, "mla": 512, "lrkv": 1024}
    assert BACKBONES["reference"].n_heads * 2 == 16


def test_files_hold_what_is_shown(compared, tmp_path):
    written = {path.name for path in compared.save(tmp_path)}
    assert {"compare.json", "compare.csv", "runs.csv", "reach.parquet", "differences.csv"} <= written
    assert "loss-against-cache.png" in written
    data = json.loads((tmp_path / "compare.json").read_text())
    assert len(data["rows"]) == 5
    assert len(data["runs"]) == 12
    again = pd.read_parquet(tmp_path / "compare.parquet")
    assert list(again["loss_mean"]) == list(compared.table["loss_mean"])


def test_a_single_seed_has_no_interval_and_judges_nothing(runs):
    found = compare([runs["mha-0"], runs["mqa-0"]], null=0)
    assert found.table["loss_low"].isna().all()
    assert "a single seed says nothing about the spread" in found.reading()
    assert set(found.table["control"]) == {"backbone"}
    assert "Same parameters: no two models are equally large (within 1 %)" in found.reading()


def renamed(run: Path, name: str, where: Path) -> Path:
    shutil.copytree(run, where)
    record = json.loads((where / "run.json").read_text())
    (where / "run.json").write_text(json.dumps({**record, "preset": name}))
    return where


def test_a_model_is_its_attention_whatever_it_is_called(runs, tmp_path):
    """One configuration under two names is one model; one name for two configurations is refused."""
    found = compare([runs["lrkv-0"], renamed(runs["lrkv-1"], "lrkv-r4", tmp_path / "again"), runs["mha-0"]], null=0)
    assert found.table.set_index("model")["seeds"].to_dict() == {"lrkv": 2, "mha": 1}
    with pytest.raises(
        TrainingError, match="both called 'mha' but are not one model: attention variant is mqa and mha"
    ):
        compare([runs["mha-0"], renamed(runs["mqa-0"], "mha", tmp_path / "other")], null=0)


def test_every_column_has_a_meaning(compared):
    for table in compared.tables().values():
        assert set(table.columns) <= set(compared.meaning())


def test_versions_that_differ_are_named(runs, tmp_path):
    other = renamed(runs["mha-1"], "mha", tmp_path / "other")
    record = json.loads((other / "run.json").read_text())
    record["versions"]["torch"] = "1.0"
    (other / "run.json").write_text(json.dumps(record))
    found = compare([runs["mha-0"], other], null=0)
    assert f"Trained with different versions: torch 1.0, {torch.__version__}." in "\n".join(found.measured())
    assert not any("different versions" in line for line in compare([runs["mha-0"]], null=0).measured())


def test_models_that_ship_compare_by_their_record():
    """By name and by directory: what their configuration says they scored, and a report of their own weights."""
    from headscope.checkpoints.reference import ROOT

    found = compare(["mha", ROOT / "lrkv"], null=2)
    for name in ("mha", "lrkv"):
        record = json.loads((ROOT / name / "config.json").read_text())["record"]
        assert cell(found.runs, "loss", model=name) == record["result"]["test"]["loss"]
    means = hs.report("lrkv", null=2).means().set_index("circuit")
    assert cell(found.runs, "qk_erank_pct_heads", model="lrkv") == pytest.approx(means.loc["qk", "erank_pct_heads"])
    assert found.reach["seeds"].eq(0).all()  # they carry no log
    shown = CliRunner().invoke(app, ["compare", "mha", "lrkv", "--null", "2"])
    assert shown.exit_code == 0, shown.output
    assert f"{record['result']['test']['loss']:.4f}" in shown.output


def test_pairs_with_one_seed_in_common_are_not_judged(runs):
    found = compare([runs["mha-0"], runs["mha-1"], runs["mqa-0"], runs["lrkv-0"], runs["lrkv-1"]], null=0)
    assert "n=2, Holm's correction" in found.reading()
    assert "not judged: 2 pairs have fewer than two seeds in common" in found.reading()


def test_the_command_prints_tables_of_a_terminals_width(runs):
    result = CliRunner().invoke(app, ["compare", *map(str, runs.values()), "--null", "2"])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 100
    for words in ("Same backbone: sizes and losses", "Same parameters: effective rank", "bigram", "seeds' spread"):
        assert words in result.output


def test_the_record_of_an_older_run_may_lack_what_configurations_have_gained(runs, tmp_path):
    older = tmp_path / "older"
    shutil.copytree(runs["mha-1"], older)
    record = json.loads((older / "run.json").read_text())
    del record["model"]["norm"]["bias"]  # its default
    (older / "run.json").write_text(json.dumps(record))
    assert len(compare([runs["mha-0"], older], null=0).runs) == 2


def test_what_cannot_be_compared_is_said(runs, text, tmp_path):
    with pytest.raises(ValueError, match="no run"):
        compare([])
    with pytest.raises(hs.CheckpointError, match="does not exist"):
        compare([tmp_path / "nowhere"])
    other = made(tmp_path, text, "mha", 0, batch_size=2)
    with pytest.raises(TrainingError, match=r"not trained alike: recipe batch_size is 2 and 4"):
        compare([runs["mqa-0"], other], null=0)
    changes = {
        "sha256": ("0" * 64, r"corpus is .+ \(sha256 0{12}…\) and "),
        "bytes": ({"train": 1, "validation": 1, "test": 1}, "the corpus' split train is 1 and "),
    }
    for name, (value, words) in changes.items():
        elsewhere = tmp_path / name
        shutil.copytree(runs["mha-1"], elsewhere)
        record = json.loads((elsewhere / "run.json").read_text())
        record["corpus"][name] = value
        (elsewhere / "run.json").write_text(json.dumps(record))
        with pytest.raises(TrainingError, match=words):
            compare([runs["mha-0"], elsewhere], null=0)
    with pytest.raises(TrainingError, match="another run of mha with seed 0"):
        compare([runs["mha-0"], runs["mha-0"]], null=0)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(runs["mha-1"], unfinished)
    (unfinished / "result.json").unlink()
    with pytest.raises(TrainingError, match="is not finished"):
        compare([unfinished], null=0)
    wide = tmp_path / "wide"
    shutil.copytree(runs["mqa-1"], wide)
    record = json.loads((wide / "run.json").read_text())
    record["model"]["mlp"]["d_mlp"] = 200
    (wide / "run.json").write_text(json.dumps(record))
    with pytest.raises(TrainingError, match="in neither control: its MLP is 200 wide, not 64"):
        compare([runs["mha-1"], wide], null=0)


def test_what_is_kept_of_runs_compares_like_the_runs(compared, runs, tmp_path):
    """Without a weight: record, log, result and the report of the last step are all that a comparison needs."""

    kept = [keep(path, tmp_path / name, null=2) for name, path in runs.items()]
    assert not list(tmp_path.rglob("*.safetensors"))
    again = hs.compare(kept, null=2)
    numbers = compared.runs.select_dtypes("number").columns
    wanted = hs.compare(list(runs.values()), null=2).runs
    pd.testing.assert_frame_equal(again.runs[numbers], wanted[numbers])
    with pytest.raises(hs.HeadscopeError, match="2 null draws, not with 0 and 5"):
        hs.compare(kept, null=5)
    with pytest.raises(hs.HeadscopeError, match="no steps to follow"):
        hs.over_training(kept[0])
    with pytest.raises(hs.HeadscopeError, match="has no saved step: it is itself what was kept of a run"):
        keep(kept[0], tmp_path / "twice")
    with pytest.raises(hs.HeadscopeError, match="exists already"):
        keep(next(iter(runs.values())), kept[0])


def test_a_report_kept_of_an_older_run_shows_itself(runs, tmp_path):
    kept = keep(runs["mha-0"], tmp_path / "kept")
    held = json.loads((kept / "report.json").read_text())
    held["rows"] = [{key: value for key, value in row.items() if key != "keys_of"} for row in held["rows"]]
    (kept / "report.json").write_text(json.dumps(held))
    report = last_report(open_run(kept), "0", len(held["record"]["null"]["seeds"]))
    assert report.table["keys_of"].equals(report.table["layer"])
    assert "<table" in report._repr_html_()
    assert list(report.pictures()) == ["effective-rank.png"]
    assert "effective rank" in report.to_html()
