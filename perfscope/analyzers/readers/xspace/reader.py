"""XSpace (``*.xplane.pb``, also gzipped): profiles of ``jax.profiler``, XProf and TensorFlow.

```
XSpace { planes: [ XPlane { name, lines: [ XLine { name, timestamp_ns, events: [
           XEvent { metadata_id, offset_ps, duration_ps, stats: [XStat] } ] } ],
         event_metadata: {id: {name, stats}}, stat_metadata: {id: {name}}, stats } ], hostnames }
```

Times: ns are integers; ps offsets are rounded half to even. Newer profilers write times relative to the start of the
profile, which the plane ``Task Environment`` contains. The start is added, so hosts share a clock.

Host (``/host:CPU`` and similar): a line is a thread. Driver calls (they have a correlation id) become ``calls``,
allocations ``memory``, spans with ``step_num`` ``steps``, the rest ``slices``. Marks of the thread pool are left out,
the two marks of a wait are one span, and a jitted call that is written twice is shown once. The notes count each.

CPU backend: its devices, including virtual ones, are threads of the host and not accelerators. An instruction is a host
op without rows of ``devices`` or ``kernels`` and without device time. The table ``hlo_ops`` has the device
(``ordinal``), module and run of each instruction, and its end: its slice lasts only as long as the call that began it,
and ``hlo_ops.end_ns`` is its end mark, on any thread. A collective's rendezvous is a row of ``collectives`` per
participating device.

GPU (``/device:GPU:N``, CUDA and ROCm): a line is a stream; kernels and copies, with their call by
correlation id and their instruction in ``hlo_ops``. TPU (``/device:TPU:N``): see ``device.py``.

Host names are not read. The modules in ``/host:metadata`` become ``Trace.hlo``; a module without a platform that ran on
threads of the host was compiled for the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from perfscope.analyzers.readers.columns import join_columns
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.device import Devices
from perfscope.analyzers.readers.xspace.host import Host
from perfscope.analyzers.readers.xspace.planes import Line, Plane, Space, read_lines, read_plane, space
from perfscope.analyzers.readers.xspace.programs import Placement, Programs
from perfscope.model.errors import DataError
from perfscope.model.trace import TABLES, Rows, Trace, TraceBuilder
from perfscope.model.trace.builder import calls_that_wait
from perfscope.model.wire import BYTES, VARINT, Data, WireError, fields

FORMAT = "xplane"

_HOST_PLANE = "/host:CPU"
_TIMES = ("start_ns", "end_ns", "time_ns", "launch_end_ns")
_LATEST_NS = 1 << 61
"""Latest start of a recording; times of events of a later one would not fit 64 bits."""
_UNPROVEN = ("op_links", "shapes", "autograd", "collectives", "sync_records")
"""Keys that rows of this format do not prove."""

MAX_BYTES = 2 << 30
"""Maximum decompressed bytes of a file, the limit of a protocol buffer."""

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")

_PROFILE_FOLDERS = ("plugins", "profile")
"""``LOGDIR/plugins/profile/SESSION/HOST.xplane.pb``: where TensorBoard looks for profiles."""

_PLANE = b"\x0a"

_ID, _NAME = 1, 2

_PLANE_NAMES = (b"/host:", b"/device:", b"Task Environment", b"#Chip")


# A trace from the planes of one file: one clock, one string pool, and the kinds of recorded data.


def build(data: Data, shown: str) -> Trace:
    """Return the trace of an XSpace. ``DataError`` if it is truncated, corrupt or holds no events."""
    framed = space(data, shown)
    pool = TraceBuilder(shown, FORMAT)
    read = (read_plane(data, start, end, shown) for start, end in framed.planes)
    return build_from_planes(pool, ((plane, read_lines(data, plane, pool.code, shown)) for plane in read), framed)


def build_from_planes(pool: TraceBuilder, read: Iterable[tuple[Plane, Iterable[Line]]], framed: Space) -> Trace:
    """Return the trace of planes with their lines. ``DataError`` if there is no plane, or no event of a program."""
    shown = pool.path
    host, devices, programs, placement = Host(pool), Devices(pool), Programs(), Placement()
    planes: list[str] = []
    epoch_ns = 0
    latest_ns = 0
    for plane, lines in read:
        planes.append(plane.name)
        if plane.name == names.ENVIRONMENT_PLANE:
            start = plane.stats.get("profile_start_time")
            epoch_ns = start if isinstance(start, int) and 0 < start < _LATEST_NS else 0
        if plane.name == names.METADATA_PLANE:
            programs.add(plane, shown)
        latest_ns = max(latest_ns, _add_lines(plane, lines, pool, host, devices, placement))
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
    if latest_ns < epoch_ns:  # Times count from the start of the profile.
        _shift(rows, epoch_ns)
    pool.rank, pool.world_size = (None, None) if process is None else process
    pool.rank_source = "device assignment"
    pool.record_tables(without=_UNPROVEN)
    if not calls_that_wait(rows):
        pool.recorded.discard("waiting_calls")
    if programs.modules:
        pool.record("hlo")
    _add_notes(pool, framed, planes, devices)
    pool.note(*programs.problems)
    return pool.build(hlo=programs.placed(rows["hlo_ops"], pool.strings))


def _add_lines(
    plane: Plane, read: Iterable[Line], pool: TraceBuilder, host: Host, devices: Devices, placement: Placement
) -> int:
    """Add a plane's lines to their tables; return the latest time on them in ns."""
    latest = 0
    accelerator = names.ACCELERATOR.match(plane.name) is not None
    lines = []
    for line in read:
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
    """Refuse a file cut between two planes, which is a smaller valid XSpace: the part written last must be there."""
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
        pool.note(f"read and not shown as separate spans: {left}")
    pool.note(*pool.orphans("; they are counted"))
    if devices.graphs:
        pool.note(
            f"{devices.graphs:,} kernels and copies ran inside command buffers (CUDA graphs), {devices.hidden:,} of "
            "them without the name of their instruction; `XLA_FLAGS=--xla_gpu_enable_command_buffer=` records it, and "
            "changes the cost of launches"
        )


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the path is an XSpace, or the folder of one profile (a file per host and the viewer's copy)."""
    if path.is_dir():
        return _is_session(path)
    return path.name.endswith(_SUFFIXES) or _begins_with_plane(head)


def _is_session(folder: Path) -> bool:
    path = Path(os.path.abspath(folder))
    if path.parent.name != _PROFILE_FOLDERS[1] or path.parent.parent.name != _PROFILE_FOLDERS[0]:
        return False
    return bool(_files(folder))


def _begins_with_plane(head: bytes) -> bool:
    """Return whether the first field is a plane that begins with an optional id and its name."""
    try:
        plane = next(fields(head, 0, len(head), lenient=True), None)
        if plane is None or head[:1] != _PLANE:
            return False
        for number, kind, _, start, end in fields(head, plane.start, min(plane.end, len(head)), lenient=True):
            if (number, kind) != (_ID, VARINT):
                return (number, kind) == (_NAME, BYTES) and head[start:end].startswith(_PLANE_NAMES)
    except WireError:
        pass
    return False


def read(path: Path) -> Trace | list[Trace]:
    """Return the trace in ``path``, or one trace per host of a profile's folder, by file name.

    ``DataError``, one line, for a file that is empty, truncated, corrupt or holds no events.
    """
    if not path.is_dir():
        return read_file(path)
    return [read_file(file) for file in _files(path)]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIXES))


def read_file(path: Path) -> Trace:
    """Return the trace of one host; ``DataError`` as in ``read``."""
    shown = str(path)
    with open_bytes(path, MAX_BYTES) as data:
        if not len(data):
            raise DataError(f"{shown}: empty file")
        return build(data, shown)
