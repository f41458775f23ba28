"""``perfscope runs``: what was captured here."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import width_of
from perfscope.model.documents.run_folders import RUNS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.model.documents.run_folders import ListedRun

PIPE_WIDTH = 160
"""Columns where no terminal says how many it has: an id and a usual command fit on one line."""

COMMAND_LEAST = 30
"""Columns below which a command beside the others would be a ribbon: it goes below them."""

BELOW = "    "
"""What a command that stands below its run begins with."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--prune", "keep", type=click.IntRange(min=0), metavar="KEEP", help="Remove all but the KEEP newest.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=RUNS_FOLDER,
    show_default=True,
    help="Folder that keeps the run directories.",
)
def runs(*, as_json: bool, keep: int | None, folder: Path) -> None:
    """List the runs in this folder, the newest first."""
    from perfscope.model.documents import run_folders
    from perfscope.model.documents.run_folders import row_of

    if keep is not None:
        removed = run_folders.prune(folder, keep)
        if as_json:
            click.echo(json.dumps({"removed": [path.name for path in removed]}))
        else:
            click.echo(f"removed {len(removed)} runs from {folder}, kept {len(run_folders.kept_directories(folder))}")
        return
    listed = run_folders.list_runs(folder)
    if as_json:
        click.echo(json.dumps([row_of(listed_run) for listed_run in listed], indent=1))
    elif not listed:
        click.echo(f"no runs in {folder}; `perfscope run train.py` makes one")
    else:
        _print_table(listed)


def _print_table(listed: list[ListedRun]) -> None:
    from perfscope.model.documents.run_folders import row_of
    from perfscope.model.units import format_ns
    from perfscope.model.untrusted_text import sanitize

    rows: list[tuple[str, ...]] = [("run", "state", "ranks", "steps", "a step", "passes", "command")]
    for listed_run in listed:
        row = row_of(listed_run)
        if listed_run.compiled is not None:
            state = f"{row['state']} for {row['target']}" + ("" if row["complete"] else ", not all")
            cells = [row["id"], state, "", "", "", f"{len(row['programs'])}", " ".join(row["command"])]
        elif listed_run.run is None:
            cells = [row["id"], "unreadable", "", "", "", "", row["problem"]]
        else:
            state = row["state"] if row["exit_code"] in (None, 0) else f"{row['state']} ({row['exit_code']})"
            step = "-" if row["step_ns"] is None else format_ns(row["step_ns"])
            planned = {capture.pass_name for process in listed_run.run.processes for capture in process.captures}
            captured = f"{len(row['captures'])}/{len(planned)}"
            cells = [row["id"], state, str(row["ranks"]), str(row["steps"]), step, captured, " ".join(row["command"])]
        rows.append(tuple(sanitize(cell) for cell in cells))
    width = width_of(sys.stdout) if sys.stdout.isatty() else PIPE_WIDTH
    for line in _lines(rows, width):
        click.echo(line)


def _lines(rows: Sequence[tuple[str, ...]], width: int) -> Iterator[str]:
    """The rows in columns; the last cell beside the others where there is room for it, else on lines of its own."""
    from rich.cells import cell_len, chop_cells

    wide = [max(cell_len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    beside = sum(wide) + 2 * len(wide)
    if width - beside < COMMAND_LEAST:
        beside = 0
    gap = 2 if beside or sum(wide) + 2 * (len(wide) - 1) <= width else 1
    for row in rows:
        left = "".join(cell + " " * (wide[index] - cell_len(cell) + gap) for index, cell in enumerate(row[:-1]))
        room = max(width - (beside or len(BELOW)), COMMAND_LEAST)
        words = textwrap.wrap(row[-1], room, break_on_hyphens=False)
        pieces = [piece for line in words for piece in chop_cells(line, room)]  # of letters two columns wide
        if beside:
            yield f"{left}{''.join(pieces[:1])}".rstrip()
            yield from (f"{' ' * beside}{piece}" for piece in pieces[1:])
        else:
            yield left.rstrip()
            yield from (f"{BELOW}{piece}" for piece in pieces)
