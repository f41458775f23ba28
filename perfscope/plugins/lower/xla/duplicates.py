"""Values that several kernels compute: producers that XLA fused into each of their readers.

Two instructions compute the same value if they apply the same operation to the same values. Values between kernels are
known by their name, so an expression is followed to the operands of its fusion and no further.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.hlo import Computation, HloModule, Instruction, InstructionCost, control_runs
from perfscope.plugins.lower.xla.lines import Lines, phase

XLA_COPY = ".remat"
"""In names of instructions that XLA's rematerialization copied."""
LEAST_ELEMENTS = 64
"""Smallest value that counts: below are indices of slices and scales, which every kernel computes for itself."""


class Duplicate(Struct, frozen=True, kw_only=True):
    """A value that more than one kernel computes."""

    computation: Computation
    row: InstructionCost
    """The first copy."""
    kernels: tuple[str, ...]
    copies: tuple[str, ...]


def duplicates(lines: Lines) -> Iterator[Duplicate]:
    """Yield values with arithmetic that several kernels of one sequence of launches compute."""
    module = lines.module
    for name in control_runs(module):
        computation = module.computations[name]
        made: dict[tuple[int, bool], list[tuple[str, Computation, Instruction]]] = defaultdict(list)
        numbers = _Numbers(module)
        for launched in computation.instructions:
            if launched.opcode == "fusion" and launched.called and XLA_COPY not in launched.name:
                arguments = [numbers.outside(operand) for operand in launched.operands]
                for number, body, instruction in numbers.body(module.computations[launched.called[0]], arguments):
                    again = phase(instruction) == "recompute"  # a checkpoint's: `repeats.recomputed`
                    made[number, again].append((launched.name, body, instruction))
        for copies in made.values():
            kernels = tuple(dict.fromkeys(kernel for kernel, _, _ in copies))
            _, body, instruction = copies[0]
            row = lines.cost.by_name.get((body.name, instruction.name))
            if len(kernels) > 1 and row is not None and instruction.shape.elements >= LEAST_ELEMENTS:
                work = row.once.flops + row.once.transcendentals
                if work and instruction.opcode not in ("convert", "compare", "select", "fusion"):
                    yield Duplicate(
                        computation=body, row=row, kernels=kernels, copies=tuple(item.name for _, _, item in copies)
                    )


class _Numbers:
    """A number for each different expression."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._known: dict[object, int] = {}

    def outside(self, name: str) -> int:
        """Number of a value between kernels."""
        return self._number(("outside", name))

    def body(self, body: Computation, arguments: list[int]) -> Iterator[tuple[int, Computation, Instruction]]:
        """Yield the number of each instruction of a fusion, of nested ones too."""
        own: dict[str, int] = {}
        for item in body.instructions:
            if item.parameter_number is not None and item.parameter_number < len(arguments):
                own[item.name] = arguments[item.parameter_number]
                continue
            if item.opcode == "bitcast" and len(item.operands) == 1 and item.shape.layout is None:
                own[item.name] = own[item.operands[0]]
                continue
            operands = tuple(own.get(operand, -1) for operand in item.operands)
            value = item.literal or item.value if item.opcode == "constant" else None
            attributes = tuple(sorted((key, text) for key, text in item.attributes.items() if key != "sharding"))
            shape = (item.shape.dtype, item.shape.dims)
            own[item.name] = self._number((item.opcode, shape, operands, value, attributes, item.name if not operands
                                           and value is None and item.opcode != "iota" else ""))  # fmt: skip
            if item.opcode == "fusion" and item.called:
                yield from self.body(self._module.computations[item.called[0]], list(operands))
            elif item.opcode not in ("parameter", "constant"):
                yield own[item.name], body, item

    def _number(self, key: object) -> int:
        return self._known.setdefault(key, len(self._known))
