"""Several ``perfscope run`` of one job share a run directory, and agree on it without a word between them.

All come to the same name, as `ranks.task_of` reads it from the environment. Each takes its number in the
directory of that name by creating a file that must not exist. Where the number is taken, or everything in the
directory ended long ago, it is an earlier job's: the next name is tried, with the suffix ``-2``, by every task
alike. Each task writes a manifest of its own, so none ever waits for another or overwrites it.

Where nothing tells a task its number (started by hand, with a ``--run-id``), it takes the next that is free in
a directory where others still run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import load_run
from perfscope.model.errors import DataError, NotStartedError
from perfscope.profiler.session.ranks import MOST_RANKS, Task

LATE_S = 120.0
"""A task that starts this long after all others of the directory ended is another job's."""
WAIT_S = 60.0
"""Seconds for which the first task waits for the others after its own end: ranks end within seconds of each other,
and a network file system may show a new file a minute late."""
POLL_S = 0.1
MOST_JOBS = 10_000
"""Jobs of one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDirectory:
    """Where a task writes, and under which number. ``earlier``: directories of that name are of other jobs."""

    directory: Path
    number: int
    earlier: bool


def join(root: Path, task: Task) -> JobDirectory:
    """The run directory of ``task``'s job below ``root``, made if it is the first to come.

    ``NotStartedError`` if it cannot be made.
    """
    assert task.key is not None
    label = run_folders.directory_label(task.key)
    try:
        root.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, MOST_JOBS):
            directory = root / (label if attempt == 1 else f"{label}-{attempt}")
            try:
                directory.mkdir()
                run_folders.point_latest(root, directory.name)
            except FileExistsError:
                if not directory.is_dir() or _is_over(directory, LATE_S if task.told else 0.0):
                    continue
            for number in (task.number,) if task.told else range(MOST_RANKS):
                if _take(directory, number):
                    return JobDirectory(directory=directory, number=number, earlier=attempt > 1)
    except OSError as error:
        raise NotStartedError(f"{root}: no run directory can be made: {error.strerror or error}") from error
    raise NotStartedError(f"{root}: {MOST_JOBS} runs are named {label}")


def is_lead_task(directory: Path, task: int) -> bool:
    """Whether ``task`` is the first of those that write here; on a machine of its own that need not be task 0."""
    manifests = run_folders.manifests(directory)
    return not manifests or task <= run_folders.task_of_file(manifests[0])


def await_others(directory: Path, task: Task, seconds: float) -> None:
    """Wait until the other tasks have ended, for ``seconds`` at most; those that never come are waited for too."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tasks = [run_folders.task_of_file(file) for file in run_folders.manifests(directory)]
        if len(tasks) >= (task.count or 0) and not any(_runs(directory, number) for number in tasks):
            return
        time.sleep(POLL_S)


def _runs(directory: Path, number: int) -> bool:
    try:
        ended = load_run(directory / run_folders.manifest_name(number)).state != "running"
    except DataError:  # being written on a file system that cannot replace in one step
        ended = False
    return not ended and run_folders.liveness(directory, number) is not False


def _take(directory: Path, number: int) -> bool:
    try:
        (directory / run_folders.alive_name(number)).open("x").close()
    except FileExistsError:
        return False
    return True


def _is_over(directory: Path, late_s: float) -> bool:
    """Whether an earlier job wrote what lies there: nobody runs it, and nobody has for ``late_s``."""
    manifests = run_folders.manifests(directory)
    newest = max(file.stat().st_mtime for file in (manifests or [directory]))
    if time.time() - newest < (late_s if manifests else LATE_S):
        return False
    return not any(_runs(directory, run_folders.task_of_file(file)) for file in manifests)
