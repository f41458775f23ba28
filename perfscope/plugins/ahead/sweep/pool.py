"""Compiles the variants of a sweep, several at once, each in a child process with an equal share of the memory.

A variant that exceeds its share is ended and compiled again after the others, with twice the share; if it exceeds the
memory alone, it has failed, with that reason.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.errors import PerfscopeError
from perfscope.plugins.ahead.common.compile import (
    NothingCompiledError,
    Watch,
    compile_program,
    default_memory_limit,
)
from perfscope.plugins.ahead.request import Request
from perfscope.plugins.ahead.sweep.document import SweptVariant

JOB_BYTES = 2 << 30
"""First memory share of a variant: jax and XLA without a program take about 1 GiB."""


class Job(Struct, frozen=True, kw_only=True):
    """One variant: what to compile, and the location of its run folder."""

    request: Request
    root: str
    """Folder that gets the run folder."""
    settings: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return "-".join(self.settings.values())


OnFinished = Callable[[int, SweptVariant], None]
"""Called with (number of the job, its variant: ``compiled`` or ``failed``, the folder below the root)."""


def run_jobs(
    jobs: Sequence[Job], ended: OnFinished, *, most_at_once: int | None = None, memory_bytes: int | None = None
) -> None:
    """Run all jobs; ``ended`` is called with each when it ends, in this process and thread.

    ``memory_bytes``: resident memory of all of them together. On an interrupt they are ended and write their manifests,
    and the interrupt is raised again.
    """
    budget = memory_bytes or default_memory_limit()
    at_once = max(1, min(most_at_once or len(os.sched_getaffinity(0)), budget // JOB_BYTES))
    waiting: Sequence[int] = range(len(jobs))
    while waiting:
        share = budget // at_once
        reason = f"compiling it exceeds the allowed memory of this machine ({share / (1 << 30):.1f} GiB"
        too_large = []
        with closing(_round(jobs, waiting, at_once, share, f"{reason}; --host-memory)")) as finished:
            for number, outcome, exceeded in finished:
                if exceeded and at_once > 1:
                    too_large.append(number)
                else:
                    ended(number, outcome)
        waiting, at_once = too_large, max(1, at_once // 2)


def _round(
    jobs: Sequence[Job], numbers: Sequence[int], at_once: int, share: int, reason: str
) -> Generator[tuple[int, SweptVariant, bool]]:
    """(Job, outcome, whether it was ended because it exceeded ``share``), as they end."""
    interrupted = threading.Event()
    executor = ThreadPoolExecutor(at_once)
    running = {executor.submit(_compile, jobs[number], share, reason, interrupted): number for number in numbers}
    try:
        for done in as_completed(running):
            yield running[done], *done.result()
    finally:
        interrupted.set()
        executor.shutdown(cancel_futures=True)


def _compile(job: Job, share: int, reason: str, interrupted: threading.Event) -> tuple[SweptVariant, bool]:
    began, most, stopped = time.monotonic(), 0, ""

    def watch(taken: int) -> str | None:
        nonlocal most, stopped
        most = max(most, taken)
        stopped = stopped or (reason if taken > share else "interrupted" if interrupted.is_set() else "")
        return stopped or None

    outcome = _outcome(job, watch)
    if stopped:
        outcome = replace(outcome, state="failed", reason=stopped)
    seconds = round(time.monotonic() - began, 2)
    return replace(outcome, seconds_to_compile=seconds, host_bytes=most or None), stopped == reason


def _outcome(job: Job, watch: Watch) -> SweptVariant:
    try:
        folder = compile_program(job.request, root=Path(job.root), name=job.name, watch=watch)
    except NothingCompiledError as error:
        return SweptVariant(settings=job.settings, state="failed", folder=error.folder.name, reason=str(error))
    except PerfscopeError as error:
        return SweptVariant(settings=job.settings, state="failed", reason=str(error))
    except Exception as error:  # the other variants continue
        return SweptVariant(settings=job.settings, state="failed", reason=f"{type(error).__name__}: {error}")
    return SweptVariant(settings=job.settings, state="compiled", folder=folder.name)
