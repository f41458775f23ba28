"""Points of a roofline: what computes, the FLOPs and bytes of a run of it, how long that took, the least it could.

FLOPs and bytes are modelled, from a program's shapes. A time is measured, or where nothing ran the least one the
device allows; such a point lies on its roof by definition, and says that it is modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfscope.analyzers.checkpointing.op_times import op_bytes, op_times
from perfscope.analyzers.devices import Device, find_device
from perfscope.analyzers.hlo.cost.module import InstructionCost, hlo_costs
from perfscope.analyzers.hlo.program import program_label
from perfscope.analyzers.hlo.roofline import InstructionRoof, roof_of, run_times
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.ops.graph_time import base_name, graph_time
from perfscope.analyzers.programs.programs import roof_device
from perfscope.model.finding import AbstainError
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize

NS = 1_000_000_000
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
    found: dict[Key, Point] = {}
    for point in points:
        if point.key in found:
            found[point.key].add(point)
        else:
            found[point.key] = point
    return list(found.values())


def instruction_points(trace: Trace) -> Iterator[Point]:
    """Instructions of compiled programs: those that were measured; where none was, all that a known device bounds."""
    held = trace.fact(roof_device)
    device = None if held is None else held.device
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
    one = row.instruction
    kinds = row.once.products
    product = max(kinds, key=lambda kind: kinds[kind], default=None)
    place = "" if one.file is None else f"{one.file}:{one.line}" if one.line is not None else one.file
    return Point(
        name=sanitize(one.name, NAME_CHARS),
        what=sanitize(one.opcode),
        program=program,
        line=sanitize(place),
        dtype=one.shape.dtype if product is None else product.dtype,
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
    found: dict[Key, Point] = {}
    for index, op in enumerate(graph.ops):
        ns = float(times.ns[index])
        if op.view or not seen[index] or ns <= 0:
            continue
        point = _op(graph, op, ns, "measured" if times.basis == "measured" else "modelled", device)
        if point.key in found:
            found[point.key].add(point)
        else:
            found[point.key] = point
    yield from found.values()


def graph_device(trace: Trace) -> Device | None:
    """The device whose peaks bound the ops: the target, or the recorded one if its peaks are known; never a CPU."""
    if trace.op_graph is not None and trace.target is not None:
        return trace.target.device
    if trace.op_graph is None or trace.op_graph.device == "cpu":
        return None
    names = {trace.text(int(code)) for code in trace.rows["devices"]["name"]} - {""}
    return find_device(names.pop()) if len(names) == 1 else None


def _op(graph: OpGraph, op: GraphOp, ns: float, basis: Basis, device: Device | None) -> Point:
    moved = op_bytes(graph, op)
    tensor = next((graph.tensors[at] for at in (*op.inputs, *op.outputs)), None)
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
    """The longer of an op's arithmetic and its bytes at the peaks; float32 products may run in TF32.

    An op without a formula is one that moves: its bytes alone bound it.
    """
    if device is None:
        return None, ""
    memory = moved * NS / device.memory_bandwidth
    if not flops:
        return memory, "memory"
    peaks = device.peak_flops
    peak = peaks.get("tf32", peaks.get("float32")) if dtype == "float32" else peaks.get(dtype)
    if not peak:
        return None, "unknown"
    compute = flops * NS / peak
    return max(compute, memory), "compute" if compute > memory else "memory"
