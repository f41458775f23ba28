"""One variant of a sweep in a process of its own: ``python -m perfscope.profiler.ahead.sweep.worker JOB``.

JOB is a JSON file; beside it the worker writes what came of it (``OUTCOME``), whatever that is.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Literal

import msgspec

from perfscope.model.documents.compile_request import Request
from perfscope.model.documents.run_folders import write_atomically
from perfscope.model.errors import PerfscopeError
from perfscope.profiler.ahead.common.compile import NothingCompiledError, compile_program

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


if __name__ == "__main__":
    main()
