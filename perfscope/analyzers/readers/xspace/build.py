"""From the planes of one file to a trace: one clock, one string pool, what was recorded and what was not."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.readers.builder import join_columns
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.device import Devices
from perfscope.analyzers.readers.xspace.framing import Space, space
from perfscope.analyzers.readers.xspace.host import Host
from perfscope.analyzers.readers.xspace.placement import Placement
from perfscope.analyzers.readers.xspace.planes import Plane, read_lines, read_plane
from perfscope.analyzers.readers.xspace.programs import Programs
from perfscope.model.errors import DataError
from perfscope.model.trace import TABLES, Rows, Trace, TraceBuilder
from perfscope.model.trace.builder import calls_that_wait
from perfscope.model.wire import Data

FORMAT = "xplane"

_HOST_PLANE = "/host:CPU"
_TIMES = ("start_ns", "end_ns", "time_ns", "launch_end_ns")
_NOT_TOLD = ("op_links", "shapes", "autograd", "collectives", "sync_records")
"""Keys that rows of this format do not vouch for."""


def build(data: Data, shown: str) -> Trace:
    """The trace of an XSpace. ``DataError`` if it is cut off, corrupt or holds no events."""
    framed = space(data, shown)
    pool = TraceBuilder(shown, FORMAT)
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
    pool.rows = rows
    pool.threads_table()
    programs.name_starts(rows["hlo_ops"], pool.strings, pool.code)
    assignments = {(pool.code(name), number): devices for (name, number), devices in programs.devices.items()}
    process = placement.place(rows["hlo_ops"], assignments)
    ran = any(len(rows[name]) for name in ("slices", "calls", "kernels", "copies", "memory"))
    if not ran and not programs.modules:
        raise DataError(f"{shown}: {pool.events:,} events in {len(planes)} planes, but none of a program")
    if latest_ns < epoch_ns:  # times count from the start of the profile
        _shift(rows, epoch_ns)
    pool.rank, pool.world_size = (None, None) if process is None else process
    pool.record_tables(without=_NOT_TOLD)
    if not calls_that_wait(rows):
        pool.recorded.discard("waiting_calls")
    if programs.modules:
        pool.record("hlo")
    _add_notes(pool, framed, planes, devices)
    pool.note(*programs.problems)
    return pool.build(hlo=programs.placed(rows["hlo_ops"], pool.strings))


def _read_lines(
    data: Data, plane: Plane, pool: TraceBuilder, host: Host, devices: Devices, placement: Placement, shown: str
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


def _tables(host: Host, devices: Devices, pool: TraceBuilder) -> dict[str, Rows]:
    rows = host.build()
    on_device = devices.build(rows, host.call_details)
    instructions = [dict(part) for part in (rows["hlo_ops"], on_device.pop("hlo_ops")) if len(part)]
    rows |= on_device
    if len(instructions) == 2:
        rows["hlo_ops"] = Rows(TABLES["hlo_ops"], join_columns(instructions))
    elif instructions:
        rows["hlo_ops"] = Rows(TABLES["hlo_ops"], instructions[0])
    return rows


def _shift(rows: Mapping[str, Rows], by_ns: int) -> None:
    for table in rows.values():
        for name in _TIMES:
            if name in table and len(table):
                known = table[name] != -1 if table.table.column(name).nullable else slice(None)
                table[name][known] += by_ns


def _add_notes(pool: TraceBuilder, framed: Space, planes: list[str], devices: Devices) -> None:
    rows = pool.rows
    if not any(len(rows[name]) for name in ("slices", "calls", "kernels", "copies")):
        pool.note("no events in it, only compiled programs: every number is modelled or structural")
    if not framed.ends_with_host and names.ENVIRONMENT_PLANE not in planes:
        pool.note("the file ends without the profile's environment: an old profiler wrote it, or its end is cut off")
    if framed.errors:
        pool.note(f"the profiler reported {framed.errors:,} errors while it recorded: parts may be missing")
    left = ", ".join(f"{count:,} {what}" for what, count in pool.marks.items() if count)
    if left:
        pool.note(f"read and not shown as spans of their own: {left}")
    pool.note(*pool.orphans("; they are counted"))
    if devices.graphs:
        pool.note(
            f"{devices.graphs:,} kernels and copies ran inside command buffers (CUDA graphs), {devices.hidden:,} of "
            "them without the name of their instruction; `XLA_FLAGS=--xla_gpu_enable_command_buffer=` records it, and "
            "changes the cost of launches"
        )
