"""Roofline: FLOP/s against FLOPs per byte of what computes, below what the device could do at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from perfscope.analyzers.checkpointing.op_times import op_bytes, op_times
from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.roofline import NS, kernel_roof
from perfscope.analyzers.hlo.cost.module import InstructionCost, hlo_costs
from perfscope.analyzers.hlo.program import program_label
from perfscope.analyzers.hlo.program_device import device_names, program_platform, recorded_device
from perfscope.analyzers.hlo.roofline import InstructionRoof, roof_of, run_times
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.ops.graph_time import base_name, graph_time
from perfscope.analyzers.programs import roof_device
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import table
from perfscope.model.finding import AbstainError
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize

# Points of a roofline: what computes, the FLOPs and bytes of a run of it, how long that took, the least it could.
#
# FLOPs and bytes are modelled, from a program's shapes. A time is measured, or where nothing ran the least one the
# device allows; such a point lies on its roof by definition, and says that it is modelled.


NAME_CHARS = 400

Basis = Literal["measured", "modelled"]
Key = tuple[str, str, str, str, str, int | None, int | None, str]


@dataclass(slots=True, kw_only=True)
class Point:
    """Everything that computes the same: runs of one instruction, or ops of one name, size and line. Times in ns."""

    name: str
    what: str
    """Opcode of an instruction, phase of an op."""
    program: str
    line: str
    dtype: str
    flops: int | None
    """Of one run; ``None``: nothing counts them."""
    bytes: int | None
    """Of one run, read and written; ``None``: not known before XLA has compiled the program."""
    ns: float
    """Of all runs."""
    runs: int
    least_ns: float | None
    """Of all runs, at the peaks of the device; ``None``: no peaks, or of a part of it not known."""
    bound: str
    basis: Basis
    device: str = ""

    @property
    def key(self) -> Key:
        """Equal for what other ranks did of the same."""
        held = (self.name, self.what, self.program, self.line, self.dtype, self.flops, self.bytes)
        return (*held, f"{self.basis} {self.device}")

    def add(self, other: Point) -> None:
        """Take in the runs of another rank."""
        self.ns += other.ns
        self.runs += other.runs
        known = self.least_ns is not None and other.least_ns is not None
        self.least_ns = (self.least_ns or 0.0) + (other.least_ns or 0.0) if known else None


def merged(points: Iterable[Point]) -> list[Point]:
    """Points of all ranks, those of the same thing as one."""
    result: dict[Key, Point] = {}
    for point in points:
        if point.key in result:
            result[point.key].add(point)
        else:
            result[point.key] = point
    return list(result.values())


def instruction_points(trace: Trace) -> Iterator[Point]:
    """Instructions of compiled programs: those that were measured; where none was, all that a known device bounds."""
    program_device = trace.fact(roof_device)
    device = None if program_device is None else program_device.device
    times = trace.fact(hlo_time)
    for index, cost in enumerate(trace.fact(hlo_costs)):
        module = trace.hlo[index]
        if not module.is_scheduled:
            continue
        measured = trace.fact(run_times)[index]
        label = sanitize(program_label(module, trace))
        for row in cost.launched:
            if not row.runs:
                continue
            run_ns = measured.get((row.computation, row.instruction.name))
            roof = None if device is None else roof_of(row, device, run_ns)
            if times.instructions:
                time = times.by_key.get((index, row.instruction.name))
                if run_ns is None or time is None or time.encloses or run_ns <= 0:
                    continue
                ns, runs = float(time.total_ns), max(1, round(time.total_ns / run_ns))
                yield _instruction(row, label, roof, ns, runs, "measured", device)
            elif roof is not None and roof.roof_ns:
                yield _instruction(row, label, roof, roof.roof_ns * row.runs, row.runs, "modelled", device)


def _instruction(
    row: InstructionCost,
    program: str,
    roof: InstructionRoof | None,
    ns: float,
    runs: int,
    basis: Basis,
    device: Device | None,
) -> Point:
    instruction = row.instruction
    kinds = row.once.products
    product = max(kinds, key=lambda kind: kinds[kind], default=None)
    text = (
        ""
        if instruction.file is None
        else f"{instruction.file}:{instruction.line}"
        if instruction.line is not None
        else instruction.file
    )
    return Point(
        name=sanitize(instruction.name, NAME_CHARS),
        what=sanitize(instruction.opcode),
        program=program,
        line=sanitize(text),
        dtype=instruction.shape.dtype if product is None else product.dtype,
        flops=row.flops,
        bytes=row.once.bytes,
        ns=ns,
        runs=runs,
        least_ns=None if roof is None or roof.bound == "unknown" else roof.roof_ns * runs,
        bound="" if roof is None else roof.bound,
        basis=basis,
        device="" if device is None else device.name,
    )


def op_points(trace: Trace) -> Iterator[Point]:
    """Ops of the op graph, in one step: those of one name, size and line together.

    Measured where the graph could be laid beside the timed steps; ops that were not found in them are left out. Where
    it could not and the device is known, the least time; where neither is, nothing.
    """
    graph = trace.op_graph
    if graph is None:
        return
    try:
        times = trace.fact(op_times)
    except AbstainError:
        return
    place = trace.fact(graph_time)
    seen = np.ones(len(graph.ops), np.bool_)
    if times.basis == "measured":
        seen = np.any([spans != MISSING for spans in place.spans], axis=0)
    device = graph_device(trace)
    result: dict[Key, Point] = {}
    for index, op in enumerate(graph.ops):
        ns = float(times.ns[index])
        if op.view or not seen[index] or ns <= 0:
            continue
        point = _op(graph, op, ns, "measured" if times.basis == "measured" else "modelled", device)
        if point.key in result:
            result[point.key].add(point)
        else:
            result[point.key] = point
    yield from result.values()


def graph_device(trace: Trace) -> Device | None:
    """The device whose peaks bound the ops: the target, or the recorded one if its peaks are known; never a CPU."""
    if trace.op_graph is not None and trace.target is not None:
        return trace.target.device
    return None if trace.op_graph is None or trace.op_graph.device == "cpu" else recorded_device(trace)


def _op(graph: OpGraph, op: GraphOp, ns: float, basis: Basis, device: Device | None) -> Point:
    moved = op_bytes(graph, op)
    tensor = next((graph.tensors[index] for index in (*op.inputs, *op.outputs)), None)
    dtype = "" if tensor is None else tensor.dtype.removeprefix("torch.")
    least, bound = _least(op.flops, moved, dtype, device)
    namespace, _, rest = base_name(op).partition(".")
    return Point(
        name=sanitize(f"{namespace}::{rest}", NAME_CHARS),
        what="recompute" if op.recompute else op.phase,
        program=sanitize(op.module),
        line="" if op.file is None else sanitize(f"{op.file}:{op.line}" if op.line is not None else op.file),
        dtype=dtype,
        flops=op.flops,
        bytes=moved,
        ns=ns,
        runs=1,
        least_ns=least,
        bound=bound,
        basis=basis,
        device="" if device is None else device.name,
    )


def _least(flops: int | None, moved: int, dtype: str, device: Device | None) -> tuple[float | None, str]:
    """The roof of an op and its bound. An op without a formula is one that moves: its bytes alone bound it."""
    if device is None:
        return None, ""
    roof = kernel_roof(device, flops=flops, dtype=dtype, moved=moved)
    if not flops:
        return roof.memory_ns, "memory"
    return (None if roof.bound == "unknown" else roof.roof_ns), roof.bound


KINDS = ("instructions", "ops")
MOST_POINTS = 3_000
"""Drawn and listed, those of the longest time; a page of more is slow and no fuller."""

COLUMNS: tuple[Column[tuple[Point, float]], ...] = (
    Column("name", lambda row: row[0].name, "code", key="name"),
    Column("beyond the roof", lambda row: _rounded(_headroom(row[0])), "ns", key="headroom_ns", width=130),
    Column("of the roof", lambda row: _of_roof(row[0]), "share", key="of_roof", width=104),
    Column("time", lambda row: round(row[0].ns), "ns", key="ns", width=96),
    Column("time is", lambda row: row[0].basis, key="basis", width=100),
    Column("line", lambda row: row[0].line, "code", key="line", width=210),
    Column("held back by", lambda row: row[0].bound, key="bound", width=112),
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
    devices: dict[str, dict[str, Any]] = {}
    if device is not None and result["instructions"]:
        devices[device.device.name] = _device(device.device, assumed=not (device.recorded or device.given))
    if graph is not None and result["ops"]:
        devices.setdefault(graph.name, _device(graph, assumed=False))
    names = sorted(map(sanitize, device_names(trace)))
    has = {
        "hlo": bool(trace.hlo),
        "op_graph": trace.op_graph is not None,
        "kernels": len(trace.rows["kernels"]) > 0,
        "platform": program_platform(trace),
    }
    return {**result, "devices": devices, "recorded": names, "has": has}


def view(job: Job) -> dict[str, Any]:
    """``tables``: the points of a kind, largest headroom first; ``devices``: their roofs; ``lacks``: what is not here.

    FLOPs and bytes are per run, ``ns`` over all runs of all ranks (ops: of one step). ``plain_ns``: by kind, time of
    what has no FLOPs and so no place in a picture of them.
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
    devices: dict[str, Any] = {}
    for value in helds:
        devices |= value["devices"]
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


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _intensity(point: Point) -> float | None:
    return point.flops / point.bytes if point.flops and point.bytes else None


def _rate(point: Point) -> float | None:
    return point.flops * NS / (point.ns / point.runs) if point.flops and point.bytes else None


def _least_run(point: Point) -> float | None:
    """Of a run, ns."""
    return None if point.least_ns is None else point.least_ns / point.runs


def _of_roof(point: Point) -> float | None:
    return None if point.least_ns is None or point.basis == "modelled" else point.least_ns / point.ns


def _lacks(helds: Iterable[dict[str, Any]]) -> list[str]:
    """Sentences on what cannot be said, and what to record to have it."""
    rows = list(helds)
    said = []
    points = [point for row in rows for kind in KINDS for point in row[kind]]
    if not points:
        said.append(_no_points(rows))
    elif not any(row["devices"] for row in rows):
        names = sorted({name for row in rows for name in row["recorded"]})
        said.append(f"{_no_peaks(names, rows)}, so there are no roofs: only how fast things ran is shown.")
    if any(row["has"]["hlo"] and row["has"]["op_graph"] for row in rows) or not points:
        return said
    if any(row["has"]["op_graph"] and not row["ops"] for row in rows):
        said.append("The op graph could not be laid beside the timed steps: its ops have no times.")
    return said


def _no_peaks(names: list[str], rows: list[dict[str, Any]]) -> str:
    if names:
        return f"The peaks of {', '.join(names[:3])} are not in perfscope's tables"
    if any(row["has"]["platform"] in ("gpu", "tpu") or row["has"]["kernels"] for row in rows):
        return (
            "The recording names no device (perfscope run notes it; perfscope analyze --device MI300X judges programs "
            "alone for one)"
        )
    return "This ran on a CPU, for which no peaks are in perfscope's tables (record on a GPU or TPU to have roofs)"


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
    more = " It has kernels and their times, and no FLOPs or bytes." if any(h["has"]["kernels"] for h in rows) else ""
    return (
        f"Nothing here says how many FLOPs and bytes anything has.{more} perfscope run train.py records the "
        "op graph of a step (PyTorch) or the compiled programs (JAX), which do."
    )
