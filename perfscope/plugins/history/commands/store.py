"""``perfscope store``: import and export of runs, the content of the store, and its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.group import VerbGroup
from perfscope.commands.options import announce, verbose_option
from perfscope.model.errors import DataError
from perfscope.plugins.history.options import add_new, cleaned, opened, record, store_option

if TYPE_CHECKING:
    from perfscope.plugins.history.store import RunStore


@click.group(cls=VerbGroup)
def store() -> None:
    """Numbers and baselines of runs, in a file or on a PostgreSQL server (docs/store.md)."""


@store.command("import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--branch", help="Branch of runs whose commit is not the one that is checked out.")
@click.option("--again", is_flag=True, help="Count runs that are there already once more.")
@store_option
@verbose_option
def import_(
    paths: tuple[str, ...],
    branch: str | None,
    again: bool,
    store: str | None,
    verbose: bool,
) -> None:
    """Put runs, folders of runs, recordings or an export into the store. Existing records stay."""
    from perfscope.model.documents import run_folders as runs
    from perfscope.plugins.history.store import import_file, looks_like_export

    run_store = opened(store)
    run_store.prepare()
    for path in paths:
        folder = Path(path)
        if folder.is_file() and looks_like_export(folder):
            done = import_file(run_store, folder, clean=cleaned)
            there = f" ({done.runs_there + done.baselines_there} were there)"
            added = f"{_count(done.runs, 'run')} and {_count(done.baselines, 'baseline')}"
            click.echo(f"{path}: {added} added to {run_store.shown}{there}")
        elif folder.is_dir() and not runs.is_run(folder) and runs.directories(folder) and not again:
            new_ones, trouble = add_new(run_store, folder)
            click.echo(f"{path}: {_count(new_ones, 'run')} added to {run_store.shown}")
            for line in trouble:
                announce(f"left out: {line}")
            if trouble and not new_ones:
                raise DataError(f"{path}: none of its runs could be read")
        else:
            for item in _runs_below(folder) if again else (path,):
                made = record(item, branch=branch)
                new = run_store.put(made, again=again)
                click.echo(
                    f"{made.id}: {'added to' if new else 'counted again in' if again else 'is in'} {run_store.shown}"
                )


def _count(number: object, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _runs_below(path: Path) -> list[str | Path]:
    from perfscope.model.documents import run_folders as runs

    return [*runs.directories(path)] if path.is_dir() and not runs.is_run(path) else [str(path)]


@store.command("export")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--branch", help="Only runs of this branch.")
@click.option("--name", help="Only runs of this name.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the newest N runs.")
@click.option("--numbers-only", is_flag=True, help="Leave out the files of baselines.")
@store_option
@verbose_option
def export_(
    file: Path,
    branch: str | None,
    name: str | None,
    last: int | None,
    numbers_only: bool,
    store: str | None,
    verbose: bool,
) -> None:
    """Write runs, their baselines and the files of these into one FILE (a tar)."""
    from perfscope.plugins.history.store import export

    run_store = opened(store)
    stored_runs = run_store.runs(branch=branch, name=name, last=last)
    if not stored_runs:
        raise DataError(f"{run_store.shown}: nothing to export")
    done = export(run_store, file, runs=stored_runs, packs=not numbers_only)
    size = file.stat().st_size / (1 << 20)
    click.echo(
        f"{file}: {_count(done.runs, 'run')}, {_count(done.baselines, 'baseline')}, "
        f"files of {done.packs} ({size:.2f} MiB)"
    )


@store.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_option
@verbose_option
def status(as_json: bool, store: str | None, verbose: bool) -> None:
    """Show the place and the content of the store."""
    run_store = opened(store)
    facts = _status(run_store)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    if facts["schema"] is None:
        click.echo(f"{run_store.shown}: no store yet; `perfscope store import perfscope-runs` makes one")
        return
    newest = "" if facts["newest_utc"] is None else f", the newest of {facts['newest_utc']}"
    packed = float(facts["packed_bytes"] or 0) / (1 << 20)
    click.echo(
        f"{run_store.shown}: schema {facts['schema']}, {_count(facts['runs'], 'run')}{newest}, "
        f"{_count(facts['baselines'], 'baseline')} ({packed:.2f} MiB of files)"
    )


def _status(run_store: RunStore) -> dict[str, str | int | None]:
    from perfscope.plugins.history.store import LATEST

    empty = run_store.is_empty()
    runs, newest = run_store.counts()
    baselines = run_store.baselines()
    return {
        "store": run_store.shown,
        "schema": None if empty else LATEST,
        "runs": runs,
        "newest_utc": newest,
        "baselines": len(baselines),
        "packed_bytes": sum({baseline.digest: baseline.bytes for baseline in baselines}.values()),
    }


@store.command("migrate")
@store_option
@verbose_option
def migrate(store: str | None, verbose: bool) -> None:
    """Bring the store to this perfscope's schema. A file is brought by its first use, a shared database only here."""
    run_store = opened(store)
    version = run_store.prepare(upgrade=True)
    click.echo(f"{run_store.shown}: schema {version.schema}, needs a perfscope with schema {version.needs} or later")
