"""Whether an instruction's operands, axes and result belong together: a file may say anything."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.hlo.cost_products import dims_of
from perfscope.analyzers.hlo.module import Instruction, Shape

_POINTWISE = {
    "abs": 1, "convert": 1, "copy": 1, "negate": 1, "reduce-precision": 1, "sign": 1, "sqrt": 1, "tanh": 1,
    "add": 2, "subtract": 2, "maximum": 2, "minimum": 2, "or": 2, "xor": 2, "and": 2, "multiply": 2, "divide": 2,
    "compare": 2,
}  # fmt: skip
"""Operands of ops that take element for element."""

_SAME_RANK = {"slice": 1, "dynamic-slice": 1, "pad": 1, "dynamic-update-slice": 2}
"""Operands that have as many axes as the result."""


def fits(one: Instruction, shapes: Sequence[Shape]) -> bool:
    """Whether the operands of an instruction are as many, and as large, as its kind and its result ask for.

    ``shapes``: those of the operands. True for kinds that nothing is concluded from.
    """
    opcode, dims = one.opcode, one.shape.dims
    ranks = [len(shape.dims) for shape in shapes]
    axes = dims_of(one.attributes.get("dimensions", ""))
    if opcode in _POINTWISE:
        return len(shapes) == _POINTWISE[opcode] and all(shape.dims == dims for shape in shapes)
    if opcode in _SAME_RANK:
        count = max(2, _SAME_RANK[opcode]) if opcode == "pad" else _SAME_RANK[opcode]
        return len(shapes) >= count and all(rank == len(dims) for rank in ranks[: _SAME_RANK[opcode]])
    if opcode == "iota":
        return all(axis < len(dims) for axis in dims_of(one.attributes.get("iota_dimension", "0")))
    if opcode == "select":
        return len(shapes) == 3 and shapes[0].dims in ((), dims) and shapes[1].dims == shapes[2].dims == dims
    if opcode in ("bitcast", "reshape"):
        return len(shapes) == 1 and not shapes[0].parts
    if opcode == "broadcast":
        return (
            ranks == [len(axes)]
            and _are_axes(axes, dims)
            and all(dims[axis] == size for axis, size in zip(axes, shapes[0].dims, strict=True))
        )
    if opcode == "transpose":
        if ranks != [len(axes)] or not _are_axes(axes, shapes[0].dims):
            return False
        return dims == tuple(shapes[0].dims[axis] for axis in axes)
    if opcode == "reduce":
        kept = len(shapes) == 2 and [size for axis, size in enumerate(shapes[0].dims) if axis not in axes]
        return bool(one.called) and _are_axes(axes, shapes[0].dims if shapes else ()) and kept == list(dims)
    if opcode == "concatenate":
        return len(axes) == 1 and axes[0] < len(dims) and bool(ranks) and all(rank == len(dims) for rank in ranks)
    return opcode != "dot" or _is_product(one, shapes)


def in_memory(shape: Shape) -> tuple[int, ...] | None:
    """Axes of an array as they lie in memory, major first; ``None`` for a layout that is none of the array's."""
    if shape.layout is None:
        return tuple(range(len(shape.dims)))
    if len(shape.layout) != len(shape.dims) or not _are_axes(shape.layout, shape.dims):
        return None
    return tuple(reversed(shape.layout))


def _are_axes(axes: Sequence[int], dims: Sequence[int]) -> bool:
    return len(set(axes)) == len(axes) and all(0 <= axis < len(dims) for axis in axes)


def _is_product(one: Instruction, shapes: Sequence[Shape]) -> bool:
    if len(shapes) != 2:
        return False
    left, right = shapes[0].dims, shapes[1].dims
    batch, other_batch, summed, other_summed = (
        dims_of(one.attributes.get(key, ""))
        for key in ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    )
    mine, theirs = (*batch, *summed), (*other_batch, *other_summed)
    if len(batch) != len(other_batch) or not _are_axes(mine, left) or not _are_axes(theirs, right):
        return False
    if [left[axis] for axis in mine] != [right[axis] for axis in theirs]:
        return False
    free = [size for axis, size in enumerate(left) if axis not in mine]
    free += [size for axis, size in enumerate(right) if axis not in theirs]
    return [left[axis] for axis in batch] + free == list(one.shape.dims)
