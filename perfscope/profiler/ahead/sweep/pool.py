"""Compiles the variants of a sweep, as many at once as cores and memory allow, by the memory that they take.

A variant is a worker process; what it takes is the resident memory of it and all below it. A further one begins when
what is free covers the most that one was seen to take so far. When together they take more than was allowed, the
youngest is ended and begins again later, alone; one that is alone and takes more has failed, with that reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from perfscope.model.documents.compile_request import Request
from perfscope.model.documents.run_folders import write_atomically
from perfscope.model.errors import PerfscopeError
from perfscope.profiler.ahead.common.compile import NothingCompiledError, compile_program, default_memory_limit
from perfscope.profiler.launch.program import end_with_us

# One variant of a sweep in a process of its own: ``python -m perfscope.profiler.ahead.sweep.pool JOB``.
#
# JOB is a JSON file; beside it the worker writes what came of it (``OUTCOME``), whatever that is.


OUTCOME = "outcome.json"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked."""

    request: Request
    root: str
    """Folder that gets the run folder."""
    name: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a variant."""

    state: Literal["compiled", "failed", "stopped"]
    folder: str = ""
    """Name of the run folder below the root; empty where there is none."""
    reason: str = ""
    """One line; empty where it was compiled."""
    seconds: float | None = None
    host_bytes: int | None = None
    """The most resident memory of the worker and what it started, as the scheduler saw it."""


def read_outcome(folder: Path) -> Outcome | None:
    """What a worker wrote in its folder; None where it died before, or wrote something else."""
    try:
        return msgspec.json.decode((folder / OUTCOME).read_bytes(), type=Outcome)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def run_job(job: Job) -> Outcome:
    """Compile the variant. Nothing is raised but an interrupt."""
    try:
        folder = compile_program(job.request, root=Path(job.root), name=job.name)
        return Outcome(state="compiled", folder=folder.name)
    except NothingCompiledError as error:
        return Outcome(state="failed", folder=error.folder.name, reason=str(error))
    except PerfscopeError as error:
        return Outcome(state="failed", reason=str(error))


def main() -> None:
    """Read the job, do it, write what came of it."""
    # a scheduler that asks us to end is an interrupt: the manifest is then written and the compiler ended
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = Path(sys.argv[1])
    job = msgspec.json.decode(path.read_bytes(), type=Job)
    try:
        outcome = run_job(job)
    except KeyboardInterrupt:
        outcome = Outcome(state="stopped", reason="interrupted")
    write_atomically(path.with_name(OUTCOME), msgspec.json.encode(outcome), durable=False)


POLL_INTERVAL_S = 0.2
"""Between two looks at the workers."""
FIRST_GUESS = 2 << 30
"""Bytes that a variant is taken for until one was seen: jax and XLA without a program take about 1 GiB."""
TERMINATE_TIMEOUT_S = 10.0
"""A worker that was asked to end writes its manifest; after this it is killed."""

OnFinished = Callable[[int, Outcome], None]
"""Told (number of the job, what came of it)."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    folder: Path
    began: float
    most: int = 0
    """Bytes it was seen to take."""
    taken: int = 0
    """Bytes it takes now."""


@dataclass(slots=True, kw_only=True)
class _WorkerPool:
    """The workers that are under way, and those that wait."""

    jobs: Sequence[Job]
    most_at_once: int
    budget: int
    scratch: Path
    ended: OnFinished
    waiting: deque[int]
    guess: int
    """Bytes that a variant is taken for."""
    alone: set[int] = field(default_factory=set)
    """Jobs that took too much beside others."""
    running: list[_Worker] = field(default_factory=list)
    measured: bool = False
    """The guess is of one that was seen."""

    def may_begin(self) -> bool:
        """Whether the next of those that wait has room."""
        if not self.waiting or len(self.running) >= self.most_at_once:
            return False
        if not self.running:
            return True
        if self.waiting[0] in self.alone or any(one.number in self.alone for one in self.running):
            return False
        reserved = sum(max(self.guess, one.taken) for one in self.running)
        return reserved + self.guess <= self.budget

    def begin(self) -> None:
        """Start the next one."""
        number = self.waiting.popleft()
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self.scratch))
        (folder / "job.json").write_bytes(msgspec.json.encode(self.jobs[number]))
        with (folder / "printed.txt").open("wb") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "perfscope.profiler.ahead.sweep.pool", str(folder / "job.json")],
                stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
                preexec_fn=end_with_us(), env=_environment(),
            )  # fmt: skip
        self.running.append(_Worker(number=number, process=process, folder=folder, began=time.monotonic()))

    def look(self) -> None:
        """Weigh them, take down those that ended, and end one that takes too much."""
        weights = tree_bytes([one.process.pid for one in self.running])
        for one in list(self.running):
            one.taken = weights.get(one.process.pid, 0)
            one.most = max(one.most, one.taken)
            if one.process.poll() is not None:
                self.running.remove(one)
                self._take_down(one)
        if sum(one.taken for one in self.running) <= self.budget:
            return
        youngest = max(self.running, key=lambda one: one.began)
        self.running.remove(youngest)
        others = bool(self.running)
        _end([youngest])
        if others:
            self.guess = max(self.guess, youngest.most)
            self.measured = True
            self.alone.add(youngest.number)
            self.waiting.append(youngest.number)
            shutil.rmtree(youngest.folder, ignore_errors=True)
        else:
            most = f"{self.budget / (1 << 30):.1f} GiB"
            reason = f"to compile it takes more memory of this machine than it may ({most}; --host-memory)"
            self._say(youngest, Outcome(state="failed", reason=reason))

    def _take_down(self, one: _Worker) -> None:
        outcome = read_outcome(one.folder)
        if outcome is None:
            outcome = Outcome(state="failed", reason=_exit_reason(one))
        if outcome.state == "compiled":  # one that failed at once says nothing of what the next will take
            self.guess = max(self.guess, one.most) if self.measured else one.most
            self.measured = True
        self._say(one, outcome)

    def _say(self, one: _Worker, outcome: Outcome) -> None:
        seconds = round(time.monotonic() - one.began, 2)
        shutil.rmtree(one.folder, ignore_errors=True)
        self.ended(one.number, msgspec.structs.replace(outcome, seconds=seconds, host_bytes=one.most or None))


def run_jobs(
    jobs: Sequence[Job], ended: OnFinished, *, most_at_once: int | None = None, memory_bytes: int | None = None
) -> None:
    """Do all jobs; ``ended`` is called with each as it ends, in this process and thread.

    ``memory_bytes``: resident memory of all workers together. On an interrupt the workers are asked to end, what they
    leave is told, and the interrupt goes on.
    """
    at_once = most_at_once or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="perfscope-sweep-") as scratch:
        crew = _WorkerPool(
            jobs=jobs,
            most_at_once=at_once,
            budget=memory_bytes or default_memory_limit(),
            scratch=Path(scratch),
            ended=ended,
            waiting=deque(range(len(jobs))),
            guess=FIRST_GUESS,
        )
        try:
            while crew.waiting or crew.running:
                while crew.may_begin():
                    crew.begin()
                time.sleep(POLL_INTERVAL_S)
                crew.look()
        finally:
            _end(crew.running)


def tree_bytes(roots: Sequence[int]) -> dict[int, int]:
    """Resident bytes of each of these processes with all below it; 0 where the system does not tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = place.read_bytes().rpartition(b")")
            fields = rest.split()
            number = int(head.partition(b" ")[0])
            parents[number], sizes[number] = int(fields[1]), int(fields[21]) * page
        except (OSError, IndexError, ValueError):
            continue
    wanted, found = set(roots), dict.fromkeys(roots, 0)
    for number, size in sizes.items():
        at, steps = number, 0
        while at not in wanted and at in parents and steps < 64:
            at, steps = parents[at], steps + 1
        if at in wanted:
            found[at] += size
    return found


def _environment() -> dict[str, str]:
    """One thread of arithmetic a worker: they share the cores."""
    return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def _end(workers: Sequence[_Worker]) -> None:
    """Ask workers to end, wait, and kill those that do not; what each started ends with it."""
    for one in workers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            one.process.send_signal(signal.SIGTERM)
    until = time.monotonic() + TERMINATE_TIMEOUT_S
    for one in workers:
        try:
            one.process.wait(timeout=max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _exit_reason(one: _Worker) -> str:
    code = one.process.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    try:
        lines = (one.folder / "printed.txt").read_bytes()[-4096:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return f"the process that compiled it {how}" + (f": {lines[-1][:200]}" if lines else "")


if __name__ == "__main__":
    main()
