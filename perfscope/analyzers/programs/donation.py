"""Arguments of a compiled program whose memory its results could use, and the saving.

JAX lets a caller donate an argument; XLA then writes a result of the same shape into its memory. Candidates follow from
the program: a result that is computed from the argument elementwise, or by updates in place (as new weights are from
old ones, and a cache from itself), and an argument that is not read after the result is written. Gradients have the
shape of their weights but are computed differently, so they are excluded.

Whether the caller uses the argument again is not in the program.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from msgspec import Struct

from perfscope.analyzers.graph import HloProgram
from perfscope.analyzers.hlo import (
    SAME_BUFFER,
    SAME_ORDER,
    UPDATES,
    Arena,
    HloModule,
    Instruction,
    LiveValue,
    Schedule,
    Shape,
    arena_blocks,
    arena_of,
    assigned_memory,
    live_peak_bytes,
    live_values,
    made_by,
    sources,
)
from perfscope.model.jax_log import CompileEvent
from perfscope.model.live_bytes import peak
from perfscope.model.trace import Trace

_IN_ORDER = SAME_ORDER | {
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "copy-done", "copy-start", "cosine", "divide",
    "erf", "exponential", "exponential-minus-one", "floor", "log", "log-plus-one", "logistic", "maximum", "minimum",
    "multiply", "negate", "not", "or", "power", "remainder", "rsqrt", "select", "sign", "sine", "sqrt", "subtract",
    "tanh", "xor",
}  # fmt: skip
"""Opcodes whose result elements depend only on operand elements at the same position."""

_COPIES = SAME_ORDER | {"copy-done", "copy-start"}
"""The same opcodes without computation: a result that is a copy of its argument is not a new state."""

_DIFFERENTIATED = ("jvp(", "transpose(")
"""Path segments with which JAX marks a forward and a backward pass: an update passes through neither, and the gradient
of a product may have the shape of the other factor.
"""

_MOST_VALUES = 4_000
"""Maximum number of values examined between a result and its arguments; an optimizer's update has some twenty."""


class Update(Struct, frozen=True, kw_only=True):
    """A result computed from an argument in place, and whether it already uses the argument's memory."""

    parameter: Instruction
    output: int
    """Index in the root's tuple; 0 if the program returns one array."""
    written_by: str
    """Instruction of the entry that makes it."""
    bytes: int
    donated: bool
    free: bool
    """Whether nothing reads the argument after the instruction that writes the result."""
    is_state: bool
    """Whether it is kept from call to call, as far as the program shows: a leaf of a tree, updated in place, or updated
    by a program that differentiates. ``jnp.exp(x)`` alone is a program too, but ``x`` is not state.
    """


class Donation(Struct, frozen=True, kw_only=True):
    """Saving by donating arguments of one program."""

    module: HloModule
    updates: tuple[Update, ...]
    """Candidates that are not donated, largest first."""
    donated: int
    """Number of donated arguments."""
    bytes: int
    """Bytes of the results that would use an argument's memory: the largest possible saving."""
    peak_bytes: int
    peak_donated_bytes: int
    """Modelled peak if they were donated."""
    assigned: bool
    """Whether ``peak_bytes`` is XLA's own; else it is modelled."""

    @property
    def saved_bytes(self) -> int:
        """Decrease of the peak."""
        return self.peak_bytes - self.peak_donated_bytes


def donations(trace: Trace) -> tuple[Donation, ...]:
    """Return the possible donations of each compiled program that has any, in the order of ``trace.hlo``."""
    result = (donation_of(module) for module in trace.hlo if module.is_scheduled)
    return tuple(donation for donation in result if donation is not None)


def donation_of(module: HloModule) -> Donation | None:
    """Return the possible donations of one program; ``None`` without any."""
    schedule = Schedule(module)
    updated = updates(module, schedule)
    missed = sorted(
        (update for update in updated if not update.donated and update.free and update.is_state),
        key=lambda update: -update.bytes,
    )
    if not missed:
        return None
    before, after, assigned = _peaks(module, schedule, frozenset(update.output for update in missed))
    return Donation(
        module=module,
        updates=tuple(missed),
        donated=len(module.aliases) + len(module.donors),
        bytes=sum(update.bytes for update in missed),
        peak_bytes=before,
        peak_donated_bytes=min(after, before),
        assigned=assigned,
    )


def updates(module: HloModule, schedule: Schedule) -> tuple[Update, ...]:
    """Return every argument that the program updates in place, with the result; each argument and result once."""
    entry = module.entry_computation()
    flow = HloProgram(module)
    taken = {alias.parameter: alias.output[0] if alias.output else 0 for alias in module.aliases if not alias.part}
    reach: dict[int, dict[int, int]] = {}
    written: set[int] = set()
    for output, maker in enumerate(_outputs(entry.root)):
        if output in taken.values():
            continue
        shape = entry.by_name[maker].shape
        arguments, in_place = _arguments(flow, flow.numbers[entry.name, maker], shape, entry.name)
        written.update(arguments if in_place else ())
        free = {number: steps for number, steps in arguments.items() if number not in taken}
        if free:
            reach[output] = free
    outputs = _outputs(entry.root)
    differentiates = any("transpose(" in instruction.op_name for instruction in entry.instructions)
    parameters = {
        instruction.parameter_number: instruction
        for instruction in entry.instructions
        if instruction.opcode == "parameter"
    }
    paired = {output: number for number, output in taken.items() if number in parameters and output < len(outputs)}
    for output in sorted(reach, key=lambda value: (len(reach[value]), value)):
        left = {number: steps for number, steps in reach[output].items() if number not in paired.values()}
        if left:
            paired[output] = min(left, key=lambda number: (left[number], number))
    last = _last_reads(module, schedule)
    return tuple(
        Update(
            parameter=parameters[number],
            output=output,
            written_by=_maker(module, outputs[output]),
            bytes=parameters[number].shape.bytes,
            donated=number in taken,
            is_state=differentiates or number in written or any(mark in parameters[number].op_name for mark in ".["),
            free=last.get(parameters[number].name, 0) <= schedule.positions[_maker(module, outputs[output])],
        )
        for output, number in sorted(paired.items())
    )


def _outputs(root: Instruction) -> tuple[str, ...]:
    """Return the instructions of the entry whose values the program returns, by index in its tuple."""
    return root.operands if root.opcode == "tuple" else (root.name,)


def _arguments(flow: HloProgram, start: int, shape: Shape, entry: str) -> tuple[dict[int, int], bool]:
    """Arguments of a shape from which a value is computed in place: parameter number -> steps between them.

    Also return whether some step overwrites only some of the elements.
    """
    reached: dict[int, int] = {}
    in_place = computes = False
    seen = {start}
    layer, steps = [start], 0
    while layer and len(seen) < _MOST_VALUES:
        following: list[int] = []
        for number in layer:
            value = flow.nodes[number]
            instruction = value.instruction
            if instruction.opcode == "parameter" and value.computation.name == entry:
                if (instruction.shape.dtype, instruction.shape.dims, instruction.shape.layout) == (
                    shape.dtype,
                    shape.dims,
                    shape.layout,
                ):
                    reached.setdefault(instruction.parameter_number or 0, steps)
            elif value.names:
                following += value.names
            elif any(mark in instruction.op_name for mark in _DIFFERENTIATED):
                continue
            elif instruction.opcode in UPDATES:
                following += value.reads[:1]
                in_place = True
            elif instruction.opcode in _IN_ORDER:
                following += [each for each in value.reads if flow.nodes[each].size == shape.elements]
                computes |= instruction.opcode not in _COPIES
        layer = [number for number in dict.fromkeys(following) if number not in seen]
        seen.update(layer)
        steps += 1
    return reached if computes or in_place else {}, in_place


def _maker(module: HloModule, name: str) -> str:
    """Return the instruction of the entry that writes a value, through views."""
    return made_by(module.entry_computation(), name).name


def writers(module: HloModule, name: str) -> tuple[Instruction, ...]:
    """Return an instruction of the entry and, if it is a call, those in the called computations that make its value.

    XLA for CPUs calls what it splits over threads.
    """
    result = [module.entry_computation().by_name[name]]
    while result[-1].opcode == "call" and result[-1].called:
        called = module.computations[result[-1].called[0]]
        result.append(made_by(called, called.root.name))
    return tuple(result)


def _last_reads(module: HloModule, schedule: Schedule) -> dict[str, int]:
    """Return the position of the last instruction of the entry that reads a value or a view of it."""
    entry = module.entry_computation()
    behind = sources(entry)
    return {
        name: schedule.positions[instruction.name]
        for instruction in entry.instructions
        if instruction.opcode not in SAME_BUFFER
        for operand in instruction.operands
        for part in behind[operand]
        for name, _ in part
    }


def _peaks(module: HloModule, schedule: Schedule, outputs: frozenset[int]) -> tuple[int, int, bool]:
    """Return the current peak, the peak with ``outputs`` in their arguments' memory, and whether the first is XLA's."""
    values = live_values(module, schedule)
    entry = module.entry_computation()
    makers = {_maker(module, name) for index, name in enumerate(_outputs(entry.root)) if index in outputs}
    taken = [value for value in values if outputs.intersection(value.outputs)]
    makers.update(one.name for maker in tuple(makers) for one in writers(module, maker))
    makers.update(value.instruction for value in taken)  # a loop's result is in the buffer of its initial value
    arena, assigned = arena_of(module), assigned_memory(module)
    if arena is None or assigned is None:
        gone = set(map(id, taken))
        return live_peak_bytes(values), live_peak_bytes(value for value in values if id(value) not in gone), False
    return assigned.peak_bytes, _assigned_peak(arena, schedule, values, makers), True


def _assigned_peak(arena: Arena, schedule: Schedule, values: tuple[LiveValue, ...], makers: set[str]) -> int:
    """Return the peak of XLA's arena without the allocations of these results, but with their other contents."""
    buffers = arena.assignment.buffers
    made = {
        allocation.index: [buffers[key] for key in allocation.buffers if key in buffers]
        for allocation in arena.lasting()
        if allocation.maybe_live_out and not allocation.is_parameter
    }
    given_up = {index for index, inside in made.items() if any(buffer.instruction in makers for buffer in inside)}
    ranges = {(value.instruction, value.part): value for value in values}
    rows = [(block.start, block.end, block.buffer.size) for block in arena_blocks(arena, schedule)]
    for buffer in (buffer for index in given_up for buffer in made[index] if buffer.instruction not in makers):
        value = ranges.get((buffer.instruction, buffer.index[0] if buffer.index else 0))
        if value is not None:
            rows.append((value.start, value.end, buffer.size))
    whole_run = sum(allocation.size for allocation in arena.lasting() if allocation.index not in given_up)
    return whole_run + peak(*np.array(rows, np.int64).reshape(-1, 3).T)[1]


# Donated buffers that jax could not use, from its warnings when it lowered the program in a run of ours.


_BYTES = {"bool": 1, "complex64": 8, "complex128": 16, "bfloat16": 2}
"""Bytes of types whose name does not end in their bits."""


def refused_donations(trace: Trace) -> tuple[CompileEvent, ...]:
    """Return one event per program and line, most bytes first, because repeated lowering repeats the warning.

    ``count`` is at least the number of ``shapes``.
    """
    result: dict[tuple[str | None, str | None, int | None], CompileEvent] = {}
    for event in trace.compile_events:
        if event.kind == "donation_unusable":
            key = (event.module, event.file, event.line)
            if key not in result or refused_bytes(event) > refused_bytes(result[key]):
                result[key] = replace(event, count=max(event.count or 0, len(event.shapes)))
    return tuple(sorted(result.values(), key=lambda refused: -refused_bytes(refused)))


def refused_bytes(event: CompileEvent) -> int:
    """Return the sum over the ``shapes`` of an event."""
    return sum(map(_bytes, event.shapes))


def refused_sizes(event: CompileEvent) -> list[tuple[str, int]]:
    """Return the shape and bytes of each buffer of an event, largest first."""
    return sorted(((shape, _bytes(shape)) for shape in event.shapes), key=lambda pair: (-pair[1], pair[0]))


def _bytes(shape: str) -> int:
    dtype, _, dims = shape.removesuffix("]").partition("[")
    bits = int("".join(filter(str.isdigit, dtype.partition("_")[0])) or 0)  # float8_e4m3fn has 8 bits
    size = _BYTES.get(dtype) or bits / 8
    return round(size * math.prod(int(dim) for dim in dims.split(",") if dim))
