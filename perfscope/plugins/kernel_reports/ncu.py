"""Nsight Compute's CSV: ``ncu --csv`` of a program or of a report (``ncu --import FILE --csv``), two pages.

The page ``details`` (also ``--metrics``) has a row per launch and metric::

    "ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",
    "CC","Section Name","Metric Name","Metric Unit","Metric Value",...

The page ``raw`` has a row per launch and a column per metric; its first row has the units. Lines of the profiled
program and of ncu (``==PROF==``) come before or between. Only the columns and metrics of the tables below are kept: no
host, no process name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.kernel_reports.csv_file import reports_in_csv
from perfscope.plugins.kernel_reports.record import KernelReport, attach_reports, report_trace, reports_of

FORMAT = "ncu"
JOINS = (".csv", ".log", ".txt")
"""Endings of files in a folder that may be such reports."""

_NOTHING_KNOWN = "ncu recorded none of the metrics that perfscope reads: profile with `--set basic` or more"

_HEADER = re.compile(rb'^\s*"?ID"?,[^\r\n]{0,2000}"?Kernel Name"?', re.MULTILINE)
_SIZE = re.compile(r"\d+")
_SHORTEST = 4
"""Fewest columns of a header."""

METRICS: Mapping[str, str] = {
    "Compute (SM) Throughput": "compute",
    "Compute (SM) [%]": "compute",
    "SOL SM": "compute",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute",
    "Memory Throughput": "memory",
    "Memory [%]": "memory",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "DRAM Throughput": "dram",
    "SOL DRAM": "dram",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "Achieved Occupancy": "occupancy",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "Theoretical Occupancy": "possible_occupancy",
    "sm__maximum_warps_per_active_cycle_pct": "possible_occupancy",
    "Duration": "duration",
    "gpu__time_duration.sum": "duration",
    "gpu__time_duration.avg": "duration",
    "Registers Per Thread": "registers",
    "launch__registers_per_thread": "registers",
    "Static Shared Memory Per Block": "static",
    "launch__shared_mem_per_block_static": "static",
    "Dynamic Shared Memory Per Block": "dynamic",
    "launch__shared_mem_per_block_dynamic": "dynamic",
    "Grid Size": "grid",
    "launch__grid_size": "grid",
    "Block Size": "block",
    "launch__block_size": "block",
    "Waves Per SM": "waves",
    "launch__waves_per_multiprocessor": "waves",
    "Local Memory Spilling Requests": "spills",
    "derived__local_spilling_requests": "spills",
    "sass__inst_executed_register_spilling": "spills",
    "Block Limit Registers": "by registers",
    "launch__occupancy_limit_registers": "by registers",
    "Block Limit Shared Mem": "by shared memory",
    "launch__occupancy_limit_shared_mem": "by shared memory",
    "Block Limit Warps": "by warps",
    "launch__occupancy_limit_warps": "by warps",
    "Block Limit SM": "by blocks",
    "launch__occupancy_limit_blocks": "by blocks",
}
"""Label (page ``details``) or name (page ``raw``, ``--metrics``) of a metric -> value of a report. ``SOL`` and units in
brackets are of versions before 2022."""

_PERCENT = frozenset({"compute", "memory", "dram", "occupancy", "possible_occupancy"})

_NANOSECONDS = {"n": 1.0, "u": 1e3, "m": 1e6, "s": 1e9}
_BYTES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file has a header of ncu's tables in its first bytes."""
    found = _HEADER.search(head)
    if found is None:
        return False
    columns = head[found.start() :].partition(b"\n")[0]
    return b"Metric Name" in columns or b"__" in columns


def read(path: Path) -> Trace:
    """Return a trace with a report per launch. ``DataError``, one line, for a corrupt file or one without a launch."""
    reports = reports_in_csv(path, FORMAT, _reports)
    if not reports:
        raise DataError(f"{path}: a header of ncu without a launch: it is cut off, or no kernel was profiled")
    known = any(report.compute is not None or report.registers is not None for report in reports)
    return report_trace(str(path), FORMAT, reports, *([] if known else [_NOTHING_KNOWN]))


def attach(trace: Trace, path: Path) -> Trace:
    """Return a trace with the reports of a file added."""
    return attach_reports(trace, reports_of(read(path)))


def _reports(rows: Iterator[list[str]]) -> Iterator[KernelReport]:
    """Yield a report per launch, in the order of the file."""
    header: dict[str, int] = {}
    units: list[str] = []
    launch: tuple[str, str] | None = None
    values: dict[str, float] = {}
    current: KernelReport | None = None
    for row in rows:
        if len(row) >= _SHORTEST and row[0].strip() == "ID" and "Kernel Name" in row:
            header, units = {name: place for place, name in enumerate(row)}, []
            continue
        if not header or len(row) <= header["Kernel Name"]:
            continue
        identity = row[header["ID"]]
        if not identity.isdigit():
            units = row if not identity else units
            continue
        key = (_cell(row, header, "Process ID"), identity)
        if key != launch or current is None:
            if current is not None:
                yield _finished(current, values)
            launch, values = key, {}
            current = KernelReport(
                name=row[header["Kernel Name"]],
                tool=FORMAT,
                blocks=_product(_cell(row, header, "Grid Size")),
                threads_per_block=_product(_cell(row, header, "Block Size")),
            )
        _add(values, row, header, units)
    if current is not None:
        yield _finished(current, values)


def _add(values: dict[str, float], row: list[str], header: Mapping[str, int], units: list[str]) -> None:
    """Add the known metrics of a row."""
    if "Metric Name" in header:
        name, unit = _cell(row, header, "Metric Name"), _cell(row, header, "Metric Unit")
        _set(values, name, unit, _cell(row, header, "Metric Value"))
        return
    for name in METRICS.keys() & header.keys():
        place = header[name]
        if place < len(row):
            _set(values, name, units[place] if place < len(units) else "", row[place])


def _set(values: dict[str, float], name: str, unit: str, text: str) -> None:
    key = METRICS.get(name)
    if key is None or (key in _PERCENT and unit not in ("%", "")):
        return  # `Memory Throughput` is a rate, too, in another section
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return
    if math.isfinite(value) and 0 <= value < 1 << 62:
        scaled = value * _scale(key, unit)
        values.setdefault(key, scaled)


def _scale(key: str, unit: str) -> float:
    """Factor to ns, bytes or a number; units of old and new versions: ``usecond``, ``us``, ``Kbyte/block``, ``K``."""
    first = unit[:1].lower()
    if key == "duration":
        return _NANOSECONDS.get(first, 1.0)
    if key in ("static", "dynamic"):
        return _BYTES.get("" if unit.lower().startswith("b") else first, 1.0)
    return _COUNTS.get(first, 1.0) if unit in ("K", "M", "G") else 1.0


def _finished(report: KernelReport, values: Mapping[str, float]) -> KernelReport:
    limits = {name: values[f"by {name}"] for name in ("registers", "shared memory", "warps", "blocks") if
              values.get(f"by {name}", 0) > 0}  # fmt: skip
    shared = [values[name] for name in ("static", "dynamic") if name in values]
    registers = values.get("registers")
    return replace(
        report,
        blocks=report.blocks or int(values.get("grid", 0)) or None,
        threads_per_block=report.threads_per_block or int(values.get("block", 0)) or None,
        duration_ns=values.get("duration"),
        compute=values.get("compute"),
        memory=values.get("memory"),
        dram=values.get("dram"),
        occupancy=values.get("occupancy"),
        possible_occupancy=values.get("possible_occupancy"),
        limit=" and ".join(name for name, blocks in limits.items() if blocks == min(limits.values())) or None,
        registers=None if registers is None else int(registers),
        shared_bytes=round(sum(shared)) if shared else None,
        spills=values.get("spills"),
        waves=values.get("waves"),
    )


def _cell(row: list[str], header: Mapping[str, int], name: str) -> str:
    place = header.get(name)
    return row[place] if place is not None and place < len(row) else ""


def _product(text: str) -> int | None:
    """Return 512 for ``(128, 2, 2)`` or ``128, 2, 2``."""
    sizes = [int(part) for part in _SIZE.findall(text[:80])[:3]]
    product = math.prod(sizes)
    return product if sizes and 0 < product < 1 << 62 else None
