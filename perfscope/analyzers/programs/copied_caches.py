"""Arrays that a loop of a compiled program takes apart, changes a little and puts together again.

``jax.lax.scan`` over layers often has the cache as ``xs`` and returns it as ``ys``: each turn copies its layer's part
out of one array, writes the new part into the copy, and copies it into another array. An array in the carry of the
loop is written in place.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.hlo import (
    SAME_ORDER,
    Computation,
    HloModule,
    Instruction,
    is_collected,
    is_handed_on,
    made_by,
    path,
    updated_operand,
)

_MOST_STEPS = 20
"""Maximum number of instructions between the two arrays."""

_LOOP_BODY = 1
"""Place of the body among the computations of a ``while``; the condition is the first."""


class CopiedThroughLoop(Struct, frozen=True, kw_only=True):
    """An array that a loop copies part by part."""

    loop: Instruction
    copies: tuple[tuple[str, str], ...]
    """(computation, instruction) of each instruction that copies."""


def copied_through_loops(module: HloModule) -> Iterator[CopiedThroughLoop]:
    """Yield the arrays that loops copy part by part, with the copies before and after the loop."""
    for holder in module.computations.values():
        for loop in holder.instructions:
            if loop.opcode == "while" and len(loop.called) > _LOOP_BODY:
                body = module.computations[loop.called[_LOOP_BODY]]
                for index in range(len(body.root.operands) if body.root.opcode == "tuple" else 0):
                    inside = _copies(module, body, index)
                    if inside is not None:
                        around = (*_first_values(module, holder, loop, index), *_copies_of_result(holder, loop, index))
                        outside = ((holder.name, name) for name in around)
                        yield CopiedThroughLoop(loop=loop, copies=(*((body.name, name) for name in inside), *outside))


def _copies(module: HloModule, body: Computation, index: int) -> list[str] | None:
    """Return the instructions of a turn that copy a part of another array of the loop into array ``index``."""
    name = body.root.operands[index]
    if not is_collected(module, body, name, index):
        return None
    writer = made_by(body, name)
    slot = updated_operand(module, writer, ("dynamic-update-slice",))
    for number, operand in enumerate(writer.operands):
        if number == slot:
            continue
        copies = _from_other_array(module, body, operand, writer, index)
        if copies is not None:
            return [writer.name, *copies]
    return None


def _from_other_array(
    module: HloModule, body: Computation, name: str, writer: Instruction, index: int
) -> list[str] | None:
    """Return the copies between an operand of the writer and a part of another array of the same shape.

    ``None`` if anything else computes it.
    """
    copies: list[str] = []
    updated = False
    for _ in range(_MOST_STEPS):
        instruction = made_by(body, name)
        if instruction.opcode == "parameter":
            other = list(path(body, name))[-1][1]
            fused = bool(other) and not copies and other != (index,) and _same_shape(body, name, writer)
            fused = fused and _updates_a_slice(module, writer)
            return copies if fused and is_handed_on(body, body.root.operands[other[0]], other[0]) else None
        if instruction.opcode == "copy":
            copies.append(instruction.name)
            name = instruction.operands[0]
            continue
        slot = updated_operand(module, instruction, ("dynamic-update-slice",))
        if slot is not None:
            updated, name = True, instruction.operands[slot]
            continue
        source = _sliced_operand(module, instruction)
        if source is None or not updated:
            return None
        seen, part = list(path(body, instruction.operands[source]))[-1]
        unchanged = seen.opcode == "parameter" and part and part != (index,)
        if not unchanged or not is_handed_on(body, body.root.operands[part[0]], part[0]):
            return None
        return [*copies, instruction.name] if _same_shape(body, instruction.operands[source], writer) else None
    return None


def _same_shape(body: Computation, name: str, writer: Instruction) -> bool:
    shape = body.by_name[name].shape
    return (shape.dtype, shape.dims) == (writer.shape.dtype, writer.shape.dims)


def _sliced_operand(module: HloModule, instruction: Instruction) -> int | None:
    """Return the operand of which an instruction or a whole fusion takes a slice; ``None`` if it does more."""
    if instruction.opcode == "dynamic-slice":
        return 0
    if instruction.opcode != "fusion" or not instruction.called:
        return None
    body = module.computations[instruction.called[0]]
    root = made_by(body, body.root.name, SAME_ORDER)
    if root.opcode != "dynamic-slice":
        return None
    return made_by(body, root.operands[0], SAME_ORDER).parameter_number


def _updates_a_slice(module: HloModule, writer: Instruction) -> bool:
    """Whether a fusion cuts a slice, overwrites a part of it and writes it into the result."""
    if writer.opcode != "fusion" or not writer.called:
        return False
    body = module.computations[writer.called[0]]
    root = made_by(body, body.root.name, SAME_ORDER)
    if root.opcode != "dynamic-update-slice" or len(root.operands) < 2:
        return False
    inner = made_by(body, root.operands[1], SAME_ORDER)
    if inner.opcode != "dynamic-update-slice":
        return False
    return made_by(body, inner.operands[0], SAME_ORDER).opcode == "dynamic-slice"


def _first_values(module: HloModule, holder: Computation, loop: Instruction, index: int) -> Iterator[str]:
    """Yield the instructions that fill element ``index`` of a loop with one number before its first turn."""
    start = made_by(holder, loop.operands[0], ()) if loop.operands else loop
    name = start.operands[index] if start.opcode == "tuple" and index < len(start.operands) else None
    for _ in range(_MOST_STEPS):
        made = None if name is None else made_by(holder, name)
        if made is None:
            return
        if made.opcode == "copy":
            yield made.name
            name = made.operands[0]
            continue
        root = module.computations[made.called[0]].root if made.opcode == "fusion" and made.called else made
        if root.opcode == "broadcast":
            yield made.name
        return


def _copies_of_result(holder: Computation, loop: Instruction, index: int) -> Iterator[str]:
    """Yield the copies of element ``index`` of a loop's result."""
    for instruction in holder.instructions:
        if instruction.opcode == "copy" and instruction.operands:
            made, part = list(path(holder, instruction.operands[0]))[-1]
            if made is loop and part == (index,):
                yield instruction.name
