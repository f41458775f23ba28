"""Matrix products of a program: the kernels that hold one, and which casts its factors came through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.module import HloModule, Instruction

VIEWS = frozenset({"bitcast", "copy", "transpose", "reshape"})
"""Opcodes that give the same numbers in another order."""

_MOST_STEPS = 100
"""From a factor to what makes it; two fusions that share a body could lead in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The instructions of a program that hold others: fusions and asynchronous ops, by what they call."""

    callers: Mapping[str, tuple[InstructionCost, ...]]

    def around(self, row: InstructionCost) -> list[InstructionCost]:
        """What runs by itself and holds an instruction: the instruction, or the kernels whose body it is in."""
        found, waiting, seen = [], [row], {row.computation}
        while waiting:
            one = waiting.pop()
            if one.place == "launched":
                found.append(one)
                continue
            for caller in self.callers.get(one.computation, ()):
                if caller.place == "launched" or caller.computation not in seen:
                    seen.add(caller.computation)
                    waiting.append(caller)
        return found


def kernels_of(cost: ModuleCost) -> Kernels:
    """The kernels of a program."""
    found: dict[str, list[InstructionCost]] = {}
    for row in cost.rows:
        if row.place != "control":
            for name in row.instruction.called:
                found.setdefault(name, []).append(row)
    return Kernels(callers={name: tuple(rows) for name, rows in found.items()})


def fusions_of(module: HloModule) -> Mapping[str, tuple[str, Instruction]]:
    """A fusion of every fused computation, with the computation it stands in; of several the last."""
    return {
        called: (holder.name, one)
        for holder, one in module.instructions()
        if one.opcode == "fusion"
        for called in one.called
    }


def casts(
    module: HloModule, callers: Mapping[str, tuple[str, Instruction]], computation: str, name: str
) -> Iterator[tuple[Instruction, Instruction]]:
    """Conversions behind a value, each with what it converts: through views and the borders of fusions.

    ``callers`` as of ``fusions_of``.
    """
    inside = module.computations[computation]
    one = inside.by_name[name]
    for _ in range(_MOST_STEPS):
        if one.opcode == "convert" and one.operands:
            source = inside.by_name[one.operands[0]]
            yield one, source
            one = source
        elif one.opcode in VIEWS and one.operands:
            one = inside.by_name[one.operands[0]]
        elif one.parameter_number is not None and inside.name in callers:
            holder_name, caller = callers[inside.name]
            if one.parameter_number >= len(caller.operands):
                return
            inside = module.computations[holder_name]
            one = inside.by_name[caller.operands[one.parameter_number]]
        elif one.opcode == "fusion" and one.called and not one.shape.parts:
            inside = module.computations[one.called[0]]
            one = inside.root
        else:
            return
