"""``perfscope runs``: what was captured here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.profiler.store import RUNS_FOLDER

if TYPE_CHECKING:
    from perfscope.profiler.store import Listed

PIPE_WIDTH = 160
"""Columns where no terminal says how many it has: an id and a usual command fit on one line."""


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
    from perfscope.profiler import store
    from perfscope.profiler.run_listing import row_of

    if keep is not None:
        removed = store.prune(folder, keep)
        if as_json:
            click.echo(json.dumps({"removed": [path.name for path in removed]}))
        else:
            click.echo(f"removed {len(removed)} runs from {folder}, kept {len(store.directories(folder))}")
        return
    listed = store.list_runs(folder)
    if as_json:
        click.echo(json.dumps([row_of(one) for one in listed], indent=1))
    elif not listed:
        click.echo(f"no runs in {folder}; `perfscope run train.py` makes one")
    else:
        _print_table(listed)


def _print_table(listed: list[Listed]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from perfscope.analyzers.units import format_ns
    from perfscope.dashboards.shown import shown
    from perfscope.profiler.run_listing import row_of

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "state", "ranks", "steps", "a step", "passes"):
        table.add_column(name, no_wrap=True)
    table.add_column("command", overflow="fold")
    for one in listed:
        row = row_of(one)
        if one.run is None:
            cells = [row["id"], "unreadable", "", "", "", "", row["problem"]]
        else:
            state = row["state"] if row["exit_code"] in (None, 0) else f"{row['state']} ({row['exit_code']})"
            step = "-" if row["step_ns"] is None else format_ns(row["step_ns"])
            planned = {capture.pass_name for process in one.run.processes for capture in process.captures}
            captured = f"{len(row['captures'])}/{len(planned)}"
            cells = [row["id"], state, str(row["ranks"]), str(row["steps"]), step, captured, " ".join(row["command"])]
        table.add_row(*(Text(shown(cell)) for cell in cells))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
