"""A small corpus of source code, the same on every machine that has this Python."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
from headscope.training.corpus import Corpus, from_path, split_of


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in ("json", "asyncio"):
        for file in sorted((library / package).glob("*.py")):
            shutil.copy(file, folder / f"{package}_{file.name}")
    return folder


@pytest.fixture(scope="session")
def little(text) -> Corpus:
    """Return the same with a tenth of its train split, for runs of a few steps."""
    documents = from_path(text).documents
    train = [document for document in documents if split_of(document.unit) == "train"]
    held_out = [document for document in documents if document not in train]
    return Corpus("a little source code", (*train[: len(train) // 10], *held_out))
