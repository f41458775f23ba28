"""Work in processes of which one may be killed at any time without the others' work being lost.

Each process has one task at a time, so as many traces are in memory as there are processes. A task whose process dies
(out of memory, killed) is tried once more when all others are done, alone: it then has the memory to itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from perfscope.model.errors import NotStartedError, UsageError

Task = TypeVar("Task")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTask:
    """A task whose process died each time. ``why``: what became of it (``was killed by signal 9, twice``)."""

    why: str


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_through(
    work: Callable[[Task], Done], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[int, Done | LostTask]]:
    """(place of the task, what ``work`` returned or how it was lost) of every task, in the order they end.

    ``jobs``: processes at most; with one all is done here. What ``work`` raises is raised; ``work``, tasks and results
    must be picklable.
    """
    if jobs < 2 or len(tasks) < 2:
        for place, task in enumerate(tasks):
            yield place, work(task)
        return
    died: list[int] = []
    for place, done in _round(work, tasks, deque(range(len(tasks))), jobs):
        if isinstance(done, LostTask):
            died.append(place)
        else:
            yield place, done
    for place in died:
        yield from _round(work, tasks, deque([place]), 1)


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
            for worker in [one for one in workers if one.line in ready]:
                done = worker.take()
                yield worker.place, done
                if isinstance(done, LostTask) or not worker.give(waiting, tasks):
                    worker.stop()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process and the line to it."""

    def __init__(self, work: Callable[[Any], Any], others: Sequence[_Worker]) -> None:
        forks = _can_fork()
        self.line, theirs = multiprocessing.Pipe()
        inherited = [one.line for one in (*others, self)] if forks else []
        given: dict[str, Any] = {"target": _serve, "args": (work, theirs, inherited), "daemon": True}
        self._process: BaseProcess = (
            multiprocessing.get_context("fork").Process(**given)
            if forks
            else multiprocessing.get_context("spawn").Process(**given)
        )
        self._process.start()
        theirs.close()
        self.place = -1

    def give(self, waiting: deque[int], tasks: Sequence[Any]) -> bool:
        """The next task; false if none waits."""
        if not waiting:
            return False
        self.place = waiting.popleft()
        with contextlib.suppress(OSError):  # it is dead, which `take` finds out
            self.line.send(tasks[self.place])
        return True

    def take(self) -> Any:
        """What it did, or how it was lost. Raises what the work raised."""
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
    """Forking starts in milliseconds; beside other threads it may copy a lock that is never released."""
    return sys.platform == "linux" and threading.active_count() == 1 and "jax" not in sys.modules


def _serve(work: Callable[[Any], Any], line: Connection, inherited: Sequence[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of the group; the parent ends us
    for other in inherited:
        other.close()  # else the end of the parent goes unnoticed
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        try:
            done, problem = work(task), None
        except MemoryError:
            os._exit(1)  # what is left of the memory is not to be trusted; the task is tried again, alone
        except Exception as error:
            done, problem = None, _picklable(error)
        line.send((done, problem))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# The same work on a Dask cluster: its workers read shared storage, and only digests travel back.


CONNECT_S = 10
"""Seconds to wait for the scheduler: it runs already, and a wrong address should be told soon."""

RETRIES = 1
"""Tries more of what a task raised (a file system that was busy). Tasks of workers that die are moved by Dask itself,
three times as it comes."""


def work_on_cluster(
    work: Callable[[Task], Done], tasks: Sequence[Task], *, address: str
) -> Iterator[tuple[int, Done | LostTask]]:
    """As ``work_through``, on the workers of the scheduler at ``address`` (``tcp://host:8786``, or a scheduler file).

    What a dead worker held is done again by another; a task that killed its worker each time is lost.
    ``AskedWronglyError`` without the extra ``cluster`` or with an address that is none, ``NotStartedError`` if nobody
    answers there or there is no worker.
    """
    try:
        import distributed
    except ImportError as missing:
        raise UsageError("--scheduler: Dask is not installed; pip install 'perfscope[cluster]'") from missing
    with _connected(distributed, address) as client:
        _check_workers(client, address)
        futures = client.map(work, tasks, pure=False, retries=RETRIES)
        place_of = {future.key: place for place, future in enumerate(futures)}
        ended = distributed.as_completed(futures, loop=client.loop)
        del futures  # or the cluster would hold every digest to the end
        killed = []
        for future in ended:
            place = place_of[future.key]
            done = _done(distributed, future)
            future.release()
            if isinstance(done, LostTask):
                killed.append(place)
            else:
                yield place, done
        for place in killed:  # one at a time: Dask also blames tasks that only waited on a worker that was killed
            yield place, _done(distributed, client.submit(work, tasks[place], pure=False))


def _connected(distributed: Any, address: str) -> Any:
    given = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        return distributed.Client(**given, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise NotStartedError(f"--scheduler {address}: no Dask scheduler answers: {error}") from error
    except ValueError as error:
        raise UsageError(f"--scheduler {address}: {error}") from error


def _check_workers(client: Any, address: str) -> None:
    """``NotStartedError`` if there are none, or they have no perfscope, or another one."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError as error:
        raise NotStartedError(f"--scheduler {address}: the scheduler has no workers") from error
    try:
        versions = client.run(perfscope_version)
    except Exception as error:  # what a worker raises comes as it is
        raise NotStartedError(f"--scheduler {address}: its workers cannot run perfscope: {error}") from error
    mine = perfscope_version()
    for worker, theirs in versions.items():
        if theirs != mine:
            raise NotStartedError(f"--scheduler {address}: {worker} has perfscope {theirs}, here is {mine}")


def perfscope_version() -> str:
    """The version that is installed here; of a checkout that was never installed, that it is one."""
    try:
        return version("perfscope")
    except PackageNotFoundError:
        return "of a checkout"


def _done(distributed: Any, future: Any) -> Any:
    """What a task returned. One that killed its workers is lost; what the work raised is raised."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, distributed.scheduler.KilledWorker):
        return LostTask(why="was killed with its worker several times")
    if isinstance(error, MemoryError):
        return LostTask(why="had no memory left")
    raise error
