"""Runs as they lie on disk."""

from __future__ import annotations

import headscope as hs
import pytest
from headscope.checkpoints.runs import is_run, open_run, saved_steps


def test_steps_are_sorted_by_number_and_nothing_else_counts(tmp_path):
    for name in ("steps/step-000200", "steps/step-001000", "checkpoint-50", "checkpoint-best", "steps/step-x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "steps" / "step-000300").write_text("a file")
    assert list(saved_steps(tmp_path)) == [50, 200, 1000]
    assert saved_steps(tmp_path / "nowhere") == {}


def test_a_checkpoint_with_older_ones_below_it_is_a_checkpoint(tmp_path):
    (tmp_path / "checkpoint-50").mkdir()
    assert is_run(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert not is_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert is_run(tmp_path)


def test_an_unreadable_log_is_named(tmp_path):
    (tmp_path / "steps" / "step-000001").mkdir(parents=True)
    (tmp_path / "log.csv").write_text("")
    with pytest.raises(hs.CheckpointError, match=r"log\.csv cannot be read"):
        open_run(tmp_path)
