"""Roofline: FLOP/s against FLOPs per byte of what computes, below what the device could do at most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perfscope.analyzers.devices import Device
from perfscope.analyzers.hlo.program_device import program_platform
from perfscope.analyzers.programs.programs import roof_device
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._rooflines import NS, Point, graph_device, instruction_points, merged, op_points
from perfscope.dashboards.web.views._tables import Head, table
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

KINDS = ("instructions", "ops")
MOST_POINTS = 3_000
"""Drawn and listed, those of the longest time; a page of more is slow and no fuller."""

_HEADS = (
    Head(key="name", title="name", unit="code"),
    Head(key="headroom_ns", title="beyond the roof", unit="ns", width=130),
    Head(key="of_roof", title="of the roof", unit="share", width=104),
    Head(key="ns", title="time", unit="ns", width=96),
    Head(key="basis", title="time is", width=100),
    Head(key="line", title="line", unit="code", width=210),
    Head(key="bound", title="held back by", width=112),
    Head(key="share", title="share", unit="share", width=80),
    Head(key="what", title="what", width=110),
    Head(key="runs", title="runs", unit="count", width=76),
    Head(key="run_ns", title="a run", unit="ns", width=92),
    Head(key="flops", title="FLOPs a run", unit="number", width=110),
    Head(key="bytes", title="bytes a run", unit="bytes", width=110),
    Head(key="intensity", title="FLOP/byte", unit="number", width=100),
    Head(key="rate", title="FLOP/s", unit="number", width=90),
    Head(key="least_ns", title="least possible", unit="ns", width=122),
    Head(key="dtype", title="dtype", width=96),
    Head(key="program", title="program", unit="code", width=150),
    Head(key="device", title="device", width=110),
)


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Points of one rank by kind, its device, and what it lacks."""
    held, graph = trace.fact(roof_device), graph_device(trace)
    found: dict[str, Any] = {"instructions": list(instruction_points(trace)), "ops": list(op_points(trace))}
    devices: dict[str, dict[str, Any]] = {}
    if held is not None and found["instructions"]:
        devices[held.device.name] = _device(held.device, assumed=not (held.recorded or held.given))
    if graph is not None and found["ops"]:
        devices.setdefault(graph.name, _device(graph, assumed=False))
    names = sorted({sanitize(trace.text(int(code))) for code in trace.rows["devices"]["name"]} - {""})
    has = {
        "hlo": bool(trace.hlo),
        "op_graph": trace.op_graph is not None,
        "kernels": len(trace.rows["kernels"]) > 0,
        "platform": program_platform(trace),
    }
    return {**found, "devices": devices, "recorded": names, "has": has}


def view(job: Job) -> dict[str, Any]:
    """``tables``: the points of a kind, largest headroom first; ``devices``: their roofs; ``lacks``: what is not here.

    FLOPs and bytes are per run, ``ns`` over all runs of all ranks (ops: of one step). ``plain_ns``: by kind, time of
    what has no FLOPs and so no place in a picture of them.
    """
    helds = [one.held for one in job.gathered]
    tables: dict[str, Any] = {}
    for kind in KINDS:
        points = merged(point for held in helds for point in held[kind])
        points.sort(key=lambda point: -point.ns)
        whole = sum(point.ns for point in points)
        kept = sorted(points[:MOST_POINTS], key=_order)
        made = table(_HEADS, (_row(point, whole) for point in kept), most=MOST_POINTS)
        tables[kind] = made | {
            "left": len(points) - len(kept),
            "ns": round(whole),
            "plain_ns": round(sum(point.ns for point in points if not point.flops or not point.bytes)),
        }
    devices: dict[str, Any] = {}
    for held in helds:
        devices |= held["devices"]
    return {"tables": tables, "devices": list(devices.values()), "lacks": _lacks(helds), "ranks": len(helds)}


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
    """Measured time beyond the least, at most what a perfect kernel would save; 0 where a cache made it faster."""
    if point.least_ns is None or point.basis == "modelled":
        return None
    return max(0.0, point.ns - point.least_ns)


def _row(point: Point, whole: float) -> list[Any]:
    run_ns = point.ns / point.runs
    headroom = _headroom(point)
    of_roof = None if point.least_ns is None or point.basis == "modelled" else point.least_ns / point.ns
    drawn = bool(point.flops and point.bytes)
    return [
        point.name, None if headroom is None else round(headroom), of_roof, round(point.ns), point.basis, point.line,
        point.bound, point.ns / (whole or 1.0), point.what, point.runs, run_ns, point.flops, point.bytes,
        (point.flops or 0) / (point.bytes or 1) if drawn else None,
        (point.flops or 0) * NS / run_ns if drawn else None,
        None if point.least_ns is None else point.least_ns / point.runs,
        point.dtype, point.program, point.device,
    ]  # fmt: skip


def _lacks(helds: Iterable[dict[str, Any]]) -> list[str]:
    """Sentences on what cannot be said, and what to record to have it."""
    rows = list(helds)
    said = []
    points = [point for held in rows for kind in KINDS for point in held[kind]]
    if not points:
        said.append(_no_points(rows))
    elif not any(held["devices"] for held in rows):
        names = sorted({name for held in rows for name in held["recorded"]})
        said.append(f"{_no_peaks(names, rows)}, so there are no roofs: only how fast things ran is shown.")
    if any(held["has"]["hlo"] and held["has"]["op_graph"] for held in rows) or not points:
        return said
    if any(held["has"]["op_graph"] and not held["ops"] for held in rows):
        said.append("The op graph could not be laid beside the timed steps: its ops have no times.")
    return said


def _no_peaks(names: list[str], rows: list[dict[str, Any]]) -> str:
    if names:
        return f"The peaks of {', '.join(names[:3])} are not in perfscope's tables"
    if any(held["has"]["platform"] in ("gpu", "tpu") or held["has"]["kernels"] for held in rows):
        return (
            "The recording names no device (perfscope run notes it; perfscope analyze --device MI300X judges programs "
            "alone for one)"
        )
    return "This ran on a CPU, for which no peaks are in perfscope's tables (record on a GPU or TPU to have roofs)"


def _no_points(rows: list[dict[str, Any]]) -> str:
    if any(held["has"]["op_graph"] for held in rows):
        return (
            "There is an op graph, but its ops could not be found in the timed steps, and no device with known peaks "
            "is named: record the run again with perfscope run."
        )
    if any(held["has"]["hlo"] for held in rows):
        return (
            "There are compiled programs, but neither times of their instructions nor a device with known peaks. "
            "Record the run with perfscope run train.py, or name a device: perfscope analyze --device H100."
        )
    more = " It has kernels and their times, and no FLOPs or bytes." if any(h["has"]["kernels"] for h in rows) else ""
    return (
        f"Nothing here says how many FLOPs and bytes anything has.{more} perfscope run train.py records the "
        "op graph of a step (PyTorch) or the compiled programs (JAX), which do."
    )
