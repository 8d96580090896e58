"""The Triton path: the kernels run in the interpreter, compile for devices that are not here, and say when they cannot run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from headscope.kernels import decode

from ..problems import problem

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes that a program can have, by compute capability."""
REDUCING_ANGLES = 32
"""Bytes of stack that CUDA's cosine and sine take for angles beyond 100 000, spilled register or not."""
UNUSED = {"keys.0.theta", "keys.1.theta"}
"""What is handed over for nothing: frequencies of rows that do not turn. MLA's values are its keys."""
STEPS = [f"{kind}{looking}" for kind in ("lrkv", "gqa", "mla") for looking in ("", "-probes")]


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these variables and no other word to Triton."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    kept["TRITON_DEFAULT_FP_FUSION"] = "1"
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, check=False
    )


def run_cases(**environment: str) -> None:
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "cases.py")], **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_kernels_give_what_the_formulas_give_in_the_interpreter():
    run_cases(TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_kernels_give_what_the_formulas_give_on_a_gpu():
    run_cases()


@pytest.mark.parametrize("arch", [80, 90])
def test_at_real_shapes_no_register_spills_and_shared_memory_suffices(arch):
    steps = [*STEPS, "lrkv-turned-normed-probes"]
    done = run([str(HERE / "resources.py"), str(arch), *steps])
    assert done.returncode == 0, done.stderr
    found = {row["what"]: row["kernels"] for row in map(json.loads, done.stdout.splitlines())}
    assert list(found) == steps
    for what, kernels in found.items():
        assert set(kernels) == {"split", "combine"} | ({"rescore"} if "probes" in what else set())
        for name, taken in kernels.items():
            where = f"{name} of {what} on {arch}: {taken}"
            assert taken["stack"] <= (REDUCING_ANGLES if "turned" in what else 0), where
            assert taken["registers"] * taken["warps"] * 32 <= 65536, where
            assert taken["shared"] <= SHARED_MEMORY[arch], where
            # Compiled, a name may mean something else than interpreted: then what it should have meant is not touched.
            assert set(taken["unused"]) <= UNUSED | ({"values.0.rows"} if "mla" in what else set()), where
        assert kernels["split"]["tensor"] > 0, what
        assert kernels["split"]["async"] > 0, what


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_triton_without_a_gpu_says_so(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="needs rows on a CUDA device, but they are on cpu"):
        decode(problem("mqa"), path="triton")


def test_rows_on_the_cpu_are_left_to_torch_and_triton_is_not_imported():
    code = (
        "import sys, torch; from headscope.kernels import *; "
        "rows = torch.ones(1, 1, 16, 8); pages = Pages(torch.zeros(1, 1, dtype=torch.long), torch.tensor([3])); "
        "step = Problem((KeyPart('all', torch.ones(1, 2, 8), rows),), (ValuePart('all', rows),), pages, 1.0); "
        "print(decode(step).path, 'headscope.kernels.triton.launch' in sys.modules)"
    )
    done = run(["-c", code])
    assert done.stdout.split() == ["torch", "False"], done.stderr


def test_products_are_full_float32_wherever_they_stand():
    """TF32, which Triton takes unless told otherwise, rounds float32 rows to 10 bits: no product leaves it to choose."""
    products = []
    for path in (ROOT / "kernels" / "triton").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.dot":
                products.append(path.name)
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert options.get("input_precision") == "'ieee'", f"{path.name}:{node.lineno}"
    assert {"score.py", "split.py"} <= set(products)
