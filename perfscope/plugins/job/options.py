"""``perfscope run --ledger`` and ``--watch``."""

from __future__ import annotations

from pathlib import Path

import click

from perfscope.commands.options import AFTER_RUN, WATCHERS


def _remember(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        context.meta.setdefault(WATCHERS, {}).setdefault("ledger", "perfscope.plugins.job.recorder:LedgerWatcher")
        _show_after(context)
    return value


def _remember_watch(context: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        context.meta.setdefault(WATCHERS, {})["ledger"] = "perfscope.plugins.job.watch:watching"
        _show_after(context)
    return value


def _show_after(context: click.Context) -> None:
    after = context.meta.setdefault(AFTER_RUN, [])
    if _show not in after:
        after.append(_show)


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

WATCH = click.Option(
    ["--watch"],
    is_flag=True,
    expose_value=False,
    callback=_remember_watch,
    help="With --ledger: record steps in full when the step time, throughput, memory or loss changes, and at SIGUSR2.",
)
