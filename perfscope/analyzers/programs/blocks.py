"""Timelines of the memory that compiled XLA programs need: each buffer a block, with who made it and what it is for.

Where the file carries XLA's buffer assignment, blocks are its own: those of the heap trace while they live, and the
allocations that last for the whole run (arguments, constants, results outside the arena). The peak is that of
``hlo_memory``, and so of xprof's memory viewer, to the byte. Elsewhere it is modelled from the schedule and the shapes
(``hlo_liveness``), and the timeline says so.

Positions count the instructions that run, loops and branches laid out flat (``hlo.schedule``). XLA's trace has an order
and no positions for what it frees: a buffer ends behind the last instruction that was handed memory before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfscope.analyzers.hlo.buffers import Arena, arena_of, in_device_memory, live_values
from perfscope.analyzers.hlo.module import BufferAllocation, BufferAssignment, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.program import program_label
from perfscope.analyzers.hlo.program_device import device_memory_bytes
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.programs.owners import Owner, Owners
from perfscope.model.live_bytes import Curve
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
    found = []
    for module in trace.hlo:
        arena = arena_of(module)
        if arena is None and not module.is_scheduled:
            continue
        schedule = Schedule(module)
        blocks = _modelled(module, schedule) if arena is None else _assigned(module, arena, schedule)
        timeline = _timeline(program_label(module, trace), module, arena, schedule, blocks)
        found.append(
            timeline if module.platform == "cpu" else replace(timeline, capacity_bytes=device_memory_bytes(trace))
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBlock:
    """A block of a program's memory, with everything that is written into it. Positions as in ``Schedule``."""

    start: int
    end: int
    """Half open; behind the last position where it is held to the end."""
    bytes: int
    made: tuple[Made, ...]
    """Who writes it, the first first: what shares the memory of another follows it."""
    known: MemoryCategory | None
    """What it is for where the assignment itself says so; else who makes it tells."""


def program_blocks(module: HloModule, schedule: Schedule) -> tuple[ProgramBlock, ...]:
    """All blocks of a program whose buffers XLA assigned, by start; none where the file does not say."""
    arena = arena_of(module)
    if arena is None:
        return ()
    blocks = _assigned(module, arena, schedule)
    last = max([len(schedule) - 1, *(max(one.start, (one.end or 0) - 1) for one in blocks)])
    return tuple(
        ProgramBlock(
            start=one.start,
            end=last + 1 if one.end is None else one.end,
            bytes=one.bytes,
            made=tuple(one.made),
            known=None if one.owner is None else one.owner[0],
        )
        for one in sorted(blocks, key=lambda one: (one.start, one.number))
    )


def _assigned(module: HloModule, arena: Arena, schedule: Schedule) -> list[_Block]:
    assignment = module.buffer_assignment
    assert assignment is not None
    found = [
        _whole_run(allocation, assignment, schedule)
        for allocation in assignment.allocations
        if in_device_memory(allocation) and allocation.index not in arena.allocations
    ]
    return found + _of_arena(arena, assignment, schedule)


def _whole_run(allocation: BufferAllocation, assignment: BufferAssignment, schedule: Schedule) -> _Block:
    """An allocation that lasts: named after its argument or constant, else after what was written into it last."""
    buffers = [assignment.buffers[key] for key in allocation.buffers if key in assignment.buffers]
    made = [
        (schedule.instructions[one.instruction], one.index)
        for one in buffers
        if one.instruction in schedule.instructions
    ]
    opcode = "parameter" if allocation.is_parameter else "constant" if allocation.is_constant else None
    chosen = [one for one in made if one[0].opcode == opcode]
    if not chosen:
        chosen = sorted(made, key=lambda one: -schedule.positions[one[0].name])
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


def _of_arena(arena: Arena, assignment: BufferAssignment, schedule: Schedule) -> list[_Block]:
    """The heap trace as blocks. A block is the buffer that came first; what shares its memory keeps it alive."""
    found: list[_Block] = []
    block_of: dict[int, int] = {}
    owners: dict[int, int] = {}
    rows: dict[int, _Block] = {}
    place, group, frees = -1, 0, True
    closed: dict[int, int] = {}
    for event in arena.events:
        if event.kind == "share_with" and event.share_with is not None:
            block_of[event.buffer] = block_of.get(event.share_with, event.share_with)
        number = block_of.get(event.buffer, event.buffer)
        buffer = assignment.buffers.get(number)
        if event.kind == "free":
            frees = True
        else:
            # what is handed out after a free must come later than what was before it, also where its instruction
            # is not known
            place = max(schedule.positions.get(event.instruction, place), place + frees)
            group += frees
            frees = False
        if buffer is None:
            continue
        before = owners.get(number, 0)
        owners[number] = now = max(before - 1, 0) if event.kind == "free" else before + 1
        if event.kind != "free":
            if not before:
                if number in rows and closed[number] == group - 1:
                    rows[number].end = None  # freed for a moment, and shared: it was never anyone else's
                else:
                    rows[number] = _Block(start=place, end=None, bytes=buffer.size, number=number, made=[])
                    found.append(rows[number])
            maker = assignment.buffers.get(event.buffer)
            if maker is not None and maker.instruction in schedule.instructions:
                rows[number].made.append((schedule.instructions[maker.instruction], maker.index))
        elif before and not now:
            rows[number].end = place + 1
            closed[number] = group
    for one in found:
        one.lasts = one.end is None
    return found


def _modelled(module: HloModule, schedule: Schedule) -> list[_Block]:
    found = []
    for number, value in enumerate(live_values(module, schedule)):
        one = schedule.instructions[value.instruction]
        output = MemoryCategory.OUTPUT, KnownBy.SCHEDULE
        found.append(
            _Block(
                start=value.start,
                end=value.end,
                bytes=value.bytes,
                number=number,
                made=[(one, (value.part,) if one.shape.parts else ())],
                owner=output if value.outputs else None,
                before=one.opcode == "parameter",
                lasts=value.end >= len(schedule),
            )
        )
    return found


def _timeline(
    label: str,
    module: HloModule,
    arena: Arena | None,
    schedule: Schedule,
    blocks: Sequence[_Block],
) -> MemoryTimeline:
    owners = Owners(module, schedule)
    last = max([len(schedule) - 1, *(max(one.start, (one.end or 0) - 1) for one in blocks)])
    ordered = sorted(blocks, key=lambda one: (one.start, one.number))
    lines: dict[tuple[str, int | None], int] = {}
    texts: dict[str, int] = {}
    columns: dict[str, list[Any]] = {
        "start": [one.start for one in ordered],
        "end": [last + 1 if one.end is None else one.end for one in ordered],
        "before": [one.before for one in ordered],
        "after": [one.lasts for one in ordered],
        "bytes": [one.bytes for one in ordered],
        "requested_bytes": [one.bytes for one in ordered],
        "address": [one.number for one in ordered],
        "category": [],
        "known_by": [],
        "name": [],
        "module": [],
        "line": [],
        "phase": [],
    }
    for one in ordered:
        category, known = one.owner or _owner(owners, one)
        columns["category"].append(category)
        columns["known_by"].append(known)
        columns["name"].append(_code(texts, _name(one.made)))
        columns["module"].append(_code(texts, _module(one.made)))
        file, line = next(((made.file, made.line) for made, _ in one.made if made.file is not None), (None, None))
        columns["line"].append(MISSING if file is None else lines.setdefault((file, line), len(lines)))
        columns["phase"].append(owners.phase(_maker(one.made)[0]) if one.made else MemoryPhase.UNKNOWN)
    reserved = None
    if arena is not None:
        assert module.buffer_assignment is not None
        held = sum(one.size for one in module.buffer_assignment.allocations if in_device_memory(one))
        reserved = Curve(positions=np.zeros(1, np.int64), bytes=np.full(1, held, np.int64))
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


def _owner(owners: Owners, one: _Block) -> Owner:
    if not one.made:
        return MemoryCategory.TEMPORARY, KnownBy.NOTHING
    first = one.made[0][0]
    if first.opcode == "parameter" and one.before:
        return owners.argument(first)
    return owners.temporary(one.made)


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
    return next((one for one in made if one[0].op_name), made[0])


def _module(made: Sequence[Made]) -> str:
    """The user's scope; of an argument, what it is a part of."""
    for one, _ in made:
        if one.opcode == "parameter" and one.op_name and "/" not in one.op_name:
            return one.op_name[: max(one.op_name.rfind("["), one.op_name.rfind("."), 0)]
        path = [part for part in scope_of(one.op_name).path if part not in _OF_SCAN] if one.op_name else []
        if path:
            return "/".join(path)
    return ""
