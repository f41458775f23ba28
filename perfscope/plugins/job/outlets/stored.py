"""A job in the run store: its time per step by cause, a point of `perfscope history` over jobs of the same program."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run
from perfscope.model.errors import DataError
from perfscope.plugins.history import UID_LENGTH, StoredMetric, StoredRun, cleaned, hardware_of, opened
from perfscope.plugins.job.outlets import Moment

KIND = "ledger"


class Stored:
    """A run store: a file, or a database of PostgreSQL."""

    def __init__(self, where: str) -> None:
        """``UsageError`` for a URL of another kind."""
        self._store = opened(where)

    def send(self, moment: Moment) -> None:
        """Store the job, or replace what was stored of it before; ``DataError`` if the store cannot be used."""
        self._store.prepare()
        self._store.put(cleaned(record(moment)), again=True)

    def close(self) -> None:
        """Each record is stored at once."""


def record(moment: Moment) -> StoredRun:
    """The numbers of a job; a history leaves out a job that still runs.

    Time per step: of all ranks, by the steps of all ranks, so that jobs of different lengths can be compared.
    """
    account, run = moment.account, _manifest(moment.run)
    began = datetime.fromtimestamp(account.begin_unix_ns / 1e9, UTC).isoformat(timespec="seconds")
    steps = sum(attempt.steps for attempt in account.attempts)
    times = {"time per step, everything": account.total_ns, **{_name(row.cause): row.ns for row in account.causes}}
    commit, branch = (None, None) if run is None or run.git is None else (run.git.get("commit"), run.git.get("branch"))
    return StoredRun(
        uid=hashlib.sha256(f"{KIND}\0{moment.job}\0{account.begin_unix_ns}".encode()).hexdigest()[:UID_LENGTH],
        id=moment.job,
        name=moment.job if run is None else run.name,
        kind=KIND,
        created_utc=began,
        branch=branch if isinstance(branch, str) else None,
        commit=commit if isinstance(commit, str) else None,
        command=() if run is None else run.command,
        state="running" if moment.running else "finished",
        ranks=len(account.ranks),
        hardware=hardware_of(run),
        metrics=tuple(
            StoredMetric(name=name, unit="ns", known="single captures", value=ns / steps)
            for name, ns in times.items()
            if steps and ns
        ),
    )


def _name(cause: str) -> str:
    return f"time per step, {cause}"


def _manifest(run: Path) -> Run | None:
    with suppress(DataError):
        return run_folders.read(run)
    return None
