"""Timelines of the memory that compiled XLA programs need: each buffer a block, with who made it and what it is for.

Where the file carries XLA's buffer assignment, blocks are its own: those of the heap trace while they live, and the
allocations that last for the whole run (arguments, constants, results outside the arena). The peak is that of
`assigned_memory`, and so of xprof's memory viewer, to the byte. Elsewhere it is modelled from the schedule and the
shapes (`live_values`), and the timeline says so.

Positions count the instructions that run, loops and branches laid out flat (``hlo.schedule``). XLA's trace has an order
and no positions for what it frees: a buffer ends behind the last instruction that was handed memory before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfscope.analyzers.hlo.buffers import Arena, arena_blocks, arena_of, in_device_memory, live_values
from perfscope.analyzers.hlo.module import BufferAllocation, BufferAssignment, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.program import program_label
from perfscope.analyzers.hlo.program_device import device_memory_bytes
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.programs.owners import Owner, Owners
from perfscope.model.live_bytes import NEVER, Curve
from perfscope.model.memory import BLOCKS, KnownBy, MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Rows, Trace
from perfscope.model.trace.tables import MemoryCategory

ASSIGNED, MODELLED = "XLA buffer assignment", "schedule and shapes of the program"

_MODELLED_NOTE = (
    "approximate: the file carries no buffer assignment of XLA, so every value lives from its instruction to its last "
    "reader and takes what its shape takes"
)

_OF_SCAN = frozenset({"dynamic_index_in_dim", "dynamic_update_index_in_dim"})
"""Functions by which JAX's own scan reads and writes its turns: no scope of the user's."""

Made = tuple[Instruction, tuple[int, ...]]
"""An instruction and which part of its tuple."""


@dataclass(slots=True, kw_only=True)
class _Block:
    start: int
    end: int | None
    bytes: int
    number: int
    made: list[Made]
    owner: Owner | None = None
    """None: told from who makes it and how long it lives."""
    before: bool = False
    lasts: bool = False
    """Still held when the run ends."""


def program_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """A timeline a compiled program, in the order of ``trace.hlo``; those not scheduled have none."""
    result = []
    for module in trace.hlo:
        arena = arena_of(module)
        if arena is None and not module.is_scheduled:
            continue
        schedule = Schedule(module)
        blocks = _modelled(module, schedule) if arena is None else _assigned(arena, schedule)
        timeline = _timeline(program_label(module, trace), module, arena, schedule, blocks)
        result.append(
            timeline if module.platform == "cpu" else replace(timeline, capacity_bytes=device_memory_bytes(trace))
        )
    return tuple(result)


def _assigned(arena: Arena, schedule: Schedule) -> list[_Block]:
    blocks = [_whole_run(allocation, arena.assignment, schedule) for allocation in arena.lasting()]
    for block in arena_blocks(arena, schedule):
        made = [(schedule.instructions[buffer.instruction], buffer.index) for buffer in block.written
                if buffer.instruction in schedule.instructions]  # fmt: skip
        end = None if block.end == NEVER else block.end
        blocks.append(
            _Block(
                start=block.start,
                end=end,
                bytes=block.buffer.size,
                number=block.buffer.id,
                made=made,
                lasts=end is None,
            )
        )
    return blocks


def _whole_run(allocation: BufferAllocation, assignment: BufferAssignment, schedule: Schedule) -> _Block:
    """An allocation that lasts: named after its argument or constant, else after what was written into it last."""
    buffers = [assignment.buffers[key] for key in allocation.buffers if key in assignment.buffers]
    made = [
        (schedule.instructions[buffer.instruction], buffer.index)
        for buffer in buffers
        if buffer.instruction in schedule.instructions
    ]
    opcode = "parameter" if allocation.is_parameter else "constant" if allocation.is_constant else None
    chosen = [writer for writer in made if writer[0].opcode == opcode]
    if not chosen:
        chosen = sorted(made, key=lambda writer: -schedule.positions[writer[0].name])
    owner: Owner | None = None
    if allocation.is_constant:
        owner = MemoryCategory.CONSTANT, KnownBy.RECORDED
    elif not allocation.is_parameter:
        known = MemoryCategory.OUTPUT if allocation.maybe_live_out else MemoryCategory.TEMPORARY
        owner = known, KnownBy.RECORDED
    return _Block(
        start=0,
        end=None,
        bytes=allocation.size,
        number=buffers[0].id if buffers else allocation.index,
        made=chosen,
        owner=owner,
        before=allocation.is_parameter or allocation.is_constant,
        lasts=True,
    )


def _modelled(module: HloModule, schedule: Schedule) -> list[_Block]:
    result = []
    for number, value in enumerate(live_values(module, schedule)):
        instruction = schedule.instructions[value.instruction]
        output = MemoryCategory.OUTPUT, KnownBy.SCHEDULE
        result.append(
            _Block(
                start=value.start,
                end=value.end,
                bytes=value.bytes,
                number=number,
                made=[(instruction, (value.part,) if instruction.shape.parts else ())],
                owner=output if value.outputs else None,
                before=instruction.opcode == "parameter",
                lasts=value.end >= len(schedule),
            )
        )
    return result


def _timeline(
    label: str,
    module: HloModule,
    arena: Arena | None,
    schedule: Schedule,
    blocks: Sequence[_Block],
) -> MemoryTimeline:
    owners = Owners(module, schedule)
    last = max([len(schedule) - 1, *(max(block.start, (block.end or 0) - 1) for block in blocks)])
    ordered = sorted(blocks, key=lambda block: (block.start, block.number))
    lines: dict[tuple[str, int | None], int] = {}
    texts: dict[str, int] = {}
    columns: dict[str, list[Any]] = {
        "start": [block.start for block in ordered],
        "end": [last + 1 if block.end is None else block.end for block in ordered],
        "before": [block.before for block in ordered],
        "after": [block.lasts for block in ordered],
        "bytes": [block.bytes for block in ordered],
        "requested_bytes": [block.bytes for block in ordered],
        "address": [block.number for block in ordered],
        "category": [],
        "known_by": [],
        "name": [],
        "module": [],
        "line": [],
        "phase": [],
    }
    for block in ordered:
        category, known = block.owner or _owner(owners, block)
        columns["category"].append(category)
        columns["known_by"].append(known)
        columns["name"].append(_code(texts, _name(block.made)))
        columns["module"].append(_code(texts, _module(block.made)))
        file, line = next(((made.file, made.line) for made, _ in block.made if made.file is not None), (None, None))
        columns["line"].append(MISSING if file is None else lines.setdefault((file, line), len(lines)))
        columns["phase"].append(owners.phase(_maker(block.made)[0]) if block.made else MemoryPhase.UNKNOWN)
    reserved = None
    if arena is not None:
        reserved_bytes = sum(
            allocation.size for allocation in arena.assignment.allocations if in_device_memory(allocation)
        )
        reserved = Curve(positions=np.zeros(1, np.int64), bytes=np.full(1, reserved_bytes, np.int64))
    return MemoryTimeline(
        space="program",
        label=label,
        ordinal=None,
        known_from=MODELLED if arena is None else ASSIGNED,
        axis="instruction",
        basis="modelled",
        first=0,
        last=last,
        blocks=Rows(BLOCKS, {key: np.array(values, BLOCKS.column(key).dtype) for key, values in columns.items()}),
        texts=tuple(texts),
        lines=tuple(SourceLine(file=file, line=line) for file, line in lines),
        reserved=reserved,
        notes=(_MODELLED_NOTE,) if arena is None else (),
    )


def _code(texts: dict[str, int], text: str) -> int:
    return texts.setdefault(text, len(texts)) if text else MISSING


def _owner(owners: Owners, block: _Block) -> Owner:
    if not block.made:
        return MemoryCategory.TEMPORARY, KnownBy.NOTHING
    first = block.made[0][0]
    if first.opcode == "parameter" and block.before:
        return owners.argument(first)
    return owners.temporary(block.made)


def _name(made: Sequence[Made]) -> str:
    """An argument as the program spells it (``state.weights['up']``), else the instruction."""
    if not made:
        return ""
    first, part = _maker(made)
    if first.opcode == "parameter" and first.op_name and "/" not in first.op_name:
        return first.op_name
    return first.name + "".join(f"{{{index}}}" for index in part)


def _maker(made: Sequence[Made]) -> Made:
    """Who writes the buffer: the first, unless XLA only made room there and another, which has a path, fills it."""
    return next((writer for writer in made if writer[0].op_name), made[0])


def _module(made: Sequence[Made]) -> str:
    """The user's scope; of an argument, what it is a part of."""
    for instruction, _ in made:
        if instruction.opcode == "parameter" and instruction.op_name and "/" not in instruction.op_name:
            return instruction.op_name[: max(instruction.op_name.rfind("["), instruction.op_name.rfind("."), 0)]
        path = (
            [part for part in scope_of(instruction.op_name).path if part not in _OF_SCAN] if instruction.op_name else []
        )
        if path:
            return "/".join(path)
    return ""
