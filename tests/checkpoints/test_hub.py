"""Names of hub models: fetched when named, and only then; an error says what was tried. No test here has a network."""

from __future__ import annotations

import shutil
import socket
from fnmatch import fnmatch
from pathlib import Path

import headscope as hs
import pandas as pd
import pytest
from headscope.checkpoints import hub
from headscope.cli import app
from typer.testing import CliRunner


@pytest.fixture
def nothing_leaves(monkeypatch):
    """Refuse every connection, and note that one was tried."""
    tried = []

    def refuse(*where):
        tried.append(where)
        raise OSError("network denied")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


@pytest.fixture
def served(monkeypatch, tmp_path):
    """A hub that holds the small MHA model as org/small; returns what was asked of it."""
    asked = []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(name)
        place = tmp_path / "cache" / name
        place.mkdir(parents=True, exist_ok=True)
        source = hs.open_checkpoint("mha").store.files[0].parent
        for file in source.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, place)
        return str(place)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return asked


def test_a_hub_model_is_loaded_and_reported_on_by_its_name(served):
    model = hs.load("org/small")
    assert model.to_tokens("import os").shape[1] > 1
    by_name, shipped = hs.report("org/small", null=0), hs.report("mha", null=0)
    pd.testing.assert_frame_equal(by_name.table, shipped.table, check_exact=True)
    assert by_name.record["checkpoint"]["path"] == "org/small"
    done = CliRunner().invoke(app, ["report", "org/small", "--null", "0", "--layers", "0", "--json"])
    assert done.exit_code == 0, done.output
    assert served == ["org/small"] * 3


def test_a_path_never_asks_the_hub(served, nothing_leaves, tmp_path):
    shutil.copytree(hs.open_checkpoint("mha").store.files[0].parent, tmp_path / "org" / "small")
    hs.load("org/small")
    hs.load("mha")
    for name in ("org/other", "/org/small-2", "./org2/small", "org2/small/deeper", "org2", Path("org2/small")):
        with pytest.raises(hs.CheckpointError, match="does not exist"):
            hs.load(name)
    assert served == nothing_leaves == []


def test_without_a_network_the_error_says_what_was_tried(nothing_leaves, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(hs.CheckpointError, match=r"org/small is no path here, .* tried http.*/org/small and the cache"):
        hs.load("org/small")
    assert nothing_leaves
    done = CliRunner().invoke(app, ["report", "org/small"])
    assert done.exit_code == 2
    assert "Name a directory, or fetch it where there is a network" in " ".join(done.output.split())


def test_no_pickle_nor_code_is_asked_for():
    for file in ("pytorch_model.bin", "modeling_own.py", "model.onnx", "tf_model.h5"):
        assert not any(fnmatch(file, pattern) for pattern in hub.FILES), file
