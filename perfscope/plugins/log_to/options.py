"""``perfscope run --log-to`` and ``perfscope analyze --log-to``."""

from __future__ import annotations

from functools import partial

import click

from perfscope.commands.options import AFTER_ANALYSIS

TRACKERS = ("mlflow", "tensorboard", "wandb")


def tracker_and_place(value: str, context: click.Context, parameter: click.Parameter) -> tuple[str, str]:
    """``tensorboard:DIR`` as its parts; ``click.BadParameter`` for an unknown tracker or without a place."""
    tracker, _, place = value.partition(":")
    if tracker not in TRACKERS or not place:
        raise click.BadParameter(f"{value}: give tensorboard:DIR, wandb:PROJECT or mlflow:URI", context, parameter)
    return tracker, place


def _remember(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from perfscope.plugins.log_to.trackers import log

    for value in values:
        tracker, place = tracker_and_place(value, context, parameter)
        context.meta.setdefault(AFTER_ANALYSIS, []).append(partial(log, tracker, place))
    return values


LOG_TO = click.Option(
    ["--log-to"],
    multiple=True,
    metavar="TRACKER:PLACE",
    expose_value=False,
    callback=_remember,
    help="Log step time, busy share, exposed communication, peak memory and findings by rule to tensorboard:DIR, "
    "wandb:PROJECT or mlflow:URI (repeatable).",
)
