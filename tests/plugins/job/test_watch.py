"""Watching: which rows are a change, which requests fit the budget, and what a program records on its own."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from perfscope.plugins.job.account import job_account
from perfscope.plugins.job.recordings import compared_recordings
from perfscope.plugins.job.watch import MOST_PER_DAY, QUIET_S, REQUEST, Change, Requests, Values, Watch
from perfscope.profiler.session.trigger import TRIGGER_FILE
from tests.session.programs import captured, write


def watch(folder: Path) -> Watch:
    return Watch(Requests(folder, folder))


def feed(watched: Watch, **series: list[float]) -> list[Change]:
    rows = max(map(len, series.values()))
    found = []
    for number in range(rows):
        values = {name: values[number] for name, values in series.items()}
        unknown = dict.fromkeys(Values._fields)
        found += watched.row(Values(**{**unknown, **values}), steps=number, now_ns=number)
    return found


STEADY = [100.0 + number % 3 for number in range(16)]


@pytest.mark.parametrize(
    ("series", "after", "before", "now"),
    [
        ("step_ns", [120.0, 121, 122, 123], 101.0, 121.5),
        ("step_ns", [80.0, 81, 82, 83], 101.0, 81.5),
        ("loss", [120.0, 121, 122, 123], 101.0, 121.5),
    ],
)
def test_four_rows_on_one_side_are_a_change(
    tmp_path: Path, series: str, after: list[float], before: float, now: float
) -> None:
    (change,) = feed(watch(tmp_path), **{series: STEADY + after})
    assert (change.series, change.before, change.after, change.since_ns) == (series, before, now, 15)


@pytest.mark.parametrize(
    ("series", "after"),
    [
        ("step_ns", [120.0, 121, 122]),  # three rows
        ("step_ns", [120.0, 121, 102, 123, 124]),  # one is as before
        ("step_ns", [105.0, 106, 106, 105]),  # by less than a tenth
        ("loss", [50.0, 51, 52, 53]),  # it trains
        ("memory", [120.0, 121, 122, 123]),  # by less than 256 MiB
    ],
)
def test_other_rows_are_none(tmp_path: Path, series: str, after: list[float]) -> None:
    assert not feed(watch(tmp_path), **{series: STEADY + after})


def test_a_loss_that_is_not_a_number_is_told_once(tmp_path: Path) -> None:
    (change,) = feed(watch(tmp_path), loss=[2.0, math.nan, math.nan, math.nan])
    assert change.series == "loss"
    assert change.before == 2.0


def test_a_steady_program_is_recorded_once_and_each_change_again(tmp_path: Path) -> None:
    watched = watch(tmp_path)
    (change,) = feed(watched, step_ns=STEADY + [130.0] * 4)
    assert change.request == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        [REQUEST.format(0), REQUEST.format(1), TRIGGER_FILE]
    )
    assert '"steady"' in (tmp_path / REQUEST.format(0)).read_text()
    (again,) = feed(watched, step_ns=[130.0] * 12 + [200.0] * 4)
    assert again.request == -1  # too soon after the last one


def test_requests_keep_to_the_budget_over_ranks_and_restarts(tmp_path: Path) -> None:
    def age(number: int, seconds: float) -> None:
        at = time.time() - seconds
        os.utime(tmp_path / REQUEST.format(number), (at, at))

    for number in range(MOST_PER_DAY):
        assert Requests(tmp_path, tmp_path).make("step_ns", 1) == number
        age(number, 2 * QUIET_S)
    assert Requests(tmp_path, tmp_path).make("step_ns", 1) == -1
    for number in range(MOST_PER_DAY):
        age(number, 2 * 86_400)
    assert Requests(tmp_path, tmp_path).make("step_ns", 1) == MOST_PER_DAY


def test_a_full_disk_refuses_a_request(tmp_path: Path) -> None:
    assert Requests(tmp_path / "gone", tmp_path / "gone").make("step_ns", 1) == -1


PROGRAM = """
import os, signal, time
import torch
from torch import nn
import perfscope.plugins.job.recorder as recorder
recorder.ROWS_S = ((float("inf"), 0.2),)
recorder.PERIOD_S = 0.05
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def augment(batch):
    time.sleep(0.03)
    return batch
def train(seconds, slow):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        batch = torch.randn(8, 64)
        time.sleep(0.01)
        model(augment(batch) if slow else batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
train(6, False)
train(5, True)
os.kill(os.getpid(), signal.SIGUSR2)
train(2.5, True)
print("done")
"""


@pytest.mark.slow
def test_a_program_that_becomes_slow_is_recorded_and_compared(tmp_path: Path) -> None:
    write(tmp_path, PROGRAM)
    result = captured("--ledger", "--watch", "--no-report", "-q", "train.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "done\n")
    run = tmp_path / "perfscope-runs" / "latest"
    account = job_account([run])
    change = next(change for change in account.watched if change.series == "step_ns" and change.recorded)
    before, after = change.levels
    assert before is not None
    assert after is not None
    assert after > 2 * before
    line = PROGRAM[: PROGRAM.index("    time.sleep(0.03)")].count("\n") + 1
    slower = max(account.changes, key=lambda change: change.change)
    assert (slower.line, slower.cause) == (f"train.py:{line}", "sleeping")
    recorded, by_signal = compared_recordings([run])
    assert (recorded.why, by_signal.why) == ("step_ns", "")
    assert recorded.head_ns > 2 * recorded.base_ns
