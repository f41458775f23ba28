"""``perfscope trigger``: more steps of a program that runs under capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.model.documents.run_folders import LATEST
from perfscope.model.errors import DataError, UsageError
from perfscope.profiler.session.trigger import MOST_STEPS

if TYPE_CHECKING:
    from pathlib import Path

UNTRIGGERED = ("whole", "times_only", "recorders", "capture")
"""Options of a capture in which no profiler records single steps."""


@click.command(epilog="`perfscope analyze RUN` shows the newest recording; earlier ones stay in the run folder.")
@click.argument("run", default=LATEST, shell_complete=complete_runs)
@click.option(
    "--steps",
    type=click.IntRange(1, MOST_STEPS),
    default=3,
    show_default=True,
    help="Number of steps to record.",
)
def trigger(*, run: str, steps: int) -> None:
    """Record the next steps of a running program again, into its run.

    The program looks for the request at the end of a step, at most once per second.
    """
    from perfscope.model.documents import run_folders

    directory = run_folders.find(run)
    ask(directory, steps)
    noun = "step" if steps == 1 else "steps"
    click.echo(f"{directory.name}: {steps} {noun} requested; then `perfscope analyze {directory}` shows them")


def ask(directory: Path, steps: int) -> None:
    """Request steps of a run; ``DataError`` if it has ended, ``UsageError`` if it records no single steps."""
    from perfscope.model.documents import run_folders
    from perfscope.model.files import write_atomically
    from perfscope.profiler.session.trigger import TRIGGER_FILE

    if not run_folders.is_running(directory):
        raise DataError(f"{directory}: the run has ended; `perfscope run` makes another")
    options = run_folders.read(directory).options
    for option in UNTRIGGERED:
        if options.get(option):
            raise UsageError(f"{directory}: a run with --{option.replace('_', '-')} cannot record single steps again")
    write_atomically(directory / TRIGGER_FILE, str(steps).encode())
