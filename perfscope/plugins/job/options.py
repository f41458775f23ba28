"""``perfscope run --ledger``."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.commands.options import AFTER_RUN, WATCHERS


def _remember(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        context.meta.setdefault(WATCHERS, {})["ledger"] = "perfscope.plugins.job.recorder:LedgerWatcher"
        context.meta.setdefault(AFTER_RUN, []).append(_show)
    return value


def _show(run: Path) -> None:
    from perfscope.plugins.job.command import show

    show((run,))


LEDGER = click.Option(
    ["--ledger"],
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Keep an account of every second of the program by cause, to its end: compilation, data, evaluation, "
    "checkpoints, waiting, lost work. `perfscope job RUN` shows it, also while it runs.",
)
