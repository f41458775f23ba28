"""Counters of rocprofv3 by kernel: ``238_counter_collection.csv`` of ``rocprofv3 --pmc ...``.

A row per dispatch and counter, with the registers and memory of the kernel. The counters of the table below are kept;
others have no meaning for what limits a kernel, or need each other's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.kernel_reports.csv_file import reports_in_csv
from perfscope.plugins.kernel_reports.record import KernelReport, attach_reports, report_trace, reports_of

FORMAT = "rocprofv3_counters"
TOOL = "rocprofv3"
JOINS = ("counter_collection.csv",)

COUNTERS: Mapping[str, str] = {
    "VALUBusy": "compute",
    "MfmaUtil": "compute",
    "MemUnitBusy": "memory",
    "OccupancyPercent": "occupancy",
}
"""Derived counter in percent -> value of a report; of several, the largest. ROCm documentation, derived counters."""

NOTHING_KNOWN = f"perfscope reads the counters {', '.join(COUNTERS)}: `rocprofv3 --pmc {' '.join(COUNTERS)} -- ...`"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the first line has the columns of a table of counters."""
    header = head.partition(b"\n")[0].lower().replace(b'"', b"").strip().split(b",")
    return {b"counter_name", b"counter_value", b"kernel_name"} <= set(header)


def read(path: Path) -> Trace:
    """Return a trace with a report per dispatch. ``DataError``, one line, for a corrupt file or one without any."""
    reports = reports_in_csv(path, TOOL, _reports)
    if not reports:
        raise DataError(f"{path}: a table of counters without a dispatch: it is cut off, or no kernel was counted")
    known = any(report.compute is not None or report.memory is not None for report in reports)
    return report_trace(str(path), FORMAT, reports, *([] if known else [NOTHING_KNOWN]))


def attach(trace: Trace, path: Path) -> Trace:
    """Return a trace with the reports of a file added."""
    return attach_reports(trace, reports_of(read(path)))


def _reports(rows: Iterator[list[str]]) -> Iterator[KernelReport]:
    """Yield a report per dispatch, in the order of the file."""
    header = [name.strip().lower() for name in next(rows, [])]
    last: tuple[str, ...] | None = None
    report: KernelReport | None = None
    for cells in rows:
        if len(cells) < len(header):
            continue
        row = dict(zip(header, cells, strict=False))
        key = tuple(row.get(name, "") for name in ("process_id", "agent_id", "dispatch_id", "kernel_name"))
        if key != last or report is None:
            if report is not None:
                yield report
            last, report = key, _report(row)
        report = with_counter(report, row.get("counter_name", ""), _number(row.get("counter_value", "")))
    if report is not None:
        yield report


def _report(row: Mapping[str, str]) -> KernelReport:
    items, group = _whole(row, "grid_size"), _whole(row, "workgroup_size")
    registers = (_whole(row, "vgpr_count") or 0) + (_whole(row, "accum_vgpr_count") or 0)
    return KernelReport(
        name=row.get("kernel_name", "").removesuffix(".kd"),
        tool=TOOL,
        blocks=-(-items // group) if items and group else None,
        threads_per_block=group or None,
        registers=registers or None,
        shared_bytes=_whole(row, "lds_block_size"),
        spills=_number(row.get("scratch_size", "")),
    )


def with_counter(report: KernelReport, name: str, value: float | None) -> KernelReport:
    """Return a report with a counter added, if it is one of `COUNTERS`."""
    key = COUNTERS.get(name)
    if key is None or value is None:
        return report
    known = getattr(report, key)
    return replace(report, **{key: value if known is None else max(known, value)})


def _whole(row: Mapping[str, str], name: str) -> int | None:
    value = _number(row.get(name, ""))
    return None if value is None else int(value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1 << 62 else None
