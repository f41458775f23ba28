"""Ragged products (one matrix a group of rows) that XLA computed as if every row met every matrix.

Without a grouped kernel XLA rewrites ``ragged_dot`` of rows [m, k] and matrices [g, k, n] into one dense
product of the rows, copied and masked for every group: ``g`` times the arithmetic. The number of groups is
told from the shapes at the forward product: the matrices' leading dimension is also one of the masked rows'.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.facts.hlo_program import costs, primitive
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.module import Computation, Instruction
from perfscope.analyzers.trace import Trace

RAGGED = ("ragged_dot", "ragged_dot_general")
"""Primitives of JAX."""

_VIEWS = frozenset({"bitcast", "copy", "transpose", "convert", "reshape"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRagged:
    """A dense product that stands for a ragged one."""

    cost: ModuleCost
    row: InstructionCost
    groups: int | None
    """Matrices it multiplies every row with; None: the shapes do not tell."""

    @property
    def flops(self) -> int:
        """In one run of the program."""
        return self.row.total.flops

    @property
    def wasted_flops(self) -> int:
        """Those on rows that a mask has set to zero."""
        return self.flops - self.flops // self.groups if self.groups else 0


def dense_ragged(trace: Trace) -> tuple[DenseRagged, ...]:
    """Dense products of all programs whose path says ``ragged_dot``, in program order."""
    found = []
    for cost in trace.fact(costs):
        rows = [row for row in cost.rows if _is_product(row)]
        if not rows:
            continue
        callers = {
            one.called[0]: (computation, one)
            for computation, one in cost.module.instructions()
            if one.opcode == "fusion" and one.called
        }
        told: dict[tuple[str | None, int | None], int] = {}
        for row in rows:
            groups = _groups(cost, row, callers)
            if groups is not None:
                told[_line(row)] = max(groups, told.get(_line(row), 0))
        found += [DenseRagged(cost=cost, row=row, groups=told.get(_line(row))) for row in rows]
    return tuple(found)


def _is_product(row: InstructionCost) -> bool:
    return (
        row.instruction.opcode in ("dot", "convolution", "custom-call")
        and bool(row.once.products)
        and row.runs > 0
        and primitive(row.instruction.op_name) in RAGGED
    )


def _line(row: InstructionCost) -> tuple[str | None, int | None]:
    """Forward and backward of one product share the line; their shapes do not all tell the groups."""
    return row.instruction.file, row.instruction.line


def _groups(cost: ModuleCost, row: InstructionCost, callers: dict[str, tuple[Computation, Instruction]]) -> int | None:
    """The leading dimension of one factor that is a dimension of the other too, both of rank three."""
    computation = cost.module.computations[row.computation]
    shapes = [_origin(computation, name, callers) for name in row.instruction.operands[:2]]
    if len(shapes) < 2:
        return None
    for matrices, rows in ((shapes[1], shapes[0]), (shapes[0], shapes[1])):
        if len(matrices) == len(rows) == 3 and matrices[0] in rows and matrices[0] > 1:
            return matrices[0]
    return None


def _origin(
    computation: Computation, name: str, callers: dict[str, tuple[Computation, Instruction]]
) -> tuple[int, ...]:
    """Dimensions of what a factor is a view of, followed out of the fusion into what feeds it."""
    one = computation.by_name[name]
    while True:
        if one.opcode in _VIEWS and one.operands:
            one = computation.by_name[one.operands[0]]
        elif one.parameter_number is not None and computation.name in callers:
            computation, caller = callers[computation.name]
            one = computation.by_name[caller.operands[one.parameter_number]]
        else:
            return one.shape.dims
