"""Ranks together: who is slow and who waits, hangs and missing ranks, saves that slow the steps after them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.plugins.job.account import JobAccount, job_account
from perfscope.plugins.job.report import report_of
from tests.plugins.job.written import S, Written


def ranks(run: Path) -> list[Written]:
    return [Written(run, rank=rank, pid=rank + 1, world=2) for rank in (0, 1)]


def stepping(ledger: Written, rows: int, *, ran: float, **at: float) -> None:
    """Rows of ten steps, with a little noise."""
    for number in range(rows):
        noisy = {name: seconds * (1 + 0.01 * (number % 3)) for name, seconds in at.items()}
        ledger.row(noisy, steps=10, ran=round(ran * S))


def test_the_rank_that_waits_is_not_named_next_to_the_slow_one(tmp_path: Path) -> None:
    waits, slow = ranks(tmp_path)
    stepping(waits, 12, train=1, backward=1, ran=1.9)
    stepping(waits, 12, train=1, backward=2, ran=1.9)
    stepping(slow, 12, train=1, backward=1, ran=1.9)
    stepping(slow, 12, train=1, slow=1, backward=1, ran=2.9)
    account = job_account([tmp_path])
    (change,) = account.changes
    assert (change.rank, change.waits, change.line) == (1, (0,), "train.py:20")
    assert change.line_ns == pytest.approx(0.1 * S, rel=0.05)
    (note,) = account.rank_notes
    assert (note.rank, note.what) == (1, "slow")


def test_an_engine_that_runs_longer_is_its_own_time(tmp_path: Path) -> None:
    waits, slow = ranks(tmp_path)
    stepping(waits, 12, train=1, backward=1, ran=1.9)
    stepping(waits, 12, train=1, backward=2, ran=1.9)
    stepping(slow, 12, train=1, backward=1, ran=1.9)
    stepping(slow, 12, train=1, backward=2, ran=2.9)
    (change,) = job_account([tmp_path]).changes
    assert (change.rank, change.waits, change.line) == (1, (0,), "train.py:41")


def test_ranks_that_all_wait_are_all_shown(tmp_path: Path) -> None:
    """As on a GPU, where the device waits: none of the hosts caused it."""
    for ledger in ranks(tmp_path):
        stepping(ledger, 12, train=1, backward=1, ran=1.9)
        stepping(ledger, 12, train=1, backward=2, ran=1.9)
    assert [(change.rank, change.waits) for change in job_account([tmp_path]).changes] == [(0, ()), (1, ())]


def test_data_that_becomes_slow_is_a_change_of_the_step(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    stepping(ledger, 12, train=1, data=0.1, ran=1)
    stepping(ledger, 12, train=1, data=1, ran=1)
    (change,) = job_account([tmp_path]).changes
    assert (change.cause, change.line) == ("waiting for data", "train.py:38")


def test_waiting_for_a_core_that_follows_from_more_work_is_not_the_cause(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    for number in range(24):
        more = {"slow": 1.0} if number >= 12 else {}
        ledger.row(
            {"train": 1 + 0.01 * (number % 3), **more}, core=2.4 if more else 1.2, steps=10, ran=(1 + len(more)) * S
        )
    (change,) = job_account([tmp_path]).changes
    assert (change.cause, change.line) == ("training steps", "train.py:20")


def test_a_silent_rank_is_named(tmp_path: Path) -> None:
    alive, dead = ranks(tmp_path)
    stepping(dead, 4, train=10, ran=9)
    stepping(alive, 40, train=10, ran=9)
    (note,) = job_account([tmp_path]).rank_notes
    assert (note.rank, note.what) == (1, "silent")


def flight(ledger: Written, rank: int, pending: int, done: int) -> None:
    """Torch's record: ``done`` collectives, and one that has not ended if ``pending``."""
    calls: list[dict[str, Any]] = [
        {
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number + 1,
            "p2p_seq_id": 0,
            "is_p2p": False,
            "profiling_name": "gloo:all_reduce",
            "state": "scheduled",
            "retired": number < done,
            "input_sizes": [[64]],
            "input_dtypes": ["Float"],
            "time_created_ns": number,
        }
        for number in range(done + pending)
    ]
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    record = {"version": "2.10", "entries": calls, "pg_config": groups, "pg_status": {}}
    ledger.path.with_name(f"flight-{rank + 1}-1_rank_{rank}.json").write_text(json.dumps(record))


def hung(run: Path) -> tuple[Written, Written]:
    waits, late = ranks(run)
    for ledger, name in ((waits, "backward"), (late, "slow")):
        stepping(ledger, 3, train=1, slow=0.1, backward=0.1, ran=1)
        ledger.add({"stalled": ledger.now, "stacks": [["MainThread", ledger.node(name)]]})
        ledger.row({name: 130}, stuck={name: 130})
    return waits, late


def hang_of(account: JobAccount) -> tuple[Any, ...]:
    (hang,) = account.hangs
    return hang.missing, hang.collective, hang.known, hang.ns


def test_the_stacks_of_a_hang_show_the_missing_rank(tmp_path: Path) -> None:
    hung(tmp_path)
    account = job_account([tmp_path])
    assert hang_of(account) == ((1,), "", "stacks", 130 * S)
    facts = " ".join(report_of(account).facts)
    assert "rank 1 did not come (at train.py:20, training steps)" in facts


def test_the_records_of_a_hang_show_the_collective(tmp_path: Path) -> None:
    for rank, ledger in enumerate(hung(tmp_path)):
        flight(ledger, rank, pending=1 - rank, done=3)
    assert hang_of(job_account([tmp_path])) == ((1,), "all_reduce 64 Float", "flight recorder", 130 * S)


def test_a_record_that_is_cut_off_is_said_and_the_stacks_count(tmp_path: Path) -> None:
    for rank, ledger in enumerate(hung(tmp_path)):
        flight(ledger, rank, pending=1, done=3)
    for file in (tmp_path / "ledger").glob("flight-*"):
        file.write_bytes(file.read_bytes()[:100])
    account = job_account([tmp_path])
    assert hang_of(account)[:3] == ((1,), "", "stacks")
    assert len(account.notes) == 2


def test_a_dead_rank_is_missing(tmp_path: Path) -> None:
    waits, dead = ranks(tmp_path)
    stepping(dead, 2, train=1, ran=1)
    stepping(waits, 4, train=1, backward=0.1, ran=1)
    waits.add({"stalled": waits.now, "stacks": [["MainThread", waits.node("backward")]]})
    waits.row({"backward": 130}, stuck={"backward": 130})
    (hang,) = job_account([tmp_path]).hangs
    assert (hang.missing, hang.dead) == ((1,), (1,))


def saved(ledger: Written, *, wall: float, ran: float, core: float, late: float) -> None:
    """An asynchronous save that is stored for ``wall`` seconds, in which three steps end."""
    begin = ledger.now - round(0.2 * S)
    done = ledger.now + round(wall * S)
    event = ["save", "async_save", begin, ledger.now, "train.py:60", True, done, ""]
    window = [begin, 3, *(round(value * S) for value in (wall, ran, core, late))]
    ledger.row({"train": wall}, steps=3, checkpoints=[event], storing=[window])


@pytest.mark.parametrize(
    ("ran", "core", "late", "why"),
    [
        (0.4, 1.6, 0.0, "waiting for a core"),
        (2.0, 0.0, 0.0, "running longer: memory bandwidth or caches"),
        (0.4, 0.0, 0.5, "waiting for the interpreter's lock"),
        (0.4, 0.0, 0.0, "waiting for other ranks, a lock or the disk"),
    ],
)
def test_steps_that_are_slow_after_an_asynchronous_save_are_named(
    tmp_path: Path, ran: float, core: float, late: float, why: str
) -> None:
    ledger = Written(tmp_path)
    stepping(ledger, 6, train=2, ran=1)
    saved(ledger, wall=2, ran=ran, core=core, late=late)
    stepping(ledger, 2, train=2, ran=1)
    account = job_account([tmp_path])
    (saves,) = account.saves
    assert (saves.saves, saves.slowed, saves.why) == (1, 1, why)
    assert saves.staging_ns == 0.2 * S
    assert any("asynchronous save at train.py:60" in fact for fact in report_of(account).facts)


def test_steps_that_go_on_as_before_are_not_slowed_by_a_save(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    stepping(ledger, 6, train=2, ran=1)
    saved(ledger, wall=0.8, ran=0.4, core=0, late=0)
    stepping(ledger, 2, train=2, ran=1)
    (saves,) = job_account([tmp_path]).saves
    assert (saves.slowed, saves.why) == (0, None)


def test_other_programs_on_the_machine_do_not_hide_a_change(tmp_path: Path) -> None:
    ledger = Written(tmp_path)
    for number in range(48):
        slow = {"slow": 0.5} if number >= 24 else {}
        core = (0.1, 9.0, 0.5, 3.0, 30.0, 0.2)[number % 6]
        ledger.row({"train": 1 + 0.01 * (number % 3), **slow}, core=core, steps=10, ran=round((1 + len(slow) / 2) * S))
    changes = [change for change in job_account([tmp_path]).changes if change.series == "own time"]
    (change,) = changes
    assert (change.line, change.cause) == ("train.py:20", "training steps")
    assert change.after_ns - change.before_ns == pytest.approx(0.05 * S, rel=0.05)
