"""Jobs as works of the dashboard's server: the ledgers of one job, and the table of all jobs in a folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.dashboards.web.server.shelf import Shelf, key_of
from perfscope.dashboards.web.server.works import APART
from perfscope.model.documents import run_folders
from perfscope.model.errors import DataError
from perfscope.plugins.job.document import first_name
from perfscope.plugins.job.recorder import FOLDER

if TYPE_CHECKING:
    from perfscope.dashboards.web.server.child import Child

KIND = "job"
VIEW = "job"
LOOK_S = 15
"""Seconds between two looks at ledgers that grow: rows of a job come every two seconds at first."""
MOST_JOBS = 60
"""Most jobs in the table, newest first."""


class JobWork(Struct, frozen=True, kw_only=True):
    """A job: its runs, oldest first. Without runs, the table of the jobs in a folder."""

    folder: Path
    runs: tuple[Path, ...] = ()

    @property
    def key(self) -> str:
        """``~job~NAME``."""
        return f"{APART}{KIND}{APART}{key_of(self.path)}"

    @property
    def path(self) -> Path:
        """Path named in messages."""
        return self.runs[0] if self.runs else self.folder

    def fingerprint(self) -> str | None:
        """Fingerprint of the sizes of its ledgers, at most every ``LOOK_S``."""
        runs = self.runs or tuple(run for job in jobs_in(self.folder) for run in job.runs)
        return _sizes(runs, int(time.monotonic() / LOOK_S))

    def running(self) -> bool:
        """Whether a run goes on."""
        return any(map(run_folders.is_running, self.runs))

    def command(self) -> tuple[str, ...]:
        """As `Work.command`."""
        return (KIND, *map(str, self.runs or (self.folder,)))


@lru_cache(maxsize=64)
def _sizes(runs: tuple[Path, ...], now: int) -> str | None:
    held = [(run.name, file.name, file.stat().st_size) for run in runs for file in sorted((run / FOLDER).glob("*"))]
    return hashlib.sha256(repr(held).encode()).hexdigest()[:16] if held else None


def works(shelf: Shelf) -> tuple[JobWork, ...]:
    """A table for each folder with jobs, then its jobs, newest first."""
    return tuple(work for folder in dict.fromkeys(map(_home, shelf.places)) for work in _in(folder))


def _home(path: Path) -> Path:
    """The folder of runs that a path is, or is in."""
    return path.parent if path.is_dir() and run_folders.is_run(path) else path


def _in(folder: Path) -> Iterator[JobWork]:
    held = jobs_in(folder)
    if held:
        yield JobWork(folder=folder)
        yield from held


def jobs_in(folder: Path) -> tuple[JobWork, ...]:
    """The jobs in a folder of runs, newest first; runs of a requeued job are one."""
    by_name: dict[str, list[Path]] = {}
    for run in run_folders.directories(folder):
        if (run / FOLDER).is_dir():
            by_name.setdefault(first_name(run), []).insert(0, run)
    return tuple(JobWork(folder=folder, runs=tuple(runs)) for runs in list(by_name.values())[:MOST_JOBS])


def prepare(child: Child, arguments: Sequence[str]) -> None:
    """``RUN...``: the page of a job; ``FOLDER``: the table of its jobs."""
    from perfscope.plugins.job.account_cache import kept_account
    from perfscope.plugins.job.dashboard.view import job_view, table_view
    from perfscope.plugins.job.recordings import compared_recordings

    paths = [Path(argument) for argument in arguments]
    child.report("working", "reading the ledgers")
    if run_folders.is_run(paths[0]):
        account = kept_account(paths)
        child.report("working", "comparing recordings")
        changed = [change.rank for change in account.changes if change.rank is not None]
        view = job_view(paths, account, compared_recordings(paths, changed))
        child.write(VIEW, {"view": view})
        return
    found = []
    held = jobs_in(paths[0])
    for number, job in enumerate(held, 1):
        child.report("working", f"reading the ledgers of job {number} of {len(held)}")
        try:
            found.append((job, kept_account(job.runs)))
        except DataError:  # its page has the reason
            continue
    child.write(VIEW, {"view": table_view(found)})
