"""Time of compiled programs by instruction, by the user's source line, by module and by scope.

Measured if a recording has times of instructions; else modelled by the shortest time of each on the device; else empty.
Shares refer to the total, so that they sum to one: time without a recorded program, line or scope has a separate row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.devices import Bound
from perfscope.analyzers.hlo import (
    HloModule,
    Instruction,
    InstructionRoof,
    InstructionTime,
    hlo_costs,
    hlo_time,
    measured_roofline,
    program_label,
    scope_of,
    served,
    users_of,
)
from perfscope.analyzers.programs.programs import roof_device
from perfscope.model.trace import MISSING, Trace

UNMATCHED = "in no recorded program"
NO_LINE = "no source line"
ADDED = " (added by XLA)"
"""Suffix of the line served by an instruction that has no line."""
NO_SCOPE = "added by XLA, no scope"
NO_MODULE = "no named scope"


class HotInstruction(Struct, frozen=True, kw_only=True):
    """One instruction over all its runs: measured in a recording, or modelled for one run of its program. ns."""

    program: str
    """Its program."""
    instruction: str
    """As the module names it."""
    opcode: str | None
    """HLO's opcode; None, like ``scope``, ``phase`` and ``file``, if no recorded program has it."""
    scope: str | None
    """The user's scopes and the JAX primitive, ``mlp/dot_general``."""
    phase: str | None
    """``forward``, ``backward`` or ``recompute`` by its path; None for an instruction added by XLA."""
    file: str | None
    """The user's source file."""
    line: int | None
    """Line in that file."""
    serves: str | None = None
    """``file:line`` of the nearest reader of its value; only if the instruction has no line."""
    module: str = ""
    """Named scopes without the numbers of equal layers, ``Block_*/mlp``; without any, those of the nearest reader of
    its value; ``''``: unknown.
    """
    calls: int
    """Pieces of work in the recording; if modelled, runs per run of the program."""
    time_ns: int
    """Measured: sum of its durations. Modelled: its roof times its runs."""
    bound: Bound | None
    """None without a device with known peaks."""
    roof_ns: float | None
    """Modelled shortest time of one run on the device."""
    headroom_ns: int | None
    """Measured time beyond the roof over all its runs; None if it was not measured or its bound is unknown."""
    flops: int | None
    """FLOPs per run; None if none can be counted."""
    bytes: int | None
    """Bytes of device memory per run."""


class HotPlace(Struct, frozen=True, kw_only=True):
    """All instructions of one source line, module or scope. ns."""

    name: str
    """``train.py:88``, ``Block_*/mlp``, ``mlp/dot_general``, or words for what has none."""
    phase: str | None
    """Phase of a scope; None for a line or a module."""
    time_ns: int
    """Time of all its instructions, ns."""
    instructions: int
    """Number of instructions."""
    calls: int
    """Pieces of work in the recording; modelled: runs in one run of the program."""
    mainly: str
    """Scope, or opcode and name, of the instruction with most of its time."""


class Left(Struct, frozen=True, kw_only=True):
    """Number of omitted rows of a list, and their time."""

    count: int
    """Rows left out."""
    time_ns: int
    """Their time."""


class HotSpots(Struct, frozen=True, kw_only=True):
    """Rows by time, worst first. Each list sums to ``total_ns``."""

    rank: int | None
    """Rank in the job, null if unknown."""
    program: str | None
    """None for all programs of a recording."""
    basis: Literal["measured", "modelled"]
    """Measured in the recording, or the least time on a device for one run."""
    total_ns: int
    """Measured: all instructions that do not enclose others. Modelled: one run of the program."""
    unmatched_ns: int
    """Part of it whose instructions are in no recorded program."""
    instructions: tuple[HotInstruction, ...]
    """All instructions; unmatched time is the last row."""
    lines: tuple[HotPlace, ...]
    """By the user's source line."""
    scopes: tuple[HotPlace, ...]
    """By named scope and primitive, and phase."""
    modules: tuple[HotPlace, ...] = ()
    """By module; empty if the programs name no scopes."""
    left: Mapping[str, Left] = field(default_factory=dict)
    """Rows that ``top`` removed, by the list's name."""

    def top(self, most: int) -> HotSpots:
        """Return the first ``most`` rows of each list, and unmatched time; the others as a number and a sum."""
        rows = self.instructions
        kept = tuple(row for index, row in enumerate(rows) if index < most or row.opcode is None)
        lines, scopes, modules = self.lines[:most], self.scopes[:most], self.modules[:most]
        left = {
            "instructions": Left(count=len(rows) - len(kept), time_ns=self.total_ns - _sum(kept)),
            "lines": Left(count=len(self.lines) - len(lines), time_ns=self.total_ns - _sum(lines)),
            "scopes": Left(count=len(self.scopes) - len(scopes), time_ns=self.total_ns - _sum(scopes)),
            "modules": Left(count=len(self.modules) - len(modules), time_ns=_sum(self.modules[most:])),
        }
        return replace(self, instructions=kept, lines=lines, scopes=scopes, modules=modules, left=left)


def _sum(rows: Iterable[HotInstruction | HotPlace]) -> int:
    return sum(row.time_ns for row in rows)


def hot_instructions(trace: Trace) -> tuple[HotSpots, ...]:
    """Return the instructions of all programs; empty without measured times and without a device with known peaks.

    Measured: all programs of the recording together. Modelled: each program separately, longest first, because they
    need not run together.
    """
    device = trace.fact(roof_device)
    roofs: dict[tuple[int, str, str], InstructionRoof] = {}
    if device is not None:
        roofs = {
            (index, roof.row.computation, roof.row.instruction.name): roof
            for index, program_roofs in enumerate(measured_roofline(trace, device.device))
            for roof in program_roofs
            if trace.hlo[index].is_scheduled
        }
    times, lines = trace.fact(hlo_time), _Lines(trace)
    if times.instructions:
        rows = [_measured(trace, lines, row, roofs) for row in times.instructions if _is_leaf(row)]
        rows += _unmatched([row for row in times.instructions if not row.encloses and row.module_index is None])
        return (_spots(trace, None, rows, times.unmatched_ns),)
    modelled: dict[int, list[HotInstruction]] = {}
    for (index, _, _), roof in roofs.items():
        if roof.roof_ns and roof.row.runs:
            modelled.setdefault(index, []).append(_modelled(trace, lines, index, roof))
    spots = [
        _spots(trace, program_label(trace.hlo[index], trace), sorted(rows, key=lambda row: -row.time_ns), 0)
        for index, rows in modelled.items()
    ]
    return tuple(sorted(spots, key=lambda spots: -spots.total_ns))


def _is_leaf(row: InstructionTime) -> bool:
    return not row.encloses and row.module_index is not None


class _Lines:
    """Instructions served by those that have no line."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._users: dict[tuple[int, str], Mapping[str, tuple[Instruction, ...]]] = {}

    def of(self, index: int, computation: str, name: str) -> Instruction | None:
        holder = self._trace.hlo[index].computations[computation]
        instruction = holder.by_name[name]
        if instruction.file is not None:
            return None
        if (index, computation) not in self._users:
            self._users[index, computation] = users_of(holder)
        return served(instruction, self._users[index, computation])


def _place(instruction: Instruction | HotInstruction) -> str:
    return f"{instruction.file}" if instruction.line is None else f"{instruction.file}:{instruction.line}"


def _measured(
    trace: Trace, lines: _Lines, row: InstructionTime, roofs: dict[tuple[int, str, str], InstructionRoof]
) -> HotInstruction:
    index, computation = row.module_index, row.computation
    if index is None or computation is None:
        raise ValueError(f"{row.instruction}: no recorded program has it")
    roof = roofs.get((index, computation, row.instruction))
    share = roof.share_of_roof if roof is not None else None
    cost = trace.fact(hlo_costs)[index].by_name.get((computation, row.instruction))
    scheduled = trace.hlo[index].is_scheduled
    return _row(
        trace.hlo[index].computations[computation].by_name[row.instruction],
        program=program_label(trace.hlo[index], trace),
        serves=lines.of(index, computation, row.instruction),
        calls=row.calls,
        time_ns=row.total_ns,
        roof=roof,
        headroom_ns=None if share is None else round(row.total_ns * max(0.0, 1.0 - share)),
        flops=cost.flops if cost is not None else None,
        bytes_=cost.once.bytes if cost is not None and scheduled else None,
    )


def _modelled(trace: Trace, lines: _Lines, index: int, roof: InstructionRoof) -> HotInstruction:
    return _row(
        roof.row.instruction,
        program=program_label(trace.hlo[index], trace),
        serves=lines.of(index, roof.row.computation, roof.row.instruction.name),
        calls=roof.row.runs,
        time_ns=round(roof.roof_ns * roof.row.runs),
        roof=roof,
        headroom_ns=None,
        flops=roof.row.flops,
        bytes_=roof.row.once.bytes,
    )


def _row(
    instruction: Instruction,
    *,
    program: str,
    serves: Instruction | None,
    calls: int,
    time_ns: int,
    roof: InstructionRoof | None,
    headroom_ns: int | None,
    flops: int | None,
    bytes_: int | None,
) -> HotInstruction:
    scope = scope_of(instruction.op_name) if instruction.op_name else None
    module = "" if scope is None else scope.module
    if not module and serves is not None and serves.op_name:
        module = scope_of(serves.op_name).module
    return HotInstruction(
        program=program,
        instruction=instruction.name,
        opcode=instruction.opcode,
        scope=scope.label if scope is not None else None,
        phase=scope.phase if scope is not None else None,
        file=instruction.file,
        line=instruction.line,
        serves=None if serves is None else _place(serves),
        module=module,
        calls=calls,
        time_ns=time_ns,
        bound=None if roof is None else roof.bound,
        roof_ns=None if roof is None else roof.roof_ns,
        headroom_ns=headroom_ns,
        flops=flops,
        bytes=bytes_,
    )


def _unmatched(rows: list[InstructionTime]) -> list[HotInstruction]:
    """Return one row for the time of all instructions that are in no recorded program."""
    if not rows:
        return []
    programs = {row.module for row in rows}
    return [
        HotInstruction(
            program=programs.pop() if len(programs) == 1 else "",
            instruction=UNMATCHED,
            opcode=None,
            scope=None,
            phase=None,
            file=None,
            line=None,
            calls=sum(row.calls for row in rows),
            time_ns=sum(row.total_ns for row in rows),
            bound=None,
            roof_ns=None,
            headroom_ns=None,
            flops=None,
            bytes=None,
        )
    ]


def _spots(trace: Trace, program: str | None, rows: list[HotInstruction], unmatched_ns: int) -> HotSpots:
    return HotSpots(
        rank=trace.source.rank,
        program=program,
        basis="measured" if program is None else "modelled",
        total_ns=sum(row.time_ns for row in rows),
        unmatched_ns=unmatched_ns,
        instructions=tuple(rows),
        lines=_places(rows, lambda row: (_line(row), None)),
        scopes=_places(rows, lambda row: (_scope(row), row.phase)),
        modules=_places(rows, lambda row: (_module(row), None)) if any(row.module for row in rows) else (),
    )


def _line(row: HotInstruction) -> str:
    if row.opcode is None:
        return UNMATCHED
    if row.file is None:
        return NO_LINE if row.serves is None else f"{row.serves}{ADDED}"
    return _place(row)


def _scope(row: HotInstruction) -> str:
    return UNMATCHED if row.opcode is None else row.scope or NO_SCOPE


def _module(row: HotInstruction) -> str:
    return UNMATCHED if row.opcode is None else row.module or NO_MODULE


def _places(
    rows: Iterable[HotInstruction], key: Callable[[HotInstruction], tuple[str, str | None]]
) -> tuple[HotPlace, ...]:
    """Return rows by place; each place's first row is its worst, because rows are sorted worst first."""
    groups: dict[tuple[str, str | None], list[HotInstruction]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    hot_places = [
        HotPlace(
            name=name,
            phase=phase,
            time_ns=sum(row.time_ns for row in members),
            instructions=0 if name == UNMATCHED else len(members),
            calls=sum(row.calls for row in members),
            mainly="" if name == UNMATCHED else members[0].scope or members[0].opcode or "",
        )
        for (name, phase), members in groups.items()
    ]
    return tuple(sorted(hot_places, key=lambda hot_place: (-hot_place.time_ns, hot_place.name)))


# The instruction of a compiled program that a communication kernel runs.


def communication_names(trace: Trace) -> Mapping[int, str]:
    """Map rows of ``kernels`` to the name of the instruction, for communication kernels whose profile has it.

    The program itself is not needed. A name begins with its opcode: ``all-gather-start.3``.
    """
    return {kernel: trace.text(int(trace.rows["hlo_ops"]["name"][row])) for kernel, row in trace.fact(_rows).items()}


def communication_instructions(trace: Trace) -> Mapping[int, Instruction]:
    """Map rows of ``kernels`` to the instruction, for communication kernels whose program is in the trace."""
    ops = trace.rows["hlo_ops"]
    places = {
        (instruction.module, instruction.program_id, instruction.instruction): instruction
        for instruction in trace.fact(hlo_time).instructions
    }
    result = {}
    for kernel, row in trace.fact(_rows).items():
        program = int(ops["program_id"][row])
        name = trace.text(int(ops["name"][row]))
        module = trace.text(int(ops["module"][row]))
        instruction_time = places.get((module, None if program == MISSING else program, name))
        if instruction_time is None:  # only its asynchronous work was recorded
            continue
        if instruction_time.module_index is not None and instruction_time.computation is not None:
            result[kernel] = _named(trace.hlo[instruction_time.module_index], instruction_time.computation, name)
    return result


def _named(module: HloModule, computation: str, name: str) -> Instruction:
    """Return the instruction.

    For a wrapper or the done of a collective, the collective itself, because it has the path.
    """
    by_name = module.computations[computation].by_name
    instruction = by_name[name]
    while not instruction.op_name and instruction.opcode.endswith(("-done", "-update")) and instruction.operands:
        instruction = by_name[instruction.operands[0]]
    if not instruction.op_name and instruction.opcode == "async-start" and instruction.called:
        return module.computations[instruction.called[0]].root
    return instruction


def _rows(trace: Trace) -> Mapping[int, int]:
    """Map communication kernels to their rows of ``hlo_ops``."""
    ops, kernels = trace.rows["hlo_ops"], trace.rows["kernels"]
    linked = np.flatnonzero(ops["kernel"] != MISSING) if len(ops) else np.empty(0, np.int64)
    linked = linked[kernels["communication"][ops["kernel"][linked]]] if len(linked) else linked
    return {int(ops["kernel"][row]): int(row) for row in linked.tolist()}
