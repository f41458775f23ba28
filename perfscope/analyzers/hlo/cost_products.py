"""FLOPs of matrix products and convolutions: two for each multiply-add, eight for complex numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from perfscope.analyzers.hlo.cost_types import Work, product_work
from perfscope.analyzers.hlo.cost_window import valid_positions, window_dims
from perfscope.analyzers.hlo.module import ITEM_BITS, Instruction, Shape

_ORDER = ("default", "high", "highest")


def dims_of(text: str) -> tuple[int, ...]:
    """``{0,2}`` -> ``(0, 2)``; none for text that holds no numbers."""
    return tuple(int(number) for number in re.findall(r"\d{1,18}", text))


def precision_of(instruction: Instruction) -> str:
    """The precision a product was asked for: its algorithm, else the higher one of its two operands'."""
    algorithm = instruction.attributes.get("algorithm", "")
    if algorithm:
        return algorithm.lower()
    asked = instruction.attributes.get("operand_precision", "").strip("{}").lower().split(",")
    return max((word for word in asked if word in _ORDER), key=_ORDER.index, default="default")


def wider(lhs: Shape, rhs: Shape) -> str:
    """The element type of the two operands that takes more bits."""
    return lhs.dtype if ITEM_BITS.get(lhs.dtype, 0) >= ITEM_BITS.get(rhs.dtype, 0) else rhs.dtype


def _multiply_add(dtype: str) -> int:
    return 8 if dtype in ("c64", "c128") else 2


def dot_flops(result: Shape, lhs: Shape, contracting: Sequence[int], dtype: str) -> int | None:
    """``2 * elements of the result * product of the contracted sizes``; batch dimensions are in the result."""
    if dtype == "tuple" or any(axis >= len(lhs.dims) for axis in contracting):
        return None
    return _multiply_add(dtype) * result.elements * math.prod(lhs.dims[axis] for axis in contracting)


def dot_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """A ``dot`` (or ``scaled-dot``, whose scales are not counted)."""
    if len(operands) < 2 or instruction.shape.dtype == "tuple":
        return None
    dtype = wider(operands[0], operands[1])
    contracting = dims_of(instruction.attributes.get("lhs_contracting_dims", ""))
    flops = dot_flops(instruction.shape, operands[0], contracting, dtype)
    return None if flops is None else product_work(flops, dtype, precision_of(instruction))


def ragged_dot_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """A ``ragged-dot``: every row meets the matrix of its own group only.

    Ragged rows ``[m,k] x [g,k,n]`` and ragged batches: as a dot of the result's size. Ragged contraction
    ``[m,k] x [k,n] -> [g,m,n]``: the groups share ``k``, so a dot of one group's result.
    """
    if len(operands) < 3 or instruction.shape.dtype == "tuple":
        return None
    lhs = operands[0]
    contracting = dims_of(instruction.attributes.get("lhs_contracting_dims", ""))
    ragged = dims_of(instruction.attributes.get("lhs_ragged_dims", ""))
    dtype = wider(lhs, operands[1])
    flops = dot_flops(instruction.shape, lhs, contracting, dtype)
    groups = operands[2].elements
    if flops is None or not ragged:
        return None
    if ragged[0] in contracting:
        flops = flops // groups if groups else 0
    return product_work(flops, dtype, precision_of(instruction))


def convolution_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """A ``convolution``; on TPU also what was a dot, with batch dimensions written as window dimensions."""
    if len(operands) < 2 or instruction.shape.dtype == "tuple":
        return None
    flops = convolution_flops(instruction, operands[0], operands[1], instruction.shape)
    dtype = wider(operands[0], operands[1])
    return None if flops is None else product_work(flops, dtype, precision_of(instruction))


def convolution_flops(instruction: Instruction, lhs: Shape, rhs: Shape, result: Shape) -> int | None:
    """``2 * batch * output features * input features of the kernel * valid positions`` of a forward convolution.

    The kernel's input features are those of one group already, and the result's batch is the input's
    divided by ``batch_group_count``. Window positions that fall on padding or into the holes of a
    dilated input are not counted. ``None`` if the labels or the window cannot be read.
    """
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attributes.get("dim_labels", "").replace("?", "z"))
    window = window_dims(instruction.attributes.get("window", ""))
    if labels is None or window is None:
        return None
    sides = ((labels[1], lhs), (labels[2], rhs), (labels[3], result))
    if any(len(text) != len(shape.dims) for text, shape in sides):
        return None
    sizes = [dict(zip(text, shape.dims, strict=True)) for text, shape in sides]
    if not ({"b", "f"} <= sizes[0].keys() and {"i", "o"} <= sizes[1].keys() and {"b", "f"} <= sizes[2].keys()):
        return None
    found: int = _multiply_add(wider(lhs, rhs)) * sizes[2]["b"] * sizes[2]["f"] * sizes[1]["i"]
    for axis, dim in enumerate(window):
        label = str(axis)
        if label not in sizes[0] or label not in sizes[2]:
            return None
        positions = valid_positions(dim, sizes[0][label], sizes[2][label])
        if positions is None:
            return None
        found *= positions
    return found
