"""Work in processes: results, errors, processes that die once or always."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from perfscope.analyzers.readers.workers import LostTask, work_through
from perfscope.model.errors import DataError


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def dies(folder: Path, always: bool, number: int) -> int:
    """Is killed at 3: the first time, or always."""
    mark = folder / "tried"
    if number == 3 and (always or not mark.exists()):
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def out_of_memory(number: int) -> int:
    if number == 1:
        raise MemoryError
    return number


def breaks(number: int) -> int:
    if number == 2:
        raise DataError("file: cut off")
    return number


class UnsendableError(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__("unsendable")


def breaks_oddly(number: int) -> int:
    raise UnsendableError(number, number)


def test_every_task_is_done_in_several_processes() -> None:
    done = dict(work_through(squared, range(20), 3))
    assert {place: result[0] for place, result in done.items() if not isinstance(result, LostTask)} == {
        number: number * number for number in range(20)
    }
    pids = {result[1] for result in done.values() if not isinstance(result, LostTask)}
    assert os.getpid() not in pids
    assert len(pids) <= 3


def test_one_job_works_here() -> None:
    assert {result[1] for _, result in work_through(squared, range(3), 1) if not isinstance(result, LostTask)} == {
        os.getpid()
    }


def test_a_process_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    done = dict(work_through(partial(dies, tmp_path, False), range(8), 2))
    assert done == {number: number for number in range(8)}
    assert (tmp_path / "tried").exists()


def test_what_kills_twice_is_lost_alone(tmp_path: Path) -> None:
    done = dict(work_through(partial(dies, tmp_path, True), range(8), 2))
    assert done.pop(3) == LostTask(why="was killed by signal 9, twice")
    assert done == {number: number for number in range(8) if number != 3}


def test_no_memory_is_tried_alone_and_then_lost() -> None:
    assert dict(work_through(out_of_memory, range(3), 2)) == {0: 0, 1: LostTask(why="ended with 1, twice"), 2: 2}


def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(DataError, match="file: cut off"):
        list(work_through(breaks, range(8), 2))
    with pytest.raises(RuntimeError, match="UnsendableError: unsendable"):
        list(work_through(breaks_oddly, range(8), 2))


def test_beside_other_threads_processes_are_spawned() -> None:
    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    beside.start()
    try:
        found = dict(work_through(squared, range(3), 2))
    finally:
        done.set()
        beside.join()
    assert [found[number][0] for number in range(3)] == [0, 1, 4]  # type: ignore[index]


def test_leaving_early_ends_the_processes() -> None:
    through = work_through(squared, range(100), 2)
    first = next(through)[1]
    assert not isinstance(first, LostTask)
    through.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(first[1], 0)
