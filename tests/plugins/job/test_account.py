"""The account of a job from written ledgers: exact sums, restarts, lost work, stalls, changes of the step time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfscope.model.errors import DataError
from perfscope.plugins.job.account import JobAccount, job_account
from perfscope.plugins.job.causes import place_of
from perfscope.plugins.job.recorder import LATEST_SUFFIX, OUTSIDE, SET_UP, WARM_UP
from tests.plugins.job.written import BEGAN, S, Written


def seconds(account: JobAccount) -> dict[str, float]:
    over_time: Counter[str] = Counter()
    for part in account.bins:
        over_time.update(part.causes)
    assert over_time == Counter({cause.cause: cause.ns for cause in account.causes})
    assert all(ns >= 0 for part in account.bins for ns in part.causes.values())
    return {cause.cause: cause.ns / S for cause in account.causes}


def test_every_second_has_one_cause_and_its_line(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"import": 3, "load": 2, "data": 1, "compile": 4}, phase=SET_UP)
    ledger.row({"train": 2, "data": 1}, phase=WARM_UP, steps=1)
    ledger.row({"train": 5, "data": 2, "eval": 1.5, "save": 0.5, "ranks": 1}, core=0.25, steps=9)
    ledger.row({"train": 0.5}, phase=OUTSIDE, tail=[])
    account = job_account([tmp_path])
    assert seconds(account) == {
        "imports": 2 + 3,
        "restoring": 2,
        "set-up": 1,
        "compilation": 4,
        "warm-up steps": 2,
        "training steps": 5.5,
        "waiting for data": 3,
        "evaluation": 1.5,
        "saving checkpoints": 0.5,
        "waiting for ranks": 1,
        "waiting for a core": 0.25,
    }
    assert account.total_ns == account.wall_ns == sum(cause.ns for cause in account.causes)
    assert account.goodput == pytest.approx(5.5 * S / account.total_ns)
    assert account.steps == 10
    lines = {cause.cause: cause.lines[0][0] for cause in account.causes if cause.lines}
    assert lines["training steps"] == "train.py:12"
    assert lines["evaluation"] == "train.py:32"
    assert lines["waiting for data"] == "train.py:38"


@pytest.mark.parametrize(
    ("function", "cause"),
    [("estimate_loss", "evaluation"), ("Trainer.validation_step", "evaluation"), ("latest_loss", "training steps")],
)
def test_evaluations_are_known_by_the_name_of_a_function(function: str, cause: str) -> None:
    assert place_of([("train.py", 9, "forward"), ("train.py", 5, function), ("train.py", 1, "<module>")]).cause == cause


def test_time_after_the_last_step_is_not_training(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5}, steps=5)
    ledger.row({"train": 3}, tail={"train": 2})
    assert seconds(job_account([tmp_path])) == {"imports": 2, "training steps": 6, "after the last step": 2}


def test_a_stall_is_charged_once(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5}, steps=5)
    ledger.row({"ranks": 200, "train": 1}, stuck={"ranks": 200, "train": 1})
    ledger.row({"ranks": 50}, stuck={"ranks": 250, "train": 1})
    ledger.row({"train": 2}, steps=2)
    account = job_account([tmp_path])
    assert seconds(account) == {"imports": 2, "training steps": 7, "stalled": 251}
    assert account.causes[0].lines[0] == ("train.py:44", 250 * S)


def test_the_stacks_of_a_stall_name_the_line(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5, "ranks": 1}, steps=5)
    ledger.add({"stalled": ledger.now, "stacks": [["MainThread", ledger.node("ranks")], ["other", -1]]})
    (event,) = [event for event in job_account([tmp_path]).events if event.kind == "stalled"]
    assert event.line == "train.py:44"
    assert event.unix_ns == BEGAN + 8 * S


def killed_and_resumed(folder: Path, *, restored: str | None) -> JobAccount:
    first = Written(folder, pid=1)
    first.row({"train": 10, "save": 1}, steps=10)
    first.row({"save": 1}, checkpoints=[first.checkpoint("save", 1, "aa")])
    first.row({"train": 7, "data": 2}, steps=7)
    second = Written(folder, pid=2, at=33, restart=1)
    loaded = [] if restored is None else [second.checkpoint("restore", 0, restored)]
    second.row({"load": 1}, phase=SET_UP, checkpoints=loaded)
    second.row({"train": 20}, steps=20, tail=[])
    return job_account([folder])


def test_what_a_killed_process_trained_after_its_last_save_is_lost(tmp_path: Path) -> None:
    account = killed_and_resumed(tmp_path, restored="aa")
    found = seconds(account)
    assert found["lost work"] == 7
    assert found["training steps"] == 30
    assert found["between attempts"] == 33 - (2 + 11 + 1 + 9)
    assert account.total_ns == account.wall_ns == sum(cause.ns for cause in account.causes) == (33 + 23) * S
    assert [attempt.lost_ns for attempt in account.attempts] == [7 * S, 0]
    assert [event.kind for event in account.events] == ["started", "save", "killed", "started", "restore", "ended"]


def test_a_rank_that_ended_by_an_error_loses_what_it_did_not_save(tmp_path: Path) -> None:
    first = Written(tmp_path, pid=1)
    first.row({"train": 10}, steps=10)
    first.row({"save": 1}, checkpoints=[first.checkpoint("save", 0, "aa")])
    first.row({"train": 7}, steps=7, tail={})
    second = Written(tmp_path, pid=2, at=20)
    second.row({"train": 5}, steps=5, checkpoints=[second.checkpoint("restore", 0, "aa")], tail={})
    assert seconds(job_account([tmp_path]))["lost work"] == 7


def test_a_rank_that_saves_nothing_restores_what_the_first_rank_saved(tmp_path: Path) -> None:
    for rank in (0, 1):
        first = Written(tmp_path, rank=rank, pid=2 * rank + 1)
        first.row({"train": 10}, steps=10)
        first.row({"save": 1}, checkpoints=[] if rank else [first.checkpoint("save", 1, "aa")])
        first.row({"train": 7}, steps=7)
        second = Written(tmp_path, rank=rank, pid=2 * rank + 2, at=33)
        second.row({"load": 1}, phase=SET_UP, checkpoints=[second.checkpoint("restore", 0, "aa")])
    assert [attempt.lost_ns for attempt in job_account([tmp_path]).attempts] == [7 * S, 7 * S, 0, 0]


def test_two_jobs_and_clocks_that_jump_are_noted(tmp_path: Path) -> None:
    first = Written(tmp_path, pid=1)
    first.row({"train": 10}, steps=10, unix=BEGAN + 12 * S)
    first.row({"train": 10}, steps=10, unix=BEGAN + 3600 * S)
    second = Written(tmp_path, pid=2, at=5, program="eval.py")
    second.row({"train": 5}, steps=5)
    account = job_account([tmp_path])
    assert account.total_ns == account.wall_ns == sum(cause.ns for cause in account.causes)
    two, clock, both = account.notes
    assert "2 programs (eval.py, train.py)" in two
    assert "set by +3,578.0 s" in clock
    assert "processes 1 and 2 ran at the same time for 17.0 s" in both


def test_a_stall_of_a_killed_process_is_not_lost_work(tmp_path: Path) -> None:
    first = Written(tmp_path, pid=1)
    first.row({"train": 10}, steps=10)
    first.row({"train": 130}, stuck={"train": 130})
    second = Written(tmp_path, pid=2, at=200)
    second.row({"load": 1}, phase=SET_UP)
    account = job_account([tmp_path])
    found = seconds(account)
    assert (found["stalled"], found["lost work"]) == (130, 10)
    assert {cause.cause: cause.lines for cause in account.causes}["lost work"] == (("train.py:12", 10 * S),)


def test_the_latest_sums_of_a_killed_process_count(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    ledger.row({"train": 5}, steps=5)
    size = ledger.path.stat().st_size
    ledger.row({"train": 3, "slow": 1}, steps=3, after=size)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:size])
    latest = ledger.path.with_name(f"{ledger.path.name}{LATEST_SUFFIX}")
    latest.write_bytes(whole[size:] + b"the rest of a longer line")
    account = job_account([tmp_path])
    assert (account.steps, seconds(account)["training steps"], account.notes) == (8, 9, ())
    ledger.path.write_bytes(whole)  # as if it was appended since
    assert job_account([tmp_path]).steps == 8


def test_without_a_restore_all_of_its_training_is_lost(tmp_path: Path) -> None:
    assert seconds(killed_and_resumed(tmp_path, restored=None))["lost work"] == 17


def test_a_restore_of_another_file_takes_the_last_save(tmp_path: Path) -> None:
    """A save that was renamed has another path; pretrained weights are rarely loaded by a job that also saves."""
    assert seconds(killed_and_resumed(tmp_path, restored="bb"))["lost work"] == 7


def test_a_failed_save_keeps_nothing(tmp_path: Path) -> None:
    first = Written(tmp_path, pid=1)
    first.row({"train": 4}, steps=4, checkpoints=[first.checkpoint("save", 1, "aa")])
    first.row({"train": 3}, steps=3)
    first.row({"save": 1}, checkpoints=[first.checkpoint("save", 1, "aa", ok=False)])
    first.row({"train": 2}, steps=2)
    second = Written(tmp_path, pid=2, at=20)
    second.row({"train": 1}, steps=1, checkpoints=[second.checkpoint("restore", 0, "aa")], tail=[])
    account = job_account([tmp_path])
    assert seconds(account)["lost work"] == 4 + 3 + 2  # the save began within the first row
    assert "failed save" in {event.kind for event in account.events}


def test_ranks_and_runs_of_one_job_are_one_account(tmp_path: Path) -> None:
    for run, rank, at in (("a", 0, 0), ("a", 1, 1), ("b", 0, 40), ("b", 1, 40)):
        ledger = Written(tmp_path / run, rank=rank, pid=10 * rank + at, at=at)
        ledger.row({"train": 10}, steps=10, tail=[])
    account = job_account([tmp_path / "a", tmp_path / "b"])
    assert len(account.ranks) == 2
    assert account.steps == 20
    assert account.wall_ns == 52 * S
    assert account.total_ns == sum(cause.ns for cause in account.causes) == (52 + 51) * S
    assert seconds(account)["between attempts"] == 28 + 27


def test_a_launcher_is_no_rank(tmp_path: Path) -> None:
    Written(tmp_path, rank=None, pid=1).row({"ranks": 60}, phase=SET_UP)
    Written(tmp_path, rank=1, pid=2).row({"train": 5}, steps=5, tail=[])
    assert seconds(job_account([tmp_path])) == {"imports": 2, "training steps": 5}


def test_a_rank_that_is_known_later_is_taken(tmp_path: Path) -> None:
    ledger = Written(tmp_path, rank=None)
    ledger.row({"train": 5}, steps=5)
    ledger.row({"train": 5}, steps=5, rank=3, world=4)
    assert [rank.rank for rank in job_account([tmp_path]).ranks] == [3]


def test_clocks_that_jump_back_count_no_time_twice(tmp_path: Path) -> None:
    Written(tmp_path, pid=1).row({"train": 10}, steps=10)
    Written(tmp_path, pid=2, at=5).row({"train": 10}, steps=10, tail=[])
    account = job_account([tmp_path])
    assert account.total_ns == account.wall_ns == sum(cause.ns for cause in account.causes) == 17 * S


@pytest.mark.parametrize(("slower", "line"), [("slow", "train.py:20"), ("train", "train.py:12")])
def test_a_change_of_the_step_time_names_its_line(tmp_path: Path, slower: str, line: str) -> None:
    ledger = Written(tmp_path)
    for number in range(40):
        late = 0.0 if number < 20 else 5.0
        parts = {"train": 10 + number % 3 / 10}
        parts[slower] = parts.get(slower, 0.0) + late
        ledger.row(parts, steps=100)
    (change,) = job_account([tmp_path]).changes
    assert change.line == line
    assert change.line_ns == pytest.approx(0.05 * S, rel=0.02)
    assert change.change == pytest.approx(0.5, abs=0.02)
    assert change.unix_ns == pytest.approx(BEGAN + (2 + 20 * 10.1) * S, abs=2 * S)


def test_a_steady_step_time_has_no_change(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    for number in range(40):
        ledger.row({"train": 10 + number % 7 / 10, "data": number % 5}, steps=100)
    assert job_account([tmp_path]).changes == ()


def test_a_long_job_is_joined_to_few_points(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    for number in range(2_000):
        ledger.row({"train": 1 + number % 2 / 100 + (number >= 1_200)}, steps=10)
    (change,) = job_account([tmp_path]).changes
    assert change.change == pytest.approx(1.0, abs=0.02)


def test_without_a_ledger_it_says_how_to_keep_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no ledger; `perfscope run --ledger` keeps one"):
        job_account([tmp_path])
