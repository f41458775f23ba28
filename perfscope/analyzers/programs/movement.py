"""Instructions of compiled programs that compute nothing: they join, repeat, convert or rearrange arrays.

A fusion counts if none of its arithmetic covers half of its result's elements: a new part that is computed in the same
kernel does not turn the join of a cache into a computation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from perfscope.analyzers.hlo import Computation, HloModule, Instruction, hlo_costs, scope_of
from perfscope.analyzers.programs.copied_caches import copied_through_loops
from perfscope.analyzers.programs.saving import Part, once_ns
from perfscope.model.trace import Trace

ProgramMovementKind = Literal["cache_join", "loop_copy", "kept_join", "join", "head_repeat", "repeat", "dequantise",
                              "convert", "layout", "scatter"]  # fmt: skip

LEAST_ELEMENTS = 1 << 16
"""Minimum number of elements of a result: smaller arrays stay in caches, and a program has hundreds of them."""

_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "reshape", "iota", "slice"})
_MOVES = frozenset({"concatenate", "copy", "transpose", "broadcast", "dynamic-slice", "pad", "convert", "reverse",
                    "scatter", "copy-start", "dynamic-update-slice"})  # fmt: skip
_SMALL_TYPES = frozenset({"s8", "u8", "s4", "u4", "f8e4m3fn", "f8e5m2", "f8e4m3", "f8e4m3fnuz", "f8e5m2fnuz"})


class ProgramMovement(Struct, frozen=True, kw_only=True):
    """Instructions of one cause in one file of the program."""

    kind: ProgramMovementKind
    instructions: tuple[tuple[int, Instruction, float, int], ...]
    """(index in ``Trace.hlo``, instruction, ns of one run of its program, runs in it), costliest first."""
    parts: tuple[Part, ...]
    place: Instruction
    """The instruction with the line to change: the loop, or the costliest with a line."""


def program_movements(trace: Trace) -> tuple[ProgramMovement, ...]:
    """Return those with known time, by cause and file."""
    once = trace.fact(once_ns)
    groups: dict[tuple[ProgramMovementKind, str | None], list[tuple[int, Instruction, float, int]]] = defaultdict(list)
    loops: dict[tuple[ProgramMovementKind, str | None], Instruction] = {}
    for index, cost in enumerate(trace.fact(hlo_costs)):
        module = trace.hlo[index]
        attends = _attends(module)
        in_loops = {copy: item.loop for item in copied_through_loops(module) for copy in item.copies}
        for row in cost.rows:
            if row.place == "inside" or not row.runs or row.instruction.shape.elements < LEAST_ELEMENTS:
                continue
            time = once.get((index, row.computation, row.instruction.name))
            if not time:
                continue
            loop = in_loops.get((row.computation, row.instruction.name))
            kind: ProgramMovementKind | None = "loop_copy" if loop is not None else None
            kind = kind or _kind(module, module.computations[row.computation], row.instruction, attends)
            if kind is not None:
                item = (index, row.instruction, time * row.runs, row.runs)
                key = kind, (loop or row.instruction).file
                groups[key].append(item)
                if loop is not None:
                    loops[key] = loop
    return tuple(_movement(trace, key[0], rows, loops.get(key)) for key, rows in groups.items())


def _movement(
    trace: Trace,
    kind: ProgramMovementKind,
    rows: Sequence[tuple[int, Instruction, float, int]],
    loop: Instruction | None,
) -> ProgramMovement:
    ordered = tuple(sorted(rows, key=lambda row: -row[2]))
    parts = tuple(
        Part(module=trace.hlo[index], instructions=(instruction.name,), modelled_ns=time, whole=True)
        for index, instruction, time, _ in ordered
    )
    placed = (instruction for _, instruction, _, _ in ordered if instruction.file is not None)
    place = loop or next(placed, ordered[0][1])
    return ProgramMovement(kind=kind, instructions=ordered, parts=parts, place=place)


def _attends(module: HloModule) -> bool:
    """Whether a program has a softmax: an exponential and products."""
    opcodes = {item.opcode for computation in module.computations.values() for item in computation.instructions}
    return "exponential" in opcodes and bool(opcodes & {"dot", "custom-call"})


def _body(module: HloModule, instruction: Instruction) -> Iterator[Instruction]:
    if instruction.opcode == "fusion" and instruction.called:
        yield from module.computations[instruction.called[0]].instructions
    else:
        yield instruction


def _kind(
    module: HloModule, holder: Computation, instruction: Instruction, attends: bool
) -> ProgramMovementKind | None:
    body = list(_body(module, instruction))
    least = instruction.shape.elements / 2
    large = [item for item in body if item.shape.elements >= least and item.opcode not in _FREE]
    if not large or any(item.opcode not in _MOVES for item in large):
        return None
    opcodes = {item.opcode for item in large}
    joined = "concatenate" in opcodes or any(_primitive(item) == "concatenate" for item in large)
    if joined:
        kept = _from_input(holder, instruction, least)
        return ("cache_join" if attends and len(instruction.shape.dims) > 2 else "kept_join") if kept else "join"
    if _repeats(holder, instruction, body, least):
        return "head_repeat" if attends and len(instruction.shape.dims) > 3 else "repeat"
    if "scatter" in opcodes:
        return "scatter"
    if "convert" in opcodes:
        return "dequantise" if _sources(holder, instruction) & _SMALL_TYPES else "convert"
    return "layout" if opcodes <= {"copy", "transpose"} and any(item.opcode == "transpose" for item in large) else None


def _primitive(instruction: Instruction) -> str:
    return scope_of(instruction.op_name).label.rpartition("/")[2] if instruction.op_name else ""


def _operands(holder: Computation, instruction: Instruction) -> Iterator[Instruction]:
    return (holder.by_name[name] for name in instruction.operands if name in holder.by_name)


def _from_input(holder: Computation, instruction: Instruction, least: float) -> bool:
    """Whether most of an instruction's input is an argument of the program, or a join of one."""
    large = [item for item in _operands(holder, instruction) if item.shape.elements >= least]
    arguments = {"parameter", "get-tuple-element", "bitcast"}
    return bool(large) and all(
        item.opcode in arguments or _primitive(item) == "concatenate" or "concatenate" in item.name for item in large
    )


def _sources(holder: Computation, instruction: Instruction) -> set[str]:
    return {item.shape.dtype for item in _operands(holder, instruction)}


def _repeats(holder: Computation, instruction: Instruction, body: Sequence[Instruction], least: float) -> bool:
    """Whether a large array is written several times: a broadcast whose operand is not a number or row."""
    by_name = {item.name: item for item in body} if instruction.opcode == "fusion" else holder.by_name
    for item in body:
        if item.opcode != "broadcast" or item.shape.elements < least:
            continue
        source = next((by_name[name] for name in item.operands if name in by_name), None)
        if source is not None and source.shape.elements >= LEAST_ELEMENTS:
            return True
    return False
