"""Values that an instruction passes on unchanged, and the walk back to the instruction that makes them.

An instruction can pass its operand on in three senses: the result is in the same buffer (``SAME_BUFFER``), it has the
same elements (``SAME_ELEMENTS``), or it moves no bytes (``MOVES_NOTHING``). `path` follows one value back within a
computation, `path_across` also through the borders of fusions, and `sources` covers all values of a computation at
once, each part of a tuple separately. (``hlo.flow`` also joins values across loops and calls.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction

SAME_BUFFER = frozenset(
    {"bitcast", "get-tuple-element", "tuple", "optimization-barrier", "opt-barrier", "add-dependency"}
)
"""Opcodes whose result is in the operand's buffer; for a tuple, in those of all its operands."""

SAME_ORDER = frozenset({"bitcast", "bitcast-convert", "convert", "copy", "reduce-precision", "reshape"})
"""Opcodes whose elements are those of the operand at the same positions, possibly of another type."""

SAME_ELEMENTS = SAME_ORDER | {"reverse", "transpose"}
"""Opcodes whose elements are those of the operand, each once, possibly in another order."""

REPEATED = SAME_ELEMENTS | {"broadcast"}
"""Opcodes whose elements are all elements of the operand."""

MOVES_NOTHING = SAME_BUFFER | {
    "after-all", "constant", "domain", "get-dimension-size", "parameter", "partition-id", "replica-id",
    "set-dimension-size",
}  # fmt: skip
"""Opcodes that launch, compute and move nothing, because the value already exists."""

Source = tuple[str, tuple[int, ...]]
"""An instruction and the part of its tuple; empty for an array."""

Parts = tuple[tuple[Source, ...], ...]
"""The sources of each part of a tuple, one entry for an array; several sources if a nested tuple is one part."""

Fusions = Mapping[str, tuple[Computation, Instruction]]
"""Fused or called computation -> one caller of it, with the computation that contains the caller."""

_ENTERED = ("fusion", "call")
"""Opcodes of instructions whose value is that of the computation they call."""

_MOST_STEPS = 100
"""Maximum number of steps across fusions, because two fusions with the same body could lead in a circle."""


def tuple_index(instruction: Instruction) -> int:
    """Return the part that a ``get-tuple-element`` takes; 0 if the text lacks it."""
    text = instruction.attributes.get("index", "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def path(
    computation: Computation, name: str, through: Collection[str] = SAME_BUFFER
) -> Iterator[tuple[Instruction, tuple[int, ...]]]:
    """Yield a value and the values it is passed on from, back to its maker: instruction, part of its tuple.

    Follows the first operand of the opcodes in ``through``; for a ``tuple``, the operand of the taken element.
    """
    wanted: list[int] = []
    while True:
        instruction = computation.by_name[name]
        yield instruction, tuple(wanted[-1:])
        if instruction.opcode not in through or not instruction.operands:
            return
        operand = 0
        if instruction.opcode == "get-tuple-element":
            wanted.append(tuple_index(instruction))
        elif instruction.opcode == "tuple":
            if not wanted or wanted[-1] >= len(instruction.operands):
                return
            operand = wanted.pop()
        name = instruction.operands[operand]


def made_by(computation: Computation, name: str, through: Collection[str] = SAME_BUFFER) -> Instruction:
    """The instruction at the end of a value's `path`."""
    *_, (instruction, _) = path(computation, name, through)
    return instruction


def fusions_of(module: HloModule) -> Fusions:
    """Return a caller of every fused computation, the last one of several, and of each that one ``call`` calls.

    XLA for CPUs moves an instruction that it splits over threads into a separate computation, with a ``call``.
    """
    result: dict[str, tuple[Computation, Instruction]] = {}
    several: set[str] = set()
    for holder, instruction in module.instructions():
        if instruction.opcode not in _ENTERED:
            continue
        for called in instruction.called:
            if instruction.opcode == "call" and called in result:
                several.add(called)
            result[called] = (holder, instruction)
    return {called: caller for called, caller in result.items() if called not in several}


def path_across(
    module: HloModule,
    fusions: Fusions,
    computation: Computation,
    name: str,
    through: Collection[str] = SAME_ELEMENTS,
) -> Iterator[tuple[Computation, Instruction]]:
    """Like `path` for an array, also out of a fusion or call that it is a parameter of, and into one that makes it.

    ``fusions`` as from `fusions_of`.
    """
    instruction = computation.by_name[name]
    for _ in range(_MOST_STEPS):
        yield computation, instruction
        if instruction.opcode in through and instruction.operands:
            instruction = computation.by_name[instruction.operands[0]]
        elif instruction.parameter_number is not None and computation.name in fusions:
            computation, caller = fusions[computation.name]
            if instruction.parameter_number >= len(caller.operands):
                return
            instruction = computation.by_name[caller.operands[instruction.parameter_number]]
        elif instruction.opcode in _ENTERED and instruction.called and not instruction.shape.parts:
            computation = module.computations[instruction.called[0]]
            instruction = computation.root
        else:
            return


def _handed_on(instruction: Instruction) -> str | None:
    return instruction.operands[0] if instruction.opcode in SAME_BUFFER and instruction.operands else None


def sources(
    computation: Computation, handed_on: Callable[[Instruction], str | None] = _handed_on
) -> Mapping[str, Parts]:
    """Map every value of a computation to its sources by part: its own parts, or earlier values that are passed on.

    ``handed_on`` returns the operand that is passed on as a whole (default: by ``SAME_BUFFER``), ``None`` for a new
    value. Tuples and their elements are always followed. Linear in the instructions and the parts of their tuples.
    """
    result: dict[str, Parts] = {}
    for instruction in computation.instructions:
        count = len(instruction.shape.parts)
        if instruction.opcode == "tuple":
            result[instruction.name] = tuple(_together(result[operand]) for operand in instruction.operands)
        elif instruction.opcode == "get-tuple-element":
            parts, index = result[instruction.operands[0]], tuple_index(instruction)
            result[instruction.name] = (parts[index] if index < len(parts) else _together(parts),)
        elif (operand := handed_on(instruction)) is not None:
            parts = result[operand]
            result[instruction.name] = parts if len(parts) == max(1, count) else (_together(parts),)
        else:
            result[instruction.name] = tuple(((instruction.name, (part,)),) for part in range(count)) or (
                ((instruction.name, ()),),
            )
    return result


def _together(parts: Parts) -> tuple[Source, ...]:
    return parts[0] if len(parts) == 1 else tuple(dict.fromkeys(source for part in parts for source in part))


UPDATES = frozenset({"dynamic-update-slice", "scatter"})
"""Opcodes that change some elements of their first operand, in its buffer if nothing reads it later."""


def updated_operand(module: HloModule, instruction: Instruction, opcodes: Collection[str] = UPDATES) -> int | None:
    """Return the number of the operand that an instruction or a whole fusion updates in place.

    ``None`` if it updates nothing in place.
    """
    if instruction.opcode in opcodes:
        return 0
    if instruction.opcode != "fusion" or not instruction.called:
        return None
    body = module.computations[instruction.called[0]]
    root = made_by(body, body.root.name, SAME_ORDER)
    return made_by(body, root.operands[0], SAME_ORDER).parameter_number if root.opcode in opcodes else None


def is_handed_on(body: Computation, name: str, index: int) -> bool:
    """Whether a value of a loop's body is element ``index`` of the state at the begin of the turn."""
    instruction, part = list(path(body, name))[-1]
    return instruction.opcode == "parameter" and part == (index,)


def is_collected(module: HloModule, body: Computation, name: str, index: int) -> bool:
    """Whether element ``index`` of a loop's state is updated by overwriting a slice of it."""
    instruction = made_by(body, name)
    slot = updated_operand(module, instruction, ("dynamic-update-slice",))
    return slot is not None and is_handed_on(body, instruction.operands[slot], index)
