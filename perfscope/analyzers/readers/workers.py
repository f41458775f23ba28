"""Work in processes that may be killed at any time without losing the work of the others.

Each process has one task at a time, so as many traces are in memory as there are processes. A task whose process dies
(out of memory, killed) is tried once more after all others, alone, with the memory to itself.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from msgspec import Struct

Task = TypeVar("Task")
Done = TypeVar("Done")

# An executor does the work of all tasks and yields (index of the task, result of the work, or the lost task) as each
# ends: ``executor(work, tasks)``. Errors of the work are raised.


class LostTask(Struct, frozen=True, kw_only=True):
    """A task whose process died each time. ``why``: reason such as ``was killed by signal 9, twice``."""

    why: str


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_here(work: Callable[[Task], Done], tasks: Sequence[Task]) -> Iterator[tuple[int, Done | LostTask]]:
    """Executor in this process: one task after the other."""
    for index, task in enumerate(tasks):
        yield index, work(task)


def work_through(
    work: Callable[[Task], Done], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[int, Done | LostTask]]:
    """Executor in at most ``jobs`` processes; with one, all work is done here.

    ``work``, tasks and results must be picklable.
    """
    if jobs < 2 or len(tasks) < 2:
        yield from work_here(work, tasks)
        return
    died: list[int] = []
    for index, done in _round(work, tasks, deque(range(len(tasks))), jobs):
        if isinstance(done, LostTask):
            died.append(index)
        else:
            yield index, done
    for index in died:
        yield from _round(work, tasks, deque([index]), 1)


def _round(
    work: Callable[[Task], Done], tasks: Sequence[Task], waiting: deque[int], jobs: int
) -> Iterator[tuple[int, Done | LostTask]]:
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                worker = _Worker(work, workers)
                workers.append(worker)
                worker.give(waiting, tasks)
            ready = wait([worker.line for worker in workers])
            for worker in [worker for worker in workers if worker.line in ready]:
                done = worker.take()
                yield worker.index, done
                if isinstance(done, LostTask) or not worker.give(waiting, tasks):
                    worker.stop()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process and the connection to it."""

    def __init__(self, work: Callable[[Any], Any], others: Sequence[_Worker]) -> None:
        forks = _can_fork()
        self.line, theirs = multiprocessing.Pipe()
        inherited = [worker.line for worker in (*others, self)] if forks else []
        given: dict[str, Any] = {"target": _serve, "args": (work, theirs, inherited), "daemon": True}
        self._process: BaseProcess = (
            multiprocessing.get_context("fork").Process(**given)
            if forks
            else multiprocessing.get_context("spawn").Process(**given)
        )
        self._process.start()
        theirs.close()
        self.index = -1

    def give(self, waiting: deque[int], tasks: Sequence[Any]) -> bool:
        """Send the next task; return ``False`` if none waits."""
        if not waiting:
            return False
        self.index = waiting.popleft()
        with contextlib.suppress(OSError):  # It is dead, which `take` finds out.
            self.line.send(tasks[self.index])
        return True

    def take(self) -> Any:
        """Return its result, or the lost task; raise the errors of the work."""
        try:
            done, problem = self.line.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            return LostTask(why=f"was killed by signal {-code}, twice" if code < 0 else f"ended with {code}, twice")
        if problem is not None:
            raise problem
        return done

    def stop(self) -> None:
        self.line.close()
        self._process.terminate()
        self._process.join()


def _can_fork() -> bool:
    """Return whether forking, which takes milliseconds, is safe: another thread may hold a lock forever."""
    return sys.platform == "linux" and threading.active_count() == 1 and "jax" not in sys.modules


def _serve(work: Callable[[Any], Any], line: Connection, inherited: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent ends this process.
    for other in inherited:
        other.close()  # Otherwise the end of the parent goes unnoticed.
    gc.freeze()  # Imported modules live as long as this process.
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        try:
            done, problem = work(task), None
        except MemoryError:
            os._exit(1)  # The remaining memory is unreliable, so the task is tried again, alone.
        except Exception as error:
            done, problem = None, _picklable(error)
        try:
            line.send((done, problem))
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            line.send((LostTask(why=f"cannot be sent between processes: {type(error).__name__}: {error}"), None))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
