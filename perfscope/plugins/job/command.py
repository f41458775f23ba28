"""``perfscope job``: where the time of a whole job went."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import STDOUT, announce, quiet_option, screen, verbose_option
from perfscope.model.documents.run_folders import LATEST
from perfscope.model.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.plugins.job.account import JobAccount
    from perfscope.plugins.job.outlets import Outlet


def _trackers(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    from perfscope.plugins.log_to import tracker_and_place

    return tuple(tracker_and_place(value, context, parameter) for value in values)


@click.command(epilog="`perfscope run --ledger` keeps the ledgers; several RUNs are attempts of one job.")
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@click.option("--json", "json_file", metavar="FILE", help="Write the account as JSON (- for stdout, alone).")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown (- for stdout, alone).")
@click.option("--metrics", "metrics_file", metavar="FILE", help="Write it for node_exporter's textfile collector.")
@click.option("--serve", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer Prometheus on loopback.")
@click.option("--otlp", metavar="URL", help="Send metrics and spans to an OpenTelemetry collector (OTLP over HTTP).")
@click.option(
    "--log-to",
    "trackers",
    multiple=True,
    metavar="TRACKER:PLACE",
    callback=_trackers,
    help="Log goodput, time by cause, step time and loss to tensorboard:DIR, wandb:PROJECT or mlflow:URI (repeatable).",
)
@click.option(
    "--webhook",
    metavar="URL",
    help="Post a message to a chat: with --every on a stall, a restart, another step time and the end; else once. "
    "env:NAME takes the address from a variable.",
)
@click.option(
    "--store",
    metavar="FILE|URL",
    help="Keep the time per step by cause in a run store (a file or postgresql://...), for `perfscope history`.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Write and send again and again, until the job has ended.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Read the ranks on the workers of this Dask scheduler, which see the same paths.",
)
@quiet_option
@verbose_option
def job(
    *,
    runs: tuple[str, ...],
    json_file: str | None,
    markdown_file: str | None,
    metrics_file: str | None,
    port: int | None,
    otlp: str | None,
    trackers: tuple[tuple[str, str], ...],
    webhook: str | None,
    store: str | None,
    every: float | None,
    scheduler: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show where the time of a whole job went: every second by cause, over ranks and restarts.

    A job that still runs is shown up to its last written rows.
    """
    files = (json_file, markdown_file, metrics_file)
    outlets = _outlets(otlp, trackers, webhook, store, follows=every is not None)
    if any(files):
        from perfscope.plugins.job.outlets.files import Files

        outlets.append(Files(*files, quiet=quiet))
    if every is not None and not outlets:
        raise UsageError(
            "--every writes and sends again: it needs a file or a receiver, such as --metrics or --webhook"
        )
    folders = _folders(runs or (LATEST,), every)
    if port is not None:
        _serve(folders, port, quiet=quiet)
        return
    from perfscope.plugins.job.account import on_cluster
    from perfscope.plugins.job.outlets import moment_of, tell

    read = None if scheduler is None else on_cluster(scheduler)
    moment = moment_of(folders, read)
    if STDOUT not in files and every is None:
        show_account(moment.account, folders, verbose=verbose)
    if outlets:
        moment = tell(lambda: moment_of(folders, read), outlets, every=every, moment=moment)
    if STDOUT not in files and every is not None and not quiet:
        show_account(moment.account, folders, verbose=verbose)


def _folders(runs: Sequence[str], every: float | None) -> list[Path]:
    """The run folders; with ``every`` (seconds) a job that has not started yet is waited for."""
    from perfscope.model.documents import run_folders
    from perfscope.plugins.job.document import ledger_files, with_requeued

    waits = False
    while True:
        try:
            folders = list(dict.fromkeys(part for run in runs for part in with_requeued(run_folders.find(run))))
            if every is None or any(map(ledger_files, folders)) or not any(map(run_folders.is_running, folders)):
                return folders
        except DataError:
            if every is None:
                raise
        if not waits:
            announce(f"waiting for the ledger of {', '.join(runs)}")
        waits = True
        time.sleep(every)


def _outlets(
    otlp: str | None,
    trackers: tuple[tuple[str, str], ...],
    webhook: str | None,
    store: str | None,
    *,
    follows: bool,
) -> list[Outlet]:
    """Receivers besides files; their packages are imported when they are named."""
    found: list[Outlet] = []
    if otlp is not None:
        from perfscope.plugins.job.outlets.otlp import connect

        found.append(connect(otlp))
    if trackers:
        from perfscope.plugins.job.outlets.trackers import Tracked

        found += [Tracked(*tracker) for tracker in trackers]
    if webhook is not None:
        from perfscope.plugins.job.outlets.webhook import Webhook

        found.append(Webhook(webhook, follows=follows))
    if store is not None:
        from perfscope.plugins.job.outlets.stored import Stored

        found.append(Stored(store))
    return found


def show(runs: Sequence[Path], *, verbose: bool = False) -> None:
    """Print the account of runs on stdout; ``DataError`` if they have no ledger."""
    from perfscope.plugins.job.account import job_account

    show_account(job_account(runs), runs, verbose=verbose)


def show_account(account: JobAccount, runs: Sequence[Path], *, verbose: bool = False) -> None:
    """Print the account of runs on stdout, with the recordings that were made while they ran."""
    from perfscope.dashboards.report.renderers.text import report_text
    from perfscope.plugins.job.recordings import compared_recordings
    from perfscope.plugins.job.report import report_of

    changed = [change.rank for change in account.changes if change.rank is not None]
    report = report_of(account, compared_recordings(runs, changed))
    click.echo(report_text(report, **screen(sys.stdout), verbose=verbose), nl=False, color=True)


def _serve(runs: Sequence[Path], port: int, *, quiet: bool) -> None:
    from perfscope.plugins.job.outlets import moment_of
    from perfscope.plugins.job.outlets.metrics import Latest, openmetrics, serve

    server = serve(Latest(lambda: openmetrics(moment_of(runs))), port)
    announce(f"metrics at http://127.0.0.1:{server.server_address[1]}/metrics until Ctrl-C", quiet=quiet)
    try:
        server.serve_forever()
    finally:
        server.server_close()
