"""Matrix products that move rows: one factor is a selection, nearly all zero because it was built one-hot.

``jax.nn.one_hot`` compares positions with an index, ``iota == index``: along the compared axis at most one element is
not zero. The share of elements that may not be zero is followed from there through views, products, sums and fusions
to the factors of matrix products. It is an upper bound whatever the inputs are; 1 means that nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.devices import Device, bytes_ns
from perfscope.analyzers.graph import POINTWISE, HloProgram, Value
from perfscope.analyzers.hlo import (
    ITEM_BITS,
    Instruction,
    InstructionCost,
    ModuleCost,
    Shape,
    convolution_axes,
    costs,
    dims_of,
    dot_axes,
    roof_of,
)
from perfscope.model.trace import Trace

_BACKWARD = "transpose("
"""In the path of what JAX derives for gradients."""


class SelectionProduct(Struct, frozen=True, kw_only=True):
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
        """FLOPs on elements of the selection that may not be zero."""
        return round(self.flops * self.density)

    @property
    def wasted_flops(self) -> int:
        """FLOPs on elements that are zero by construction."""
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
        return max(0.0, roof.roof_ns * kernel.runs - bytes_ns(device, self.moved_bytes))


def selection_products(trace: Trace) -> tuple[SelectionProduct, ...]:
    """Such products of all programs, in program order."""
    return tuple(product for cost in trace.fact(costs) for product in _of_program(cost))


def _of_program(cost: ModuleCost) -> Iterator[SelectionProduct]:
    products = [row for row in cost.rows if row.is_product]
    if not products:
        return
    flow = HloProgram(cost.module)
    shares = _Shares(flow)
    sparse: dict[int, float] = {}
    lines: dict[tuple[str, int | None, int], float] = {}
    for row in products:
        density = min(shares.of(flow.numbers[row.computation, name]) for name in row.instruction.operands[:2])
        if 0 < density < 1:  # all of it zero: nothing is selected
            sparse[id(row)] = density
            if row.instruction.file is not None:
                place = (row.instruction.file, row.instruction.line, row.once.flops)
                lines[place] = min(density, lines.get(place, 1.0))
    for row in products:
        instruction = row.instruction
        place = (instruction.file or "", instruction.line, row.once.flops)
        if id(row) in sparse:
            yield SelectionProduct(cost=cost, row=row, density=sparse[id(row)])
        elif place in lines and _BACKWARD in instruction.op_name:
            yield SelectionProduct(cost=cost, row=row, density=lines[place])


# The share of a value's elements that may not be zero.


_SAME = frozenset({
    "abs", "broadcast", "convert", "copy", "divide", "negate", "reduce-precision", "sign", "sqrt", "tanh",
    "transpose",
})  # fmt: skip
"""Opcodes whose result has the share of their first operand."""

_MOST_STEPS = 64
"""Views between a comparison and its positions: deeper than programs are."""


class _Shares:
    """Shares of the values of one program, computed when they are needed."""

    def __init__(self, flow: HloProgram) -> None:
        self._flow = flow
        self._known: dict[int, float] = {}

    def of(self, number: int) -> float:
        """Share of a value; 1 for a value that depends on itself in a loop."""
        waiting = [(number, False)]
        while waiting:
            current, sources_known = waiting.pop()
            if sources_known:
                self._known[current] = min(1.0, _share(self, self._flow, self._flow.nodes[current]))
            elif current not in self._known:
                self._known[current] = 1.0
                waiting.append((current, True))
                waiting += [(source, False) for source in _sources(self._flow, current)]
        return self._known[number]

    def __getitem__(self, number: int) -> float:
        return self._known.get(number, 1.0)


def _sources(flow: HloProgram, number: int) -> list[int]:
    value = flow.nodes[number]
    return [source for source in (value.names or value.reads) if source != number]


def _share(shares: _Shares, flow: HloProgram, value: Value) -> float:
    """Share of a value from those of its sources."""
    instruction, number = value.instruction, flow.numbers[value.computation.name, value.instruction.name]
    if instruction.shape.dtype == "tuple":
        return 1.0
    known = [shares[source] for source in _sources(flow, number)]
    if value.names:
        alike = all(flow.nodes[name].instruction.shape.dims == instruction.shape.dims for name in value.names)
        return max(known, default=1.0) if alike else 1.0
    shapes = [value.computation.by_name[name].shape for name in instruction.operands]
    match instruction.opcode:
        case "compare":
            return _one_hot(flow, value)
        case "constant":
            return 0.0 if instruction.is_zero or instruction.value == 0 else 1.0
        case opcode if opcode in _SAME and known:
            return known[0]
        case "bitcast" if shapes and _in_memory(instruction.shape) and _in_memory(shapes[0]):
            return known[0] if instruction.shape.elements == shapes[0].elements else 1.0
        case "slice" | "dynamic-slice" if known:  # all that is not zero may be in the part
            return known[0] * shapes[0].elements / max(1, instruction.shape.elements)
        case "multiply" | "and" if len(known) == 2:
            return min(known)
        case "add" | "maximum" | "or" | "subtract" if len(known) == 2:
            return sum(known)
        case "select" if len(known) == 3:
            return min(known[:2]) if known[2] == 0 else known[1] + known[2]
        case "reduce" if len(known) == 2 and known[1] == 0:
            adds = flow.module.computations[instruction.called[0]].root.opcode in ("add", "maximum", "or")
            return known[0] * shapes[0].elements / max(1, instruction.shape.elements) if adds else 1.0
        case "dot" | "convolution" if len(known) == 2:
            return _product_share(instruction, shapes, known)
    return 1.0


def _product_share(instruction: Instruction, shapes: list[Shape], known: list[float]) -> float:
    """Return the share of a product of two selections, or of a selection and weights without additional axes."""
    axes = dot_axes(instruction, shapes) if instruction.opcode == "dot" else None
    axes = axes or convolution_axes(instruction, shapes)
    if axes is None:
        return 1.0
    sides = ((axes.left, axes.right), (axes.right, axes.left))
    for (mine, theirs), share in zip(sides, known, strict=True):
        if share == 1 and any(name in axes.result and name not in theirs for name in mine):
            return 1.0  # rows that a selection picks out of data are data
    sizes = dict(zip((*axes.left, *axes.right), (*shapes[0].dims, *shapes[1].dims), strict=False))
    return min(known) * math.prod(size for name, size in sizes.items() if name not in axes.result)


def _one_hot(flow: HloProgram, value: Value) -> float:
    """``positions == index``: one element at most along the axis of the positions, where the index is the same."""
    if value.instruction.attributes.get("direction") != "EQ" or len(value.reads) != 2:
        return 1.0
    for positions, index in (value.reads, value.reads[::-1]):
        axis = _axis_of_positions(flow, positions)
        if axis is not None and axis < len(value.instruction.shape.dims) and _is_same_along(flow, index, axis):
            return 1 / max(1, value.instruction.shape.dims[axis])
    return 1.0


def _axis_of_positions(flow: HloProgram, number: int, steps: int = _MOST_STEPS) -> int | None:
    """Axis along which a value counts; ``None``: it holds no positions."""
    value = flow.nodes[number]
    instruction, sources = value.instruction, _sources(flow, number)
    if instruction.opcode == "iota" and not value.names:
        axis = next(iter(dims_of(instruction.attributes.get("iota_dimension", "0"))), 0)
        return axis if axis < len(instruction.shape.dims) else None
    if not steps or not sources:
        return None
    if value.names or instruction.opcode in ("convert", "copy", "broadcast", "bitcast"):
        found = {_axis_of_positions(flow, source, steps - 1) for source in sources}
        inner = found.pop() if len(found) == 1 else None
        if inner is None or value.names:
            return inner
        return _axes(flow.nodes[sources[0]].instruction.shape, instruction).get(inner)
    return None


def _is_same_along(flow: HloProgram, number: int, axis: int, steps: int = _MOST_STEPS) -> bool:
    """Whether all elements of a value along an axis are the same."""
    value = flow.nodes[number]
    instruction, sources = value.instruction, _sources(flow, number)
    dims = instruction.shape.dims
    if axis >= len(dims) or not steps:
        return False
    if dims[axis] == 1:
        return True
    if value.names or (instruction.opcode in POINTWISE and instruction.opcode not in ("broadcast", "bitcast")):
        alike = all(flow.nodes[source].instruction.shape.dims == dims for source in sources)
        return bool(sources) and alike and all(_is_same_along(flow, source, axis, steps - 1) for source in sources)
    if instruction.opcode in ("broadcast", "bitcast") and len(sources) == 1:
        axes = _axes(flow.nodes[sources[0]].instruction.shape, instruction)
        inner = next((before for before, after in axes.items() if after == axis), None)
        if inner is not None:
            return _is_same_along(flow, sources[0], inner, steps - 1)
        return instruction.opcode == "broadcast" and len(axes) == len(flow.nodes[sources[0]].instruction.shape.dims)
    return False


def _axes(before: Shape, instruction: Instruction) -> dict[int, int]:
    """Axis of the operand -> axis of the result, where an instruction only moves axes and adds those of size 1."""
    after = instruction.shape
    if instruction.opcode == "broadcast":
        axes = dims_of(instruction.attributes.get("dimensions", ""))
        fits = len(set(axes)) == len(before.dims) and max(axes, default=0) < max(1, len(after.dims))
        fits = fits and tuple(after.dims[axis] for axis in axes) == before.dims
        return dict(enumerate(axes)) if fits else {}
    mine, theirs = (
        [axis for axis in _in_memory(shape) if shape.dims[axis] > 1] if instruction.opcode == "bitcast"
        else list(range(len(shape.dims))) for shape in (before, after)
    )  # fmt: skip
    fits = [before.dims[axis] for axis in mine] == [after.dims[axis] for axis in theirs]
    return dict(zip(mine, theirs, strict=True)) if fits else {}


def _in_memory(shape: Shape) -> tuple[int, ...]:
    """Axes of an array in the order of memory, major first."""
    order = tuple(range(len(shape.dims))) if shape.layout is None else tuple(reversed(shape.layout))
    return order if sorted(order) == list(range(len(shape.dims))) else ()
