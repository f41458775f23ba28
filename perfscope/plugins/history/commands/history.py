"""``perfscope history``: how metrics went from commit to commit, and where their level changed. It gates nothing."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import (
    STDOUT,
    announce,
    quiet_option,
    screen,
    verbose_option,
    write_answers,
)
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.history.options import add_new, opened, store_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.plugins.history.store import RunStore
    from perfscope.plugins.history.stored_run import StoredRun

LAST = 200
"""Default number of runs: a year of working days."""


@click.command()
@click.argument("metric", metavar="[METRIC]", required=False)
@click.option("--branch", help="Only runs of this branch.")
@click.option("--name", help="Only runs of this name.")
@click.option("--last", type=click.IntRange(min=1), default=LAST, show_default=True, help="The newest N runs.")
@click.option("--json", "json_file", metavar="FILE", help="Write the series as JSON (- for stdout, alone).")
@click.option("--html", "html_file", metavar="FILE", help="Write a page with pictures (- for stdout, alone).")
@store_option
@quiet_option
@verbose_option
def history(
    metric: str | None,
    branch: str | None,
    name: str | None,
    last: int,
    json_file: str | None,
    html_file: str | None,
    store: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show how metrics went over the runs that are kept, and between which commits they changed.

    METRIC is a name that `perfscope compare` shows, or a part of some. Runs in perfscope-runs/ are taken into a
    local store first. Times of single runs differ by chance: a change is reported, and never fails a build.
    """
    from perfscope.model.commits import ancestry, commits_between, current_commit
    from perfscope.plugins.history import report as report
    from perfscope.plugins.history.series import history as made

    if json_file == "-" and html_file == "-":
        raise UsageError("--json - and --html -: stdout holds one of them")
    run_store = opened(store)
    run_store.is_empty()  # an unusable store fails before runs are read
    if not run_store.database.shared:
        _take_in(run_store, quiet=quiet)
    runs = run_store.runs(branch=branch, name=name, last=last)
    if not runs:
        raise DataError(_nothing(run_store.shown, branch, name))
    history = made(runs, metrics=_metrics(metric, runs), order=ancestry(current_commit()))
    if not history.series:
        raise DataError(f"{run_store.shown}: none of {len(runs)} runs finished and has a metric")
    page = partial(report.render_html, history, count_between=commits_between)
    write_answers([(json_file, lambda: report.render_json(history)), (html_file, page)], quiet=quiet)
    if STDOUT not in (json_file, html_file):
        text = report.render_text(history, **screen(sys.stdout), verbose=verbose, count_between=commits_between)
        click.echo(text, nl=False, color=True)


def _take_in(run_store: RunStore, *, quiet: bool) -> None:
    """Add runs of this folder to a local store; unreadable runs are reported and skipped."""
    added, trouble = add_new(run_store, Path(RUNS_FOLDER), quiet=quiet)
    if added:
        announce(f"took {added} new run{'s' * (added != 1)} into {run_store.shown}", quiet=quiet)
    for line in trouble:
        announce(f"left out: {line}", quiet=quiet)


def _metrics(wanted: str | None, runs: Sequence[StoredRun]) -> tuple[str, ...] | None:
    """The names that are meant: exactly it, or all with that in them."""
    if wanted is None:
        return None
    names = sorted({metric.name for run in runs for metric in run.metrics if metric.value is not None})
    close = [name for name in names if wanted.lower() in name.lower()]
    if wanted in names or close:
        return (wanted,) if wanted in names else tuple(close)
    raise UsageError(f"{wanted}: no such metric; there are {', '.join(names)}")


def _nothing(where: str, branch: str | None, name: str | None) -> str:
    wanted = [f"{what} {value}" for what, value in (("branch", branch), ("name", name)) if value is not None]
    of = f" of {' and '.join(wanted)}" if wanted else ""
    return f"{where}: no runs{of} in it; `perfscope run` makes them, `perfscope store import` takes them in"
