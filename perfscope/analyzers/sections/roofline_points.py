"""Points of a roofline: compute work with its FLOPs and bytes per run, its time, and its least possible time.

FLOPs and bytes are modelled from a program's shapes. A time is measured, or, if nothing ran, the least that the device
allows; such a point lies on its roof by definition and is marked as modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.devices import NS, Device, kernel_roof
from perfscope.analyzers.graph import base_name
from perfscope.analyzers.hlo import (
    InstructionCost,
    InstructionRoof,
    hlo_costs,
    hlo_time,
    program_label,
    recorded_device,
    roof_of,
    run_times,
)
from perfscope.analyzers.ops import (
    OpCost,
    call_roof,
    costed_calls,
    device_peaks,
    graph_time,
    host_costs,
    module_label,
    op_bytes,
    op_class,
    op_times,
    op_work,
)
from perfscope.analyzers.programs import roof_device
from perfscope.analyzers.spans import op_times as host_times
from perfscope.analyzers.time import MOST_SITES, UNKNOWN_SITE, call_site
from perfscope.model.finding import AbstainError
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize

NAME_CHARS = 400

Basis = Literal["measured", "modelled"]
Key = tuple[str, str, str, str, str, int | None, int | None, str]


Kind = Literal["instructions", "ops", "calls"]


class Point(Struct, kw_only=True):
    """Runs of the same computation: of one instruction, or of ops with one name, size and line. Times in ns."""

    kind: Kind
    name: str
    what: str
    """Opcode of an instruction, phase of a graph op, class of a profiled op."""
    program: str
    """Module of an op; for a profiled call without the number that distinguishes layers."""
    line: str
    dtype: str
    flops: int | None
    """FLOPs of one run; ``None``: not countable."""
    bytes: int | None
    """Bytes read and written by one run; ``None``: unknown before XLA has compiled the program."""
    ns: float
    """Time of all runs."""
    runs: int
    least_ns: float | None
    """Least time of all runs at the device's peaks; ``None``: peaks unknown, for it or a part of it."""
    bound: str
    basis: Basis
    device: str = ""

    @property
    def key(self) -> Key:
        """Equal for the same computation on other ranks."""
        held = (self.name, self.what, self.program, self.line, self.dtype, self.flops, self.bytes)
        return (*held, f"{self.basis} {self.device}")

    def add(self, other: Point) -> None:
        """Merge the runs of another rank."""
        self.ns += other.ns
        self.runs += other.runs
        known = self.least_ns is not None and other.least_ns is not None
        self.least_ns = (self.least_ns or 0.0) + (other.least_ns or 0.0) if known else None

    @property
    def run_ns(self) -> float:
        """Time of a run."""
        return self.ns / self.runs

    def least_run_ns(self) -> float | None:
        """Least time of a run."""
        return None if self.least_ns is None else self.least_ns / self.runs

    def headroom_ns(self) -> int | None:
        """Measured time beyond the least: the most a perfect kernel would save; 0 if a cache made it faster."""
        if self.least_ns is None or self.basis == "modelled":
            return None
        return round(max(0.0, self.ns - self.least_ns))

    def of_roof(self) -> float | None:
        """Share of the least time in the measured one."""
        return None if self.least_ns is None or self.basis == "modelled" else self.least_ns / self.ns

    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    def rate(self) -> float | None:
        """FLOPs per second."""
        return self.flops * NS / self.run_ns if self.flops and self.bytes else None


def merged(points: Iterable[Point]) -> list[Point]:
    """Points of all ranks, with equal computations merged."""
    result: dict[Key, Point] = {}
    for point in points:
        if point.key in result:
            result[point.key].add(point)
        else:
            result[point.key] = point
    return list(result.values())


def points_by_kind(trace: Trace) -> dict[str, list[Point]]:
    """Points of a trace; profiled calls only if the ops of a step have no times."""
    ops = list(op_points(trace))
    return {
        "instructions": list(instruction_points(trace)),
        "ops": ops,
        "calls": [] if ops else list(call_points(trace)),
    }


def instruction_points(trace: Trace) -> Iterator[Point]:
    """Instructions of compiled programs: measured ones; without measurements, all that a known device bounds."""
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
        kind="instructions",
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
    """Ops of the op graph in one step, grouped by name, size and line.

    Measured if the graph could be matched to the timed steps; unmatched ops are left out. Without a match the least
    time if the device is known, else nothing.
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
    dtype = op.declared_dtype or ("" if tensor is None else tensor.dtype.removeprefix("torch."))
    least, bound = _least(op.flops, moved, dtype, device)
    namespace, _, rest = base_name(op).partition(".")
    return Point(
        kind="ops",
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
    """The roof of an op and its bound. An op without a FLOPs formula only moves data, so its bytes bound it."""
    if device is None:
        return None, ""
    roof = kernel_roof(device, flops=flops, dtype=dtype, moved=moved)
    if not flops:
        return roof.memory_ns, "memory"
    return (None if roof.bound == "unknown" else roof.roof_ns), roof.bound


def call_points(trace: Trace) -> Iterator[Point]:
    """Ops whose shapes the profiler recorded, all calls, grouped by name, size and line. Times measured.

    On a device the time is that of the op's kernels; without kernels in the recording, the op's own time.
    """
    kernels = trace.rows["kernels"]
    lasts = kernels["end_ns"] - kernels["start_ns"]
    calls: list[tuple[int, int, OpCost, Device | None, list[str]]] = []
    for (owner, device), (cost, rows) in trace.fact(costed_calls).items():
        names = [trace.text(int(code)) for code in kernels["name"][rows]]
        calls.append((int(lasts[rows].sum()), owner, cost, trace.fact(device_peaks)[device], names))
    if not len(kernels):
        times = trace.fact(host_times)
        own = dict(zip(times.row.tolist(), times.self_ns.tolist(), strict=True))
        calls = [(own[row], row, cost, None, []) for row, cost in host_costs(trace, own).items()]
    calls.sort(key=lambda call: -call[0])
    result: dict[Key, Point] = {}
    for number, (ns, op, cost, product, names) in enumerate(calls):
        if ns <= 0:
            continue
        point = _call(trace, op, cost, product, names, known=number < MOST_SITES)
        point.ns = float(ns)
        if point.key in result:
            result[point.key].add(point)
        else:
            result[point.key] = point
    yield from result.values()


def _call(trace: Trace, op: int, cost: OpCost, device: Device | None, kernels: list[str], *, known: bool) -> Point:
    """One call of an op, without its time; ``known``: whether to look up its line."""
    name = trace.text(int(trace.rows["slices"]["name"][op]))
    site = call_site(trace, op) if known else UNKNOWN_SITE
    work = op_work(name, cost, kernels)
    roof = None if device is None else call_roof(device, cost, kernels)
    bounded = roof is not None and roof.bound != "unknown"
    return Point(
        kind="calls",
        name=sanitize(name, NAME_CHARS),
        what=op_class(name) or work.category,
        program=sanitize(module_label(site)) if site.module else "",
        line="" if site.file is None else sanitize(site.where().label()),
        dtype=work.dtype,
        flops=cost.flops,
        bytes=cost.bytes,
        ns=0.0,
        runs=1,
        least_ns=roof.roof_ns if roof is not None and bounded else None,
        bound="" if roof is None else roof.bound,
        basis="measured",
        device="" if device is None else device.name,
    )


def costed_time(trace: Trace) -> tuple[int, int]:
    """Time of compute kernels in ns: of those whose op has a known cost, and of all."""
    kernels = trace.rows["kernels"]
    lasts = kernels["end_ns"] - kernels["start_ns"]
    costed = {row for _, rows in trace.fact(costed_calls).values() for row in rows}
    return int(lasts[sorted(costed)].sum()), int(lasts[~kernels["communication"]].sum())
