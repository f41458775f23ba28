"""FLOPs of matrix products and convolutions: two per multiply-add, eight for complex numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from perfscope.analyzers.hlo.cost.types import Work, product_work
from perfscope.analyzers.hlo.module import ITEM_BITS, Instruction, Shape
from perfscope.model.op_flops import product_flops

PRODUCTS = frozenset({"convolution", "dot", "ragged-dot", "scaled-dot"})
"""Opcodes of matrix products. On TPU they are convolutions; on GPU library calls (``custom-call``) may be products."""


MAX_WINDOW_STEPS = 1 << 16
"""Maximum number of window positions that are enumerated. Kernels have tens; a batch dimension that the TPU compiler
writes as a window has thousands.
"""

_FIELD = re.compile(r"(size|stride|pad|lhs_dilate|rhs_dilate)=([-\dx_]+)")

_ORDER = ("default", "high", "highest")


# Windows of convolutions and window reductions: which positions fall on the input at all.


class WindowDim(Struct, frozen=True, kw_only=True):
    """One dimension of a window, in XLA's definition."""

    size: int
    stride: int = 1
    pad_low: int = 0
    lhs_dilate: int = 1
    """Distance between input elements (holes between them are zero)."""
    rhs_dilate: int = 1
    """Distance between window elements."""


def window_dims(text: str) -> tuple[WindowDim, ...] | None:
    """Parse ``{size=3x3 stride=2x2 pad=1_1x1_1}``; empty for blank text, ``None`` for invalid text."""
    fields = {key: value.split("x") for key, value in _FIELD.findall(text)}
    sizes = fields.get("size", [])
    try:
        return tuple(
            WindowDim(
                size=int(size),
                stride=int(fields["stride"][index]) if "stride" in fields else 1,
                pad_low=int(fields["pad"][index].partition("_")[0]) if "pad" in fields else 0,
                lhs_dilate=int(fields["lhs_dilate"][index]) if "lhs_dilate" in fields else 1,
                rhs_dilate=int(fields["rhs_dilate"][index]) if "rhs_dilate" in fields else 1,
            )
            for index, size in enumerate(sizes)
        )
    except (ValueError, IndexError):
        return None


@lru_cache(maxsize=4096)
def valid_positions(window: WindowDim, inputs: int, outputs: int) -> int | None:
    """Return the pairs (output, window element) that are on an input element, not on padding or in a hole.

    Output ``o`` and window element ``k`` meet input position ``o*stride + k*rhs_dilate - pad_low`` of the dilated
    input. ``None`` if there are too many window elements to enumerate.
    """
    if window.size > MAX_WINDOW_STEPS and outputs <= MAX_WINDOW_STEPS:
        # the same pairs with the roles exchanged
        swapped = WindowDim(
            size=outputs,
            stride=window.rhs_dilate,
            pad_low=window.pad_low,
            lhs_dilate=window.lhs_dilate,
            rhs_dilate=window.stride,
        )
        return valid_positions(swapped, inputs, window.size)
    if window.size > MAX_WINDOW_STEPS or min(window.stride, window.lhs_dilate, window.rhs_dilate) < 1:
        return None
    last = (inputs - 1) * window.lhs_dilate
    step = window.lhs_dilate // math.gcd(window.stride, window.lhs_dilate)
    result = 0
    for element in range(window.size):
        offset = element * window.rhs_dilate - window.pad_low
        first = _first_on_input(window.stride, window.lhs_dilate, offset)
        if first is None or inputs < 1:
            continue
        low = max(0, -(offset // window.stride))  # o*stride + offset >= 0, rounded up
        high = min(outputs - 1, (last - offset) // window.stride)
        begin = low + (first - low) % step
        if begin <= high:
            result += (high - begin) // step + 1
    return result


def _first_on_input(stride: int, dilate: int, offset: int) -> int | None:
    """Return the smallest ``o >= 0`` with ``(o*stride + offset) % dilate == 0``; ``None`` without a solution."""
    shared = math.gcd(stride, dilate)
    if offset % shared:
        return None
    step = dilate // shared
    if step == 1:
        return 0
    return (-offset // shared) * pow(stride // shared, -1, step) % step


def dims_of(text: str) -> tuple[int, ...]:
    """Return ``(0, 2)`` for ``{0,2}``; empty for text without numbers."""
    return tuple(int(number) for number in re.findall(r"\d{1,18}", text))


def precision_of(instruction: Instruction) -> str:
    """Return the requested precision of a product: its algorithm, else the higher precision of its two operands."""
    algorithm = instruction.attributes.get("algorithm", "")
    if algorithm:
        return algorithm.lower()
    requested = instruction.attributes.get("operand_precision", "").strip("{}").lower().split(",")
    return max((word for word in requested if word in _ORDER), key=_ORDER.index, default="default")


def wider(lhs: Shape, rhs: Shape) -> str:
    """Return the element type of the operand with more bits per element."""
    return lhs.dtype if ITEM_BITS.get(lhs.dtype, 0) >= ITEM_BITS.get(rhs.dtype, 0) else rhs.dtype


def dot_flops(result: Shape, lhs: Shape, contracting: Sequence[int], dtype: str) -> int | None:
    """Return the FLOPs of a dot, whose result includes batch dimensions. ``None`` for tuples and axes that it lacks."""
    if dtype == "tuple" or any(axis >= len(lhs.dims) for axis in contracting):
        return None
    return product_flops(result.elements, math.prod(lhs.dims[axis] for axis in contracting), dtype)


def dot_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return the work of a ``dot`` (or ``scaled-dot``, without its scales)."""
    if len(operands) < 2 or instruction.shape.dtype == "tuple":
        return None
    dtype = wider(operands[0], operands[1])
    contracting = dims_of(instruction.attributes.get("lhs_contracting_dims", ""))
    flops = dot_flops(instruction.shape, operands[0], contracting, dtype)
    return None if flops is None else product_work(flops, dtype, precision_of(instruction))


def ragged_dot_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return the work of a ``ragged-dot``: every row is multiplied only with the matrix of its group.

    Ragged rows ``[m,k] x [g,k,n]`` and ragged batches: as a dot of the result's size. Ragged contraction ``[m,k] x
    [k,n] -> [g,m,n]``: the groups share ``k``, so a dot of one group's result.
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
    """Return the work of a ``convolution``.

    On TPU also of a former dot, whose batch dimensions are window dimensions.
    """
    if len(operands) < 2 or instruction.shape.dtype == "tuple":
        return None
    flops = convolution_flops(instruction, operands[0], operands[1], instruction.shape)
    dtype = wider(operands[0], operands[1])
    return None if flops is None else product_work(flops, dtype, precision_of(instruction))


def convolution_flops(instruction: Instruction, lhs: Shape, rhs: Shape, result: Shape) -> int | None:
    """Return ``2 * batch * output features * input features of the kernel * valid positions`` of a forward convolution.

    The kernel's input features are those of one group, and the result's batch is the input's divided by
    ``batch_group_count``. Window positions on padding or in the holes of a dilated input are not counted. ``None`` if
    the labels or the window are invalid.
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
    summed = sizes[1]["i"]
    for axis, dim in enumerate(window):
        label = str(axis)
        if label not in sizes[0] or label not in sizes[2]:
            return None
        positions = valid_positions(dim, sizes[0][label], sizes[2][label])
        if positions is None:
            return None
        summed *= positions
    return product_flops(sizes[2]["b"] * sizes[2]["f"], summed, wider(lhs, rhs))
