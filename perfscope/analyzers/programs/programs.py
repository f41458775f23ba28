"""The compiled XLA programs of a trace, one row each: what ran, how long, and the least it could take.

Measured: executions and the time of instructions, from the recording. Modelled: FLOPs, bytes, the least time on a
device, peak memory without XLA's buffer assignment. Programs that ran and were not recorded have a row, too, so
that the time of all rows is the time of all instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import median_low
from typing import Literal

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.devices.roofline import Bound
from perfscope.analyzers.hlo.buffers import assigned_memory, peak_bytes
from perfscope.analyzers.hlo.cost.module import ModuleCost, hlo_costs
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.program import program_label
from perfscope.analyzers.hlo.program_device import ProgramDevice, program_device
from perfscope.analyzers.hlo.roofline import (
    InstructionRoof,
    Utilization,
    agreed_executions,
    measured_roofline,
    roof_sum_ns,
    utilization,
)
from perfscope.analyzers.hlo.time import InstructionTime, hlo_time
from perfscope.model.trace import MISSING, Trace

Peak = Literal["assigned", "modelled"]
"""Peak memory as XLA assigned its buffers, or as the schedule and the shapes let expect."""


class Execution(Struct, frozen=True, kw_only=True):
    """How often a program ran in the recording, and how long. Measured; times in ns."""

    count: int
    """Executions on all devices together."""
    devices: int
    """Devices (on CPU: those that XLA was told to make of the host) that ran it."""
    counted: bool
    """False: the profile numbers no executions, they are what most instructions were seen to run."""
    instructions_ns: int
    """Sum over the instructions that enclose no other. Those side by side (streams, a thread pool) all count."""
    launch_ns: int
    """CPU backend: the part of the calls that began them; the rest went on in a thread pool. Elsewhere all."""
    span_ns: int | None
    """Sum over the executions, from the first instruction's begin to the last one's end; None: not numbered."""

    @property
    def run_ns(self) -> float:
        """Mean time of one execution on one device: its span, or where that is not known its instructions."""
        return (self.instructions_ns if self.span_ns is None else self.span_ns) / self.count


class LeastTime(Struct, frozen=True, kw_only=True):
    """The least time of one run on a device, its instructions one after another. Modelled; ns."""

    device: str
    """Product, with ``(assumed)`` where nothing names the device."""
    assumed: bool
    """The device is the usual one of the platform, because nothing names it."""
    total_ns: float
    """Least time of one run, instructions one after another; modelled."""
    exact: bool
    """False: at least this: some arithmetic, a peak, a link or a trip count is not known."""
    by_bound: Mapping[Bound, float]
    """Its parts by what holds the instructions back; they sum to the total."""

    @property
    def bound(self) -> Bound:
        """What holds back most of the time."""
        return max(self.by_bound, key=lambda bound: self.by_bound[bound], default="unknown")


class Program(Struct, frozen=True, kw_only=True):
    """One program. What is None is not known; nothing in it is guessed."""

    name: str
    """Its module's, and what tells it from the others of that name: its file or its number."""
    module_index: int | None
    """Index in ``Trace.hlo``; None: it ran and its module was not recorded."""
    program_id: int | None
    """Its number in its process."""
    rank: int | None
    """Rank in the job, null if unknown."""
    platform: str | None
    """``cpu``, ``gpu``, ``tpu``; None if it cannot be told."""
    execution: Execution | None
    """None: it did not run in the recording, or there is none."""
    flops: int | None
    """Of one run on one device, transcendentals aside; modelled. None: no module, or nothing can be counted."""
    bytes: int | None
    """Read and written in device memory by one run; modelled. None where the program is not compiled yet."""
    exact: bool
    """False: FLOPs and bytes are at least these: a trip count or the arithmetic of an instruction is not known."""
    unknown: int
    """Instructions of one run whose arithmetic is not known (custom calls)."""
    flops_by_phase: Mapping[str, int] = field(default_factory=dict)
    """``forward`` (the optimizer is in it), ``backward``, ``recompute``, ``unnamed``: they sum to ``flops``."""
    peak_bytes: int | None = None
    """Most device memory in use in one run."""
    peak_known_by: Peak | None = None
    """From XLA's buffer assignment, or from schedule and shapes."""
    least: LeastTime | None = None
    """None: no device with known peaks."""
    utilization: Utilization | None = None
    """MFU and HFU over ``execution.run_ns``; None without peaks or a measured time."""


_Key = tuple[str, int | None]
"""Name and number of a program as the profile says them."""


def roof_device(trace: Trace) -> ProgramDevice | None:
    """The device whose peaks bound the programs; ``None`` where none is known.

    Programs alone are judged for an assumed device. Beside measured times only the device that is recorded or
    that the user named may stand: those of one product held against the peaks of another say nothing.
    """
    device = trace.fact(program_device)
    if device is None or device.recorded or device.given or not len(trace.rows["hlo_ops"]):
        return device
    return None


def programs(trace: Trace) -> tuple[Program, ...]:
    """All programs: those that took longest first, then those that did not run by their least time and FLOPs."""
    device = trace.fact(roof_device)
    costs = trace.fact(hlo_costs)
    roofs = measured_roofline(trace, device.device) if device is not None else ()
    numbered = _numbered(trace)
    ran: dict[_Key, list[InstructionTime]] = {}
    for row in trace.fact(hlo_time).instructions:
        ran.setdefault((row.module, row.program_id), []).append(row)
    result = []
    for key, rows in ran.items():
        index = next((row.module_index for row in rows if row.module_index is not None), None)
        agreed = None
        if index is not None and not numbered[key].complete:
            agreed = agreed_executions(trace.fact(hlo_time), index, costs[index])
        execution = _execution(rows, numbered[key], agreed)
        result.append(
            _unrecorded(trace, key, rows, execution)
            if index is None
            else _program(trace, costs[index], index, execution, device, roofs[index] if roofs else ())
        )
    seen = {program.module_index for program in result}
    result += [
        _program(trace, cost, index, None, device, roofs[index] if roofs else ())
        for index, cost in enumerate(costs)
        if index not in seen
    ]
    return tuple(sorted(result, key=_order))


def _order(program: Program) -> tuple[int, float, int, str]:
    ran = program.execution.instructions_ns if program.execution is not None else -1
    least = program.least.total_ns if program.least is not None else 0.0
    return -ran, -least, -(program.flops or 0), program.name


class _Numbered(Struct, kw_only=True):
    """What the profile says of a program's executions."""

    count: int = 0
    ordinals: set[int] = field(default_factory=set)
    span_ns: int = 0
    complete: bool = True
    """Every instruction says which execution it is of."""


def _numbered(trace: Trace) -> dict[_Key, _Numbered]:
    """Executions by program, from the numbers that the profile gives them."""
    ops = trace.rows["hlo_ops"]
    ops = ops.take(np.flatnonzero(~ops["asynchronous"]))
    result: dict[_Key, _Numbered] = {}
    if not len(ops):
        return result
    columns = [ops["module"], ops["program_id"], ops["run_id"], ops["ordinal"]]
    order = np.lexsort(columns[::-1])
    changes = np.zeros(len(ops), bool)
    changes[0] = True
    for column in columns:
        ordered = column[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    first = np.flatnonzero(changes)
    starts = np.minimum.reduceat(ops["start_ns"][order], first)
    ends = np.maximum.reduceat(ops["end_ns"][order], first)
    keys = zip(*(column[order][first].tolist() for column in columns), strict=True)
    for (module, program, run, ordinal), start, end in zip(keys, starts.tolist(), ends.tolist(), strict=True):
        numbered = result.setdefault((trace.text(module), None if program == MISSING else program), _Numbered())
        numbered.count += 1
        numbered.ordinals.add(ordinal)
        numbered.span_ns += end - start
        numbered.complete &= run != MISSING
    return result


def _execution(rows: Sequence[InstructionTime], numbered: _Numbered, agreed: Fraction | None) -> Execution:
    leaves = [row for row in rows if not row.encloses]
    if not numbered.complete and agreed is None:  # no module says how often each runs: once, as most do
        agreed = Fraction(median_low(row.calls for row in rows))
    return Execution(
        count=numbered.count if numbered.complete or agreed is None else max(1, round(agreed)),
        devices=len(numbered.ordinals),
        counted=numbered.complete,
        instructions_ns=sum(row.total_ns for row in leaves),
        launch_ns=sum(row.launch_ns for row in leaves),
        span_ns=numbered.span_ns if numbered.complete else None,
    )


def _unrecorded(trace: Trace, key: _Key, rows: Sequence[InstructionTime], execution: Execution) -> Program:
    """A program that ran and whose module no file holds: only its time is known."""
    return Program(
        name=key[0],
        module_index=None,
        program_id=key[1],
        rank=trace.source.rank,
        platform="cpu" if any(row.launch_ns != row.total_ns for row in rows) else None,
        execution=execution,
        flops=None,
        bytes=None,
        exact=False,
        unknown=0,
    )


def _program(
    trace: Trace,
    cost: ModuleCost,
    index: int,
    execution: Execution | None,
    device: ProgramDevice | None,
    roofs: Sequence[InstructionRoof],
) -> Program:
    module, total = cost.module, cost.total
    countable = bool(total.flops) or not total.unknown
    peak = _peak(module)
    phases: dict[str, int] = {name: part.flops for name, part in cost.phases.items() if part.flops}
    return Program(
        name=program_label(module, trace),
        module_index=index,
        program_id=module.program_id,
        rank=trace.source.rank,
        platform=module.platform,
        execution=execution,
        flops=total.flops if countable else None,
        bytes=total.bytes if module.is_scheduled else None,
        exact=total.exact,
        unknown=total.unknown,
        flops_by_phase=phases,
        peak_bytes=None if peak is None else peak[0],
        peak_known_by=None if peak is None else peak[1],
        least=_least(roofs, device) if device is not None and module.is_scheduled else None,
        utilization=None if device is None or execution is None else utilization(cost, device.device, execution.run_ns),
    )


def _least(roofs: Sequence[InstructionRoof], device: ProgramDevice) -> LeastTime:
    parts: dict[Bound, float] = {}
    for roof in roofs:
        if roof.roof_ns:
            parts[roof.bound] = parts.get(roof.bound, 0.0) + roof.roof_ns * roof.row.runs
    return LeastTime(
        device=device.label(),
        assumed=not (device.recorded or device.given),
        total_ns=roof_sum_ns(roofs),
        exact=all(roof.row.runs_exact and roof.row.once.exact and roof.bound != "unknown" for roof in roofs),
        by_bound=parts,
    )


def _peak(module: HloModule) -> tuple[int, Peak] | None:
    """Peak memory of one run; ``None`` for a program that is not compiled yet, whose order is not known."""
    timeline = assigned_memory(module)
    if timeline is not None:
        return timeline.peak_bytes, "assigned"
    if module.buffer_assignment is not None and module.buffer_assignment.allocations:
        return peak_bytes(module), "assigned"
    return (peak_bytes(module), "modelled") if module.is_scheduled else None
