"""``perfscope attach PID``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import announce, quiet_option, screen, verbose_option
from perfscope.model.errors import DataError
from perfscope.profiler.session.trigger import MOST_STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from perfscope.plugins.attach.target import Target

WAIT_S = 120.0
"""Longest wait for a recording: steps of minutes need their own time, which `perfscope analyze` shows later."""
POLL_S = 0.2


@click.command(epilog="Stacks are read by py-spy where it is installed (pip install py-spy), or by Python 3.14.")
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--record",
    "steps",
    type=click.IntRange(1, MOST_STEPS),
    metavar="STEPS",
    help="Record its next steps: of a program under `perfscope run` or `perfscope.profile`, or one that calls "
    "`perfscope.step()`.",
)
@quiet_option
@verbose_option
def attach(*, pid: int, steps: int | None, quiet: bool, verbose: bool) -> None:
    """Show where each thread of a running Python process is, or record its next steps. It goes on undisturbed."""
    from perfscope.plugins.attach.target import find

    target = find(pid)
    if steps is not None:
        _record(target, steps, quiet=quiet)
        return
    from perfscope.dashboards.report.renderers.text import report_text
    from perfscope.plugins.attach.report import report_of
    from perfscope.plugins.attach.stacks import thread_stacks

    stacks, way = thread_stacks(target)
    report = report_of(target, stacks, way, verbose=verbose)
    click.echo(report_text(report, **screen(sys.stdout), verbose=verbose), nl=False, color=True)


def _record(target: Target, steps: int, *, quiet: bool) -> None:
    from perfscope.profiler.session.requested import request

    run = target.run
    if run is None:
        announce(f"{target.pid}: waiting for its next perfscope.step()", quiet=quiet)
        run = request(target.pid, steps, WAIT_S)
        if run is None:
            raise DataError(
                f"{target.pid}: it neither runs under `perfscope run` nor called perfscope.step() within {WAIT_S:.0f} s"
            )
        before = 0
    else:
        from perfscope.commands.trigger import ask

        before = _recordings(run)
        ask(run, steps)
    until = time.monotonic() + WAIT_S
    while _recordings(run) <= before:
        if time.monotonic() > until:
            raise DataError(f"{run}: {steps} steps are requested, and none were recorded within {WAIT_S:.0f} s")
        time.sleep(POLL_S)
    click.echo(f"{run}: {steps} steps are recorded; `perfscope analyze {run}` shows them")


def _recordings(run: Path) -> int:
    """Number of recordings of the ranks of a run."""
    from perfscope.model.documents import run_folders
    from perfscope.plugins.job import kept_recordings

    processes, _ = run_folders.read_processes(run)
    return sum(len(kept_recordings(process)) for process in processes)
