"""`perfscope trigger`: a program that runs records steps again."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run as command_line
from perfscope.analyzers.readers.load import load_path
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run
from perfscope.profiler.session import trigger
from tests.session.programs import start, write
from tests.session.test_launch import ENDLESS


def test_a_request_is_seen_once_and_not_by_a_process_that_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "LOOK_EVERY_S", 0.0)
    before = trigger.Trigger(tmp_path)
    assert before.steps() == 0
    (tmp_path / trigger.TRIGGER_FILE).write_text("4")
    assert (before.steps(), before.steps()) == (4, 0)
    assert trigger.Trigger(tmp_path).steps() == 0
    (tmp_path / trigger.TRIGGER_FILE).write_text("four, please")
    assert before.steps() == 0


def test_the_file_is_looked_for_once_a_second(tmp_path: Path) -> None:
    asked = trigger.Trigger(tmp_path)
    (tmp_path / trigger.TRIGGER_FILE).write_text("4")
    assert asked.steps() == 0


def test_a_run_that_has_ended_is_one_line_and_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(id="a", name="a", created_utc="2026-11-20T00:00:00+00:00", command=("a.py",), state="finished")
    (tmp_path / "a").mkdir()
    run_folders.write(tmp_path / "a", run)
    assert command_line(["trigger", str(tmp_path / "a")]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "the run has ended" in line
    assert not (tmp_path / "a" / trigger.TRIGGER_FILE).exists()


@pytest.mark.slow
@pytest.mark.torch
def test_a_running_program_records_its_next_steps_again_in_the_same_run(tmp_path: Path) -> None:
    process = start("--level", "light", write(tmp_path, ENDLESS), cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    directory = (tmp_path / "perfscope-runs" / "latest").resolve()
    for number, steps in ((2, 4), (3, 1)):
        assert command_line(["trigger", str(directory), "--steps", str(steps)]) == 0
        until = time.monotonic() + 60
        while len(_timing(directory)) < number and time.monotonic() < until:
            time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    (first, second, third) = _timing(directory)
    assert first["steps"] == [2, 5]
    assert second["steps"][1] - second["steps"][0] == 4
    assert third["steps"][1] - third["steps"][0] == 1
    assert third["steps"][0] > second["steps"][1] > first["steps"][1]
    assert third["artifact"] == "rank00000/timing-3.pt.trace.json.gz"
    (trace,) = load_path(directory).traces
    assert len(trace.rows["steps"]) == 1
    assert any("the newest of 3 recordings" in note for note in trace.source.notes)


def _timing(directory: Path) -> list[dict[str, Any]]:
    """Timing recordings of the run's only process."""
    captures = json.loads((directory / "rank00000" / "process.json").read_bytes())["captures"]
    return [capture for capture in captures if capture["pass"] == "timing" and capture["artifact"]]
