"""Destinations of a job's account besides the screen: metrics, OTLP, trackers of experiments, a webhook.

All of them read the run folder from another process: the program does not wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from perfscope.commands.options import announce
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import load_run
from perfscope.model.errors import DataError
from perfscope.plugins.job.account import Executor, JobAccount
from perfscope.plugins.job.account_cache import kept_account


class Moment(Struct, frozen=True, kw_only=True):
    """A job as it is read at one time."""

    job: str
    """Name of its first run."""
    run: Path
    """That run."""
    account: JobAccount
    running: bool
    """Whether one of its runs goes on."""


class Outlet(Protocol):
    """One place that gets each moment."""

    def send(self, moment: Moment) -> None:
        """Send what is new in it; ``DataError`` if the place refuses."""

    def close(self) -> None:
        """Send what is left, and let go."""


def moment_of(runs: Sequence[Path], read: Executor | None = None) -> Moment:
    """The job of ``runs`` now; ``DataError`` if none has a ledger. ``read``: as in `job_account`."""
    running = any(map(_running, runs))
    return Moment(job=runs[0].resolve().name, run=runs[0], account=kept_account(runs, read), running=running)


def _running(run: Path) -> bool:
    """Whether a run goes on: a task is marked as running, and its process lives or the file system has no locks."""
    for file in run_folders.manifests(run):
        try:
            marked = load_run(file).state == "running"
        except DataError:
            continue
        if marked and run_folders.liveness(run, run_folders.task_of_file(file)) is not False:
            return True
    return False


def tell(
    look: Callable[[], Moment], outlets: Sequence[Outlet], *, every: float | None, moment: Moment | None = None
) -> Moment:
    """Send the job to each outlet; with ``every`` (seconds) again and again until the job has ended; the last moment.

    ``look``: reads the job. ``moment``: the first one, if it was read already.

    An error of an outlet ends a single sending; else it is shown on stderr, and sent again next time.
    """
    try:
        while True:
            moment = moment or look()
            for outlet in outlets:
                try:
                    outlet.send(moment)
                except DataError as error:
                    if every is None:
                        raise
                    announce(str(error))
            if every is None or not moment.running:
                return moment
            time.sleep(every)
            moment = None
    finally:
        for outlet in outlets:
            outlet.close()
