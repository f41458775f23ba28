"""Traces of an open export: one per process with work on a device, on the session's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers.columns import Columns
from perfscope.analyzers.readers.nsys.counters import read_counters, read_usage
from perfscope.analyzers.readers.nsys.database import NULL, Export, Session
from perfscope.analyzers.readers.nsys.device import Device, read_device
from perfscope.analyzers.readers.nsys.host import Fields, Host, Steps, read_host
from perfscope.analyzers.readers.nsys.samples import NativeSamples, read_samples
from perfscope.analyzers.readers.nsys.tables import Tables
from perfscope.model.errors import DataError
from perfscope.model.trace import CopyKind, Rows, Trace, TraceBuilder
from perfscope.model.trace.columns import MISSING
from perfscope.model.units import format_bytes, format_ns

KNOWN_MAJOR = "3"
"""Known major version of the export's schema. In another one, equal names may have other meanings."""

_CUDA_TABLES = "CUPTI_ACTIVITY_KIND_"

FORMAT = "nsys"


# Notes about an export for a reader of the report: what was recorded as a whole, guessed, or missing.


def notes_of(
    database: Export,
    trace: TraceBuilder,
    device: Device,
    steps: Steps,
    ranks: str | None,
) -> tuple[str, ...]:
    """Return one sentence per note. ``ranks``: how ranks were determined."""
    rows = trace.rows
    notes = [ranks] if ranks else []
    major = _setting(database, "EXPORT_SCHEMA_VERSION_MAJOR")
    if major not in (None, KNOWN_MAJOR):
        version = _setting(database, "EXPORT_SCHEMA_VERSION")
        notes.append(
            f"the export's schema is {version}, newer or older than any known one: numbers may have another meaning"
        )
    notes += _absent(database, rows)
    notes += trace.orphans(
        " (launched before the capture began, or not recorded); they are kept and counted as device time"
    )
    if device.graphs:
        notes.append(
            f"{device.graphs:,} runs of CUDA graphs were recorded as one piece each and are shown as one kernel; "
            "`nsys profile --cuda-graph-trace=node` records the kernels in them, at some cost"
        )
    if device.nodes:
        notes.append(f"{device.nodes:,} kernels ran inside graphs and are attributed to their graph launch")
    if steps.guessed is not None:
        notes.append(f"steps are taken from NVTX ranges by their name, such as `{steps.guessed}`")
    if steps.unfinished:
        notes.append(
            "not counted as steps: ranges that were still open when the program or the recording ended "
            f"({steps.unfinished:,})"
        )
    if len(rows["memory"]):
        notes.append("memory events are those of the driver (cudaMalloc, cudaFree), not of a framework's allocator")
    return (*notes, *_peers(rows["copies"], trace.strings))


def _setting(database: Export, key: str) -> str | None:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        result = database.settings(table, (key,))
        if result:
            return result[key]
    return None


def _absent(database: Export, rows: Mapping[str, Rows]) -> list[str]:
    """Return why there is no device work. Tables without rows are not written, so an absent table proves little."""
    if len(rows["kernels"]) or len(rows["copies"]):
        return []
    key = "PROCESS_0:COLLECT_CUDA_TRACE"
    text = database.settings("META_DATA_CAPTURE", (key,)).get(key, "").lower()
    if text in ("true", "1"):
        return ["CUDA was traced, and no work on a device was recorded"]
    if text in ("false", "0"):
        return ["CUDA was not traced (`nsys profile --trace=cuda,nvtx,osrt`)"]
    if any(table.startswith(_CUDA_TABLES) and len(rows["calls"]) for table in database.tables):
        return ["calls of CUDA were recorded, and no work on a device"]
    return ["nothing of CUDA was recorded: it was not traced, or the program did not use it"]


def _peers(copies: Rows, strings: list[str]) -> list[str]:
    """Return the transfers between devices by pair: bytes over the time of the copies."""
    peers = copies["kind"] == int(CopyKind.PEER_TO_PEER)
    notes = []
    for code in np.unique(copies["name"][peers]).tolist():
        mine = peers & (copies["name"] == code) & (copies["bytes"] > 0)
        moved = int(copies["bytes"][mine].sum())
        took = int((copies["end_ns"][mine] - copies["start_ns"][mine]).sum())
        if took > 0:
            notes.append(
                f"{strings[code]}: {int(mine.sum()):,} copies between devices moved {format_bytes(moved)} in "
                f"{format_ns(took)} of copying: {moved / took:.1f} GB/s"
            )
    return notes


class Identity(Struct, frozen=True, kw_only=True):
    """Rank of a process, and its evidence."""

    rank: int | None
    source: str | None
    world_size: int | None
    how: str | None
    """Sentence for the reader, unless the program itself recorded its rank."""


NO_IDENTITY = Identity(rank=None, source=None, world_size=None, how=None)


def build(database: Export, shown: str) -> list[Trace]:
    """Return the traces of an export, by rank. ``DataError`` if it holds no events."""
    session = Session(database)
    host, device, usage, counters = (
        read_host(session),
        read_device(session),
        read_usage(session),
        read_counters(session),
    )
    samples = read_samples(session)
    if not session.pool.events:
        raise DataError(f"{shown}: no events in it: nothing was recorded, or the export left out everything")
    owners = _owners(device)
    left = _left_out((host.calls, host.slices, samples.columns), owners)
    if left:
        session.pool.unplaced["host row of a process without work on a device"] += left
    parts = [_parts(host, device, usage, samples, one) for one in (owners if len(owners) > 1 else [None])]
    parts[0]["counters"] = counters  # Counters belong to the machine, not a process, so the first trace has them.
    events = [sum(_rows(columns) for columns in part.values()) for part in parts]
    events[0] = session.pool.events - sum(events[1:])
    traces = []
    for index, part in enumerate(parts):
        communicators = _communicators(part["slices"], session.pool.strings, host.payloads)
        tables = Tables(session, part, samples.frames, {one: size for one, (size, _) in communicators.items()})
        tables.collectives(host.payloads)
        identity = _identity(index, len(owners), communicators)
        trace = TraceBuilder(shown, FORMAT)
        trace.rank, trace.rank_source, trace.world_size = identity.rank, identity.source, identity.world_size
        trace.events = events[index]
        trace.strings, trace.rows = session.pool.strings, tables.rows
        if index == 0:
            trace.unplaced = session.pool.unplaced
        trace.record_tables(without=("python_stack", "autograd"))
        if len(tables.rows["samples"]):
            trace.record("native_samples")
        trace.note(*notes_of(database, trace, device, tables.steps, identity.how))
        traces.append(trace.build())
    return sorted(traces, key=lambda trace: (trace.source.rank is None, trace.source.rank or 0))


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _owners(device: Device) -> list[int]:
    """Return the processes with work on a device, in order of their numbers."""
    both = np.concatenate([device.kernels["process"], device.copies["process"]])
    return [one for one in np.unique(both).tolist() if one != NULL]


def _left_out(tables: Iterable[Columns], owners: list[int]) -> int:
    if len(owners) < 2:
        return 0
    return sum(int((~np.isin(columns["process"], owners)).sum()) for columns in tables)


def _parts(
    host: Host, device: Device, usage: Columns, samples: NativeSamples, process: int | None
) -> dict[str, Columns]:
    """Return the rows of one process, or of all."""
    tables = {
        "calls": host.calls,
        "slices": host.slices,
        "kernels": device.kernels,
        "copies": device.copies,
        "waits": device.waits,
        "usage": usage,
        "samples": samples.columns,
    }
    return {"counters": {}, **{name: _of(columns, process) for name, columns in tables.items()}}


def _of(columns: Columns, process: int | None) -> Columns:
    if process is None or not columns:
        return dict(columns)
    mine = columns["process"] == process
    return {name: values[mine] for name, values in columns.items()}


def _communicators(slices: Columns, strings: list[str], fields: list[Fields]) -> dict[int, tuple[int, int]]:
    """Return NCCL communicator -> (ranks, rank of this process), if its creation was recorded."""
    result = {}
    for row in np.flatnonzero(slices["payload"] != MISSING).tolist():
        payload = fields[slices["payload"][row]]
        if strings[slices["name"][row]].startswith("nccl") and {"communicator", "ranks", "rank"} <= set(payload):
            size, rank = payload["ranks"], payload["rank"]
            if 0 <= rank < size < 1 << 24:
                result[payload["communicator"]] = (size, rank)
    return result


def _identity(index: int, count: int, communicators: Mapping[int, tuple[int, int]]) -> Identity:
    if communicators:
        size, rank = max(communicators.values())
        return Identity(rank=rank, source="NCCL communicator", world_size=size, how=None)
    if count > 1:
        how = f"{count} processes with work on devices in one file: their ranks are their order by process id"
        return Identity(rank=index, source="order of the processes", world_size=None, how=how)
    return NO_IDENTITY
