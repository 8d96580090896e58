"""Every verb takes a path, an opened checkpoint, a model, or a result, whose source it then measures."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from pathlib import Path

import headscope as hs
import pandas as pd
import pytest
import torch
from headscope.interventions import behaviour
from headscope.probing import probe_transformers

RUNS = Path(__file__).parents[1] / "docs" / "reference-runs"
ROWS = ((1, 2, 3, 4, 5, 6, 1, 2, 3),)

VERBS = {
    "report": lambda source: hs.report(source, circuit="qk", null=0),
    "ablate": lambda source: hs.ablate(source, samples=4, layers=[3]),
    "behaviour": lambda source: behaviour(source, ROWS),
    "probe": lambda source: hs.probe(source, "def f(", max_new_tokens=2),
    "needle": lambda source: hs.needle(source, distances=(8,), samples=2),
    "routing": lambda source: hs.routing(source, "def f(a):", layer=2, head=5, edit="shuffle:k_private:2:5"),
}


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """The same model as a path, an opened checkpoint, a model in memory, and a result on each."""
    model = hs.load("lrkv")
    path = hs.save(model, tmp_path_factory.mktemp("model") / "lrkv")
    plain = {"path": str(path), "checkpoint": hs.open_checkpoint(path), "model": model}
    results = {f"result on {name}": hs.report(plain[name], circuit="qk", null=0) for name in plain}
    return plain | results


@pytest.mark.parametrize("verb", VERBS)
def test_every_form_of_a_source_gives_the_same_table(forms, verb):
    found = {name: VERBS[verb](source) for name, source in forms.items()}
    for name, result in found.items():
        pd.testing.assert_frame_equal(result.table, found["path"].table, obj=name)
        assert result.record["versions"]["headscope"] == hs.__version__


def test_a_result_keeps_what_the_verb_was_given(forms):
    assert forms["result on path"].source == forms["path"]
    assert forms["result on model"].source is forms["model"]
    again = hs.ablate(forms["result on path"], samples=4, layers=[0])
    assert again.source == forms["path"]
    assert again.record["checkpoint"]["path"] == forms["path"]


def test_what_a_conversion_gives_to_others_is_what_came_out(tmp_path):
    kept = hs.convert("mha", rank=4, calibration_samples=2, samples=2)
    assert hs.report(kept, circuit="qk", null=0).record["config"]["attention"]["variant"] == "lrkv"
    written = hs.convert("mha", tmp_path / "out", rank=4, calibration_samples=2, samples=2)
    assert written.source == str(tmp_path / "out")
    assert hs.load(written).config == kept.model.config
    assert hs.budget(written).record["source"] == written.source


def test_load_and_budget_take_models_and_results(forms):
    assert hs.load(forms["result on model"]) is forms["model"]
    sizes = [hs.budget(forms[name], lengths="64").batches["payload_bytes"].tolist() for name in forms]
    assert all(size == sizes[0] for size in sizes)


def test_loading_in_another_type_leaves_the_model_that_a_result_holds(forms):
    wide = hs.load(forms["result on model"], dtype=torch.float64)
    assert wide.embed.weight.dtype == torch.float64
    assert forms["model"].embed.weight.dtype == torch.float32
    with pytest.raises(ValueError, match="the bridge loads a path or a hub model, but got a HookedModel"):
        hs.load(forms["model"], bridge=True)


def test_a_budget_is_a_source_of_what_it_was_made_for(forms):
    on_checkpoint = hs.budget(forms["checkpoint"], lengths="64")
    assert on_checkpoint.record["source"] == forms["path"]
    assert hs.report(on_checkpoint, circuit="qk", null=0).table.equals(forms["result on path"].table)


@pytest.mark.parametrize("name", ["result on model", "result on checkpoint"])
def test_what_is_no_run_is_refused_by_name(forms, name):
    for verb in (hs.over_training, lambda source: hs.compare([source])):
        with pytest.raises(ValueError, match="a training run is named by its directory, but got a"):
            verb(forms[name])


def test_runs_are_compared_by_what_followed_them(tmp_path):
    from headscope.training import Recipe, build, from_path, train

    corpus = from_path(Path(asyncio.__file__).parent)
    train(build("mha", "tiny"), corpus, tmp_path / "mha", Recipe(steps=2, save_every=1), preset="mha")
    followed = hs.over_training(tmp_path / "mha", circuit="qk", null=0)
    pd.testing.assert_frame_equal(hs.over_training(followed, circuit="qk", null=0).table, followed.table)
    pd.testing.assert_frame_equal(hs.compare([followed], null=2).runs, hs.compare([tmp_path / "mha"], null=2).runs)


def test_a_result_without_a_single_source_says_so():
    several = hs.compare([RUNS / "mha-1", RUNS / "lrkv-1"])
    for verb in VERBS.values():
        with pytest.raises(ValueError, match="behind a Comparison stands no single model"):
            verb(several)


def test_what_is_no_source_is_refused_by_name():
    """In a process of its own: here the checker of annotations would be first to object."""
    code = "import headscope as hs; hs.report(5)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: source should be a path, a Checkpoint, a HookedModel or a result but is int" in done.stderr


def test_transformers_own_models_are_found_through_a_result(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    result = hs.report(tmp_path, null=0)
    found = probe_transformers(result, [1, 2, 3], max_new_tokens=2)
    pd.testing.assert_frame_equal(found.table, probe_transformers(str(tmp_path), [1, 2, 3], max_new_tokens=2).table)


def test_a_result_on_a_path_holds_no_model():
    model = hs.load("mqa")
    alive = weakref.ref(model)
    result = hs.report(hs.open_checkpoint("mqa"), circuit="qk", null=0)
    on_path = hs.report("mqa", circuit="qk", null=0)
    del model
    gc.collect()
    assert alive() is None
    assert on_path.source == "mqa"
    assert result.source.config.n_layers == 4
