"""Timelines of the memory that compiled XLA programs need: one block per buffer, with its maker and purpose.

If the file has XLA's buffer assignment, the blocks are those of its heap trace, and the allocations that last for the
whole run (arguments, constants, results outside the arena). The peak then equals that of `assigned_memory`, and so of
xprof's memory viewer, to the byte. Otherwise the timeline is modelled from the schedule and the shapes (`live_values`)
and marked as such.

Positions count the instructions that run, with loops and branches flattened (``hlo.schedule``). XLA's trace has an
order but no positions for frees: a buffer ends after the last instruction that allocated memory before its free.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.graph import HloProgram
from perfscope.analyzers.hlo import (
    COLLECTIVES,
    REPEATED,
    SAME_BUFFER,
    SAME_ORDER,
    Arena,
    BufferAllocation,
    BufferAssignment,
    HloModule,
    Instruction,
    Schedule,
    Source,
    arena_blocks,
    arena_of,
    device_memory_bytes,
    in_device_memory,
    live_values,
    path,
    program_label,
    scope_of,
    sources,
)
from perfscope.analyzers.programs.donation import updates
from perfscope.model.live_bytes import NEVER, Curve
from perfscope.model.memory import BLOCKS, KnownBy, MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Rows, Trace
from perfscope.model.trace.tables import MemoryCategory

# Purpose of a program's buffers, from the instructions that make and read them, and when.
#
# JAX marks the forward pass of a differentiated function with ``jvp(...)`` in the path of an instruction and its
# backward pass with ``transpose(...)``. A program without them only has arguments, results and temporaries.


Owner = tuple[MemoryCategory, KnownBy]

_FORWARD, _BACKWARD, _RECOMPUTED = "jvp(", "transpose(", "rematted_computation"
_WEIGHT = re.compile(r"(?<![A-Za-z])(params?|weights?|kernel|bias|embedding)(?![A-Za-z])", re.IGNORECASE)
"""Names of weights among arguments, as in JAX's libraries; ``_`` and digits may be next to them."""
_LIBRARY = ("__cublas$", "__cudnn$", "cublas", "cudnn", "cusolver", "cufft", "miopen", "hipblas")
"""Prefixes of the targets of library calls whose scratch memory XLA allocates."""
_BYTES = frozenset({"s8", "u8"})
"""Element types of scratch memory."""


class Owners:
    """Finds the owners of one module's buffers."""

    def __init__(self, module: HloModule, schedule: Schedule) -> None:
        """Linear in the module; arguments are classified on first use."""
        self._module = module
        self._schedule = schedule
        entry = module.entry_computation()
        self._entry = entry
        self._reads = reads(schedule)
        self._begins = self._first_backward()

    @property
    def differentiates(self) -> bool:
        """Whether the program has a backward pass."""
        return self._begins < len(self._schedule)

    def phase(self, instruction: Instruction) -> MemoryPhase:
        """Return the part of a training step that an instruction belongs to."""
        if not self.differentiates:
            return MemoryPhase.UNKNOWN
        known = _path_phase(instruction)
        if known is not MemoryPhase.UNKNOWN:
            return known
        late = self._schedule.positions.get(instruction.name, 0) > self._begins
        return (
            MemoryPhase.OPTIMIZER
            if late and instruction.op_name and instruction.opcode != "parameter"
            else MemoryPhase.UNKNOWN
        )

    def argument(self, parameter: Instruction) -> Owner:
        """Return the purpose of an argument: weights read by the forward, state read only by the update, or an input.

        In a program without updates, weights are arguments with a gradient of their shape among the results, or with a
        name of weights.
        """
        if self.differentiates and parameter.parameter_number in self._updated:
            weights = parameter.name in self._read_by_forward
            return (MemoryCategory.PARAMETER if weights else MemoryCategory.OPTIMIZER_STATE), KnownBy.SCHEDULE
        if parameter.shape.dtype[:1] in ("f", "b"):
            if _WEIGHT.search(parameter.op_name.replace("_", " ")):
                return MemoryCategory.PARAMETER, KnownBy.RECORDED
            shape = (parameter.shape.dtype, parameter.shape.dims)
            if shape in self._gradients and parameter.name in self._read_by_forward:
                return MemoryCategory.PARAMETER, KnownBy.SCHEDULE
        return MemoryCategory.INPUT, KnownBy.RECORDED

    def temporary(self, made: Sequence[tuple[Instruction, tuple[int, ...]]]) -> Owner:
        """Return the purpose of a buffer of the arena.

        ``made``: the instructions that write it, in order, with the tuple part.
        """
        first, part = made[0]
        if first.opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES:
            return MemoryCategory.COMMUNICATION, KnownBy.SCHEDULE
        if _is_scratch(first, part):
            return MemoryCategory.WORKSPACE, KnownBy.SCHEDULE
        phases = [self.phase(instruction) for instruction, _ in made]
        known = next((phase for phase in phases if phase is not MemoryPhase.UNKNOWN), MemoryPhase.UNKNOWN)
        read = {self.phase(read) for maker, part in made for read in self._reads.get((maker.name, part), ())}
        if known is MemoryPhase.UNKNOWN and MemoryPhase.FORWARD in read:
            known = MemoryPhase.FORWARD  # space into which a loop of the forward pass writes its turns
        if known is MemoryPhase.FORWARD and read & {MemoryPhase.BACKWARD, MemoryPhase.RECOMPUTE}:
            return MemoryCategory.ACTIVATION, KnownBy.SCHEDULE
        if known is MemoryPhase.BACKWARD and MemoryPhase.OPTIMIZER in read:
            return MemoryCategory.GRADIENT, KnownBy.SCHEDULE
        return MemoryCategory.TEMPORARY, KnownBy.SCHEDULE

    @cached_property
    def _updated(self) -> frozenset[int | None]:
        return frozenset(update.parameter.parameter_number for update in updates(self._module, self._schedule))

    @cached_property
    def _gradients(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """Shapes of results that the backward pass makes."""
        root = self._entry.root
        results = [self._entry.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return frozenset(
            (result.shape.dtype, result.shape.dims) for result in results if _BACKWARD in self._path_behind(result)
        )

    @cached_property
    def _read_by_forward(self) -> frozenset[str]:
        """Arguments that an instruction of the differentiated function reads, also through views and casts."""
        flow = HloProgram(self._module)
        names = set()
        for instruction in self._entry.instructions:
            if instruction.opcode == "parameter" and _reaches(flow, flow.numbers[self._entry.name, instruction.name]):
                names.add(instruction.name)
        return frozenset(names)

    def _first_backward(self) -> int:
        """Return the begin of the backward pass: its first instruction that reads a result of the forward pass."""
        begin = len(self._schedule)
        for (name, _), readers in self._reads.items():
            if _path_phase(self._schedule.instructions[name]) is MemoryPhase.FORWARD:
                places = (
                    self._schedule.begins[reader.name]
                    for reader in readers
                    if _path_phase(reader) in (MemoryPhase.BACKWARD, MemoryPhase.RECOMPUTE)
                )
                begin = min(begin, *places, begin)
        return begin

    def _path_behind(self, instruction: Instruction) -> str:
        behind = path(self._entry, instruction.name, SAME_BUFFER | SAME_ORDER)
        return next((each.op_name for each, _ in behind if each.op_name), "")


def reads(schedule: Schedule) -> dict[Source, list[Instruction]]:
    """Return the readers of each value and its views.

    A value that a loop carries has the readers of the loop's result.
    """
    result: dict[Source, list[Instruction]] = {}
    for computation in schedule.computations.values():
        behind = sources(computation)
        carried: dict[Source, tuple[Source, ...]] = {
            (instruction.name, (index,)): part
            for instruction in computation.instructions
            if instruction.opcode == "while" and instruction.operands
            for index, part in enumerate(behind[instruction.operands[0]])
        }
        for instruction in computation.instructions:
            if instruction.opcode in SAME_BUFFER:
                continue
            waiting = [source for operand in instruction.operands for part in behind[operand] for source in part]
            read: set[Source] = set()
            while waiting:
                source = waiting.pop()
                if source not in read:
                    read.add(source)
                    waiting += carried.get(source, ())
            for source in read:
                result.setdefault(source, []).append(instruction)
    return result


def _path_phase(instruction: Instruction) -> MemoryPhase:
    if _RECOMPUTED in instruction.op_name:
        return MemoryPhase.RECOMPUTE
    if _BACKWARD in instruction.op_name:
        return MemoryPhase.BACKWARD
    return MemoryPhase.FORWARD if _FORWARD in instruction.op_name else MemoryPhase.UNKNOWN


def _reaches(flow: HloProgram, start: int) -> bool:
    """Whether an instruction of a differentiated function reads a value, or a view of it."""
    waiting, seen = [start], {start}
    while waiting:
        number = waiting.pop()
        for user in flow.users[number]:
            value = flow.nodes[user]
            if user in seen:
                continue
            seen.add(user)
            if _FORWARD in value.instruction.op_name:
                return True
            if number in value.names or value.instruction.opcode in REPEATED:
                waiting.append(user)
    return False


def _is_scratch(instruction: Instruction, part: tuple[int, ...]) -> bool:
    """Whether a part of a library call's result is its scratch memory: the last part, in bytes."""
    parts = instruction.shape.parts
    if instruction.opcode != "custom-call" or len(parts) < 2 or part != (len(parts) - 1,):
        return False
    return (instruction.custom_call_target or "").startswith(_LIBRARY) and parts[-1].dtype in _BYTES


ASSIGNED, MODELLED = "XLA buffer assignment", "schedule and shapes of the program"

_MODELLED_NOTE = (
    "approximate: the file has no buffer assignment by XLA, so every value lives from its instruction to its last "
    "reader and has the size of its shape"
)

Made = tuple[Instruction, tuple[int, ...]]
"""An instruction and the part of its tuple."""


class _Block(Struct, kw_only=True):
    start: int
    end: int | None
    bytes: int
    number: int
    made: list[Made]
    owner: Owner | None = None
    """None: derived from its maker and lifetime."""
    before: bool = False
    lasts: bool = False
    """Whether it is still held when the run ends."""


def program_timelines(trace: Trace) -> tuple[MemoryTimeline, ...]:
    """Return one timeline per compiled and scheduled program, in the order of ``trace.hlo``."""
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
    """Return a lasting allocation, named after its argument or constant, else after the last value written into it."""
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
    """Return an argument's name in the program (``state.weights['up']``), else the instruction's."""
    if not made:
        return ""
    first, part = _maker(made)
    if first.opcode == "parameter" and first.op_name and "/" not in first.op_name:
        return first.op_name
    return first.name + "".join(f"{{{index}}}" for index in part)


def _maker(made: Sequence[Made]) -> Made:
    """Return the instruction that writes the buffer: the first with a path, else the first."""
    return next((writer for writer in made if writer[0].op_name), made[0])


def _module(made: Sequence[Made]) -> str:
    """Return the user's named scopes; for an argument, the value that it is a part of."""
    for instruction, _ in made:
        if instruction.opcode == "parameter" and instruction.op_name and "/" not in instruction.op_name:
            name = instruction.op_name
            return name[: max(name.rfind("["), name.rfind("."), 0)] or name
        if instruction.op_name and scope_of(instruction.op_name).module:
            return scope_of(instruction.op_name).module
    return ""
