"""The benchmark for a GPU: it starts, says that it needs one, and its motions work without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "decode_gpu.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_that_it_needs_one():
    done = run()
    assert done.returncode == 2
    assert "needs a GPU" in done.stdout


def test_a_rehearsal_times_every_shape_at_every_load_and_says_that_it_means_nothing(tmp_path):
    out = tmp_path / "found.json"
    done = run("--rehearse", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert "mean nothing" in found["device"]
    assert len({(row["shape"], row["load"]) for row in found["rows"]}) == len(found["rows"]) == 8 * 4
    lrkv = next(row for row in found["rows"] if row["shape"].startswith("LRKV") and row["load"] == "8 x 8k")
    assert lrkv["bytes"] == 8 * 4 * 2 * (2 * 128 + 2 * 18 * 56)
    mla = next(row for row in found["rows"] if row["shape"].startswith("MLA") and row["load"] == "1 x 8k")
    assert mla["bytes"] == 4 * 2 * (512 + 64)
