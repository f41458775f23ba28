"""From the planes of one file to a trace: one clock, one string pool, what was recorded and what was not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.readers.builder import Pool, join_columns
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.device import Devices
from perfscope.analyzers.readers.xspace.framing import Space, space
from perfscope.analyzers.readers.xspace.host import Host
from perfscope.analyzers.readers.xspace.placement import Placement
from perfscope.analyzers.readers.xspace.planes import Plane, read_lines, read_plane
from perfscope.analyzers.readers.xspace.programs import Programs
from perfscope.model.errors import DataError
from perfscope.model.trace import TABLES, CallKind, Rows, SliceKind, Source, Trace
from perfscope.model.wire import Data

FORMAT = "xplane"

_HOST_PLANE = "/host:CPU"
_TIMES = ("start_ns", "end_ns", "time_ns", "launch_end_ns")


def build(data: Data, shown: str) -> Trace:
    """The trace of an XSpace. ``DataError`` if it is cut off, corrupt or holds no events."""
    framed = space(data, shown)
    pool = Pool()
    host, devices, programs, placement = Host(pool), Devices(pool), Programs(), Placement()
    planes: list[str] = []
    epoch_ns = 0
    latest_ns = 0
    for start, end in framed.planes:
        plane = read_plane(data, start, end, shown)
        planes.append(plane.name)
        if plane.name == names.ENVIRONMENT_PLANE:
            epoch_ns = int(plane.stats.get("profile_start_time", 0) or 0)
        if plane.name == names.METADATA_PLANE:
            programs.add(plane, shown)
        latest_ns = max(latest_ns, _read_lines(data, plane, pool, host, devices, placement, shown))
    _refuse_cut(framed, planes, shown)
    rows = _tables(host, devices, pool)
    programs.name_starts(rows["hlo_ops"], pool.strings, pool.code)
    assignments = {(pool.code(name), number): devices for (name, number), devices in programs.devices.items()}
    process = placement.place(rows["hlo_ops"], assignments)
    ran = any(len(rows[name]) for name in ("slices", "calls", "kernels", "copies", "memory"))
    if not ran and not programs.modules:
        raise DataError(f"{shown}: {pool.events:,} events in {len(planes)} planes, but none of a program")
    if latest_ns < epoch_ns:  # times count from the start of the profile
        _shift(rows, epoch_ns)
    source = Source(
        path=shown,
        format=FORMAT,
        rank=None if process is None else process[0],
        world_size=None if process is None else process[1],
        events_read=pool.events,
        events_unplaced=sum(pool.unplaced.values()),
        unplaced={reason: count for reason, count in pool.unplaced.items() if count},
        notes=(*_notes(framed, planes, pool, rows, devices), *programs.problems),
    )
    recorded = _recorded(rows) | (frozenset({"hlo"}) if programs.modules else frozenset())
    hlo = programs.placed(rows["hlo_ops"], pool.strings)
    return Trace(source=source, strings=pool.strings, rows=rows, recorded=recorded, hlo=hlo)


def _read_lines(
    data: Data, plane: Plane, pool: Pool, host: Host, devices: Devices, placement: Placement, shown: str
) -> int:
    """Read a plane's lines into their place; the latest time on them in ns."""
    latest = 0
    accelerator = names.ACCELERATOR.match(plane.name) is not None
    lines = []
    for line in read_lines(data, plane, pool.code, shown):
        pool.events += len(line)
        if not len(line):
            continue
        latest = max(latest, int(line.end_ns.max()))
        if accelerator:
            lines.append(line)
        elif names.HOST_PLANES.match(plane.name):
            host.add(plane, line)
            placement.add(plane, line)
        else:
            pool.unplaced[f"plane {plane.name}"] += len(line)
    if lines:
        devices.add(plane, lines)
    return latest


def _refuse_cut(framed: Space, planes: list[str], shown: str) -> None:
    """A file cut between two planes is a smaller valid XSpace: what a profiler writes last must be there."""
    if not planes:
        raise DataError(f"{shown}: no planes: not an XSpace, or cut off")
    if not framed.ends_with_host and not {_HOST_PLANE, names.ENVIRONMENT_PLANE} & set(planes):
        raise DataError(f"{shown}: cut off: neither the plane of the host nor the end of the file's frame is there")


def _tables(host: Host, devices: Devices, pool: Pool) -> dict[str, Rows]:
    rows = host.build()
    on_device = devices.build(rows, host.call_details)
    instructions = [dict(part) for part in (rows["hlo_ops"], on_device.pop("hlo_ops")) if len(part)]
    rows |= on_device
    if len(instructions) == 2:
        rows["hlo_ops"] = Rows(TABLES["hlo_ops"], join_columns(instructions))
    elif instructions:
        rows["hlo_ops"] = Rows(TABLES["hlo_ops"], instructions[0])
    threads = list(pool.threads)
    rows["threads"] = Rows(
        TABLES["threads"],
        {
            "process": np.array([pool.code(process) for process, _ in threads], np.int32),
            "thread": np.array([pool.code(thread) for _, thread in threads], np.int32),
        },
    )
    return rows


def _shift(rows: Mapping[str, Rows], by_ns: int) -> None:
    for table in rows.values():
        for name in _TIMES:
            if name in table and len(table):
                known = table[name] != -1 if table.table.column(name).nullable else slice(None)
                table[name][known] += by_ns


def _recorded(rows: Mapping[str, Rows]) -> frozenset[str]:
    kernels, copies, slices = rows["kernels"], rows["copies"], rows["slices"]
    checks = {
        "device_work": bool(len(kernels) or len(copies)),
        "host_ops": bool((slices["kind"] == SliceKind.OP).any()),
        "launch_links": bool((kernels["call"] >= 0).any() or (copies["call"] >= 0).any()),
        "runtime_calls": len(rows["calls"]) > 0,
        "waiting_calls": bool((rows["calls"]["kind"] == CallKind.SYNC).any()),
        "python_stack": bool((slices["kind"] == SliceKind.PYTHON).any()),
        "memory": len(rows["memory"]) > 0,
        "steps": len(rows["steps"]) > 0,
    }
    return frozenset(key for key, present in checks.items() if present)


def _notes(framed: Space, planes: list[str], pool: Pool, rows: Mapping[str, Rows], devices: Devices) -> tuple[str, ...]:
    notes = []
    if not any(len(rows[name]) for name in ("slices", "calls", "kernels", "copies")):
        notes.append("no events in it, only compiled programs: every number is modelled or structural")
    if not framed.ends_with_host and names.ENVIRONMENT_PLANE not in planes:
        notes.append("the file ends without the profile's environment: an old profiler wrote it, or its end is cut off")
    if framed.errors:
        notes.append(f"the profiler reported {framed.errors:,} errors while it recorded: parts may be missing")
    left = ", ".join(f"{count:,} {what}" for what, count in pool.marks.items() if count)
    if left:
        notes.append(f"read and not shown as spans of their own: {left}")
    for table in ("kernels", "copies"):
        work = rows[table]
        orphans = int((work["call"] < 0).sum())
        if orphans and len(rows["calls"]):
            notes.append(f"{orphans:,} of {len(work):,} {table} have no launch call in the trace; they are counted")
    if devices.graphs:
        notes.append(
            f"{devices.graphs:,} kernels and copies ran inside command buffers (CUDA graphs), {devices.hidden:,} of "
            "them without the name of their instruction; `XLA_FLAGS=--xla_gpu_enable_command_buffer=` records it, and "
            "changes the cost of launches"
        )
    return tuple(notes)
