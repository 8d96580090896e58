"""A run's directory: begun, gone on with, held by one process, and what it tells about time and text."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import pytest
import torch
from headscope.training import Corpus, Recipe, TrainingError, build, saved_steps, train
from headscope.training.clock import Clock, Spent, cpu_name
from headscope.training.corpus import SPLITS, split_of
from headscope.training.files import Document
from safetensors.torch import load_file

SHORT = Recipe(steps=4, batch_size=2, save_every=2, validate_every=4)
TINY = build("mha", "tiny")


class Stop(Exception):
    """Ends a run where a kill would."""


def stopping(step: int):
    """Return a progress that ends the run after a step."""

    def progress(done, total, seen):
        if done == step:
            raise Stop

    return progress


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def whole(little, tmp_path_factory) -> Path:
    """An undisturbed run."""
    root = tmp_path_factory.mktemp("runs") / "whole"
    train(TINY, little, root, SHORT)
    return root


@pytest.fixture
def stopped(little, tmp_path) -> Path:
    """A run that was ended after its third step, and saved its second."""
    root = tmp_path / "stopped"
    with pytest.raises(Stop):
        train(TINY, little, root, SHORT, progress=stopping(3))
    return root


def test_a_finished_run_leaves_what_it_is_and_no_more(whole):
    assert {path.name for path in whole.iterdir()} == {"run.json", "log.csv", "result.json", "steps"}
    assert read(whole / "run.json")["preset"] == "mha"


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_split_shorter_than_a_window_is_refused_before_anything_is_written(tmp_path, split):
    names = {kind: next(n for n in map(str, range(999)) if split_of(n) == kind) for kind in SPLITS}
    letters = random.Random(0).choices(string.ascii_letters, k=2000)
    texts = {kind: "".join(letters[: 8 if kind == split else None]) for kind in names}
    small = Corpus("by hand", tuple(Document(kind, names[kind], text) for kind, text in texts.items()))
    with pytest.raises(TrainingError, match=rf"the {split} split has \d+ tokens, but a window is 32 tokens"):
        train(TINY, small, tmp_path / "out", SHORT)
    without = Corpus("by hand", tuple(d for d in small.documents if d.name != "test"))
    with pytest.raises(TrainingError, match="the test split has no text"):
        train(TINY, without, tmp_path / "out", SHORT)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("left", [(), (".lock",), (".lock", ".run.json.part")])
def test_what_a_kill_before_the_record_leaves_is_begun_anew(little, tmp_path, left, resume):
    for name in left:
        (tmp_path / name).write_text("{")
    with pytest.raises(Stop):
        train(TINY, little, tmp_path, SHORT, resume=resume, progress=stopping(1))
    assert read(tmp_path / "run.json")["recipe"]["steps"] == 4
    assert list(saved_steps(tmp_path)) == [0]


@pytest.mark.parametrize(("resume", "words"), [(False, "name another directory$"), (True, "no run to resume")])
def test_a_directory_with_anything_else_is_left_alone(little, tmp_path, resume, words):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TrainingError, match=words):
        train(TINY, little, tmp_path, SHORT, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_processes_do_not_train_in_one_directory(little, whole, tmp_path):
    """A lock is of an open file, so a second opening in one process meets it as another process would."""
    seen = []

    def beside(done, total, _):
        if done == 3:
            with pytest.raises(TrainingError, match=r"is being trained in by process \d+ on "):
                train(TINY, little, tmp_path / "out", SHORT, resume=True)
            with pytest.raises(TrainingError, match=r"exists already: .* go on with --resume"):
                train(TINY, little, tmp_path / "out", SHORT)
            seen.append(done)

    train(TINY, little, tmp_path / "out", SHORT, progress=beside)
    assert seen == [3]
    there, here = (load_file(saved_steps(run)[4] / "model.safetensors") for run in (whole, tmp_path / "out"))
    assert all(torch.equal(there[name], here[name]) for name in there)


def test_another_run_is_named_by_where_it_differs(little, stopped):
    for config, recipe, words in (
        (TINY, Recipe(steps=9, batch_size=2, save_every=2, validate_every=4), "recipe.steps is 4 and 9"),
        (build("mqa", "tiny"), SHORT, "preset is mha and mqa"),
    ):
        with pytest.raises(TrainingError, match=f"another run than what is asked for: {words}$"):
            train(config, little, stopped, recipe, resume=True)
    other = Corpus("other", (*little.documents, Document("more", "more", "more")))
    with pytest.raises(TrainingError, match=r"corpus.sha256 is \w+ and \w+$"):
        train(TINY, other, stopped, SHORT, resume=True)
    (stopped / "run.json").write_text("{}")
    with pytest.raises(TrainingError, match="no record of headscope train: it has no 'corpus'"):
        train(TINY, little, stopped, SHORT, resume=True)


def test_time_adds_up_over_processes(little, whole, stopped):
    clock = stopped / "resume-000002" / "clock.json"
    first = read(clock)
    assert first["seconds"] > 0
    assert first["cpu_seconds"] > 0
    clock.write_text(json.dumps({"seconds": 1000.0, "cpu_seconds": 500.0, "cpus": ["Another"]}))
    train(TINY, little, stopped, SHORT, resume=True)
    result = read(stopped / "result.json")
    assert 1000 < result["seconds"] < 1600
    assert 500 < result["cpu_seconds"] < 600
    assert result["cpus"] == ["Another", cpu_name()]
    alone = read(whole / "result.json")
    assert alone["cpus"] == [cpu_name()] == [read(whole / "run.json")["machine"]["cpu"]]
    assert {name: result[name] for name in ("test", "induction")} == {
        name: alone[name] for name in ("test", "induction")
    }


def test_a_run_of_an_earlier_version_goes_on(little, stopped):
    record = read(stopped / "run.json")
    for name in ("documents_by_split", "skipped"):
        del record["corpus"][name]
    del record["machine"], record["versions"]["python"], record["model"]["by_layer"]
    (stopped / "run.json").write_text(json.dumps(record))
    (stopped / "resume-000002" / "clock.json").write_text('{"seconds": 1000.0}')
    train(TINY, little, stopped, SHORT, resume=True)
    result = read(stopped / "result.json")
    assert result["seconds"] > 1000
    assert result["cpu_seconds"] is None
    assert result["cpus"] == [None, cpu_name()]


def test_the_processors_time_is_not_the_walls(monkeypatch):
    wall, cpu = iter([10.0, 25.0]), iter([3.0, 5.0])
    monkeypatch.setattr("time.monotonic", lambda: next(wall))
    monkeypatch.setattr("time.process_time", lambda: next(cpu))
    spent = Clock(Spent(100.0, 50.0, (cpu_name(),))).spent()
    assert spent == Spent(115.0, 52.0, (cpu_name(),))


def test_a_processor_without_a_name_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr("headscope.training.clock._CPUINFO", tmp_path / "cpuinfo")
    assert cpu_name() is None
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 100.00\n")
    assert cpu_name() is None
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz: fast\n")
    assert cpu_name() == "A CPU @ 2 GHz: fast"


@pytest.mark.parametrize("step", [2, None])
def test_the_callers_threads_and_random_state_stay(little, tmp_path, step):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        seen = []

        def progress(done, total, _):
            seen.append(torch.get_num_threads())
            if done == step:
                raise Stop

        try:
            train(TINY, little, tmp_path / "out", SHORT, progress=progress)
        except Stop:
            assert step == 2
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.rand(3), expected)
    finally:
        torch.set_num_threads(before)
