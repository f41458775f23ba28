"""Values that an instruction only hands on, and the one walk back to what makes them.

An instruction can hand its operand on in three senses: the result lies in the same buffer (``SAME_BUFFER``), it has the
same elements (``SAME_ELEMENTS``), or it moves no bytes (``MOVES_NOTHING``). `path` follows one value back within a
computation, `path_across` through the borders of fusions too, and `sources` answers for all values of a computation at
once, each part of a tuple by itself. (``graph.HloProgram`` joins values across loops and calls as well.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction

SAME_BUFFER = frozenset(
    {"bitcast", "get-tuple-element", "tuple", "optimization-barrier", "opt-barrier", "add-dependency"}
)
"""The result lies where the operand lies; a tuple where all of its operands do."""

SAME_ORDER = frozenset({"bitcast", "bitcast-convert", "convert", "copy", "reduce-precision", "reshape"})
"""Each element is that of the operand at the same position, perhaps of another type."""

SAME_ELEMENTS = SAME_ORDER | {"reverse", "transpose"}
"""The elements of the operand, each once, perhaps in another order."""

REPEATED = SAME_ELEMENTS | {"broadcast"}
"""Elements of the operand and no others."""

MOVES_NOTHING = SAME_BUFFER | {
    "after-all", "constant", "domain", "get-dimension-size", "parameter", "partition-id", "replica-id",
    "set-dimension-size",
}  # fmt: skip
"""Nothing is launched, computed or moved: the value is there already."""

Source = tuple[str, tuple[int, ...]]
"""An instruction and the part of its tuple; no part of an array."""

Parts = tuple[tuple[Source, ...], ...]
"""What each part of a tuple is, of an array one entry: several where a nested tuple is one part."""

Fusions = Mapping[str, tuple[Computation, Instruction]]
"""By fused computation: a fusion of it, with the computation the fusion stands in."""

_MOST_STEPS = 100
"""Across fusions: two that share a body could lead in a circle."""


def tuple_index(instruction: Instruction) -> int:
    """The part that a ``get-tuple-element`` takes; 0 where the text does not say."""
    text = instruction.attributes.get("index", "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def path(
    computation: Computation, name: str, through: Collection[str] = SAME_BUFFER
) -> Iterator[tuple[Instruction, tuple[int, ...]]]:
    """A value and what it is handed on from, back to what makes it: each instruction with the part of its tuple.

    Follows the first operand of the opcodes in ``through``; of a ``tuple`` the operand that an element was taken of.
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
    """A fusion of every fused computation; of several the last."""
    fusions = ((holder, instruction) for holder, instruction in module.instructions() if instruction.opcode == "fusion")
    return {called: (holder, instruction) for holder, instruction in fusions for called in instruction.called}


def path_across(
    module: HloModule,
    fusions: Fusions,
    computation: Computation,
    name: str,
    through: Collection[str] = SAME_ELEMENTS,
) -> Iterator[tuple[Computation, Instruction]]:
    """As `path` of an array, out of the fusion it is a parameter of and into the fusion that makes it.

    ``fusions`` as of `fusions_of`.
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
        elif instruction.opcode == "fusion" and instruction.called and not instruction.shape.parts:
            computation = module.computations[instruction.called[0]]
            instruction = computation.root
        else:
            return


def _handed_on(instruction: Instruction) -> str | None:
    return instruction.operands[0] if instruction.opcode in SAME_BUFFER and instruction.operands else None


def sources(
    computation: Computation, handed_on: Callable[[Instruction], str | None] = _handed_on
) -> Mapping[str, Parts]:
    """Of every value of a computation, what it is by parts: its own parts, or values before it that are handed on.

    ``handed_on`` gives the operand that is handed on as a whole (default: by ``SAME_BUFFER``), ``None`` for a value of
    its own. Tuples and their elements are always followed. Linear in the instructions and the parts of their tuples.
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
"""They change some elements of their first operand, in its buffer where nobody reads it later."""


def updated_operand(module: HloModule, instruction: Instruction, opcodes: Collection[str] = UPDATES) -> int | None:
    """The number of the operand that an instruction, or a fusion as a whole, updates in place; ``None``: none."""
    if instruction.opcode in opcodes:
        return 0
    if instruction.opcode != "fusion" or not instruction.called:
        return None
    body = module.computations[instruction.called[0]]
    root = made_by(body, body.root.name, SAME_ORDER)
    return made_by(body, root.operands[0], SAME_ORDER).parameter_number if root.opcode in opcodes else None


def is_handed_on(body: Computation, name: str, index: int) -> bool:
    """Whether a value of a loop's body is element ``index`` of the state as the turn found it."""
    instruction, part = list(path(body, name))[-1]
    return instruction.opcode == "parameter" and part == (index,)


def is_collected(module: HloModule, body: Computation, name: str, index: int) -> bool:
    """Whether element ``index`` of a loop's state becomes itself with a slice overwritten."""
    instruction = made_by(body, name)
    slot = updated_operand(module, instruction, ("dynamic-update-slice",))
    return slot is not None and is_handed_on(body, instruction.operands[slot], index)
