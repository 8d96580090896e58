"""Every annotated shape and type of the package is checked while the tests run; the real checkpoint, where it can be had."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype

ROOT = Path(__file__).parents[1]

# jaxtyping wants its type checker by an importable name; an int passes for a float, as in PEP 484.
_checker = types.ModuleType("_headscope_type_checker")
_checker.check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # type: ignore[attr-defined]
sys.modules[_checker.__name__] = _checker
torch.set_num_threads(1)  # the tests' tensors are tiny: more threads cost more than they bring

jaxtyping.install_import_hook("headscope", f"{_checker.__name__}.check")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Directory with the GGUF of SmolLM2-135M-Instruct; skips where it cannot be had, except where it must."""
    from headscope.checkpoints.smollm2 import prepare
    from headscope.errors import CheckpointError

    try:
        return prepare(ROOT / "smollm2").parent
    except CheckpointError as error:
        if os.environ.get("HEADSCOPE_REQUIRE_SMOLLM2"):
            pytest.fail(f"SmolLM2 is required here: {error}")
        pytest.skip(f"SmolLM2 cannot be had: {error}")


@pytest.fixture
def unchecked():
    """Switch the run-time type checks off, to see what the package itself says to a value of the wrong type."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
