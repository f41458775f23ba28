"""The compiled XLA programs of a trace, one row each: runs, time, and the shortest possible time.

Measured: executions and the time of instructions, from the recording. Modelled: FLOPs, bytes, the shortest time on a
device, peak memory without XLA's buffer assignment. Programs that ran but were not recorded have a row too, so that the
rows sum to the time of all instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import median_low
from typing import Literal

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.devices import Bound
from perfscope.analyzers.hlo import (
    HloModule,
    InstructionRoof,
    InstructionTime,
    ModuleCost,
    ProgramDevice,
    Utilization,
    agreed_executions,
    assigned_memory,
    hlo_costs,
    hlo_time,
    measured_roofline,
    peak_bytes,
    program_device,
    program_label,
    roof_sum_ns,
    utilization,
)
from perfscope.model.trace import MISSING, Trace

Peak = Literal["assigned", "modelled"]
"""Peak memory from XLA's buffer assignment, or modelled from the schedule and the shapes."""


class Execution(Struct, frozen=True, kw_only=True):
    """Number and time of a program's runs in the recording. Measured; times in ns."""

    count: int
    """Sum over all devices."""
    devices: int
    """Devices that ran it (on CPU: the virtual devices that XLA makes of the host)."""
    counted: bool
    """False if the profile does not number executions; they are then derived from the runs of most instructions."""
    instructions_ns: int
    """Sum over the instructions that do not enclose others, including overlapping ones (streams, a thread pool)."""
    launch_ns: int
    """CPU backend: the part in the calls that started them; the rest ran in a thread pool. Otherwise all of it."""
    span_ns: int | None
    """Sum over the executions, from the begin of the first instruction to the end of the last; None without numbers."""

    @property
    def run_ns(self) -> float:
        """Mean time of one execution on one device: its span, or its instructions if the span is unknown."""
        return (self.instructions_ns if self.span_ns is None else self.span_ns) / self.count


class LeastTime(Struct, frozen=True, kw_only=True):
    """Shortest time of one run on a device with its instructions one after another. Modelled; ns."""

    device: str
    """Product, with ``(assumed)`` if no device is known."""
    assumed: bool
    """The device is the usual one of the platform, because nothing names it."""
    total_ns: float
    """Least time of one run, instructions one after another; modelled."""
    exact: bool
    """False for a lower bound: some arithmetic, a peak, a link or a trip count is unknown."""
    by_bound: Mapping[Bound, float]
    """Its parts by what limits the instructions; they sum to the total."""

    @property
    def bound(self) -> Bound:
        """Limit of most of the time."""
        return max(self.by_bound, key=lambda bound: self.by_bound[bound], default="unknown")


class Program(Struct, frozen=True, kw_only=True):
    """One program. None means unknown; nothing is guessed."""

    name: str
    """Name of its module, made unique by its file or number."""
    module_index: int | None
    """Index in ``Trace.hlo``; None if it ran but its module was not recorded."""
    program_id: int | None
    """Its number in its process."""
    rank: int | None
    """Rank in the job, null if unknown."""
    platform: str | None
    """``cpu``, ``gpu``, ``tpu``; None if unknown."""
    execution: Execution | None
    """None if it did not run in the recording, or without a recording."""
    flops: int | None
    """Modelled FLOPs of one run on one device, without transcendentals; None without a module or countable arithmetic.
    """
    bytes: int | None
    """Modelled bytes read and written in device memory per run; None for a program that is not compiled yet."""
    exact: bool
    """False if FLOPs and bytes are lower bounds, because a trip count or some arithmetic is unknown."""
    unknown: int
    """Number of instructions per run with unknown arithmetic (custom calls)."""
    flops_by_phase: Mapping[str, int] = field(default_factory=dict)
    """``forward`` (including the optimizer), ``backward``, ``recompute``, ``unnamed``: they sum to ``flops``."""
    peak_bytes: int | None = None
    """Most device memory in use in one run."""
    peak_known_by: Peak | None = None
    """From XLA's buffer assignment, or from schedule and shapes."""
    least: LeastTime | None = None
    """None without a device with known peaks."""
    utilization: Utilization | None = None
    """MFU and HFU over ``execution.run_ns``; None without peaks or a measured time."""


_Key = tuple[str, int | None]
"""Name and number of a program in the profile."""


def roof_device(trace: Trace) -> ProgramDevice | None:
    """Return the device whose peaks limit the programs; ``None`` if unknown.

    Programs alone use an assumed device. With measured times only the device that was recorded or named by the user is
    used, because times on one product relative to the peaks of another have no meaning.
    """
    device = trace.fact(program_device)
    if device is None or device.recorded or device.given or not len(trace.rows["hlo_ops"]):
        return device
    return None


def programs(trace: Trace) -> tuple[Program, ...]:
    """Return all programs: by time, followed by programs that did not run, by their shortest time and FLOPs."""
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
    """Execution numbers of a program in the profile."""

    count: int = 0
    ordinals: set[int] = field(default_factory=set)
    span_ns: int = 0
    complete: bool = True
    """Whether every instruction has an execution number."""


def _numbered(trace: Trace) -> dict[_Key, _Numbered]:
    """Return the executions by program, from the numbers in the profile."""
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
    # no module has the number of runs: assume one, the most frequent value
    if not numbered.complete and agreed is None:
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
    """Return a program that ran without a recorded module: only its time is known."""
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
    """Return the peak memory of one run; ``None`` for a program that is not compiled yet, whose order is unknown."""
    timeline = assigned_memory(module)
    if timeline is not None:
        return timeline.peak_bytes, "assigned"
    if module.buffer_assignment is not None and module.buffer_assignment.allocations:
        return peak_bytes(module), "assigned"
    return (peak_bytes(module), "modelled") if module.is_scheduled else None
