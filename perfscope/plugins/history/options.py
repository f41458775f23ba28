"""Options of the run store, the store that they choose, and runs as its records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import SIDES, Decorated, Sides
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError

if TYPE_CHECKING:
    from perfscope.plugins.history.store import RunStore
    from perfscope.plugins.history.stored_run import StoredRun

ANY = ""
"""``--baseline`` without a name: of any name, the program being the same."""
_STORE = "perfscope.history.store"
"""Key of ``Context.meta``: the store that the user named."""
_STORE_HELP = (
    f"The run store: a file, or postgresql://USER@HOST/DATABASE. Else PERFSCOPE_STORE, else {RUNS_FOLDER}/store.sqlite."
)


def _remember_store(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    context.meta[_STORE] = value
    return value


def _find_sides(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    from perfscope.plugins.history.baselines import sides

    def found(base: str | None, head: str | None) -> Sides:
        return sides(base, head, value, store=context.meta.get(_STORE))

    context.meta[SIDES] = found
    return value


BASELINE = click.Option(
    ["--baseline"],
    metavar="[NAME]",
    is_flag=False,
    flag_value=ANY,
    expose_value=False,
    callback=_find_sides,
    help="Compare HEAD, the only argument, with the baseline that its commit comes from: of NAME, or of the same "
    "program. BASE and HEAD may also be `baseline:NAME`.",
)
"""``perfscope compare --baseline [NAME]``."""

STORE = click.Option(["--store"], metavar="FILE|URL", expose_value=False, callback=_remember_store, help=_STORE_HELP)
"""``perfscope compare --store``."""


def store_option(command: Decorated) -> Decorated:
    """``--store``. The command gets ``store: str | None``."""
    return click.option("--store", metavar="FILE|URL", help=_STORE_HELP)(command)


def opened(given: str | None) -> RunStore:
    """The store that is meant; it is made or asked when it is first used."""
    from perfscope.plugins.history.store import RunStore, address

    return RunStore(address(given))


def record(path: str | Path, *, branch: str | None = None, commit: str | None = None) -> StoredRun:
    """The record of a run or a trace, its branch from git here, its texts fit to be kept."""
    from msgspec.structs import replace

    from perfscope.model.commits import branch_of
    from perfscope.plugins.history.run_record import record_of

    made = record_of(path, branch=branch, commit=commit)
    return cleaned(made if made.branch is not None else replace(made, branch=branch_of(made.commit)))


def cleaned(made: StoredRun) -> StoredRun:
    """The record without control characters, secrets and homes in its texts."""
    import msgspec

    from perfscope.model.untrusted_text import sanitize_value
    from perfscope.plugins.history.stored_run import StoredRun

    return msgspec.convert(sanitize_value(msgspec.to_builtins(made)), StoredRun)


def add_new(store: RunStore, folder: Path, *, quiet: bool = False) -> tuple[int, tuple[str, ...]]:
    """Add the runs of ``folder`` that ``store`` lacks; return their number, and a line per unreadable run.

    Runs that are still running are left for the next time. A terminal shows the progress, unless ``quiet``.
    """
    from perfscope.model.documents import run_folders as runs
    from perfscope.plugins.history.run_record import uid_of

    added, trouble = 0, []
    known = {uid_of(directory): directory for directory in runs.directories(folder)}
    stored = store.holds(known)
    interactive = sys.stderr.isatty() and not quiet
    for number, (uid, path) in enumerate(known.items(), start=1):
        if uid in stored:
            continue
        if interactive:
            click.echo(f"\rperfscope: reading run {number} of {len(known)} ", err=True, nl=False)
        try:
            if runs.read(path).state != "running":
                added += store.put(record(path))
        except DataError as error:
            trouble.append(str(error))
    if interactive and len(stored) < len(known):
        click.echo("\r\x1b[K", err=True, nl=False)
    return added, tuple(trouble)
