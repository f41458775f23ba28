"""Roofline: FLOP/s by FLOPs per byte of compute work, below the device's limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.roofline import NS
from perfscope.analyzers.hlo.program_device import device_names, program_platform
from perfscope.analyzers.ops.achieved import device_peaks
from perfscope.analyzers.programs import roof_device
from perfscope.analyzers.sections.roofline_points import (
    Point,
    call_points,
    costed_time,
    graph_device,
    instruction_points,
    merged,
    op_points,
)
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import table
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

KINDS = ("instructions", "ops", "calls")
MOST_POINTS = 3_000
"""Most points drawn and listed, longest first; more make the page slow without showing more."""

COLUMNS: tuple[Column[tuple[Point, float]], ...] = (
    Column("name", lambda row: row[0].name, "code", key="name"),
    Column("headroom", lambda row: _rounded(_headroom(row[0])), "ns", key="headroom_ns", width=130),
    Column("of roof", lambda row: _of_roof(row[0]), "share", key="of_roof", width=104),
    Column("time", lambda row: round(row[0].ns), "ns", key="ns", width=96),
    Column("basis", lambda row: row[0].basis, key="basis", width=100),
    Column("line", lambda row: row[0].line, "code", key="line", width=210),
    Column("bound by", lambda row: row[0].bound, key="bound", width=112),
    Column("share", lambda row: row[0].ns / (row[1] or 1.0), "share", key="share", width=80),
    Column("what", lambda row: row[0].what, key="what", width=110),
    Column("runs", lambda row: row[0].runs, "count", key="runs", width=76),
    Column("per run", lambda row: row[0].ns / row[0].runs, "ns", key="run_ns", width=92),
    Column("FLOPs per run", lambda row: row[0].flops, "quantity", key="flops", width=110),
    Column("bytes per run", lambda row: row[0].bytes, "bytes", key="bytes", width=110),
    Column("FLOP/byte", lambda row: _intensity(row[0]), "quantity", key="intensity", width=100),
    Column("FLOP/s", lambda row: _rate(row[0]), "quantity", key="rate", width=90),
    Column("least possible", lambda row: _least_run(row[0]), "ns", key="least_ns", width=122),
    Column("dtype", lambda row: row[0].dtype, key="dtype", width=96),
    Column("program", lambda row: row[0].program, "code", key="program", width=150),
    Column("device", lambda row: row[0].device, key="device", width=110),
)


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Points of one rank by kind, its device, and what it lacks."""
    device, graph = trace.fact(roof_device), graph_device(trace)
    result: dict[str, Any] = {"instructions": list(instruction_points(trace)), "ops": list(op_points(trace))}
    result["calls"] = [] if result["ops"] else list(call_points(trace))
    result["costed"] = costed_time(trace) if result["calls"] else (0, 0)
    devices: dict[str, dict[str, Any]] = {}
    if device is not None and result["instructions"]:
        devices[device.device.name] = _device(device.device, assumed=not (device.recorded or device.given))
    if graph is not None and result["ops"]:
        devices.setdefault(graph.name, _device(graph, assumed=False))
    for peaks in trace.fact(device_peaks) if result["calls"] else ():
        if peaks is not None:
            devices.setdefault(peaks.name, _device(peaks, assumed=False))
    names = sorted(map(sanitize, device_names(trace)))
    has = {
        "hlo": bool(trace.hlo),
        "op_graph": trace.op_graph is not None,
        "kernels": len(trace.rows["kernels"]) > 0,
        "platform": program_platform(trace),
    }
    return {**result, "devices": devices, "recorded": names, "has": has}


def view(job: Job) -> dict[str, Any]:
    """``tables``: points by kind, largest headroom first; ``devices``: their roofs; ``lacks``: missing data.

    FLOPs and bytes are per run, ``ns`` over all runs of all ranks (ops: of one step). ``plain_ns``: by kind, time of
    work without FLOPs, which cannot be drawn. ``costed``: time of compute kernels whose op has a known cost, and of
    all.
    """
    helds = [item.held for item in job.gathered]
    tables: dict[str, Any] = {}
    for kind in KINDS:
        points = merged(point for value in helds for point in value[kind])
        points.sort(key=lambda point: -point.ns)
        whole = sum(point.ns for point in points)
        kept = sorted(points[:MOST_POINTS], key=_order)
        made = table(COLUMNS, [(point, whole) for point in kept], most=MOST_POINTS)
        tables[kind] = made | {
            "left": len(points) - len(kept),
            "ns": round(whole),
            "plain_ns": round(sum(point.ns for point in points if not point.flops or not point.bytes)),
        }
    costed = [sum(value["costed"][index] for value in helds) for index in (0, 1)]
    devices: dict[str, Any] = {}
    for value in helds:
        devices |= value["devices"]
    return {
        "tables": tables,
        "devices": list(devices.values()),
        "lacks": _lacks(helds),
        "ranks": len(helds),
        "costed": costed,
    }


def _device(device: Device, *, assumed: bool) -> dict[str, Any]:
    peaks: dict[int, list[str]] = {}
    for name, peak in device.peak_flops.items():
        peaks.setdefault(peak, []).append(name)
    return {
        "name": device.name,
        "assumed": assumed,
        "source": device.source,
        "bandwidth": device.memory_bandwidth,
        "peaks": [{"label": ", ".join(names), "flops": peak} for peak, names in sorted(peaks.items())],
    }


def _order(point: Point) -> tuple[bool, float, float, str]:
    headroom = _headroom(point)
    return headroom is None, -(headroom or 0.0), -point.ns, point.name


def _headroom(point: Point) -> float | None:
    """Measured time beyond the least: the most a perfect kernel would save; 0 if a cache made it faster."""
    if point.least_ns is None or point.basis == "modelled":
        return None
    return max(0.0, point.ns - point.least_ns)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _intensity(point: Point) -> float | None:
    return point.flops / point.bytes if point.flops and point.bytes else None


def _rate(point: Point) -> float | None:
    return point.flops * NS / (point.ns / point.runs) if point.flops and point.bytes else None


def _least_run(point: Point) -> float | None:
    """Least time of a run, ns."""
    return None if point.least_ns is None else point.least_ns / point.runs


def _of_roof(point: Point) -> float | None:
    return None if point.least_ns is None or point.basis == "modelled" else point.least_ns / point.ns


def _lacks(helds: Iterable[dict[str, Any]]) -> list[str]:
    """Sentences on missing data, and how to record it."""
    rows = list(helds)
    said = []
    points = [point for row in rows for kind in KINDS for point in row[kind]]
    if not points:
        said.append(_no_points(rows))
    elif not any(row["devices"] for row in rows):
        names = sorted({name for row in rows for name in row["recorded"]})
        said.append(f"{_no_peaks(names, rows)}: achieved rates are shown, without roofs.")
    if any(row["has"]["hlo"] and row["has"]["op_graph"] for row in rows) or not points:
        return said
    if any(row["has"]["op_graph"] and not row["ops"] for row in rows):
        said.append("The op graph could not be matched to the timed steps: its ops have no times.")
    return said


def _no_peaks(names: list[str], rows: list[dict[str, Any]]) -> str:
    if names:
        return f"The peaks of {', '.join(names[:3])} are not in perfscope's tables"
    if any(row["has"]["platform"] in ("gpu", "tpu") or row["has"]["kernels"] for row in rows):
        return (
            "The recording names no device (perfscope run notes it; perfscope analyze --device MI300X judges programs "
            "alone for one)"
        )
    return "This ran on a CPU, whose peak rates perfscope does not have (record on a GPU or TPU to see roofs)"


def _no_points(rows: list[dict[str, Any]]) -> str:
    if any(row["has"]["op_graph"] for row in rows):
        return (
            "There is an op graph, but its ops could not be found in the timed steps, and no device with known peaks "
            "is named: record the run again with perfscope run."
        )
    if any(row["has"]["hlo"] for row in rows):
        return (
            "There are compiled programs, but neither times of their instructions nor a device with known peaks. "
            "Record the run with perfscope run train.py, or name a device: perfscope analyze --device H100."
        )
    more = " It has kernels and their times, but no shapes." if any(h["has"]["kernels"] for h in rows) else ""
    return (
        f"No FLOPs or bytes are known here.{more} torch.profiler records shapes with "
        "record_shapes=True; perfscope run train.py records the op graph of a step (PyTorch) or the compiled programs "
        "(JAX)."
    )
