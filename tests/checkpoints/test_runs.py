"""Runs as they lie on disk, and the models that ship."""

from __future__ import annotations

import json

import headscope as hs
import pytest
import torch
from headscope.checkpoints import reference
from headscope.checkpoints.runs import is_run, open_run, saved_steps
from headscope.cli import app
from headscope.training.corpus import standard_library
from typer.testing import CliRunner


def test_steps_are_sorted_by_number_and_nothing_else_counts(tmp_path):
    for name in ("steps/step-000200", "steps/step-001000", "checkpoint-50", "checkpoint-best", "steps/step-x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "steps" / "step-000300").write_text("a file")
    assert list(saved_steps(tmp_path)) == [50, 200, 1000]
    assert saved_steps(tmp_path / "nowhere") == {}


def test_a_checkpoint_with_older_ones_below_it_is_a_checkpoint(tmp_path):
    (tmp_path / "checkpoint-50").mkdir()
    assert is_run(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert not is_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert is_run(tmp_path)


def test_an_unreadable_log_is_named(tmp_path):
    (tmp_path / "steps" / "step-000001").mkdir(parents=True)
    (tmp_path / "log.csv").write_text("")
    with pytest.raises(hs.CheckpointError, match=r"log\.csv cannot be read"):
        open_run(tmp_path)


NAMES = ["gqa", "lrkv", "mha", "mla", "mqa"]


def test_one_model_a_variant_ships():
    assert list(reference.reference_models()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_does_what_its_record_says(name):
    """Its bits per byte on part of the test split, its induction score, its size: measured again."""
    model = hs.load(name)
    assert model.config.attention.variant == name
    row = reference.reference_table().set_index("model").loc[name]
    assert row["parameters"] == sum(p.numel() for p in model.parameters())
    assert row["bits_per_byte"] < 1.5
    tokens = model.to_tokens("class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n")
    assert model(tokens, return_type="loss") < 3.5
    again = hs.report(name, null=2)
    assert again.record["checkpoint"]["path"] == name
    assert again.table["n_heads"].eq(8).all()


def test_a_shipped_models_figures_are_reproduced_on_its_corpus():
    """Where this Python's library is the one that the models were trained on, the recorded figures come out again."""
    from headscope.training.evaluation import induction
    from headscope.training.tokens import encode

    record = json.loads((reference.ROOT / "lrkv" / "config.json").read_text())["record"]
    corpus = standard_library()
    if corpus.sha256 != record["corpus"]["sha256"]:
        pytest.skip(f"trained on {record['corpus']['source']}; this library's text has another hash")
    model = hs.load("lrkv")
    found = induction(model, encode(model.tokenizer, corpus.texts("test")), seed=0)
    assert found["best"] == pytest.approx(record["result"]["induction"]["best"], rel=1e-3)
    assert found["second_loss"] == pytest.approx(record["result"]["induction"]["second_loss"], rel=1e-3)


def test_a_path_comes_before_a_name(tmp_path, monkeypatch):
    torch.manual_seed(0)
    config = hs.ModelConfig(d_model=8, n_layers=1, d_vocab=9, n_ctx=4, attention=hs.GroupedConfig(n_heads=2, d_head=4))
    hs.save(hs.HookedModel(config), tmp_path / "lrkv")
    assert hs.open_checkpoint("lrkv").config.n_layers == 4
    monkeypatch.chdir(tmp_path)
    assert hs.open_checkpoint("lrkv").config.n_layers == 1
    with pytest.raises(hs.CheckpointError, match="nor does a model of that name ship .gqa, lrkv, mha, mla, mqa."):
        hs.open_checkpoint("lrkw")


def test_the_command_lists_what_ships_and_reports_without_a_name():
    listed = CliRunner().invoke(app, ["models"])
    assert listed.exit_code == 0, listed.output
    assert all(f" {name} " in listed.output for name in NAMES)
    assert max(map(len, listed.output.splitlines())) <= 100
    data = json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)
    assert [row["model"] for row in data] == NAMES
    assert all(row["command"].startswith(f"headscope train {row['model']}") for row in data)
    shown = CliRunner().invoke(app, ["report", "--null", "2"])
    assert shown.exit_code == 0, shown.output
    assert "lrkv: LRKV, positions rotary" in shown.output
