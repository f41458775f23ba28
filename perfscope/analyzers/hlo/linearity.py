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


class Degree(IntEnum):
    """How a value depends on the carry."""

    NONE = 0
    LINEAR = 1
    OTHER = 2


_LINEAR = frozenset(
    {
        "add", "subtract", "negate", "convert", "copy", "bitcast", "reshape", "broadcast", "transpose", "slice",
        "concatenate", "pad", "reverse", "get-tuple-element", "tuple", "optimization-barrier", "opt-barrier",
    }
)  # fmt: skip
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
    parameter = next((one for one in body.instructions if one.opcode == "parameter"), None)
    if not feeding or parameter is None:
        return False
    carries = tuple(Degree.LINEAR if index in feeding else Degree.NONE for index in range(len(parameter.shape.parts)))
    degrees = _degrees(module, body, [carries])
    return all(max(degrees[root.operands[index]]) <= Degree.LINEAR for index in feeding)


def _is_handed_on(body: Computation, name: str, index: int) -> bool:
    one = body.by_name[name]
    if one.opcode != "get-tuple-element" or one.attributes.get("index") != str(index):
        return False
    return body.by_name[one.operands[0]].opcode == "parameter"


def _is_collected(module: HloModule, body: Computation, name: str, index: int) -> bool:
    """Whether an element becomes itself with a slice overwritten."""
    one = body.by_name[name]
    computation, target = body, one
    while target.opcode == "bitcast":
        target = computation.by_name[target.operands[0]]
    if target.opcode == "fusion" and target.called:
        inner = module.computations[target.called[0]]
        made = inner.root
        while made.opcode in ("bitcast", "copy"):
            made = inner.by_name[made.operands[0]]
        if made.opcode != "dynamic-update-slice":
            return False
        base = inner.by_name[made.operands[0]]
        while base.opcode in ("bitcast", "copy"):
            base = inner.by_name[base.operands[0]]
        if base.parameter_number is None:
            return False
        return _is_handed_on(body, target.operands[base.parameter_number], index)
    return target.opcode == "dynamic-update-slice" and _is_handed_on(body, target.operands[0], index)


def _degrees(module: HloModule, computation: Computation, parameters: Sequence[_Degrees]) -> dict[str, _Degrees]:
    """Degree of every value; ``parameters``: of the computation's parameters, by number."""
    found: dict[str, _Degrees] = {}
    for one in computation.instructions:
        if one.parameter_number is not None:
            found[one.name] = (
                parameters[one.parameter_number] if one.parameter_number < len(parameters) else (Degree.NONE,)
            )
        else:
            found[one.name] = _degree(module, one, [found[name] for name in one.operands])
    return found


def _degree(module: HloModule, one: Instruction, operands: Sequence[_Degrees]) -> _Degrees:
    if one.opcode == "get-tuple-element":
        index = one.attributes.get("index", "")
        parts = operands[0]
        return (parts[int(index)],) if index.isdecimal() and int(index) < len(parts) else (max(parts),)
    if one.opcode == "tuple":
        return tuple(max(parts) for parts in operands)
    if one.opcode == "fusion" and one.called:
        body = module.computations[one.called[0]]
        return _degrees(module, body, operands)[body.root.name]
    worst = [max(parts, default=Degree.NONE) for parts in operands]
    return (_array_degree(module, one, worst),) * max(1, len(one.shape.parts))


def _array_degree(module: HloModule, one: Instruction, operands: Sequence[Degree]) -> Degree:
    highest = max(operands, default=Degree.NONE)
    if highest == Degree.NONE or one.opcode in _LINEAR:
        return highest
    if one.opcode == "multiply":
        return _product(operands)
    if one.opcode == "divide":
        return operands[0] if operands[1] == Degree.NONE else Degree.OTHER
    if one.opcode == "select":
        return max(operands[1:]) if operands[0] == Degree.NONE else Degree.OTHER
    if one.opcode in _INDEXED:
        moved = 2 if one.opcode == "dynamic-update-slice" else 1
        return max(operands[:moved]) if max(operands[moved:], default=Degree.NONE) == Degree.NONE else Degree.OTHER
    if one.opcode == "reduce" and _sums(module, one):
        return highest
    return Degree.OTHER


def _product(operands: Sequence[Degree]) -> Degree:
    depending = [degree for degree in operands if degree != Degree.NONE]
    return depending[0] if len(depending) == 1 else Degree.OTHER


def _sums(module: HloModule, one: Instruction) -> bool:
    return bool(one.called) and module.computations[one.called[0]].root.opcode == "add"
