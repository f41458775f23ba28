"""``perfscope replay``: an op of a trace as a benchmark script."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.commands.completion import complete_runs
from perfscope.commands.options import verbose_option
from perfscope.model.errors import DONE, UsageError


@click.command()
@click.argument("path", shell_complete=complete_runs)
@click.option("--op", required=True, help="Name of an op or collective, or a row of slices (`perfscope query`).")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write here; else it is printed.")
@click.option("--source", type=click.IntRange(min=0), default=0, show_default=True, help="Which trace of a folder.")
@verbose_option
def replay(path: str, op: str, output: Path | None, source: int, verbose: bool) -> int:
    """Write a benchmark script of one op with its recorded shapes, dtypes and strides.

    `perfscope replay trace.json.gz --op aten::mm -o mm.py && python mm.py` prints its time here next to the recorded.
    For a name, it takes the shapes with most time. `--op all_reduce` and the other collectives write a script for
    torchrun. The script contains values of the trace only as checked numbers.
    """
    from perfscope.analyzers.readers import load_paths
    from perfscope.model.files import write_atomically
    from perfscope.plugins.replay.script import replay_script

    traces = load_paths([path]).traces
    if source >= len(traces):
        raise UsageError(f"replay: there are {len(traces)} traces")
    script = replay_script(traces[source], op)
    if output is None:
        click.echo(script, nl=False)
    else:
        write_atomically(output, script.encode())
    return DONE
