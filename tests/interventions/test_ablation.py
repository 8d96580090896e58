"""Sweeps against one hooked forward pass a head; a planted truth is found; where nothing matters nothing is found."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import headscope as hs
import numpy as np
import pandas as pd
import pytest
import torch
from headscope.cli import app
from headscope.interventions import SameNorm, ablate, apply, load_bridge
from headscope.interventions.paths import SHARED
from headscope.interventions.plan import Plan
from headscope.interventions.statistics import effects
from headscope.interventions.sweep import Sweep
from headscope.interventions.tabulate import COLUMNS
from headscope.interventions.tasks import Row, Sample, Task, evaluate
from typer.testing import CliRunner

ATTENTION = {
    "mha": hs.GroupedConfig(n_heads=4, d_head=6),
    "gqa": hs.GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6),
    "mqa": hs.GroupedConfig(n_heads=4, n_kv_heads=1, d_head=6),
    "mla": hs.MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3),
    "lrkv": hs.LRKVConfig(n_heads=4, d_head=6, rank=2),
}


def built(name: str, seed: int = 0, n_layers: int = 2) -> hs.HookedModel:
    torch.manual_seed(seed)
    config = hs.ModelConfig(
        d_model=16, n_layers=n_layers, d_vocab=11, n_ctx=16, attention=ATTENTION[name], positions=hs.Rotary(base=100.0)
    )
    return hs.HookedModel(config).double().eval()


def random_task(seed: int = 0, samples: int = 7, *, ragged: bool = True, wrong: bool = False) -> Task:
    """Rows of random tokens whose answers and foils are random, too."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(samples):
        length = int(rng.integers(8, 13)) if ragged else 10
        tokens = tuple(map(int, rng.integers(0, 11, length)))
        if wrong:
            first, second = (Row(tokens[:-k], (3, 5), tuple(map(int, rng.integers(0, 11, 2)))) for k in (1, 2))
            made.append(Sample(first, second))
        else:
            answers = rng.permuted(np.tile(np.arange(11), (2, 1)), axis=1)[:, :2]
            scored = (length - 3, length - 1)
            made.append(Sample(Row(tokens, scored, tuple(map(int, answers[:, 0])), tuple(map(int, answers[:, 1])))))
    return Task("random", "independently drawn row", "log-probability difference (nats)", tuple(made))


CASES = [
    ("lrkv", "k_private", "shuffle", False),
    ("lrkv", "k_private", "shuffle-past", True),
    ("lrkv", "v_private", "resample", False),
    ("lrkv", "k_shared", "shuffle", False),
    ("gqa", "k", "noise", False),
    ("gqa", "v_private", "shuffle-token", False),
    ("mha", "k_private", "mean", False),
    ("mqa", "v", "shuffle", False),
    ("mla", "v_private", "zero", False),
    ("mla", "latent", "shuffle", False),
    ("mha", "q", "shuffle", True),
    ("mha", "z", "mean", False),
    ("lrkv", "result", "zero", False),
]


@pytest.mark.parametrize(("name", "path", "how", "rotated"), CASES, ids=lambda v: str(v))
@pytest.mark.parametrize("wrong", [False, True], ids=["foils", "rows"])
@torch.no_grad()
def test_a_sweep_is_one_hooked_forward_pass_a_head(name, path, how, rotated, wrong):
    """The same edits applied one by one through the model's own hooks, samples one batch at a time."""
    model, task = built(name), random_task(ragged=how != "resample", wrong=wrong and how != "resample")
    plan = Plan(path=path, how=how, rotated=rotated, seeds=2, seed=3, rows=24)
    sweep = Sweep(model, task, plan)
    donors = tuple(sample.right.tokens for sample in task.samples)
    for layer in (0, 1):
        found = sweep.layer(layer)
        for cell, head in enumerate(found.cells):
            heads = None if head == -1 else (head,)
            edit, control = [], []
            for seed in (3, 4):
                one = dataclasses.replace(plan.edit(path, seed, donors), layers=(layer,), heads=heads)
                edit.append(scores(model, task, one))
                control.append(scores(model, task, SameNorm(of=one, seed=seed)))
            np.testing.assert_allclose(found.edit[cell], np.mean(edit, 0), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found.random[cell], np.mean(control, 0), rtol=1e-9, atol=1e-9)
        if found.shared is not None:
            each = [
                scores(model, task, dataclasses.replace(plan.edit(SHARED[path], seed, donors), layers=(layer,)))
                for seed in (3, 4)
            ]
            np.testing.assert_allclose(found.shared, np.mean(each, 0), rtol=1e-9, atol=1e-9)
        assert (found.shared is not None) == (path in SHARED and name != "mqa")
    plain = evaluate(task, lambda tokens, lengths, ids: model(tokens))
    for clean, accuracy in (sweep.clean(), (found.clean, found.clean_accuracy)):
        np.testing.assert_allclose(clean, plain["score"], rtol=1e-9)
        np.testing.assert_allclose(accuracy, plain["accuracy"])


@pytest.mark.parametrize(("name", "groups"), [("mha", 4), ("gqa", 2), ("mqa", 1)])
def test_keys_are_swept_by_group_and_queries_by_head(name, groups):
    """One cell a key and layer, not padded to the number of heads."""
    for path, cells in (("k", groups), ("q", 4)):
        found = ablate(built(name), random_task(samples=3), path=path, how="shuffle")
        assert found.table[["layer", "head"]].to_numpy().tolist() == [[a, b] for a in (0, 1) for b in range(cells)]


def scores(model, task, edit) -> np.ndarray:
    def run(tokens, lengths, ids):
        mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
        with apply(model, edit, samples=ids):
            return model(tokens, attention_mask=mask.long())

    return evaluate(task, run, batch_size=3)["score"].to_numpy()


@pytest.mark.parametrize("rows", [1, 7, 500])
def test_the_size_of_a_forward_pass_does_not_matter(rows):
    model, task = built("lrkv"), random_task()
    expected = Sweep(model, task, Plan(rows=64)).layer(1)
    found = Sweep(model, task, Plan(rows=rows)).layer(1)
    np.testing.assert_allclose(found.edit, expected.edit, rtol=1e-9)
    np.testing.assert_allclose(found.moved, expected.moved, rtol=1e-9)


# -- planted truth ----------------------------------------------------------------------------------------------------

LETTERS, HEAD = 6, 2


@pytest.fixture(scope="module")
def planted() -> hs.HookedModel:
    """A model in which head 2 of layer 1 finds a marked letter by its private key, and nothing else reads anything.

    Tokens: letters, marked letters, and a question. Residual stream: letter, mark, question, answer. The question's
    query in head 2 meets the mark in its private key; the shared value is the letter; its output is the answer. The
    other heads look and read like any, and nothing comes of it.
    """
    torch.manual_seed(0)
    width = 2 * LETTERS + 2 + 8
    config = hs.ModelConfig(
        d_model=width, n_layers=2, d_vocab=2 * LETTERS + 1, n_ctx=16,
        attention=hs.LRKVConfig(n_heads=4, d_head=8, rank=2), positions=hs.Rotary(base=1e9), tie_embeddings=False, mlp=None,
    )  # fmt: skip
    model = hs.HookedModel(config)
    mark, question, answer = LETTERS, LETTERS + 1, LETTERS + 2
    with torch.no_grad():
        model.embed.weight.zero_()
        model.unembed.weight.zero_()
        for letter in range(LETTERS):
            model.embed.weight[[letter, LETTERS + letter], letter] = 1
            model.embed.weight[LETTERS + letter, mark] = 1
            model.unembed.weight[letter, answer + letter] = 4
        model.embed.weight[-1, question] = 1
        for block in model.layers:
            block.attn.o.weight.zero_()
        found = model.attention(1)
        head, last = slice(8 * HEAD, 8 * HEAD + 8), 7  # the last plane hardly turns
        found.q.weight[head] = 0
        found.q.weight[8 * HEAD + last, question] = 12
        found.k.shared.weight.zero_()
        found.k.down.weight[2 * HEAD : 2 * HEAD + 2] = 0
        found.k.down.weight[2 * HEAD, mark] = 1
        found.k.B[HEAD] = 0
        found.k.B[HEAD, last, 0] = 1
        found.v.shared.weight.zero_()
        found.v.shared.weight[:LETTERS, :LETTERS] = torch.eye(LETTERS)
        found.v.B[HEAD] = 0
        found.o.weight[answer : answer + LETTERS, 8 * HEAD : 8 * HEAD + LETTERS] = torch.eye(LETTERS)
    return model.eval()


def marked_letters(seed: int, samples: int = 24) -> Task:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(samples):
        letters = rng.integers(0, LETTERS, 9)
        place = int(rng.integers(0, 9))
        right, foil = map(int, (letters[place], (letters[place] + rng.integers(1, LETTERS)) % LETTERS))
        letters[place] += LETTERS
        made.append(Sample(Row((*map(int, letters), 2 * LETTERS), (9,), (right,), (foil,))))
    return Task("marked letter", "independently drawn row", "log-probability difference (nats)", tuple(made))


def test_the_planted_head_is_found_and_no_other(planted):
    result = ablate(planted, marked_letters(1), path="k_private", how="shuffle", seeds=2)
    assert result.record["clean"]["accuracy"] == 1.0
    assert result.record["chance"] == {"score": 0.0, "accuracy": 0.5}
    assert "; where all tokens are alike, 0.000 nats and 50.0 %." in result.summary()
    found = result.table[result.table["significant"]]
    assert found[["layer", "head"]].to_numpy().tolist() == [[1, HEAD]]
    row = found.iloc[0]
    assert row["effect"] < -1
    assert row["high"] < 0
    assert row["accuracy"] < 0.7
    others = result.table.drop(index=found.index)
    assert others["effect"].abs().max() < 1e-5
    # What is shared are the letters, in the values: nothing there tells where to look.
    assert abs(row["shared_effect"]) < 1e-5
    values = ablate(planted, marked_letters(1), path="v_private", how="shuffle", layers=[1])
    assert not values.table["significant"].any()
    assert values.table["shared_effect"].iloc[0] < -1


def test_where_nothing_matters_the_false_discovery_rate_holds():
    """Answers and foils are drawn alike, so no edit can help or hurt on average: a discovery is a false one."""
    runs, false = 60, 0
    for seed in range(runs):
        model = built("mha", seed, n_layers=1)
        result = ablate(model, random_task(seed, samples=20, ragged=False), path="v", how="noise", seed=seed)
        assert result.table["effect"].abs().min() > 0
        false += bool((result.table["q"] < 0.05).any())
    assert false <= 8  # 3 expected; 9 or more has a chance of 0.3 % at a rate of 5 %


def test_stopping_early_decides_the_same_with_fewer_samples(planted):
    task = marked_letters(2, samples=64)
    whole = ablate(planted, task).table
    early = ablate(planted, task, stop_early=True).table
    assert list(early["significant"]) == list(whole["significant"])
    found = early["significant"]
    assert (early.loc[found, "n"] < 64).all()
    assert (early.loc[~found, "n"] == 64).all()
    # What was seen before stopping is what the whole sweep saw of the same samples.
    scores = ablate(planted, task, stop_early=True).samples.dropna(subset=["edited"])
    same = ablate(planted, task).samples.merge(scores, on=["layer", "head", "sample"], suffixes=("", "_early"))
    assert len(same) == len(scores) < 64 * len(whole)
    np.testing.assert_allclose(same["edited_early"], same["edited"], rtol=1e-5, atol=1e-5)


def test_stopping_early_keeps_the_error_where_nothing_matters():
    false = 0
    for seed in range(20):
        task = random_task(seed, samples=48, ragged=False)
        table = ablate(built("mha", seed, n_layers=1), task, path="v", how="noise", seed=seed, stop_early=True).table
        false += bool((table["q"] < 0.05).any())
    assert false <= 4  # 1 expected; 5 or more has a chance of 0.3 % at a rate of 5 %


# -- what comes out ---------------------------------------------------------------------------------------------------


def test_the_table_is_made_of_the_samples(tmp_path):
    model, task = built("gqa"), random_task()
    result = ablate(model, task, path="v", how="mean", out=tmp_path)
    assert tuple(result.table.columns) == COLUMNS
    assert list(result.table["head"]) == [0, 1, 0, 1]
    assert result.plot().axes[0].get_xlabel().splitlines()[0] == result.terminal()[0][0].columns[1].header == "group"
    of_heads = ablate(model, task, path="z", how="mean", layers="0")
    assert of_heads.plot().axes[0].get_xlabel().splitlines()[0] == "head"
    assert of_heads.plot_intervals(top=2).axes[0].get_ylabel().startswith("head: the 2 largest effects of")
    means = result.samples.groupby(["layer", "head"]).mean()
    np.testing.assert_allclose(result.table["effect"], means["edited"] - means["clean"])
    np.testing.assert_allclose(result.table["beyond_random"], means["edited"] - means["random"])
    data = json.loads((tmp_path / "ablation.json").read_text())
    assert data["record"]["task"]["unit"] == "independently drawn row"
    assert "mean over groups" not in data["record"]["convention"]
    assert len(data["samples"]) == len(result.samples)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "ablation.csv", "ablation.json", "ablation.parquet", "effects.png", "intervals.png", "samples.csv",
        "samples.parquet",
    ]  # fmt: skip
    assert "values aligned" in ablate(model, task, path="v_private", layers="0").record["convention"]


def test_samples_of_one_document_are_averaged_before_anything_is_tested():
    task = random_task(samples=12, ragged=False)
    grouped = dataclasses.replace(
        task, samples=tuple(dataclasses.replace(s, factors={"document": i % 4}) for i, s in enumerate(task.samples))
    )
    model = built("mha")
    found, plain = (ablate(model, t, path="v", how="noise", layers="1") for t in (grouped, task))
    assert (found.table["n"] == 4).all()
    np.testing.assert_allclose(found.table["effect"], plain.table["effect"])
    wide = plain.samples.assign(document=plain.samples["sample"] % 4, change=lambda t: t["edited"] - t["clean"])
    means = wide.groupby(["head", "document"])["change"].mean().unstack()
    expected = effects(means.to_numpy().T, flips=49_999)
    np.testing.assert_allclose(found.table[["low", "high", "p"]], expected[["low", "high", "p"]])
    assert "12 samples of 4 documents, which are the units" in found.summary()
    with pytest.raises(ValueError, match="stop_early needs independent samples"):
        ablate(model, grouped, path="v", stop_early=True, progress=lambda *_: pytest.fail("it began"))


def test_an_accuracy_that_never_changes_has_an_interval_that_knows_its_bounds(planted):
    """24 samples alike: a share of up to 1 - 0.025^(1/24) of others could be unlike them, and no more."""
    table = ablate(planted, marked_letters(1), layers="0").table
    assert (table["accuracy_change"] == 0).all()
    share = 1 - 0.025 ** (1 / 24)
    np.testing.assert_allclose(table["accuracy_low"], -share)
    np.testing.assert_allclose(table["accuracy_high"], share)
    changed = ablate(planted, marked_letters(1), layers="1", heads=(HEAD,)).table.iloc[0]
    assert -1 <= changed["accuracy_low"] < changed["accuracy_change"] < changed["accuracy_high"] < 0


def test_a_score_that_is_no_number_is_named():
    model = built("mha")
    with torch.no_grad():
        model.attention(1).o.weight[:, 6:12] = float("inf")
    with pytest.raises(ValueError, match="layer 1, unedited: the score of sample 0 is nan"):
        ablate(model, random_task(), path="v", layers="1")


def test_an_edit_that_moves_nothing_has_no_effect_at_all():
    """Unedited and edited scores come out of the same stacked products: what is alike is alike to the bit."""
    model = built("lrkv").float()
    with torch.no_grad():
        model.attention(1).v.B.zero_()
    table = ablate(model, random_task(samples=9), path="v_private", layers="1").table
    assert (table["effect"] == 0).all()
    assert (table["p"] == 1).all()


def test_a_task_by_name_is_made_with_the_models_tokenizer(tmp_path):
    (tmp_path / "text.py").write_text("import os\n\n\ndef f(x):\n    return os.path.join(x, x)\n" * 30)
    named_task = ablate("mha", "next-token", path="v", how="zero", layers="0", samples=4, text=tmp_path)
    assert named_task.record["task"]["name"] == "next token"
    assert named_task.record["checkpoint"]["sha256"] == hs.open_checkpoint("mha").describe()["sha256"]
    with pytest.raises(ValueError, match="needs a tokenizer to be made with"):
        ablate(built("mha"), "induction", path="v")


def test_the_example_of_the_docstring_runs():
    import doctest

    from headscope.interventions import ablation

    results = doctest.testmod(ablation)
    assert results.attempted >= 3
    assert results.failed == 0


def test_a_single_sample_has_an_effect_and_nothing_else():
    table = ablate(built("lrkv"), random_task(samples=1), layers="1").table
    assert table["effect"].notna().all()
    assert table[["low", "high", "p", "q"]].isna().all().all()
    assert not table["significant"].any()
    result = ablate(built("lrkv"), random_task(samples=4), layers="1")
    assert "with 4 units no p is below 0.12" in result.reading()


def test_impossible_sweeps_are_refused_before_they_begin(tmp_path):
    task = random_task()
    for options, error, words in (
        ({"path": "k_private", "source": "mqa"}, ValueError, "none has a part of its own"),
        ({"how": "shake"}, ValueError, "how should be one of"),
        ({"heads": "some"}, ValueError, "'each', 'all' or distinct numbers"),
        ({"heads": (1, 1)}, ValueError, "'each', 'all' or distinct numbers"),
        ({"heads": (4,)}, IndexError, "head 4 does not exist"),
        ({"path": "k_shared", "heads": (1,)}, ValueError, "shared by all heads"),
        ({"layers": "7"}, ValueError, "choose none of 0–1"),
        ({"path": "pattern", "how": "zero"}, ValueError, "no control of the same norm"),
    ):
        with pytest.raises(error, match=words):
            ablate(built(options.pop("source", "lrkv")), task, out=tmp_path / "out", **options)
    long = Task("long", "row", "nats", (Sample(Row(tuple(range(11)) * 2, (3,), (4,))),))
    with pytest.raises(ValueError, match="rows of 22 tokens but the model has n_ctx 16"):
        ablate(built("lrkv"), long)


# -- killed, resumed, shared out --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> tuple[Path, Path]:
    """A checkpoint with a tokenizer, and lines to ask it."""
    from headscope.training import build
    from headscope.training.tokens import train_tokenizer

    root = tmp_path_factory.mktemp("ablated")
    torch.manual_seed(0)
    config = build("lrkv", "tiny").with_(n_layers=5)
    tokenizer = train_tokenizer(["import os\nimport sys\nreturn None\n"], 300)
    hs.save(hs.HookedModel(config, tokenizer), root / "model")
    lines = [{"prompt": f"import {a}{b}", "answer": "s", "foil": "t"} for a in "abcdef" for b in "xyz"]
    (root / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root / "model", root / "mine.jsonl"


def command(place: tuple[Path, Path], *extra: str) -> list[str]:
    return ["-m", "headscope", "ablate", str(place[0]), "--task", str(place[1]), *extra]


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory) -> pd.DataFrame:
    out = tmp_path_factory.mktemp("whole")
    subprocess.run(
        [sys.executable, *command(place, "--out", str(out))], check=True, capture_output=True, env=ONE_THREAD
    )
    return pd.read_parquet(out / "ablation.parquet")


def test_a_killed_sweep_goes_on_and_does_nothing_twice(place, whole, tmp_path):
    line = [sys.executable, *command(place, "--out", str(tmp_path))]
    unfinished = tmp_path / "unfinished"
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ONE_THREAD)
    while process.poll() is None and len(list(unfinished.glob("layer-*.npz"))) < 2:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = {p.name: p.stat().st_mtime_ns for p in unfinished.glob("layer-*.npz")}
    assert 2 <= len(kept) < 5
    # The finished layers are taken as they are: a mark put into one of them comes out again.
    marked = unfinished / "layer-0000.npz"
    with np.load(marked) as held:
        arrays = {name: held[name] for name in held.files}
    np.savez(marked, **{**arrays, "moves": np.full_like(arrays["moves"], [123.0, 1.0])})
    other = subprocess.run([*line, "--how", "zero"], capture_output=True, text=True, check=False, env=ONE_THREAD)
    assert other.returncode == 2
    assert "holds an unfinished sweep whose how is shuffle, not zero" in other.stderr
    subprocess.run(line, check=True, capture_output=True, env=ONE_THREAD)
    found = pd.read_parquet(tmp_path / "ablation.parquet")
    assert found.loc[found["layer"] == 0, "moved"].eq(123.0).all()
    pd.testing.assert_frame_equal(found.drop(columns="moved"), whole.drop(columns="moved"), check_exact=True)
    assert not unfinished.exists()


def test_two_processes_give_what_one_gives(place, whole, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [*launcher, *command(place, "--out", str(tmp_path))]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=ONE_THREAD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Effect on the score") == 1
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "ablation.parquet"), whole, check_exact=True)


def test_a_process_that_dies_fails_the_others_and_loses_nothing(place, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, *command(place, "--out", str(tmp_path))],
            env={**ONE_THREAD, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    while not (tmp_path / "unfinished" / "layer-0001.npz").exists() and started[1].poll() is None:
        time.sleep(0.002)
    started[1].send_signal(signal.SIGKILL)
    _, said = started[0].communicate(timeout=120)
    started[1].communicate()
    assert started[0].returncode == 2, said
    assert "another of the 2 processes has stopped" in said
    assert {"layer-0000.npz", "layer-0001.npz"} <= {p.name for p in (tmp_path / "unfinished").iterdir()}


def test_the_command_shows_what_was_done(place):
    result = CliRunner().invoke(
        app, ["ablate", str(place[0]), "--task", str(place[1]), "--layers", "0", "--heads", "all"]
    )
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 100
    words = " ".join(result.output.split())
    for said in ("95 % interval", "over 18 samples (line of mine.jsonl)", "Benjamini-Hochberg", "random direction"):
        assert said in words
    for arguments, said in ((["--task", "nothing"], "task should be one of"), (["--heads", "a,b"], "numbers like 0,3")):
        wrong = CliRunner().invoke(app, ["ablate", str(place[0]), *arguments])
        assert wrong.exit_code == 2
        assert said in wrong.output


# -- through the bridge -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A Hugging Face directory with a tokenizer."""
    from headscope.training.tokens import train_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=300, max_position_embeddings=64,
    )  # fmt: skip
    place = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(place)
    train_tokenizer(["import os\nimport sys\n"], 300).save_pretrained(place)
    return place


@pytest.mark.parametrize(("path", "how"), [("z", "zero"), ("v_private", "shuffle"), ("v", "mean")])
def test_a_bridged_model_gives_the_wrappers_numbers(llama, path, how):
    bridge, tokenizer = load_bridge(llama)
    assert tokenizer.decode(tokenizer.encode("import os")) == "import os"
    task = random_task(samples=5)
    there, here = (ablate(source, task, path=path, how=how, layers="1", seeds=2) for source in (bridge, llama))
    for column in ("effect", "low", "high", "p", "random_effect", "beyond_q", "accuracy", "shared_effect"):
        np.testing.assert_allclose(there.table[column], here.table[column], rtol=1e-3, atol=1e-5, err_msg=column)
    assert there.record["checkpoint"]["family"] == "TransformerLens bridge"
    assert "no factors" in there.record["notes"][0]


def test_the_command_ablates_through_the_bridge_with_a_device_map(llama, place):
    common = [str(llama), "--task", str(place[1]), "--path", "z", "--how", "zero", "--layers", "0", "--json"]
    plain, bridged = (
        CliRunner().invoke(app, ["ablate", *common, *extra]) for extra in ([], ["--bridge", "--device-map", "auto"])
    )
    assert bridged.exit_code == 0, bridged.output
    assert "loaded in TransformerLens's bridge" in bridged.stderr
    effects = [[row["effect"] for row in json.loads(found.stdout)["rows"]] for found in (plain, bridged)]
    np.testing.assert_allclose(*effects, rtol=1e-3, atol=1e-5)
    wrong = CliRunner().invoke(app, ["ablate", str(llama), "--task", str(place[1]), "--bridge"])
    assert wrong.exit_code == 2
    assert "this bridge has no path 'k_private'" in wrong.output
    missing = CliRunner().invoke(app, ["ablate", str(llama / "nowhere"), "--bridge"])
    assert missing.exit_code == 2
    assert "no Hugging Face directory" in missing.output


def test_the_summary_tells_harm_from_help():
    result = hs.ablate("lrkv", path="v_private", layers=[2], samples=16)
    sure = result.table[result.table["significant"]]
    hurt = int((sure["effect"] < 0).sum())
    assert hurt >= 1
    assert f"{hurt} edits hurt, {len(sure) - hurt} help" in result.summary()
