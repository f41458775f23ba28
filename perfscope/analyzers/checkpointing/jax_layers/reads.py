"""How an instruction takes what it reads: as a buffer, element by element, or only to hand a part of it on."""

from __future__ import annotations

from perfscope.analyzers.hlo.flow import VIEWS
from perfscope.analyzers.hlo.module import HloModule, Instruction

PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
"""Opcodes of matrix products; libraries are called by ``custom-call``."""

_COPIES = VIEWS | {"slice"}


def only_moves(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction gives the same numbers in another order."""
    if one.opcode in _COPIES:
        return True
    if one.opcode != "fusion":
        return False
    body = module.computations[one.called[0]]
    return all(part.opcode in _COPIES or part.opcode in ("parameter", "tuple") for part in body.instructions)


def takes_part(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction only takes a layer's part out of a stack, or lays it out in another way."""
    if one.opcode in ("dynamic-slice", "copy", "transpose"):
        return True
    if one.opcode != "fusion":
        return False
    allowed = _COPIES | {"dynamic-slice", "parameter", "constant", "add", "subtract", "compare", "select"}
    inside = module.computations[one.called[0]].instructions
    large = [part for part in inside if part.shape.dims]  # the arithmetic of the index is on single numbers
    return (
        any(part.opcode == "dynamic-slice" for part in inside)
        and all(part.opcode in _COPIES | {"dynamic-slice", "parameter"} for part in large)
        and all(part.opcode in allowed for part in inside)
    )


def takes_buffers(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction holds what cannot be computed element by element: a product, a loop, a library's call."""
    if one.opcode in PRODUCTS or one.opcode in ("while", "sort", "scatter", "conditional", "call"):
        return True
    return any(
        part.opcode in PRODUCTS
        for name in one.called
        if one.opcode == "fusion"
        for part in module.computations[name].instructions
    )
