"""Matrix products that move rows: one factor is a selection, nearly all zero because it was built one-hot.

What such a product multiplies with zeros is wasted; what is left is one row read and written for each element of the
selection that may not be zero (at most ``density`` of them). The gradient of a weighted selection is a product of the
same size whose result is needed only there: it stands on the same line, without a selection among its factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.facts.hlo_program import costs
from perfscope.analyzers.facts.hlo_roofline import NS, roof_of
from perfscope.analyzers.facts.hlo_selection_flow import patterns
from perfscope.analyzers.hardware import Device
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.module import ITEM_BITS
from perfscope.model.trace import Trace

_PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
"""Opcodes of matrix products; on TPU they are convolutions, on GPU also library calls."""

_BACKWARD = "transpose("
"""In the path of what JAX derives for gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionProduct:
    """A product one of whose factors is a selection, or the gradient of one."""

    cost: ModuleCost
    row: InstructionCost
    density: float
    """Most of the selection's elements that are not zero, as a share of all: below 1."""

    @property
    def flops(self) -> int:
        """In one run of the program."""
        return self.row.total.flops

    @property
    def needed_flops(self) -> int:
        """Those on elements of the selection that may not be zero."""
        return round(self.flops * self.density)

    @property
    def wasted_flops(self) -> int:
        """Those on elements that are zero by construction."""
        return self.flops - self.needed_flops

    @property
    def moved_bytes(self) -> int:
        """In one run of the program, to move the rows: each number read once, and each of the result written once."""
        kind = next(iter(self.row.once.products))
        read = self.needed_flops // 2
        result = self.row.instruction.shape.elements * self.row.runs
        return (read + min(read, result)) * ITEM_BITS[kind.dtype] // 8

    def saved_ns(self, kernel: InstructionCost, device: Device) -> float | None:
        """Roof of the kernel that holds it less the time to move the rows, in one run of the program.

        ``None`` where the device's peak for the product is not known.
        """
        roof = roof_of(kernel, device)
        if roof.compute_ns is None:
            return None
        return max(0.0, roof.roof_ns * kernel.runs - self.moved_bytes * NS / device.memory_bandwidth)


def selection_products(trace: Trace) -> tuple[SelectionProduct, ...]:
    """Such products of all programs, in program order."""
    return tuple(one for cost in trace.fact(costs) for one in _of_program(cost))


def _of_program(cost: ModuleCost) -> Iterator[SelectionProduct]:
    products = [
        row
        for row in cost.rows
        if row.instruction.opcode in _PRODUCTS and row.once.products and row.runs and row.place != "control"
    ]
    if not products:
        return
    flow = Flow(cost.module)
    known = patterns(flow)
    sparse: dict[int, float] = {}
    lines: dict[tuple[str, int | None, int], float] = {}
    for row in products:
        operands = row.instruction.operands[:2]
        shapes = [cost.module.computations[row.computation].by_name[name].shape for name in operands]
        density = min(
            known[flow.numbers[row.computation, name]].density(shape.dims)
            for name, shape in zip(operands, shapes, strict=True)
        )
        if 0 < density < 1:  # all of it zero: nothing is selected
            sparse[id(row)] = density
            if row.instruction.file is not None:
                place = (row.instruction.file, row.instruction.line, row.once.flops)
                lines[place] = min(density, lines.get(place, 1.0))
    for row in products:
        one = row.instruction
        place = (one.file or "", one.line, row.once.flops)
        if id(row) in sparse:
            yield SelectionProduct(cost=cost, row=row, density=sparse[id(row)])
        elif place in lines and _BACKWARD in one.op_name:
            yield SelectionProduct(cost=cost, row=row, density=lines[place])
