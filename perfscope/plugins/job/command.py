"""``perfscope job``: where the time of a whole job went."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import STDOUT, announce, quiet_option, screen, verbose_option, write_answers
from perfscope.model.documents.run_folders import LATEST
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(epilog="`perfscope run --ledger` keeps the ledgers; several RUNs are attempts of one job.")
@click.argument("runs", nargs=-1, shell_complete=complete_runs)
@click.option("--json", "json_file", metavar="FILE", help="Write the account as JSON (- for stdout, alone).")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown (- for stdout, alone).")
@click.option("--metrics", "metrics_file", metavar="FILE", help="Write it in OpenMetrics (- for stdout, alone).")
@click.option("--serve", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer Prometheus on loopback.")
@click.option("--every", type=click.FloatRange(min=1), metavar="SECONDS", help="Write again and again, until Ctrl-C.")
@quiet_option
@verbose_option
def job(
    *,
    runs: tuple[str, ...],
    json_file: str | None,
    markdown_file: str | None,
    metrics_file: str | None,
    port: int | None,
    every: float | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show where the time of a whole job went: every second by cause, over ranks and restarts.

    A job that still runs is shown up to its last written rows.
    """
    from perfscope.model.documents import run_folders

    folders = [run_folders.find(run) for run in runs or (LATEST,)]
    files = (json_file, markdown_file, metrics_file)
    if every is not None and not any(files):
        raise UsageError("--every writes files again: it goes with --metrics, --json or --markdown")
    if port is not None:
        _serve(folders, port, quiet=quiet)
        return
    _write(folders, files, quiet=quiet)
    if STDOUT not in files:
        show(folders, verbose=verbose)
    while every is not None:
        time.sleep(every)
        _write(folders, files, quiet=True)


def show(runs: Sequence[Path], *, verbose: bool = False) -> None:
    """Print the account of runs on stdout; ``DataError`` if they have no ledger."""
    from perfscope.dashboards.report.renderers.text import report_text
    from perfscope.plugins.job.account import job_account
    from perfscope.plugins.job.report import report_of

    report = report_of(job_account(runs))
    click.echo(report_text(report, **screen(sys.stdout), verbose=verbose), nl=False, color=True)


def _write(runs: Sequence[Path], files: tuple[str | None, str | None, str | None], *, quiet: bool) -> None:
    if not any(files):
        return
    from perfscope.plugins.job.account import job_account

    account = job_account(runs)
    json_file, markdown_file, metrics_file = files

    def markdown() -> str:
        from perfscope.dashboards.report.renderers.markdown import open_section, sections_markdown
        from perfscope.plugins.job.report import report_of

        report = report_of(account)
        head = "\n".join(f"- {fact}" for fact in report.facts)
        first, *others = report.sections
        return f"**{report.headline}**\n\n{head}\n\n{open_section(first)}\n\n{sections_markdown(others)}\n"

    def json() -> str:
        from perfscope.plugins.job.json_document import dump

        return dump(account).decode()

    write_answers([(json_file, json), (markdown_file, markdown), (metrics_file, _metrics(runs))], quiet=quiet)


def _metrics(runs: Sequence[Path]) -> Callable[[], str]:
    def text() -> str:
        from perfscope.plugins.job.account import job_account
        from perfscope.plugins.job.metrics import openmetrics

        return openmetrics(job_account(runs), runs[0].resolve().name)

    return text


def _serve(runs: Sequence[Path], port: int, *, quiet: bool) -> None:
    from perfscope.plugins.job.metrics import serve

    server = serve(_metrics(runs), port)
    announce(f"metrics at http://127.0.0.1:{server.server_address[1]}/metrics until Ctrl-C", quiet=quiet)
    try:
        server.serve_forever()
    finally:
        server.server_close()
