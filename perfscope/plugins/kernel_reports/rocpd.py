"""Counters of rocprofv3 in its SQLite output (``--output-format rocpd``, the default since ROCm 7).

Tables have the name of their content and an id of the recording (``rocpd_kernel_dispatch_0001f3...``), one set per
process. Only the kernels, their launch shapes and resources, and the counters of `rocprof_counters.COUNTERS` are read,
and no host, no command and no environment. Schema: ``rocpd_tables.sql`` of rocprofiler-sdk, versions 2 and 3.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.kernel_reports.record import KernelReport, attach_reports, report_trace, reports_of
from perfscope.plugins.kernel_reports.rocprof_counters import COUNTERS, NOTHING_KNOWN, TOOL, with_counter

if TYPE_CHECKING:
    from perfscope.analyzers.readers import Database

FORMAT = "rocpd"
JOINS = (".db", ".rocpd")

_MAGIC = b"SQLite format 3\0"
_DISPATCHES, _SYMBOLS, _EVENTS, _COUNTERS = (
    f"rocpd_{name}" for name in ("kernel_dispatch", "info_kernel_symbol", "pmc_event", "info_pmc")
)
_LARGEST = 1 << 40
"""Largest size of a grid, of registers or of memory that is believed."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a database of SQLite with rocpd's tables."""
    if not head.startswith(_MAGIC):
        return False
    if _DISPATCHES.encode() in head:
        return True
    from perfscope.analyzers.readers import open_database

    try:
        with open_database(path, str(path)) as database:
            return any(name.startswith(_DISPATCHES) for name in database.tables)
    except DataError:
        return False


def read(path: Path) -> Trace:
    """Return a trace with a report per dispatch. ``DataError``, one line, for a corrupt file or one without any."""
    from perfscope.analyzers.readers import open_database

    with open_database(path, str(path)) as database:
        reports = tuple(_reports(database))
    if not reports:
        raise DataError(f"{path}: rocpd without a dispatch of a kernel: it is cut off, or no kernel was profiled")
    known = any(report.compute is not None or report.memory is not None for report in reports)
    return report_trace(str(path), FORMAT, reports, *([] if known else [NOTHING_KNOWN]))


def attach(trace: Trace, path: Path) -> Trace:
    """Return a trace with the reports of a file added."""
    return attach_reports(trace, reports_of(read(path)))


def _reports(database: Database) -> Iterator[KernelReport]:
    """Yield a report per dispatch, in the order of the tables and of their rows."""
    for table in sorted(name for name in database.tables if name.startswith(_DISPATCHES)):
        recording = table.removeprefix(_DISPATCHES)
        symbols, counted = _symbols(database, _SYMBOLS + recording), _counters(database, recording)
        sizes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
        memory = ("group_segment_size", "private_segment_size")
        columns = database.integers(table, "kernel_id", "event_id", *sizes, *memory)
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*(columns[name].tolist() for name in columns),
                                                                           strict=True))  # fmt: skip
        for row in rows:
            name, registers = symbols.get(row["kernel_id"], ("", None))
            items, group = (_product(row, what) for what in ("grid", "workgroup"))
            report = KernelReport(
                name=name.removesuffix(".kd"), tool=TOOL, blocks=-(-items // group) if items and group else None,
                threads_per_block=group, registers=registers, shared_bytes=_size(row["group_segment_size"]),
                spills=_size(row["private_segment_size"]),
            )  # fmt: skip
            for counter, value in counted.get(row["event_id"], ()):
                report = with_counter(report, counter, value)
            if name:
                yield report


def _symbols(database: Database, table: str) -> dict[int, tuple[str, int | None]]:
    """Name and registers by id of a kernel."""
    names = ("id", "arch_vgpr_count", "accum_vgpr_count")
    columns, (shown, mangled) = database.mixed(table, names, "display_name", "kernel_name")
    found = {}
    for row, number in enumerate(columns["id"].tolist()):
        registers = sum(_size(int(columns[name][row])) or 0 for name in names[1:])
        found[number] = (str(shown[row] or mangled[row] or ""), registers or None)
    return found


def _counters(database: Database, recording: str) -> Mapping[int, list[tuple[str, float]]]:
    """Counters of `COUNTERS` by the event of a dispatch."""
    described, (names,) = database.mixed(_COUNTERS + recording, ("id",), "name")
    known = {
        number: str(name) for number, name in zip(described["id"].tolist(), names, strict=True) if name in COUNTERS
    }
    columns, (values,) = database.mixed(_EVENTS + recording, ("event_id", "pmc_id"), "value")
    found: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for event, counter, value in zip(columns["event_id"].tolist(), columns["pmc_id"].tolist(), values, strict=True):
        number = _number(value)
        if counter in known and event >= 0 and number is not None:
            found[event].append((known[counter], number))
    return found


def _number(value: object) -> float | None:
    """A percent as SQLite cuts it out of its column: as text."""
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        return None
    return number if 0 <= number < _LARGEST else None


def _size(value: int) -> int | None:
    return value if 0 <= value < _LARGEST else None


def _product(row: Mapping[str, int], what: str) -> int | None:
    """Work-items of a grid or a group; ``None`` if a side is missing."""
    sides = [row[f"{what}_size_{axis}"] for axis in "xyz"]
    return math.prod(sides) if all(0 < side < _LARGEST for side in sides) else None
