"""`perfscope run --ledger` on real programs: what they did, also if they are killed or the disk is full."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from perfscope.plugins.job.account import JobAccount, job_account
from perfscope.plugins.job.recorder import LATEST_SUFFIX
from tests.session.programs import captured, start, write

PROGRAM = """
import os, resource, sys, time
import torch
from torch import nn

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def evaluate():
    until = time.perf_counter() + 0.6
    while time.perf_counter() < until:
        model(torch.randn(32, 64))

def fetch():
    time.sleep(0.002)
    return torch.randn(32, 64)

def train(steps):
    for _ in range(steps):
        model(fetch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def account_of(folder: Path) -> JobAccount:
    return job_account([folder / "perfscope-runs" / "latest"])


def seconds(account: JobAccount) -> dict[str, float]:
    return {cause.cause: cause.ns / 1e9 for cause in account.causes}


def test_a_program_is_accounted_for_from_start_to_end(tmp_path: Path) -> None:
    write(
        tmp_path,
        PROGRAM + "train(150)\nevaluate()\ntorch.save(model.state_dict(), 'w.pt')\ntrain(150)\nprint('done')\n",
    )
    began = time.time()
    result = captured("--ledger", "--no-report", "train.py", cwd=tmp_path)
    took = time.time() - began
    assert result.returncode == 0
    assert result.stdout.startswith("done\n")
    assert "trained what was kept" in result.stdout
    account = account_of(tmp_path)
    assert account.total_ns == account.wall_ns == sum(cause.ns for cause in account.causes)
    assert account.total_ns / 1e9 < took
    assert account.steps == 300
    (attempt,) = account.attempts
    assert attempt.ended
    assert [event.kind for event in account.events] == ["started", "evaluation", "save", "ended"]
    assert account.events[2].line == f"train.py:{PROGRAM.count(chr(10)) + 3}"
    found = seconds(account)
    assert found["sleeping"] > 0
    evaluation = next(cause for cause in account.causes if cause.cause == "evaluation")
    assert evaluation.ns < 6e9
    assert evaluation.lines[0][0] == "train.py:12"


def test_a_killed_program_keeps_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, PROGRAM + "train(10)\nopen('stepping', 'w').close()\ntrain(10**6)\n")
    program = start("--ledger", "--no-report", "-q", "--", sys.executable, "train.py", cwd=tmp_path)
    try:
        ledgers: list[Path] = []
        until = time.monotonic() + 120
        while time.monotonic() < until:
            ledgers = list((tmp_path / "perfscope-runs").glob("2*/ledger/*.jsonl"))
            if (tmp_path / "stepping").exists() and ledgers and ledgers[0].read_bytes().count(b'"steps":') >= 3:
                break
            time.sleep(0.1)
        else:
            pytest.fail("no rows in two minutes")
        os.kill(int(ledgers[0].name.split("-")[-2]), signal.SIGKILL)
        program.wait(timeout=60)
    finally:
        program.kill()
    account = job_account([ledgers[0].parents[1]])
    ledgers[0].with_name(f"{ledgers[0].name}{LATEST_SUFFIX}").unlink()
    written = job_account([ledgers[0].parents[1]])
    assert account.steps >= written.steps > 10
    assert account.total_ns >= written.total_ns
    assert not account.attempts[0].ended
    assert account.total_ns == sum(cause.ns for cause in account.causes)


@pytest.mark.slow
def test_a_full_disk_delays_rows_and_loses_none(tmp_path: Path) -> None:
    """A limit on the size of files refuses writes as a full disk does; later there is room again."""
    limit = "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
    full = limit + "resource.setrlimit(resource.RLIMIT_FSIZE, (400, most))\n"
    room = "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
    write(
        tmp_path,
        PROGRAM
        + full
        + "evaluate(); train(400); evaluate(); evaluate(); evaluate()\n"
        + room
        + "train(30)\nprint('done')\n",
    )
    result = captured("--ledger", "--no-report", "-q", "train.py", cwd=tmp_path)
    assert result.returncode == 0
    assert "done" in result.stdout
    account = account_of(tmp_path)
    assert account.total_ns == account.wall_ns == sum(cause.ns for cause in account.causes)
    line = f"train.py:{PROGRAM[: PROGRAM.index('model(torch.randn(32, 64))')].count(chr(10)) + 1}"
    assert line in {line for cause in account.causes for line, _ in cause.lines}


def test_progress_is_kept(tmp_path: Path) -> None:
    told = "import perfscope\nfor n in range(5):\n    train(5)\n    perfscope.progress(tokens=100, loss=1 / (n + 1))\n"
    write(tmp_path, PROGRAM + told)
    assert captured("--ledger", "--no-report", "-q", "train.py", cwd=tmp_path).returncode == 0
    account = account_of(tmp_path)
    assert account.tokens == 500
    assert account.ranks[0].loss == pytest.approx(0.2)
