"""What is known to be zero of every value of a program (``hlo_selection``), followed across fusions and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfscope.analyzers.facts.hlo_flow import Flow, Value
from perfscope.analyzers.facts.hlo_product_axes import ProductAxes, convolution_axes, dot_axes
from perfscope.analyzers.facts.hlo_selection import (
    UNKNOWN,
    Axes,
    Pattern,
    pattern,
    positions_equal,
    product,
    regrouped,
    renumbered,
    same_values,
    shifted,
    summed,
    total,
)
from perfscope.analyzers.facts.hlo_selection_shapes import fits, in_memory
from perfscope.analyzers.hlo.cost_products import dims_of
from perfscope.analyzers.hlo.module import HloModule, Instruction, Shape

_MOST_ROUNDS = 4
"""Times a value in a loop may change: a state that only hands on settles in two, one that adds up never does."""

_SAME = frozenset({"abs", "convert", "copy", "negate", "reduce-precision", "sign", "sqrt", "tanh"})
"""Zero where the operand is; element for element."""

_CUTS = frozenset({"slice", "dynamic-slice"})

_WHOLE = frozenset({"s32", "u32", "s64", "u64"})

_SUMS = frozenset({"add", "subtract", "maximum", "minimum", "or", "xor"})
"""Zero where both operands are."""


def patterns(flow: Flow) -> Sequence[Pattern]:
    """Of every value of a program, by its number in the flow."""
    found: list[Pattern | None] = [None] * len(flow.values)
    rounds = [0] * len(flow.values)
    waiting = list(reversed(_sources_first(flow)))
    queued = [True] * len(flow.values)
    while waiting:
        number = waiting.pop()
        queued[number] = False
        value = flow.values[number]
        new = _of_value(flow, value, [found[source] for source in value.names or value.operands])
        if new is None or new == found[number]:
            continue
        if found[number] is not None:
            rounds[number] += 1
            if rounds[number] > _MOST_ROUNDS:
                if found[number] == UNKNOWN:
                    continue
                new = UNKNOWN
        found[number] = new
        for user in flow.users[number]:
            if not queued[user]:
                queued[user] = True
                waiting.append(user)
    return [UNKNOWN if one is None else one for one in found]


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
    one = value.instruction
    if one.shape.dtype == "tuple":
        return UNKNOWN
    if value.names:
        if any(flow.values[name].instruction.shape.dims != one.shape.dims for name in value.names):
            return UNKNOWN
        known = [source for source in sources if source is not None]
        return same_values(known) if known else None
    if any(source is None for source in sources):
        return None
    shapes = [value.computation.by_name[name].shape for name in one.operands]
    return _computed(flow.module, one, [source for source in sources if source is not None], shapes)


def _computed(module: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    dims, opcode = one.shape.dims, one.opcode
    if not fits(one, shapes):
        return UNKNOWN
    if opcode == "constant":
        zero = one.is_zero or one.value == 0
        return Pattern(is_zero=True, constant=frozenset(range(len(dims)))) if zero else UNKNOWN
    if opcode == "iota":
        axis = dims_of(one.attributes.get("iota_dimension", "0"))
        return pattern({}, dims, frozenset(range(len(dims))) - frozenset(axis), frozenset(axis))
    if opcode in _SAME:
        return _cast(told[0], shapes[0].dtype, one.shape.dtype) if opcode == "convert" else _kept(opcode, told[0])
    if opcode in _CUTS:
        return pattern(told[0].bounds, dims, told[0].constant, told[0].distinct) if not told[0].is_zero else told[0]
    if opcode in _SUMS:
        found = total(told[0], told[1], dims)
        if opcode in ("add", "subtract"):
            found = Pattern(
                bounds=found.bounds,
                constant=found.constant,
                distinct=shifted(told[0], told[1]),
                is_zero=found.is_zero,
            )
        return found
    rule = _RULES.get(opcode)
    return UNKNOWN if rule is None else rule(module, one, told, shapes)


def _kept(opcode: str, one: Pattern) -> Pattern:
    if opcode in ("copy", "negate"):
        return one
    return Pattern(bounds=one.bounds, constant=one.constant, is_zero=one.is_zero)


def _cast(one: Pattern, source: str, target: str) -> Pattern:
    """Positions stay apart in types that can number any axis."""
    if source in _WHOLE and target in _WHOLE:
        return one
    return Pattern(bounds=one.bounds, constant=one.constant, is_zero=one.is_zero)


def _broadcast(_: HloModule, one: Instruction, told: Sequence[Pattern], __: Sequence[Shape]) -> Pattern:
    axes = dims_of(one.attributes.get("dimensions", ""))
    return renumbered(told[0], axes, frozenset(range(len(one.shape.dims))) - frozenset(axes))


def _transpose(_: HloModule, one: Instruction, told: Sequence[Pattern], __: Sequence[Shape]) -> Pattern:
    places = dims_of(one.attributes.get("dimensions", ""))
    return renumbered(told[0], [places.index(axis) for axis in range(len(places))])


def _reshape(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    return regrouped(told[0], shapes[0].dims, one.shape.dims)


def _bitcast(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    """The same bytes: the elements in the order of the memory, major first."""
    before, after = in_memory(shapes[0]), in_memory(one.shape)
    if shapes[0].dtype != one.shape.dtype or before is None or after is None:
        return UNKNOWN
    dims, into = shapes[0].dims, one.shape.dims
    physical = renumbered(told[0], [before.index(axis) for axis in range(len(dims))])
    regrouped_ = regrouped(physical, [dims[axis] for axis in before], [into[axis] for axis in after])
    return renumbered(regrouped_, after)


def _compare(_: HloModule, one: Instruction, told: Sequence[Pattern], __: Sequence[Shape]) -> Pattern:
    if one.attributes.get("direction") != "EQ":
        return Pattern(constant=told[0].constant & told[1].constant)
    return positions_equal(told[0], told[1], one.shape.dims)


def _multiply(_: HloModule, one: Instruction, told: Sequence[Pattern], __: Sequence[Shape]) -> Pattern:
    return product(told[0], told[1], one.shape.dims)


def _divide(_: HloModule, __: Instruction, told: Sequence[Pattern], ___: Sequence[Shape]) -> Pattern:
    return Pattern(bounds=told[0].bounds, constant=told[0].constant & told[1].constant, is_zero=told[0].is_zero)


def _select(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    chosen, on_true, on_false = told
    dims = one.shape.dims
    if shapes[0].dims != dims:
        chosen = Pattern(constant=frozenset(range(len(dims))))
    if on_false.is_zero:
        return product(chosen, on_true, dims)
    either = total(on_true, on_false, dims)
    return Pattern(bounds=either.bounds, constant=either.constant & chosen.constant, is_zero=either.is_zero)


def _reduce(module: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    adds = len(told) == 2 and module.computations[one.called[0]].root.opcode in ("add", "maximum", "or")
    if not adds or not told[1].is_zero:
        return UNKNOWN
    return summed(told[0], shapes[0].dims, dims_of(one.attributes.get("dimensions", "")))


def _pad(_: HloModule, one: Instruction, told: Sequence[Pattern], __: Sequence[Shape]) -> Pattern:
    if not told[1].is_zero or "-" in one.attributes.get("padding", ""):
        return UNKNOWN
    return Pattern(is_zero=True) if told[0].is_zero else pattern(told[0].bounds, one.shape.dims)


def _concatenate(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    (along,) = dims_of(one.attributes.get("dimensions", "")) or (0,)
    known = [group for part in told for group in part.bounds]
    bounds: dict[Axes, int] = {}
    for axes in known:
        each = [part.at(axes) for part in told]
        most = [number for number in each if number is not None]
        if len(most) == len(told):
            bounds[axes] = sum(most) if along in axes else max(most)
    constant = frozenset.intersection(*(part.constant for part in told)) - {along}
    return pattern(bounds, one.shape.dims, constant) if not all(part.is_zero for part in told) else told[0]


def _update(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    """A part overwritten: bounds hold where the part covers all of their axes, else those of both add up."""
    before, part = told[0], told[1]
    dims = one.shape.dims
    bounds: dict[Axes, int] = {}
    for axes in before.bounds.keys() | part.bounds.keys():
        mine, theirs = before.at(axes), part.at(axes)
        if mine is not None and theirs is not None:
            covered = all(shapes[1].dims[axis] == dims[axis] for axis in axes)
            bounds[axes] = max(mine, theirs) if covered else mine + theirs
    return Pattern(is_zero=True) if before.is_zero and part.is_zero else pattern(bounds, dims)


def _dot(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    return _summed_product(dot_axes(one, shapes), told, shapes)


def _convolution(_: HloModule, one: Instruction, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    axes = convolution_axes(one, shapes)
    return UNKNOWN if axes is None else _summed_product(axes, told, shapes)


def _summed_product(axes: ProductAxes, told: Sequence[Pattern], shapes: Sequence[Shape]) -> Pattern:
    """The product over batch, rows, columns and contracted axes, summed over the last ones.

    Of selections with each other, and with weights (no axis of their own): what a selection picks out of data is data,
    though it may be padded with zeros.
    """
    left, right, result = axes.left, axes.right, axes.result
    rows = [name for name in left if name in result and name not in right]
    columns = [name for name in right if name in result and name not in left]
    if (rows and not told[0].bounds) or (columns and not told[1].bounds):
        return UNKNOWN
    order = [*result, *dict.fromkeys(name for name in (*left, *right) if name not in result)]
    place = {name: index for index, name in enumerate(order)}
    sizes = dict(zip((*left, *right), (*shapes[0].dims, *shapes[1].dims), strict=True))
    space = [sizes.get(name, 1) for name in order]
    every = frozenset(range(len(space)))
    mine, theirs = (
        renumbered(one, [place[name] for name in names], every - {place[name] for name in names})
        for one, names in zip(told, (left, right), strict=True)
    )
    terms = product(mine, theirs, space)
    return summed(terms, space, range(len(result), len(space)))


_RULES: Mapping[str, Callable[[HloModule, Instruction, Sequence[Pattern], Sequence[Shape]], Pattern]] = {
    "and": _multiply,
    "bitcast": _bitcast,
    "broadcast": _broadcast,
    "compare": _compare,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "divide": _divide,
    "dot": _dot,
    "dynamic-update-slice": _update,
    "multiply": _multiply,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": _reshape,
    "select": _select,
    "transpose": _transpose,
}
