"""What holds a pass up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session import pass_runner
from perfscope.profiler.session.pass_runner import PassRunner
from perfscope.profiler.session.passes import Pass


def started(runner: PassRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, compiles: bool) -> list[str]:
    """Names of the passes that were started; none of them can be."""
    names: list[str] = []

    def start_pass(due: Pass, *_: Any) -> str:
        names.append(due.name)
        return "not here"

    monkeypatch.setattr(pass_runner, "start_pass", start_pass)
    runner.start(5, tmp_path, None, program_profiles=False, compiles=compiles)
    return names


def test_stacks_are_not_recorded_while_the_program_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner = PassRunner(CaptureOptions(), tmp_path)
    assert started(runner, monkeypatch, tmp_path, compiles=True) == ["timing", "structure"]
    waiting = runner.captures()[-1]
    assert (waiting.pass_name, waiting.state) == ("detail", "missing")
    assert waiting.reason is not None
    assert "torch.compile compiled in each step" in waiting.reason
    assert started(runner, monkeypatch, tmp_path, compiles=False) == ["detail"]
    assert not runner.to_come
