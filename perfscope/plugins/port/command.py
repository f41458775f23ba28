"""``perfscope compare port``: the ledger of two sides of any kind, also of two of one kind."""

from __future__ import annotations

from typing import Any

import click

from perfscope.commands.compare.outputs import Outputs, output_options
from perfscope.commands.completion import complete_runs
from perfscope.commands.options import selection_options, spare


@click.command()
@click.argument("a", metavar="A", shell_complete=complete_runs)
@click.argument("b", metavar="B", shell_complete=complete_runs)
@selection_options
@output_options("A port has no gates.")
def port(a: str, b: str, outputs: Outputs, **chosen: Any) -> int:
    """Show two sides of one model layer by layer, and what one of them does that the other does not.

    A and B are runs, or programs of `perfscope compile`: of PyTorch and JAX, for two targets, of two vendors or with
    two backends. `perfscope compare A B` shows the same where one side is of PyTorch and the other of JAX.
    """
    from perfscope.analyzers.selection import load_selected, parse_selection
    from perfscope.plugins.port.compare import check_outputs, files, finish, ledger

    check_outputs(outputs)
    selection = parse_selection(chosen["steps"], chosen["ranks"], chosen["time"])
    loaded = load_selected(a, selection), load_selected(b, selection)
    spare([str(file) for file in files(*loaded)], outputs.files().values())
    return finish(ledger(*loaded), outputs)
