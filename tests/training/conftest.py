"""A small corpus of source code, the same on every machine that has this Python."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in ("json", "asyncio"):
        for file in sorted((library / package).glob("*.py")):
            shutil.copy(file, folder / f"{package}_{file.name}")
    return folder
