"""Which operand's memory a kernel writes its result into: it must where it updates, it may where it is the last.

As XLA's buffer assignment decides it: a result may take the memory of an operand of the same elements and width if
every way from it leads element by element to results (or into the kernel's reduction, which runs first).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from perfscope.analyzers.hlo.flow import POINTWISE
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction

Slots = tuple[tuple[int, int], ...]
"""Parts of a result, with slots of operands."""

ELEMENTWISE = (POINTWISE - {"broadcast", "transpose", "reshape", "copy", "reverse"}) | {
    "atan2", "cbrt", "ceil", "cosine", "floor", "is-finite", "popcnt", "remainder", "round-nearest-afz",
    "round-nearest-even", "shift-left", "shift-right-arithmetic", "shift-right-logical", "sine", "tan",
}  # fmt: skip
"""Opcodes whose result's elements come from the operands' elements at the same place."""

_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
_APART = frozenset({"while", "call", "tuple", "get-tuple-element", "bitcast", "parameter", "constant"})


def sharing_of(module: HloModule, one: Instruction) -> tuple[Slots, Slots]:
    """What an instruction updates in place, and what it may be written onto."""
    if one.opcode in _APART:
        return (), ()
    if one.opcode in _UPDATES:
        return ((0, 0),), ()
    if one.opcode in ELEMENTWISE:
        return (), tuple((0, slot) for slot in range(len(one.operands)))
    return _of_fusion(module.computations[one.called[0]]) if one.opcode == "fusion" else ((), ())


def _of_fusion(body: Computation) -> tuple[Slots, Slots]:
    root = body.root
    results = [body.by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    parameters = sorted(
        (one for one in body.instructions if one.opcode == "parameter"), key=lambda one: one.parameter_number or 0
    )
    readers = _readers(body)
    reduces = any(one.opcode == "reduce" for one in results)
    updates: list[tuple[int, int]] = []
    reuses: list[tuple[int, int]] = []
    for part, result in enumerate(results):
        writer = body.by_name[result.operands[0]] if result.opcode == "bitcast" else result
        if writer.opcode in _UPDATES:
            target = body.by_name[writer.operands[0]]
            while target.opcode == "bitcast":
                target = body.by_name[target.operands[0]]
            if target.opcode == "parameter":
                updates.append((part, target.parameter_number or 0))
                continue
        reuses += [
            (part, one.parameter_number or 0)
            for one in parameters
            if one.shape.elements == result.shape.elements
            and one.shape.bytes == result.shape.bytes
            and _leads_to(readers, one, result, reduces)
        ]
    return tuple(updates), tuple(reuses)


def _readers(body: Computation) -> Mapping[str, list[Instruction]]:
    found: dict[str, list[Instruction]] = defaultdict(list)
    for one in body.instructions:
        for name in dict.fromkeys(one.operands):
            found[name].append(one)
    return found


def _leads_to(readers: Mapping[str, list[Instruction]], one: Instruction, result: Instruction, reduces: bool) -> bool:
    """Whether a parameter is read element by element alone, and so leads to the result."""
    allowed = ELEMENTWISE | {"bitcast", "tuple"} | ({"reduce"} if reduces else set())
    waiting, seen, found = [one], {one.name}, False
    while waiting:
        now = waiting.pop()
        found = found or now is result
        if reduces and now.opcode == "reduce":
            continue
        for user in readers.get(now.name, ()):
            if user.opcode not in allowed:
                return False
            if user.name not in seen:
                seen.add(user.name)
                waiting.append(user)
    return found
