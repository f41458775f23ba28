"""Whether a loop's carry is updated linearly: then the loop has an associative form.

A first-order linear recurrence ``h[t] = a[t] * h[t-1] + b[t]`` can be computed by a parallel prefix, because
``(a2, b2) after (a1, b1) = (a1 * a2, a2 * b1 + b2)`` is associative (Blelloch, Prefix sums and their
applications, 1990, section 1.4). ``tanh(h[t-1])`` cannot; ``W h[t-1]`` could, with a product of matrices in
every combination, which seldom pays and counts as no. Every value of the body gets the degree in which
it depends on the carry, carried through fusions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.views import REPEATED, SAME_BUFFER, made_by, path, tuple_index, updated_operand


class Degree(IntEnum):
    """How a value depends on the carry."""

    NONE = 0
    LINEAR = 1
    OTHER = 2


_LINEAR = (SAME_BUFFER | REPEATED | {"add", "subtract", "negate", "concatenate", "pad", "slice"}) - {"bitcast-convert"}
"""Linear in all operands together."""

_INDEXED = frozenset({"dynamic-slice", "dynamic-update-slice", "gather"})
"""Linear in the values they move, anything else in where they move them."""

_Degrees = tuple[Degree, ...]
"""By part of a tuple; one for an array."""


def is_linear(module: HloModule, body: Computation) -> bool:
    """Whether every floating-point carry that feeds back is a linear function of the carries before.

    Elements handed on unchanged are inputs. Elements only updated in place, one slice an iteration, are
    collected outputs: what is written there does not feed back. False if nothing feeds back.
    """
    root = body.root
    if root.opcode != "tuple":
        return False
    feeding = [
        index
        for index, name in enumerate(root.operands)
        if body.by_name[name].shape.dtype in ("f32", "f64", "bf16", "f16", "c64", "c128")
        and not _is_handed_on(body, name, index)
        and not _is_collected(module, body, name, index)
    ]
    parameter = next((instruction for instruction in body.instructions if instruction.opcode == "parameter"), None)
    if not feeding or parameter is None:
        return False
    carries = tuple(Degree.LINEAR if index in feeding else Degree.NONE for index in range(len(parameter.shape.parts)))
    degrees = _degrees(module, body, [carries])
    return all(max(degrees[root.operands[index]]) <= Degree.LINEAR for index in feeding)


def _is_handed_on(body: Computation, name: str, index: int) -> bool:
    """Whether a value is an element of the state as the iteration found it."""
    instruction, part = list(path(body, name))[-1]
    return instruction.opcode == "parameter" and part == (index,)


def _is_collected(module: HloModule, body: Computation, name: str, index: int) -> bool:
    """Whether an element becomes itself with a slice overwritten."""
    instruction = made_by(body, name)
    slot = updated_operand(module, instruction, ("dynamic-update-slice",))
    return slot is not None and _is_handed_on(body, instruction.operands[slot], index)


def _degrees(module: HloModule, computation: Computation, parameters: Sequence[_Degrees]) -> dict[str, _Degrees]:
    """Degree of every value; ``parameters``: of the computation's parameters, by number."""
    result: dict[str, _Degrees] = {}
    for instruction in computation.instructions:
        if instruction.parameter_number is not None:
            result[instruction.name] = (
                parameters[instruction.parameter_number]
                if instruction.parameter_number < len(parameters)
                else (Degree.NONE,)
            )
        else:
            result[instruction.name] = _degree(module, instruction, [result[name] for name in instruction.operands])
    return result


def _degree(module: HloModule, instruction: Instruction, operands: Sequence[_Degrees]) -> _Degrees:
    if instruction.opcode == "get-tuple-element":
        index, parts = tuple_index(instruction), operands[0]
        return (parts[index],) if index < len(parts) else (max(parts),)
    if instruction.opcode == "tuple":
        return tuple(max(parts) for parts in operands)
    if instruction.opcode == "fusion" and instruction.called:
        body = module.computations[instruction.called[0]]
        return _degrees(module, body, operands)[body.root.name]
    worst = [max(parts, default=Degree.NONE) for parts in operands]
    return (_array_degree(module, instruction, worst),) * max(1, len(instruction.shape.parts))


def _array_degree(module: HloModule, instruction: Instruction, operands: Sequence[Degree]) -> Degree:
    highest = max(operands, default=Degree.NONE)
    if highest == Degree.NONE or instruction.opcode in _LINEAR:
        return highest
    if instruction.opcode == "multiply":
        return _product(operands)
    if instruction.opcode == "divide":
        return operands[0] if operands[1] == Degree.NONE else Degree.OTHER
    if instruction.opcode == "select":
        return max(operands[1:]) if operands[0] == Degree.NONE else Degree.OTHER
    if instruction.opcode in _INDEXED:
        moved = 2 if instruction.opcode == "dynamic-update-slice" else 1
        return max(operands[:moved]) if max(operands[moved:], default=Degree.NONE) == Degree.NONE else Degree.OTHER
    if instruction.opcode == "reduce" and _sums(module, instruction):
        return highest
    return Degree.OTHER


def _product(operands: Sequence[Degree]) -> Degree:
    depending = [degree for degree in operands if degree != Degree.NONE]
    return depending[0] if len(depending) == 1 else Degree.OTHER


def _sums(module: HloModule, instruction: Instruction) -> bool:
    return bool(instruction.called) and module.computations[instruction.called[0]].root.opcode == "add"
