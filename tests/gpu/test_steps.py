"""The steps of ``make test-gpu`` that need no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu import __main__ as steps


def test_without_a_gpu_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "device_name", lambda: None)
    assert steps.main([str(tmp_path)]) == 1


def test_the_measured_time_is_the_median_of_steps_without_a_profiler(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"processes": [{"untraced_step_ns": [10, 30, 20]}]}))
    assert steps.measured_ns(tmp_path) == 20
    (tmp_path / "run.json").write_text(json.dumps({"processes": [{"untraced_step_ns": []}]}))
    assert steps.measured_ns(tmp_path) is None


def test_nothing_compared_is_a_failure(tmp_path: Path) -> None:
    assert not steps.compare_times(tmp_path, "h100", end=float("inf"))
