"""``perfscope baseline``: runs under a name, kept whole, to compare with after their folders are gone."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.group import VerbGroup
from perfscope.commands.options import announce, screen, verbose_option
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.history.options import opened, record, store_option

MOST_MIB = 64
KEPT = 20
SHORT = 12
"""Characters of a commit."""


@click.group(cls=VerbGroup)
def baseline() -> None:
    """Keep a run under a name: `perfscope compare baseline:NAME HEAD`, or `compare --baseline [NAME] HEAD`."""


@baseline.command("set", epilog="In CI: after the tests of the main branch, and of no other branch (docs/store.md).")
@click.argument("name", metavar="NAME")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--branch", help="Branch of the run; else the checked out branch, if it is at the run's commit.")
@click.option("--commit", metavar="HASH", help="Commit of a recording that perfscope did not make.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=KEPT, show_default=True, help="Runs kept under the name, the newest."
)
@click.option(
    "--most-mib",
    type=click.IntRange(min=1, max=4096),
    default=MOST_MIB,
    show_default=True,
    help="Refuse files that are larger when packed.",
)
@click.option(
    "--numbers-only", is_flag=True, help="Do not keep the files: it can be compared while its folder is there."
)
@store_option
@verbose_option
def set_(
    name: str,
    run: str,
    branch: str | None,
    commit: str | None,
    keep: int,
    most_mib: int,
    numbers_only: bool,
    store: str | None,
    verbose: bool,
) -> None:
    """Give RUN the name, with its files: a run, `latest`, or a recording."""
    from perfscope.analyzers.readers import resolve
    from perfscope.model.commits import is_commit_hash
    from perfscope.plugins.history.store import check_name, pack

    try:
        check_name(name)
    except DataError as error:
        raise UsageError(str(error)) from error
    if commit is not None and not is_commit_hash(commit):
        raise UsageError(f"--commit {commit}: not a commit's hash, written out")
    run_store = opened(store)
    run_store.is_empty()  # an unusable store fails before the work
    path = resolve(run)
    made = record(path, branch=branch, commit=commit)
    with tempfile.TemporaryDirectory(prefix="perfscope-baseline-") as scratch:
        packed = None if numbers_only else pack(path, Path(scratch, "pack"), most=most_mib << 20)
        let_go = run_store.set_baseline(name, made, packed, kept=keep)
    of = "" if made.commit is None else f" of {made.commit[:SHORT]}{' with uncommitted changes' * made.dirty}"
    size = "its numbers" if packed is None else f"{packed.bytes / (1 << 20):.2f} MiB of {packed.files} files"
    click.echo(f"baseline {name}: {made.id}{of}; {size} kept in {run_store.shown}")
    if not made.finished:
        announce(f"{made.id} did not finish, or its program failed: compare with care")
    if let_go:
        click.echo(f"let go: {', '.join(let_go)} (--keep {keep})")


@baseline.command("list")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_option
@verbose_option
def list_(name: str | None, as_json: bool, store: str | None, verbose: bool) -> None:
    """List baselines, the newest first."""
    run_store = opened(store)
    baselines = run_store.baselines(name)
    rows = [
        {
            "name": baseline.name,
            "run": baseline.run.id,
            "program": baseline.run.name,
            "branch": baseline.run.branch,
            "commit": baseline.run.commit,
            "dirty": baseline.run.dirty,
            "set_utc": baseline.set_utc,
            "hardware": dict(baseline.run.hardware),
            "packed_bytes": baseline.bytes if baseline.digest is not None else None,
        }
        for baseline in baselines
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif not baselines:
        click.echo(f"no baselines in {run_store.shown}; `perfscope baseline set NAME RUN` keeps one")
    else:
        from perfscope.dashboards.report.renderers.text import printed, section_text
        from perfscope.plugins.history.report import baselines_section

        section = baselines_section(baselines)
        text = printed(lambda columns: section_text(section, columns, verbose=True), **screen(sys.stdout))
        click.echo(text, nl=False)


@baseline.command("rm")
@click.argument("name", metavar="NAME")
@click.argument("run", metavar="[RUN]", required=False)
@store_option
@verbose_option
def remove(name: str, run: str | None, store: str | None, verbose: bool) -> None:
    """Take NAME from its runs, or from RUN alone. Their numbers stay in the history."""
    run_store = opened(store)
    uid = None if run is None else run_store.find(run).uid
    removed = run_store.remove_baseline(name, uid)
    if not removed:
        raise DataError(f"{name}: no such baseline{'' if run is None else f' of {run}'} in {run_store.shown}")
    click.echo(f"baseline {name}: removed {removed} run{'s' * (removed != 1)} from {run_store.shown}")
