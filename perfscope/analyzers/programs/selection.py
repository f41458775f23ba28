"""Arrays of a program that are nearly all zero by construction: one-hot matrices and what is made of them.

``jax.nn.one_hot`` compares positions with an index, ``iota == index``: along the compared axis at most one element is
not zero. Products, sums over few terms and views of such an array keep a bound like it. What is known of an array here
holds whatever its inputs are; an array without a known bound may still be sparse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.roofline import bytes_ns
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.cost.products import dims_of
from perfscope.analyzers.hlo.flow import Flow, Value
from perfscope.analyzers.hlo.module import ITEM_BITS, HloModule, Instruction, Shape
from perfscope.analyzers.hlo.products import convolution_axes, dot_axes
from perfscope.analyzers.hlo.program import costs
from perfscope.analyzers.hlo.roofline import roof_of
from perfscope.model.trace import Trace

Axes = frozenset[int]

NO_AXES: Axes = frozenset()

_MOST_BOUNDS = 8
"""Kept of an array: products of arrays with many axes multiply them."""


class Pattern(Struct, frozen=True, kw_only=True):
    """What is known of an array for any input. The default knows nothing."""

    bounds: Mapping[Axes, int] = field(default_factory=dict)
    """Axes -> most elements that are not zero over these axes together, for each position on the others."""
    constant: Axes = NO_AXES
    """Axes along which all elements are the same."""
    distinct: Axes = NO_AXES
    """Axes along which all elements differ (positions)."""
    is_zero: bool = False
    """All elements are zero."""

    def density(self, dims: Sequence[int]) -> float:
        """Most of the elements that are not zero, as a share of all; 1 where nothing is known."""
        if self.is_zero:
            return 0.0
        return min((most / _size(axes, dims) for axes, most in self.bounds.items()), default=1.0)

    def at(self, axes: Axes) -> int | None:
        """The bound over exactly these axes."""
        return 0 if self.is_zero else self.bounds.get(axes)


UNKNOWN = Pattern()


def _size(axes: Iterable[int], dims: Sequence[int]) -> int:
    return math.prod(dims[axis] for axis in axes)


def pattern(
    bounds: Mapping[Axes, int], dims: Sequence[int], constant: Axes = NO_AXES, distinct: Axes = NO_AXES
) -> Pattern:
    """A pattern of an array of these dimensions, without bounds that say nothing; the tightest of too many."""
    useful = {axes: most for axes, most in bounds.items() if most < _size(axes, dims)}
    if len(useful) > _MOST_BOUNDS:
        tightest = sorted(useful, key=lambda axes: (useful[axes] / _size(axes, dims), len(axes), sorted(axes)))
        useful = {axes: useful[axes] for axes in tightest[:_MOST_BOUNDS]}
    return Pattern(bounds=useful, constant=constant, distinct=distinct)


def same_values(patterns: Sequence[Pattern]) -> Pattern:
    """What holds of an array that is one of several: of a loop's state what goes in, or what an iteration returns."""
    first, *others = patterns
    for other in others:
        if first == other:
            continue
        bounds = {}
        for axes in first.bounds.keys() | other.bounds.keys():
            mine, theirs = first.at(axes), other.at(axes)
            if mine is not None and theirs is not None:
                bounds[axes] = max(mine, theirs)
        first = Pattern(
            bounds=bounds,
            constant=first.constant & other.constant,
            distinct=first.distinct & other.distinct,
            is_zero=first.is_zero and other.is_zero,
        )
    return first


def positions_equal(left: Pattern, right: Pattern, dims: Sequence[int]) -> Pattern:
    """``left == right``: where one counts along an axis and the other stays the same, they meet once at most."""
    axes = (left.distinct & right.constant) | (right.distinct & left.constant)
    return pattern({frozenset({axis}): 1 for axis in axes}, dims, left.constant & right.constant)


def product(left: Pattern, right: Pattern, dims: Sequence[int]) -> Pattern:
    """``left * right``: zero where either is."""
    if left.is_zero or right.is_zero:
        return Pattern(is_zero=True, constant=frozenset(range(len(dims))))
    bounds: dict[Axes, int] = {}

    def tell(axes: Axes, most: int) -> None:
        bounds[axes] = min(most, bounds.get(axes, most))

    for factor in (left, right):
        for axes, most in factor.bounds.items():
            tell(axes, most)
    for mine, most in left.bounds.items():
        for theirs, more in right.bounds.items():
            # where the one does not depend on the other's axes, the positions of both combine
            if not mine & theirs and (theirs <= left.constant or mine <= right.constant):
                tell(mine | theirs, most * more)
    return pattern(bounds, dims, left.constant & right.constant)


def total(left: Pattern, right: Pattern, dims: Sequence[int]) -> Pattern:
    """``left + right``, or another operation that is zero where both are."""
    if left.is_zero or right.is_zero:
        other = right if left.is_zero else left
        return Pattern(bounds=other.bounds, constant=left.constant & right.constant, is_zero=other.is_zero)
    bounds = {axes: most + right.bounds[axes] for axes, most in left.bounds.items() if axes in right.bounds}
    return pattern(bounds, dims, left.constant & right.constant)


def summed(source: Pattern, dims: Sequence[int], axes: Iterable[int]) -> Pattern:
    """The sum over axes: as many positions as its terms have together. The other axes are renumbered."""
    gone = frozenset(axes)
    kept = [axis for axis in range(len(dims)) if axis not in gone]
    if source.is_zero:
        return Pattern(is_zero=True, constant=frozenset(range(len(kept))))
    number = {axis: index for index, axis in enumerate(kept)}
    bounds: dict[Axes, int] = {}
    for mine, most in source.bounds.items():
        if mine <= gone:
            continue
        left = frozenset(number[axis] for axis in mine - gone)
        most *= _size(gone - mine, dims)
        bounds[left] = min(most, bounds.get(left, most))
    return pattern(
        bounds, [dims[axis] for axis in kept], frozenset(number[axis] for axis in kept if axis in source.constant)
    )


def renumbered(pattern: Pattern, axes: Sequence[int], more: Axes = NO_AXES) -> Pattern:
    """The same with axis ``i`` called ``axes[i]``, the same values along the axes ``more``."""

    def named(group: Axes) -> Axes:
        return frozenset(axes[axis] for axis in group)

    return Pattern(
        bounds={named(group): most for group, most in pattern.bounds.items()},
        constant=named(pattern.constant) | more,
        distinct=named(pattern.distinct),
        is_zero=pattern.is_zero,
    )


def regrouped(source: Pattern, dims: Sequence[int], into: Sequence[int]) -> Pattern:
    """The same elements in the same order as an array of other dimensions."""
    if source.is_zero:
        return Pattern(is_zero=True, constant=frozenset(range(len(into))))
    groups = _groups(dims, into)
    ones = frozenset(axis for axis, size in enumerate(into) if size == 1)
    bounds: dict[Axes, int] = {}
    for axes, most in source.bounds.items():
        left: set[int] = set()
        for mine, theirs in groups:
            touched = axes & mine
            if touched:
                # part of a group that became one axis: over all of the group
                most *= _size(mine - axes, dims)
                left |= theirs
        left -= ones
        if left:
            bounds[frozenset(left)] = min(most, bounds.get(frozenset(left), most))
    constant, distinct = set(ones), set[int]()
    for mine, theirs in groups:
        real = {axis for axis in mine if dims[axis] > 1}
        if real <= source.constant:
            constant |= theirs
        if len(real) == 1 and real <= source.distinct:
            distinct |= theirs - ones
    return pattern(bounds, into, frozenset(constant), frozenset(distinct))


def _groups(dims: Sequence[int], into: Sequence[int]) -> list[tuple[Axes, Axes]]:
    """The smallest groups of axes next to one another that hold the same elements before and after."""
    if math.prod(dims) != math.prod(into) or not math.prod(dims):
        return []
    before = [axis for axis, size in enumerate(dims) if size > 1]
    after = [axis for axis, size in enumerate(into) if size > 1]
    result = []
    i = j = 0
    while i < len(before):
        mine, theirs = [before[i]], [after[j]]
        while _size(mine, dims) != _size(theirs, into):
            if _size(mine, dims) < _size(theirs, into):
                mine.append(before[i + len(mine)])
            else:
                theirs.append(after[j + len(theirs)])
        i, j = i + len(mine), j + len(theirs)
        result.append((frozenset(mine), frozenset(theirs)))
    return result


# What is known to be zero of every value of a program, followed across fusions and loops.


_MOST_ROUNDS = 4
"""Times a value in a loop may change: a state that only hands on settles in two, one that adds up never does."""

_POSITIONS = frozenset({"s32", "u32", "s64", "u64"})
"""Types that can number any axis: positions stay apart in a cast between them."""


def patterns(flow: Flow) -> Sequence[Pattern]:
    """Of every value of a program, by its number in the flow."""
    result: list[Pattern | None] = [None] * len(flow.values)
    rounds = [0] * len(flow.values)
    waiting = list(reversed(_sources_first(flow)))
    queued = [True] * len(flow.values)
    while waiting:
        number = waiting.pop()
        queued[number] = False
        value = flow.values[number]
        new = _of_value(flow, value, [result[source] for source in value.names or value.operands])
        if new is None or new == result[number]:
            continue
        if result[number] is not None:
            rounds[number] += 1
            if rounds[number] > _MOST_ROUNDS:
                if result[number] == UNKNOWN:
                    continue
                new = UNKNOWN
        result[number] = new
        for user in flow.users[number]:
            if not queued[user]:
                queued[user] = True
                waiting.append(user)
    return [UNKNOWN if pattern is None else pattern for pattern in result]


def _sources_first(flow: Flow) -> list[int]:
    """All values, each after what it comes from where no loop forbids it."""
    order: list[int] = []
    seen = [False] * len(flow.values)
    for first in range(len(flow.values)):
        waiting = [(first, False)]
        while waiting:
            number, done = waiting.pop()
            if done:
                order.append(number)
            elif not seen[number]:
                seen[number] = True
                waiting.append((number, True))
                value = flow.values[number]
                waiting.extend((source, False) for source in value.names or value.operands if not seen[source])
    return order


def _of_value(flow: Flow, value: Value, sources: Sequence[Pattern | None]) -> Pattern | None:
    """``None``: nothing can be said before more is known of its sources."""
    instruction = value.instruction
    if instruction.shape.dtype == "tuple":
        return UNKNOWN
    known = [source for source in sources if source is not None]
    if value.names:
        if any(flow.values[name].instruction.shape.dims != instruction.shape.dims for name in value.names):
            return UNKNOWN
        return same_values(known) if known else None
    if len(known) < len(sources):
        return None
    rule = _RULES.get(instruction.opcode)
    shapes = [value.computation.by_name[name].shape for name in instruction.operands]
    try:
        return UNKNOWN if rule is None else rule(_Op(flow.module, instruction, known, shapes))
    except (IndexError, ValueError):  # operands, axes and result do not belong together: a file may say anything
        return UNKNOWN


class _Op(Struct, frozen=True):
    """An instruction with what is known of its operands. Rules raise errors where its parts do not belong together."""

    module: HloModule
    instruction: Instruction
    inputs: Sequence[Pattern]
    shapes: Sequence[Shape]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.instruction.shape.dims

    @property
    def axes(self) -> tuple[int, ...]:
        return dims_of(self.instruction.attributes.get("dimensions", ""))

    def alike(self, count: int) -> Sequence[Pattern]:
        """The ``count`` operands of an op that works element for element."""
        _require(len(self.shapes) == count and all(shape.dims == self.dims for shape in self.shapes))
        return self.inputs


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("the parts of an instruction do not belong together")


def _constant(op: _Op) -> Pattern:
    zero = op.instruction.is_zero or op.instruction.value == 0
    return Pattern(is_zero=True, constant=frozenset(range(len(op.dims)))) if zero else UNKNOWN


def _iota(op: _Op) -> Pattern:
    axis = frozenset(dims_of(op.instruction.attributes.get("iota_dimension", "0")))
    every = frozenset(range(len(op.dims)))
    _require(axis <= every)
    return Pattern(constant=every - axis, distinct=axis)


def _same(op: _Op) -> Pattern:
    """Zero where the operand is; element for element."""
    (source,) = op.alike(1)
    types = {op.shapes[0].dtype, op.instruction.shape.dtype}
    distinct = op.instruction.opcode == "copy" or (op.instruction.opcode == "convert" and types <= _POSITIONS)
    return source if distinct else replace(source, distinct=NO_AXES)


def _cut(op: _Op) -> Pattern:
    source = op.inputs[0]
    _require(len(op.shapes[0].dims) == len(op.dims))
    return source if source.is_zero else pattern(source.bounds, op.dims, source.constant, source.distinct)


def _broadcast(op: _Op) -> Pattern:
    axes, every = op.axes, frozenset(range(len(op.dims)))
    _require(len(set(axes)) == len(axes) and tuple(op.dims[axis] for axis in axes) == op.shapes[0].dims)
    return renumbered(op.inputs[0], axes, every - frozenset(axes))


def _transpose(op: _Op) -> Pattern:
    axes = op.axes
    _require(sorted(axes) == list(range(len(axes))) and tuple(op.shapes[0].dims[axis] for axis in axes) == op.dims)
    return renumbered(op.inputs[0], [axes.index(axis) for axis in range(len(axes))])


def _bitcast(op: _Op) -> Pattern:
    """The same bytes: the elements in the order of the memory, major first."""
    (shape,) = op.shapes
    before, after = _in_memory(shape), _in_memory(op.instruction.shape)
    _require(shape.dtype == op.instruction.shape.dtype)
    physical = renumbered(op.inputs[0], [before.index(axis) for axis in range(len(shape.dims))])
    return renumbered(
        regrouped(physical, [shape.dims[axis] for axis in before], [op.dims[axis] for axis in after]), after
    )


def _in_memory(shape: Shape) -> tuple[int, ...]:
    """Axes of an array as they lie in memory, major first."""
    order = tuple(range(len(shape.dims))) if shape.layout is None else tuple(reversed(shape.layout))
    _require(sorted(order) == list(range(len(shape.dims))))
    return order


def _compare(op: _Op) -> Pattern:
    left, right = op.alike(2)
    if op.instruction.attributes.get("direction") != "EQ":
        return Pattern(constant=left.constant & right.constant)
    return positions_equal(left, right, op.dims)


def _multiply(op: _Op) -> Pattern:
    left, right = op.alike(2)
    return product(left, right, op.dims)


def _divide(op: _Op) -> Pattern:
    left, right = op.alike(2)
    return replace(left, constant=left.constant & right.constant, distinct=NO_AXES)


def _add(op: _Op) -> Pattern:
    left, right = op.alike(2)
    return total(left, right, op.dims)


def _select(op: _Op) -> Pattern:
    chosen, on_true, on_false = op.inputs
    _require(op.shapes[0].dims in ((), op.dims) and op.shapes[1].dims == op.shapes[2].dims == op.dims)
    if op.shapes[0].dims != op.dims:
        chosen = Pattern(constant=frozenset(range(len(op.dims))))
    if on_false.is_zero:
        return product(chosen, on_true, op.dims)
    either = total(on_true, on_false, op.dims)
    return replace(either, constant=either.constant & chosen.constant)


def _reduce(op: _Op) -> Pattern:
    source, start = op.inputs
    dims, axes = op.shapes[0].dims, op.axes
    _require(tuple(size for axis, size in enumerate(dims) if axis not in axes) == op.dims)
    adds = op.module.computations[op.instruction.called[0]].root.opcode in ("add", "maximum", "or")
    return summed(source, dims, axes) if adds and start.is_zero else UNKNOWN


def _concatenate(op: _Op) -> Pattern:
    (along,) = op.axes
    _require(all(len(shape.dims) == len(op.dims) for shape in op.shapes))
    bounds: dict[Axes, int] = {}
    for axes in {group for part in op.inputs for group in part.bounds}:
        most = [part.at(axes) for part in op.inputs]
        known = [number for number in most if number is not None]
        if len(known) == len(most):
            bounds[axes] = sum(known) if along in axes else max(known)
    constant = frozenset.intersection(*(part.constant for part in op.inputs)) - {along}
    return pattern(bounds, op.dims, constant) if not all(part.is_zero for part in op.inputs) else op.inputs[0]


def _update(op: _Op) -> Pattern:
    """A part overwritten: bounds hold where the part covers all of their axes, else those of both add up."""
    before, part = op.inputs[:2]
    _require(len(op.shapes[0].dims) == len(op.shapes[1].dims) == len(op.dims))
    bounds: dict[Axes, int] = {}
    for axes in before.bounds.keys() | part.bounds.keys():
        mine, theirs = before.at(axes), part.at(axes)
        if mine is not None and theirs is not None:
            covered = all(op.shapes[1].dims[axis] == op.dims[axis] for axis in axes)
            bounds[axes] = max(mine, theirs) if covered else mine + theirs
    return Pattern(is_zero=True) if before.is_zero and part.is_zero else pattern(bounds, op.dims)


def _matrix_product(op: _Op) -> Pattern:
    """The product over batch, rows, columns and contracted axes, summed over the last ones.

    Of selections with each other, and with weights (no axis of their own): what a selection picks out of data is data,
    though it may be padded with zeros.
    """
    axes = dot_axes(op.instruction, op.shapes) if op.instruction.opcode == "dot" else None
    axes = axes or convolution_axes(op.instruction, op.shapes)
    if axes is None:
        return UNKNOWN
    left, right, result = axes.left, axes.right, axes.result
    rows = [name for name in left if name in result and name not in right]
    columns = [name for name in right if name in result and name not in left]
    if (rows and not op.inputs[0].bounds) or (columns and not op.inputs[1].bounds):
        return UNKNOWN
    order = [*result, *dict.fromkeys(name for name in (*left, *right) if name not in result)]
    index = {name: index for index, name in enumerate(order)}
    sizes: dict[int, int] = {}
    for name, size in zip((*left, *right), (*op.shapes[0].dims, *op.shapes[1].dims), strict=True):
        _require(sizes.setdefault(name, size) == size)
    space = [sizes.get(name, 1) for name in order]
    _require(tuple(space[: len(result)]) == op.dims)
    every = frozenset(range(len(space)))
    mine, theirs = (
        renumbered(pattern, [index[name] for name in names], every - {index[name] for name in names})
        for pattern, names in zip(op.inputs, (left, right), strict=True)
    )
    return summed(product(mine, theirs, space), space, range(len(result), len(space)))


_RULES: Mapping[str, Callable[[_Op], Pattern]] = {
    **dict.fromkeys(("abs", "convert", "copy", "negate", "reduce-precision", "sign", "sqrt", "tanh"), _same),
    **dict.fromkeys(("add", "maximum", "or", "subtract"), _add),
    **dict.fromkeys(("and", "multiply"), _multiply),
    **dict.fromkeys(("convolution", "dot"), _matrix_product),
    **dict.fromkeys(("dynamic-slice", "slice"), _cut),
    "bitcast": _bitcast,
    "broadcast": _broadcast,
    "compare": _compare,
    "concatenate": _concatenate,
    "constant": _constant,
    "divide": _divide,
    "dynamic-update-slice": _update,
    "iota": _iota,
    "reduce": _reduce,
    "select": _select,
    "transpose": _transpose,
}


# Matrix products that move rows: one factor is a selection, nearly all zero because it was built one-hot.
#
# What such a product multiplies with zeros is wasted; what is left is one row read and written for each element of the
# selection that may not be zero (at most ``density`` of them). The gradient of a weighted selection is a product of the
# same size whose result is needed only there: it stands on the same line, without a selection among its factors.


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
        return max(0.0, roof.roof_ns * kernel.runs - bytes_ns(device, self.moved_bytes))


def selection_products(trace: Trace) -> tuple[SelectionProduct, ...]:
    """Such products of all programs, in program order."""
    return tuple(product for cost in trace.fact(costs) for product in _of_program(cost))


def _of_program(cost: ModuleCost) -> Iterator[SelectionProduct]:
    products = [row for row in cost.rows if row.is_product]
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
        instruction = row.instruction
        place = (instruction.file or "", instruction.line, row.once.flops)
        if id(row) in sparse:
            yield SelectionProduct(cost=cost, row=row, density=sparse[id(row)])
        elif place in lines and _BACKWARD in instruction.op_name:
            yield SelectionProduct(cost=cost, row=row, density=lines[place])
