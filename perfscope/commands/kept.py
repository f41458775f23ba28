"""What the verbs of the run store share: which store, records fit to be kept, and runs that are not in it yet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError

if TYPE_CHECKING:
    from perfscope.model.documents.stored_run import StoredRun
    from perfscope.profiler.store.runs import RunStore

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def store_option(command: Decorated) -> Decorated:
    """``--store``. The command gets ``store: str | None``."""
    return click.option(
        "--store",
        metavar="FILE|URL",
        help="The run store: a file, or postgresql://USER@HOST/DATABASE. Else PERFSCOPE_STORE, else "
        f"{RUNS_FOLDER}/store.sqlite.",
    )(command)


def opened(asked: str | None) -> RunStore:
    """The store that is meant; it is made or asked when it is first used."""
    from perfscope.profiler.store.address import address
    from perfscope.profiler.store.runs import RunStore

    return RunStore(address(asked))


def record(path: str | Path, *, branch: str | None = None, commit: str | None = None) -> StoredRun:
    """The record of a run or a trace, its branch as git tells it here, its texts fit to be kept."""
    from dataclasses import replace

    from perfscope.analyzers.compare.run_record import record_of
    from perfscope.model.commits import branch_of

    made = record_of(path, branch=branch, commit=commit)
    return cleaned(made if made.branch is not None else replace(made, branch=branch_of(made.commit)))


def cleaned(made: StoredRun) -> StoredRun:
    """The record without control characters, secrets and homes in its texts."""
    import msgspec

    from perfscope.model.documents.stored_run import StoredRun
    from perfscope.model.untrusted_text import sanitize_value

    return msgspec.convert(sanitize_value(asdict(made)), StoredRun)


def add_new(store: RunStore, folder: Path, *, quiet: bool = False) -> tuple[int, tuple[str, ...]]:
    """Put runs of ``folder`` that ``store`` has not into it; how many, and a line for each that cannot be read.

    Runs that are still running wait for the next time. How far it is stands on a terminal, unless ``quiet``.
    """
    from perfscope.analyzers.compare.run_record import uid_of
    from perfscope.model.documents import run_folders as runs

    added, trouble = 0, []
    known = {uid_of(place): place for place in runs.directories(folder)}
    held = store.holds(known)
    told = sys.stderr.isatty() and not quiet
    for number, (uid, place) in enumerate(known.items(), start=1):
        if uid in held:
            continue
        if told:
            click.echo(f"\rperfscope: reading run {number} of {len(known)} ", err=True, nl=False)
        try:
            if runs.read(place).state != "running":
                added += store.put(record(place))
        except DataError as error:
            trouble.append(str(error))
    if told and len(held) < len(known):
        click.echo("\r\x1b[K", err=True, nl=False)
    return added, tuple(trouble)
