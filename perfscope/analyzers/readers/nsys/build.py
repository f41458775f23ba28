"""From an open export to traces: one for each process that has work on a device, on the session's clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfscope.analyzers.readers.builder import Columns
from perfscope.analyzers.readers.nsys.counters import read_counters, read_usage
from perfscope.analyzers.readers.nsys.database import NULL, Export
from perfscope.analyzers.readers.nsys.device import Device, read_device
from perfscope.analyzers.readers.nsys.host import Host, read_host
from perfscope.analyzers.readers.nsys.nccl import Fields
from perfscope.analyzers.readers.nsys.notes import notes_of
from perfscope.analyzers.readers.nsys.session import Session
from perfscope.analyzers.readers.nsys.tables import Tables
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder
from perfscope.model.trace.columns import MISSING

FORMAT = "nsys"

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_ .]?(\d{1,6})(?:\D|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which rank a process is, and how that is known."""

    rank: int | None
    world_size: int | None
    how: str | None
    """A sentence for the reader, where it is not what the program itself says."""


def build(database: Export, shown: str) -> list[Trace]:
    """The traces of an export, by rank. ``DataError`` if it holds no events."""
    session = Session(database)
    host, device, usage, counters = (
        read_host(session),
        read_device(session),
        read_usage(session),
        read_counters(session),
    )
    if not session.pool.events:
        raise DataError(f"{shown}: no events in it: nothing was recorded, or the export left all of it out")
    owners = _owners(device)
    left = _left_out(host, owners)
    if left:
        session.pool.unplaced["host row of a process without work on a device"] += left
    parts = [_parts(host, device, usage, one) for one in (owners if len(owners) > 1 else [None])]
    parts[0]["counters"] = counters  # they are of the machine and not of a process: the first trace has them
    events = [sum(_rows(columns) for columns in part.values()) for part in parts]
    events[0] = session.pool.events - sum(events[1:])
    traces = []
    for place, part in enumerate(parts):
        communicators = _communicators(part["slices"], session.pool.strings, host.payloads)
        tables = Tables(session, part, {one: size for one, (size, _) in communicators.items()})
        tables.collectives(host.payloads)
        identity = _identity(shown, place, len(owners), communicators)
        trace = TraceBuilder(shown, FORMAT)
        trace.rank, trace.world_size, trace.events = identity.rank, identity.world_size, events[place]
        trace.strings, trace.rows = session.pool.strings, tables.rows
        if place == 0:
            trace.unplaced = session.pool.unplaced
        trace.record_tables(without=("python_stack", "autograd"))
        trace.note(*notes_of(database, trace, device, tables.steps, identity.how))
        traces.append(trace.build())
    return sorted(traces, key=lambda trace: (trace.source.rank is None, trace.source.rank or 0))


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _owners(device: Device) -> list[int]:
    """Processes with work on a device, in order of their numbers."""
    both = np.concatenate([device.kernels["process"], device.copies["process"]])
    return [one for one in np.unique(both).tolist() if one != NULL]


def _left_out(host: Host, owners: list[int]) -> int:
    if len(owners) < 2:
        return 0
    return sum(int((~np.isin(columns["process"], owners)).sum()) for columns in (host.calls, host.slices))


def _parts(host: Host, device: Device, usage: Columns, process: int | None) -> dict[str, Columns]:
    """The rows of one process, or of all."""
    tables = {
        "calls": host.calls,
        "slices": host.slices,
        "kernels": device.kernels,
        "copies": device.copies,
        "waits": device.waits,
        "usage": usage,
    }
    return {"counters": {}, **{name: _of(columns, process) for name, columns in tables.items()}}


def _of(columns: Columns, process: int | None) -> Columns:
    if process is None or not columns:
        return dict(columns)
    mine = columns["process"] == process
    return {name: values[mine] for name, values in columns.items()}


def _communicators(slices: Columns, strings: list[str], fields: list[Fields]) -> dict[int, tuple[int, int]]:
    """NCCL communicator -> (ranks, this process's rank), where its creation was recorded."""
    found = {}
    for row in np.flatnonzero(slices["payload"] != MISSING).tolist():
        told = fields[slices["payload"][row]]
        if strings[slices["name"][row]].startswith("nccl") and {"communicator", "ranks", "rank"} <= set(told):
            size, rank = told["ranks"], told["rank"]
            if 0 <= rank < size < 1 << 24:
                found[told["communicator"]] = (size, rank)
    return found


def _identity(shown: str, place: int, count: int, communicators: Mapping[int, tuple[int, int]]) -> Identity:
    if communicators:
        size, rank = max(communicators.values())
        return Identity(rank=rank, world_size=size, how=None)
    if count > 1:
        how = f"{count} processes with work on devices in one file: their ranks are their order by process id"
        return Identity(rank=place, world_size=None, how=how)
    found = _RANK_IN_NAME.search(Path(shown).name)
    return Identity(rank=int(found[1]) if found else None, world_size=None, how=None)
