"""Collectives and XLA instructions: arguments of the kernel, copy or span that is theirs, or events of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.readers.kineto_json.grown import Columns, join
from perfscope.analyzers.readers.perfetto_trace import vocabulary as words
from perfscope.analyzers.readers.perfetto_trace.arguments import Arguments
from perfscope.analyzers.readers.perfetto_trace.events import Events
from perfscope.analyzers.readers.perfetto_trace.walk import Int
from perfscope.analyzers.trace.columns import MISSING

Owners = Mapping[str, tuple[Events, Int]]
"""Column that points at the owner -> events of its table, and the row of each of them."""


def collective_rows(arguments: Arguments, owners: Owners, alone: Events, guessed: Columns) -> Columns:
    """The table ``collectives``; ``guessed``: rows for kernels that say nothing of themselves."""
    parts = []
    for owner in ("kernel", "slice"):
        events, rows = owners[owner]
        part = _told(arguments, "collectives", owner, events, rows)
        if part:
            parts.append(part)
    if guessed:
        told = np.concatenate([part["kernel"] for part in parts if "kernel" in part] or [np.empty(0, np.int64)])
        rest = ~np.isin(guessed["kernel"], told)
        parts.append({name: values[rest] for name, values in guessed.items()})
    if len(alone):
        parts.append({**_times(alone), **arguments.of("collectives", alone["event"])})
    return _sorted(parts)


def hlo_rows(arguments: Arguments, owners: Owners, alone: Events) -> Columns:
    """The table ``hlo_ops``."""
    parts = []
    for owner, (events, rows) in owners.items():
        part = _told(arguments, "hlo_ops", owner, events, rows)
        if part:
            parts.append(part)
    if len(alone):
        part = {**_times(alone), **arguments.of("hlo_ops", alone["event"])}
        parts.append({**part, **_ends(arguments, alone["event"], part)})
    return _sorted(parts)


def _told(arguments: Arguments, table: str, owner: str, events: Events, rows: Int) -> Columns:
    """Rows for the events that carry what the table holds."""
    chosen = np.flatnonzero(arguments.has(words.ARGUMENTS[table]["name"], events["event"]))
    if not len(chosen):
        return {}
    held = events.take(chosen)
    part = {**_times(held), **arguments.of(table, held["event"]), owner: rows[chosen]}
    if table == "hlo_ops":
        part |= _ends(arguments, held["event"], part)
    return part


def _times(events: Events) -> Columns:
    return {"start_ns": events["time_ns"].copy(), "end_ns": events["end_ns"].copy()}


def _ends(arguments: Arguments, events: Int, part: Columns) -> Columns:
    lasted = arguments.numbers(words.HLO_DURATION, events)
    launch = arguments.numbers(words.HLO_LAUNCH, events)
    return {
        "end_ns": np.where(lasted >= 0, part["start_ns"] + lasted, part["end_ns"]),
        "launch_end_ns": np.where(launch >= 0, part["start_ns"] + launch, MISSING),
    }


def _sorted(parts: list[Columns]) -> Columns:
    if not parts:
        return {}
    columns = join(parts)
    order = np.argsort(columns["start_ns"], kind="stable")
    return {name: values[order] for name, values in columns.items()}
