"""The last lines of a run hold its result's numbers; runs on record, which knew no processor's time, have them too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headscope.training.closing import closing

RUNS = sorted((Path(__file__).parents[2] / "docs" / "reference-runs").glob("*/result.json"))


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.parent.name)
def test_a_run_on_record(file):
    result = json.loads(file.read_text())
    test, twice, took = closing(result)
    assert test.startswith(f"test split: {result['test']['loss']:.4f} nats a token, ")
    assert f"the second time {result['induction']['second_loss']:.3f}" in twice
    assert twice.endswith(f"{max(max(layer) for layer in result['induction']['scores']):.3f} of 1")
    assert took == f"{result['seconds'] / 60:.1f} minutes"
    assert closing({**result, "cpu_seconds": 90.0})[2] == f"{took}, 1.5 of the processor"
    assert closing({**result, "seconds": 2.44, "cpu_seconds": 0.4})[2] == "2.4 seconds, 0.4 of the processor"
