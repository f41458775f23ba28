"""Bytes an instruction moves through device memory: operands and results, or what of them it touches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.analyzers.hlo.cost.fusion import BodyTraffic, arrays_of
from perfscope.analyzers.hlo.cost.types import NOTHING, Traffic
from perfscope.analyzers.hlo.module import ITEM_BITS, Instruction, Platform, Shape
from perfscope.analyzers.hlo.views import MOVES_NOTHING

_HBM = 0
_HOST = 5
"""Memory space of the host on every target (``S(5)``)."""


def in_device_memory(shape: Shape, platform: Platform | None) -> bool:
    """True if an array lies in the device's large memory.

    On TPU only space 0 is HBM (1 is VMEM, 2 flags). On GPU every space but the host's is: ``S(1)`` there is
    memory that collectives can use directly.
    """
    return shape.memory_space == _HBM or (platform != "tpu" and shape.memory_space != _HOST)


def memory_bytes(shape: Shape, platform: Platform | None) -> int:
    """Bytes of a value that lie in device memory."""
    return sum(array.bytes for array in arrays_of(shape) if in_device_memory(array, platform))


def host_bytes(shapes: Iterable[Shape]) -> int:
    """Bytes of values that lie in the host's memory."""
    return sum(array.bytes for shape in shapes for array in arrays_of(shape) if array.memory_space == _HOST)


def elements_bytes(elements: int, array: Shape, platform: Platform | None) -> int:
    """Bytes that some elements of an array take in device memory."""
    return -(-elements * ITEM_BITS.get(array.dtype, 0) // 8) if in_device_memory(array, platform) else 0


def fusion_traffic(
    instruction: Instruction, operands: Sequence[Shape], body: BodyTraffic, platform: Platform | None
) -> Traffic:
    """A fusion: what its body reads of each operand and writes of each result."""
    read = sum(
        elements_bytes(elements, array, platform)
        for shape, touched in zip(operands, body.read, strict=False)
        for array, elements in zip(arrays_of(shape), touched, strict=False)
    )
    written = sum(
        elements_bytes(elements, array, platform)
        for array, elements in zip(arrays_of(instruction.shape), body.written, strict=False)
    )
    return Traffic(read=read, written=written)


def op_traffic(instruction: Instruction, operands: Sequence[Shape], platform: Platform | None) -> Traffic:
    """An instruction that calls nothing, or only an operator. An operand used twice is read once."""
    opcode = instruction.opcode
    if opcode in MOVES_NOTHING:
        return NOTHING
    if opcode in ("slice", "dynamic-slice", "gather") and operands:
        touched = elements_bytes(instruction.shape.elements, operands[0], platform)
        return Traffic(read=touched + _sum(operands[1:], platform), written=memory_bytes(instruction.shape, platform))
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        written = elements_bytes(operands[1].elements, operands[0], platform)
        return Traffic(read=_sum(operands[1:], platform), written=written)
    if opcode == "scatter" and len(operands) > 2:
        sets = len(operands) // 2
        updates = operands[sets + 1 :]
        # in place: what is updated is read, combined and written
        touched = sum(
            elements_bytes(update.elements, target, platform)
            for target, update in zip(operands[:sets], updates, strict=False)
        )
        return Traffic(read=touched + _sum(operands[sets:], platform), written=touched)
    distinct = dict(zip(instruction.operands, operands, strict=False))
    return Traffic(
        read=_sum(distinct.values(), platform),
        written=memory_bytes(instruction.shape, platform),
        host=host_bytes((*distinct.values(), instruction.shape)),
    )


def copy_traffic(instruction: Instruction, operands: Sequence[Shape], platform: Platform | None) -> Traffic:
    """A ``copy-start``: its result is (destination, source, context)."""
    target = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return Traffic(
        read=_sum(operands[:1], platform),
        written=memory_bytes(target, platform),
        host=host_bytes((*operands[:1], target)),
    )


def _sum(shapes: Iterable[Shape], platform: Platform | None) -> int:
    return sum(memory_bytes(shape, platform) for shape in shapes)
