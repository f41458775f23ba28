"""Compiles the variants of a sweep, as many at once as cores and memory allow, by the memory that they take.

Each variant is compiled by a thread, whose work is in a child process. A further one begins when what is free covers
the most that one was seen to take so far. When together they take more than was allowed, the youngest is ended and
begins again later, alone; one that is alone and takes more has failed, with that reason.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from perfscope.model.documents.compile_request import Request
from perfscope.model.errors import PerfscopeError
from perfscope.profiler.ahead.common.compile import (
    NothingCompiledError,
    Watch,
    compile_program,
    default_memory_limit,
)

POLL_INTERVAL_S = 0.2
"""The longest that a variant with room waits for its start."""
FIRST_GUESS = 2 << 30
"""Bytes that a variant is taken for until one was seen: jax and XLA without a program take about 1 GiB."""
INTERRUPT_TIMEOUT_S = 10.0
"""After an interrupt the manifests of variants that are ended are waited for that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One variant: what to compile, and where its run folder goes."""

    request: Request
    root: str
    """Folder that gets the run folder."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a variant."""

    state: Literal["compiled", "failed"]
    folder: str = ""
    """Name of the run folder below the root; empty where there is none."""
    reason: str = ""
    """One line; empty where it was compiled."""
    seconds: float | None = None
    host_bytes: int | None = None
    """The most resident memory that it took."""


OnFinished = Callable[[int, Outcome], None]
"""Called with (number of the job, what came of it)."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Running:
    number: int
    began: float
    most: int = 0
    """Bytes it was seen to take."""
    taken: int = 0
    """Bytes it takes now."""
    restarts: bool = False
    """It is ended, to begin again alone."""
    stopped: str | None = None
    """Why it is ended."""


class _JobPool:
    """The jobs that run, and those that wait."""

    def __init__(self, jobs: Sequence[Job], *, most_at_once: int, budget: int) -> None:
        self._jobs, self._most_at_once, self._budget = jobs, most_at_once, budget
        self.waiting = deque(range(len(jobs)))
        self.running: list[_Running] = []
        self.finished: queue.SimpleQueue[tuple[_Running, Outcome]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._guess = FIRST_GUESS
        self._measured = False
        """Whether the guess is of one that was seen."""
        self._alone: set[int] = set()
        """Jobs that took too much beside others."""

    def may_begin(self) -> bool:
        """Whether the next of those that wait has room."""
        if not self.waiting or len(self.running) >= self._most_at_once:
            return False
        if not self.running:
            return True
        if self.waiting[0] in self._alone or any(job.number in self._alone for job in self.running):
            return False
        reserved = sum(max(self._guess, job.taken) for job in self.running)
        return reserved + self._guess <= self._budget

    def begin(self) -> None:
        """Start the next one."""
        running = _Running(number=self.waiting.popleft(), began=time.monotonic())
        with self._lock:
            self.running.append(running)
        threading.Thread(target=self._work, args=(running,), daemon=True).start()

    def taken_down(self, running: _Running, outcome: Outcome) -> Outcome | None:
        """What came of a job that ended; None where it waits again."""
        with self._lock:
            self.running.remove(running)
        if running.restarts:
            self.restart_alone(running)
            return None
        if running.stopped is not None:
            outcome = replace(outcome, state="failed", reason=running.stopped)
        if outcome.state == "compiled":  # one that failed at once says nothing of what the next will take
            self._guess = max(self._guess, running.most) if self._measured else running.most
            self._measured = True
        seconds = round(time.monotonic() - running.began, 2)
        return replace(outcome, seconds=seconds, host_bytes=running.most or None)

    def restart_alone(self, running: _Running) -> None:
        """Have a job wait until no other runs."""
        self._guess, self._measured = max(self._guess, running.most), True
        self._alone.add(running.number)
        self.waiting.append(running.number)

    def interrupt(self) -> None:
        """End all, and wait until they have written their manifests."""
        with self._lock:
            for job in self.running:
                job.stopped = job.stopped or "interrupted"
        until = time.monotonic() + INTERRUPT_TIMEOUT_S
        for _ in self.running:
            try:
                self.finished.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                return

    def _work(self, running: _Running) -> None:
        outcome = _compile(self._jobs[running.number], lambda taken: self._watch(running, taken))
        self.finished.put((running, outcome))

    def _watch(self, running: _Running, taken: int) -> str | None:
        """Why a job that takes so many bytes is ended, if it is."""
        with self._lock:
            running.taken, running.most = taken, max(running.most, taken)
            too_much = sum(job.taken for job in self.running) > self._budget
            if too_much and running.stopped is None and running is max(self.running, key=lambda job: job.began):
                running.restarts = len(self.running) > 1
                most = f"{self._budget / (1 << 30):.1f} GiB"
                running.stopped = f"to compile it takes more memory of this machine than it may ({most}; --host-memory)"
            return running.stopped


def run_jobs(
    jobs: Sequence[Job], ended: OnFinished, *, most_at_once: int | None = None, memory_bytes: int | None = None
) -> None:
    """Do all jobs; ``ended`` is called with each as it ends, in this process and thread.

    ``memory_bytes``: resident memory of all of them together. On an interrupt they are ended and write their
    manifests, and the interrupt goes on.
    """
    at_once = most_at_once or len(os.sched_getaffinity(0))
    pool = _JobPool(jobs, most_at_once=at_once, budget=memory_bytes or default_memory_limit())
    try:
        while pool.waiting or pool.running:
            while pool.may_begin():
                pool.begin()
            try:
                running, outcome = pool.finished.get(timeout=POLL_INTERVAL_S)
            except queue.Empty:
                continue
            final = pool.taken_down(running, outcome)
            if final is not None:
                ended(running.number, final)
    finally:
        pool.interrupt()


def _compile(job: Job, watch: Watch) -> Outcome:
    try:
        folder = compile_program(job.request, root=Path(job.root), name=job.name, watch=watch)
    except NothingCompiledError as error:
        return Outcome(state="failed", folder=error.folder.name, reason=str(error))
    except PerfscopeError as error:
        return Outcome(state="failed", reason=str(error))
    except Exception as error:  # the other variants go on
        return Outcome(state="failed", reason=f"{type(error).__name__}: {error}")
    return Outcome(state="compiled", folder=folder.name)
