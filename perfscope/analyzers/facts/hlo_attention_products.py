"""Matrix products of a compiled XLA program by their sizes, whichever op or library call they are."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.cost import ModuleCost
from perfscope.analyzers.hlo.cost_custom_calls import result_of
from perfscope.analyzers.hlo.module import Instruction, Shape

_HOLDERS = frozenset({"fusion", "while", "call", "conditional", "async-start"})
"""Their cost is that of what they hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product by sizes: ``batch`` times ``[rows, summed] x [summed, columns]``."""

    number: int
    """In the flow."""
    instruction: Instruction
    factors: tuple[int, int]
    shapes: tuple[Shape, Shape]
    batch: int
    summed: int

    @property
    def result(self) -> Shape:
        """Shape of the result, without the scratch memory of a library."""
        return result_of(self.instruction)

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.result.elements


def products_of(cost: ModuleCost, flow: Flow) -> dict[int, Product]:
    """Matrix products whose summed size is known, by number in the flow.

    With operands of ``bmk`` and ``bkn`` elements and a result of ``bmn``, whatever the layout: ``k`` from the product's
    FLOPs, ``b`` is the product of the operands' sizes over the result's and ``k`` squared.
    """
    found = {}
    for row in cost.rows:
        one = row.instruction
        flops = sum(row.once.products.values())
        size = result_of(one).elements
        number = flow.numbers.get((row.computation, one.name))
        if one.opcode in _HOLDERS or number is None or not flops or not size or len(one.operands) < 2 or not row.runs:
            continue
        summed = flops // (2 * size)
        operands = flow.values[number].operands
        left, right = (flow.values[operand].instruction.shape for operand in operands[:2])
        if summed:
            found[number] = Product(
                number=number,
                instruction=one,
                factors=(operands[0], operands[1]),
                shapes=(left, right),
                batch=max(1, left.elements * right.elements // (size * summed * summed)),
                summed=summed,
            )
    return found
