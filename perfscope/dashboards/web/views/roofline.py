"""Roofline: FLOP/s by FLOPs per byte of compute work, below the device's limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfscope.analyzers.devices import Device
from perfscope.analyzers.hlo import device_names, program_platform
from perfscope.analyzers.ops import device_peaks
from perfscope.analyzers.programs import roof_device
from perfscope.analyzers.sections import RESULT, Point, costed_time, graph_device, merged, points_by_kind
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.results import shown
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import table
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

KINDS = ("instructions", "ops", "calls")
MOST_POINTS = 3_000
"""Most points drawn and listed, longest first; more make the page slow without showing more."""

FIRST = ("name", "headroom_ns", "of_roof", "time_ns", "basis", "line", "bound")
REST = (
    "what", "runs", "run_ns", "flops", "bytes", "intensity", "rate", "least_ns", "dtype", "program", "device",
)  # fmt: skip
"""Columns of the grid before and after the share of time."""


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Points of one rank by kind, its device, and what it lacks."""
    device, graph = trace.fact(roof_device), graph_device(trace)
    result: dict[str, Any] = dict(points_by_kind(trace))
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
        made = table((*shown(RESULT, *FIRST), _share(whole), *shown(RESULT, *REST)), kept, most=MOST_POINTS)
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


def _share(whole: float) -> Column[Point]:
    return Column("share", lambda point: point.ns / (whole or 1.0), "share", key="share", width=80)


def _order(point: Point) -> tuple[bool, int, float, str]:
    headroom = point.headroom_ns()
    return headroom is None, -(headroom or 0), -point.ns, point.name


def _lacks(helds: Iterable[dict[str, Any]]) -> list[str]:
    """Sentences on missing data, and how to record it."""
    rows = list(helds)
    sentences = []
    points = [point for row in rows for kind in KINDS for point in row[kind]]
    if not points:
        sentences.append(_no_points(rows))
    elif not any(row["devices"] for row in rows):
        names = sorted({name for row in rows for name in row["recorded"]})
        sentences.append(f"{_no_peaks(names, rows)}: achieved rates are shown, without roofs.")
    if any(row["has"]["hlo"] and row["has"]["op_graph"] for row in rows) or not points:
        return sentences
    if any(row["has"]["op_graph"] and not row["ops"] for row in rows):
        sentences.append("The op graph could not be matched to the timed steps: its ops have no times.")
    return sentences


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
