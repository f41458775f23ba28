"""``perfscope runs``: the runs of this folder."""

from __future__ import annotations

import json
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import width_of
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIPE_WIDTH = 160
"""Columns if no terminal has a width: an id and a usual command fit on one line."""

COMMAND_LEAST = 30
"""Columns below which the command moves to the next line, because it would be a ribbon next to the other cells."""

BELOW = "    "
"""Indent of a command on the line below its run."""


@click.command(epilog="A tag names its run wherever a run is an argument: `perfscope compare good latest`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--keep",
    "--prune",
    "keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Remove all but the N newest runs. Runs that are running or have a tag stay.",
)
@click.option(
    "--delete",
    "deleted",
    multiple=True,
    metavar="RUN",
    help="Remove this run (repeatable).",
    shell_complete=complete_runs,
)
@click.option(
    "--tag",
    "tagged",
    nargs=2,
    multiple=True,
    metavar="RUN TAG",
    help="Give a run a name (repeatable).",
    shell_complete=complete_runs,
)
@click.option("--untag", "untagged", multiple=True, metavar="TAG", help="Take a name away (repeatable).")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=RUNS_FOLDER,
    show_default=True,
    help="Folder that keeps the run directories.",
)
def runs(
    *,
    as_json: bool,
    keep: int | None,
    deleted: tuple[str, ...],
    tagged: tuple[tuple[str, str], ...],
    untagged: tuple[str, ...],
    folder: Path,
) -> None:
    """List the runs in this folder, the newest first; name or remove some."""
    from perfscope.model.documents import run_folders
    from perfscope.model.documents.run_list import list_runs, row_of

    if keep is not None or deleted or tagged or untagged:
        removed = _change(folder, keep, deleted, tagged, untagged)
        if as_json:
            click.echo(json.dumps({"removed": [path.name for path in removed]}))
        elif keep is not None or deleted:
            left = len(run_folders.kept_directories(folder))
            click.echo(f"removed {len(removed)} run{'' if len(removed) == 1 else 's'} from {folder}, kept {left}")
        return
    rows = [row_of(listed_run) for listed_run in list_runs(folder)]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif not rows:
        click.echo(f"no runs in {folder}; `perfscope run train.py` makes one")
    else:
        width = width_of(sys.stdout) if sys.stdout.isatty() else PIPE_WIDTH
        for line in _lines(_table(rows, width, datetime.now(UTC)), width):
            click.echo(line)


def _change(
    folder: Path,
    keep: int | None,
    deleted: tuple[str, ...],
    tagged: tuple[tuple[str, str], ...],
    untagged: tuple[str, ...],
) -> list[Path]:
    """Tag, then delete, then prune; the runs that were removed."""
    from perfscope.model.documents import run_folders

    for name in untagged:
        if not run_folders.untag(folder, name):
            raise UsageError(f"--untag {name}: no run in {folder} has this tag")
    for which, name in tagged:
        run_folders.tag(folder, which, name)
    removed = [run_folders.delete(folder, which) for which in deleted]
    return [*removed, *(run_folders.prune(folder, keep) if keep is not None else ())]


COLUMNS = ("run", "when", "state", "step", "worst finding", "tags", "device", "commit", "program")
DROPPED = ("commit", "device", "when")
"""Columns that are dropped first if the line is too short; the JSON has all."""


def _table(rows: Sequence[dict[str, Any]], width: int, now: datetime) -> list[tuple[str, ...]]:
    """Heads and cells, without empty columns and columns for which the line is too short."""
    from rich.cells import cell_len

    from perfscope.model.untrusted_text import sanitize

    cells = [{name: sanitize(text) for name, text in _cells(row, now).items()} for row in rows]
    names = [name for name in COLUMNS if name == COLUMNS[-1] or any(cell[name] for cell in cells)]
    wide = {name: max(cell_len(name), *(cell_len(cell[name]) for cell in cells)) for name in names[:-1]}
    for name in DROPPED:
        if name in wide and sum(wide.values()) + 2 * len(wide) > width:
            names.remove(name)
            del wide[name]
    return [tuple(names), *(tuple(cell[name] for name in names) for cell in cells)]


def _cells(row: dict[str, Any], now: datetime) -> dict[str, str]:
    """A run's cells by column."""
    from perfscope.model.documents.run_list import commit_words, device_words, state_words, worst_words
    from perfscope.model.units import format_ns

    cost_ns = (row.get("worst_finding") or {}).get("cost_ns")
    return {
        "run": row["id"],
        "when": _ago(row.get("created_utc"), now),
        "state": state_words(row),
        "step": "" if row.get("step_ns") is None else format_ns(row["step_ns"]),
        "worst finding": ""
        if row.get("findings") is None
        else worst_words(row) + ("" if cost_ns is None else f" {format_ns(cost_ns)}"),
        "tags": ", ".join(row.get("tags", ())),
        "device": device_words(row),
        "commit": commit_words(row),
        "program": row.get("problem") or " ".join(row["command"]),
    }


def _ago(created_utc: str | None, now: datetime) -> str:
    """``5 min ago``; ``''`` for a time that cannot be read."""
    try:
        seconds = (now - datetime.fromisoformat(created_utc or "")).total_seconds()
    except (TypeError, ValueError):
        return ""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "now"


def _lines(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[str]:
    """The rows in columns; the last cell in the same line if there is room for it, else on further lines."""
    from rich.cells import cell_len, chop_cells

    wide = [max(cell_len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    indent = sum(wide) + 2 * len(wide)
    if width - indent < COMMAND_LEAST:
        indent = 0
    gap = 2 if indent or sum(wide) + 2 * (len(wide) - 1) <= width else 1
    for row in rows:
        left = "".join(cell + " " * (wide[index] - cell_len(cell) + gap) for index, cell in enumerate(row[:-1]))
        room = max(width - (indent or len(BELOW)), COMMAND_LEAST)
        words = textwrap.wrap(row[-1], room, break_on_hyphens=False)
        pieces = [piece for line in words for piece in chop_cells(line, room)]  # of letters two columns wide
        if indent:
            yield f"{left}{''.join(pieces[:1])}".rstrip()
            yield from (f"{' ' * indent}{piece}" for piece in pieces[1:])
        else:
            yield left.rstrip()
            yield from (f"{BELOW}{piece}" for piece in pieces)
