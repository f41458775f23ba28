"""`perfscope trigger`: a program that runs records steps again."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run as command_line
from perfscope.analyzers.readers.load import load_path
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run
from perfscope.profiler.session import trigger
from tests.session.programs import LOOP, start, write
from tests.session.test_launch import ENDLESS


def test_a_request_is_seen_once_and_not_by_a_process_that_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "LOOK_EVERY_S", 0.0)
    before = trigger.Trigger(tmp_path)
    assert before.steps(3, alone=True) == 0
    (tmp_path / trigger.TRIGGER_FILE).write_text("4")
    assert (before.steps(4, alone=True), before.steps(5, alone=True)) == (4, 0)
    assert trigger.Trigger(tmp_path).steps(5, alone=True) == 0
    (tmp_path / trigger.TRIGGER_FILE).write_text("four, please")
    assert before.steps(6, alone=True) == 0


def test_the_file_is_looked_for_once_a_second(tmp_path: Path) -> None:
    asked = trigger.Trigger(tmp_path)
    (tmp_path / trigger.TRIGGER_FILE).write_text("4")
    assert asked.steps(3, alone=True) == 0


def test_ranks_agree_on_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks in lockstep, 0.3 s per step, whose looks fall on different steps."""
    clock = [100.0]
    monkeypatch.setattr(trigger, "monotonic", lambda: clock[0])
    ranks = [trigger.Trigger(tmp_path)]
    clock[0] += 0.6
    ranks.append(trigger.Trigger(tmp_path))
    began: list[dict[int, int]] = [{}, {}]
    for number in range(40):
        clock[0] += 0.3
        if number in (9, 24):
            (tmp_path / "new").write_text("2")
            (tmp_path / "new").replace(tmp_path / trigger.TRIGGER_FILE)
        for rank, seen in zip(ranks, began, strict=True):
            if steps := rank.steps(number, alone=False):
                seen[number] = steps
    assert began[0] == began[1]
    first, second = began[0]
    assert list(began[0].values()) == [2, 2]
    assert 9 < first <= 9 + 13
    assert 24 < second <= 24 + 13
    assert not list(tmp_path.glob(f"{trigger.TRIGGER_FILE}-*-*"))


def test_a_rank_that_finds_the_request_late_records_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger, "LOOK_EVERY_S", 0.0)
    early, late = trigger.Trigger(tmp_path), trigger.Trigger(tmp_path)
    (tmp_path / trigger.TRIGGER_FILE).write_text("2")
    assert [early.steps(number, alone=False) for number in (5, 6)] == [0, 2]
    assert late.steps(9, alone=False) == 2


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


def _timing(directory: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Timing recordings of a process of the run."""
    captures = json.loads((directory / f"rank{rank:05d}" / "process.json").read_bytes())["captures"]
    return [capture for capture in captures if capture["pass"] == "timing" and capture["artifact"]]


RANKS = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
turn = 0
def after():
    global turn
    turn += 1
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
    if turn == 12 and dist.get_rank() == 0:
        print("ready", flush=True)
work(10**9, after)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_of_a_job_record_the_same_steps_again(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = start("--level", "light", "--", *launcher, program, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    directory = (tmp_path / "perfscope-runs" / "latest").resolve()
    assert command_line(["trigger", str(directory), "--steps", "2"]) == 0
    until = time.monotonic() + 60
    while min(len(_timing(directory, rank)) for rank in (0, 1)) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    first, second = (_timing(directory, rank)[1]["steps"] for rank in (0, 1))
    assert first == second
    assert first[1] - first[0] == 2
