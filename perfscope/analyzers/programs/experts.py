"""Ragged products (one matrix a group of rows) that XLA computed as if every row met every matrix.

Without a grouped kernel XLA rewrites ``ragged_dot`` of rows [m, k] and matrices [g, k, n] into one dense
product of the rows, copied and masked for every group: ``g`` times the arithmetic. Such a factor is known
by its mask, ``select(offset[g] <= i and i < offset[g + 1], rows, 0)``, whatever the product is called (JAX's
own rewriting calls it ``dot_general``). Where a product's path says ``ragged_dot`` and the mask is not in
sight, the shapes tell the groups: the matrices' leading dimension is also one of the masked rows'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfscope.analyzers.devices import Device
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.module import Computation, Instruction
from perfscope.analyzers.hlo.program import costs, primitive
from perfscope.analyzers.hlo.roofline import roof_of
from perfscope.analyzers.hlo.views import Fusions, fusions_of, path_across
from perfscope.model.trace import Trace

RAGGED = ("ragged_dot", "ragged_dot_general")
"""Primitives of JAX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRagged:
    """A dense product that stands for a ragged one."""

    cost: ModuleCost
    row: InstructionCost
    groups: int | None
    """Matrices it multiplies every row with; None: the shapes do not tell."""
    rows_bytes: int
    """Of the copies of the rows, each time: the masked factor, else the larger one."""

    @property
    def flops(self) -> int:
        """In one run of the program."""
        return self.row.total.flops

    @property
    def wasted_flops(self) -> int:
        """Those on rows that a mask has set to zero."""
        return self.flops - self.flops // self.groups if self.groups else 0

    def saved_ns(self, kernel: InstructionCost, device: Device) -> float | None:
        """Roof of the kernel that holds it less that of a grouped one, in one run of the program.

        A grouped kernel does the arithmetic of one group a row, and reads each row once where the dense one reads its
        copies. ``None`` where the device's peak for the product, or the number of groups, is not known.
        """
        if not self.groups:
            return None
        cost = kernel.once
        copies = min(self.rows_bytes, cost.bytes_read) * (self.groups - 1) // self.groups
        grouped = replace(
            kernel,
            once=replace(
                cost,
                flops=cost.flops - self.row.once.flops * (self.groups - 1) // self.groups,
                products={kind: flops // self.groups for kind, flops in cost.products.items()},
                bytes_read=cost.bytes_read - copies,
            ),
        )
        dense, less = roof_of(kernel, device), roof_of(grouped, device)
        if dense.compute_ns is None or less.compute_ns is None:
            return None
        return max(0.0, dense.roof_ns - less.roof_ns) * kernel.runs


def dense_ragged(trace: Trace) -> tuple[DenseRagged, ...]:
    """Dense products of all programs that stand for ragged ones, in program order."""
    result = []
    for cost in trace.fact(costs):
        products = [row for row in cost.rows if _is_product(row)]
        callers = fusions_of(cost.module)
        masked = {id(row): _masked(cost, row, callers) for row in products}
        rows = [row for row in products if masked[id(row)] or primitive(row.instruction.op_name) in RAGGED]
        groups_by_line: dict[tuple[str | None, int | None], int] = {}
        for row in rows:
            groups = masked[id(row)] or _groups(cost, row, callers)
            if groups is not None:
                groups_by_line[_line(row)] = max(groups, groups_by_line.get(_line(row), 0))
        result += [
            DenseRagged(
                cost=cost, row=row, groups=groups_by_line.get(_line(row)), rows_bytes=_rows_bytes(cost, row, callers)
            )
            for row in rows
        ]
    return tuple(result)


def _is_product(row: InstructionCost) -> bool:
    return (
        row.instruction.opcode in ("dot", "convolution", "custom-call")
        and bool(row.once.products)
        and row.runs > 0
        and row.place != "control"
    )


def _rows_bytes(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> int:
    computation, names = cost.module.computations[row.computation], row.instruction.operands[:2]
    masked = [name for name in names if _groups_masking(cost, row, name, callers) is not None]
    return max(computation.by_name[name].shape.bytes for name in masked or names)


def _line(row: InstructionCost) -> tuple[str | None, int | None]:
    """Forward and backward of one product share the line; their shapes do not all tell the groups."""
    return row.instruction.file, row.instruction.line


def _groups(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> int | None:
    """The leading dimension of one factor that is a dimension of the other too, both of rank three."""
    computation = cost.module.computations[row.computation]
    shapes = [_behind(cost, computation, name, callers)[1].shape.dims for name in row.instruction.operands[:2]]
    if len(shapes) < 2:
        return None
    for matrices, rows in ((shapes[1], shapes[0]), (shapes[0], shapes[1])):
        if len(matrices) == len(rows) == 3 and matrices[0] in rows and matrices[0] > 1:
            return matrices[0]
    return None


def _masked(cost: ModuleCost, row: InstructionCost, callers: Fusions) -> int | None:
    """Groups of the mask on one of the two factors."""
    masks = (_groups_masking(cost, row, name, callers) for name in row.instruction.operands[:2])
    return next((groups for groups in masks if groups is not None), None)


def _groups_masking(cost: ModuleCost, row: InstructionCost, name: str, callers: Fusions) -> int | None:
    computation, instruction = _behind(cost, cost.module.computations[row.computation], name, callers)
    if instruction.opcode != "select" or len(instruction.operands) != 3:
        return None
    if _behind(cost, computation, instruction.operands[1], callers)[1].opcode != "broadcast":
        return None
    inside, mask = _behind(cost, computation, instruction.operands[0], callers)
    if mask.opcode == "broadcast" and mask.operands and mask.attributes.get("dimensions", "{}") != "{}":
        inside, mask = _behind(cost, inside, mask.operands[0], callers)  # on TPU a mask of groups and rows
    return _groups_of_mask(inside, mask, instruction.shape.dims)


def _groups_of_mask(computation: Computation, mask: Instruction, dims: tuple[int, ...]) -> int | None:
    """Length of the offsets that a mask compares positions with, if it is a mask of that kind."""
    if mask.opcode != "and":
        return None
    lengths = set()
    for name in mask.operands:
        compare = computation.by_name[name]
        sides = [computation.by_name[side] for side in compare.operands]
        offsets = [
            side
            for side in sides
            if side.opcode == "broadcast" and side.operands and "," not in side.attributes.get("dimensions", ",")
        ]
        if (
            compare.opcode != "compare"
            or len(sides) != 2
            or not any(side.opcode == "iota" for side in sides)
            or not offsets
        ):
            return None
        lengths.add(computation.by_name[offsets[0].operands[0]].shape.elements)
    (length,) = lengths if len(lengths) == 1 else (0,)
    return length if length > 1 and length in dims else None


def _behind(cost: ModuleCost, computation: Computation, name: str, callers: Fusions) -> tuple[Computation, Instruction]:
    """What makes a factor."""
    *_, made = path_across(cost.module, callers, computation, name)
    return made
