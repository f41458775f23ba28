"""Bytes that a fusion reads and writes: the parts of each operand that its body needs, and the overwritten parts.

Demand is propagated from the body's results back to its parameters. An elementwise op needs the same elements of its
operands, a slice or gather only those it yields, through any bitcasts, tuples or copies. A ``dynamic-update-slice`` or
``scatter`` whose operand is a parameter and whose value is a result (through bitcasts and further updates) works in
place: it touches only its updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct, field

from perfscope.analyzers.hlo.module import Computation, Instruction, Shape
from perfscope.analyzers.hlo.views import SAME_BUFFER, UPDATES, path

_WHOLE = frozenset(
    {
        "convolution", "custom-call", "cholesky", "dot", "fft", "ragged-dot", "reduce-window", "scaled-dot",
        "select-and-scatter", "sort", "topk", "triangular-solve", "while", "call", "conditional", "map", "fusion",
    }
)  # fmt: skip
"""Opcodes that need all of their operands for any part of their result."""


class BodyTraffic(Struct, frozen=True, kw_only=True):
    """Elements that a fusion's body touches in memory, each once."""

    read: tuple[tuple[int, ...], ...]
    """By parameter number: elements read of each array in it (one array, unless the parameter is a tuple)."""
    written: tuple[int, ...]
    """By result array: elements written. For a result that is updated in place, the updates."""


class _Demand(Struct):
    """Elements needed of each value of a body, by array of the value."""

    body: Computation
    arrays: Mapping[str, Sequence[Shape]]
    elements: dict[str, list[int]] = field(default_factory=dict)
    by_slice: dict[tuple[str, tuple[str, ...], str], int] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)

    def of(self, name: str) -> list[int]:
        demanded = self.elements.get(name)
        if demanded is None:
            demanded = self.elements[name] = [0] * len(self.arrays[name])
        return demanded

    def start(self, name: str, part: int) -> int:
        """Return the index of a tuple part's first array among all arrays of the tuple."""
        starts = self.starts.get(name)
        if starts is None:
            lengths = (len(arrays_of(part)) for part in self.body.by_name[name].shape.parts)
            starts = self.starts[name] = list(accumulate(lengths, initial=0))
        return starts[part] if part < len(starts) else starts[-1]

    def add(self, name: str, elements: int, array: int = 0) -> None:
        """Add to the needed elements of a value, at most all of it."""
        demanded, arrays = self.of(name), self.arrays[name]
        if array < len(arrays):
            demanded[array] = min(arrays[array].elements, demanded[array] + elements)

    def add_all(self, name: str) -> None:
        self.elements[name] = [array.elements for array in self.arrays[name]]

    def add_slice(self, name: str, elements: int, at: tuple[str, ...], extent: str) -> None:
        """Add a slice; a slice that is needed twice is read once."""
        key = (name, at, extent)
        before = self.by_slice.get(key, 0)
        if elements > before:
            self.by_slice[key] = elements
            self.add(name, elements - before)


def arrays_of(shape: Shape) -> tuple[Shape, ...]:
    """Return the arrays of a value, in order, including nested tuples."""
    if shape.dtype != "tuple":
        return (shape,)
    return tuple(array for part in shape.parts for array in arrays_of(part))


def body_traffic(body: Computation, nested: Mapping[str, BodyTraffic]) -> BodyTraffic:
    """Return the traffic of a fusion's body; ``nested``: that of the fusions inside it. Linear in the body's size."""
    arrays = {instruction.name: arrays_of(instruction.shape) for instruction in body.instructions}
    demand = _Demand(body, arrays)
    in_place: set[str] = set()
    computed: set[str] = set()
    written = []
    for name, array in _results(body):
        updates = _updates_in_place(body, name, arrays, in_place, computed)
        whole = arrays[name][array].elements if array < len(arrays[name]) else 0
        written.append(whole if updates is None else min(whole, updates))
    demand.add_all(body.root.name)
    for instruction in reversed(body.instructions):
        demanded = demand.elements.get(instruction.name)
        # an update in place takes place even if the next one needs none of its result
        if instruction.name in in_place or (demanded is not None and any(demanded)):
            _pass_on(instruction, demand.of(instruction.name), demand, in_place, nested)
    parameters = sorted(
        (instruction for instruction in body.instructions if instruction.parameter_number is not None),
        key=lambda instruction: instruction.parameter_number or 0,
    )
    return BodyTraffic(read=tuple(tuple(demand.of(parameter.name)) for parameter in parameters), written=tuple(written))


def _pass_on(
    instruction: Instruction,
    demanded: list[int],
    demand: _Demand,
    in_place: set[str],
    nested: Mapping[str, BodyTraffic],
) -> None:
    """Propagate an instruction's needed elements to its operands."""
    operands, opcode = instruction.operands, instruction.opcode
    if not operands or not demanded:  # a damaged program may have a result without arrays
        return
    wanted = demanded[0]
    if opcode == "tuple":
        index = 0
        for operand in operands:
            for array in range(len(demand.arrays[operand])):
                demand.add(operand, demanded[index] if index < len(demanded) else 0, array)
                index += 1
    elif opcode == "get-tuple-element":
        _element_of(instruction, demanded, demand)
    elif opcode in ("slice", "dynamic-slice"):
        extent = instruction.attributes.get("slice") or instruction.attributes.get("dynamic_slice_sizes", "")
        demand.add_slice(operands[0], wanted, operands[1:], extent)
        _all_of(operands[1:], demand)
    elif opcode == "gather":
        demand.add_slice(operands[0], wanted, operands[1:], instruction.attributes.get("slice_sizes", ""))
        _all_of(operands[1:], demand)
    elif _updates(instruction, demand.arrays):
        _update(instruction, demanded, demand, in_place)
    elif opcode in ("broadcast", "concatenate", "pad"):
        for operand in operands:
            demand.add(operand, wanted)
    elif opcode == "fusion" and instruction.called and (inner := nested.get(instruction.called[0])) is not None:
        for operand, elements in zip(operands, inner.read, strict=False):
            for array, count in enumerate(elements):
                demand.add(operand, count, array)
    elif opcode in _WHOLE:
        _all_of(operands, demand)
    else:
        # elementwise, reduction or pointwise: the same share of operand and result
        result = demand.arrays[instruction.name][0].elements
        for operand in operands:
            for array, shape in enumerate(demand.arrays[operand]):
                demand.add(operand, -(-shape.elements * wanted // result) if result else 0, array)


def _element_of(instruction: Instruction, demanded: list[int], demand: _Demand) -> None:
    operand = instruction.operands[0]
    index = instruction.attributes.get("index", "")
    if not index.isdecimal() or len(index) > 9:
        demand.add_all(operand)
        return
    begin = demand.start(operand, int(index))
    for array, elements in enumerate(demanded):
        demand.add(operand, elements, begin + array)


def _updates(instruction: Instruction, arrays: Mapping[str, Sequence[Shape]]) -> bool:
    """Whether it updates a buffer with an array, with all required operands."""
    operands = instruction.operands
    if instruction.opcode == "dynamic-update-slice":
        return len(operands) > 1 and bool(arrays[operands[1]])
    return instruction.opcode == "scatter" and len(operands) > 2 and all(arrays[operand] for operand in operands)


def _update(instruction: Instruction, demanded: list[int], demand: _Demand, in_place: set[str]) -> None:
    operands = instruction.operands
    if instruction.opcode == "dynamic-update-slice":
        targets, updates, places = operands[:1], operands[1:2], operands[2:]
    else:
        sets = len(operands) // 2
        targets, updates, places = operands[:sets], operands[sets + 1 :], operands[sets : sets + 1]
    _all_of((*updates, *places), demand)
    for array, (target, update) in enumerate(zip(targets, updates, strict=False)):
        touched = demand.arrays[update][0].elements
        if instruction.name not in in_place:
            kept = 0 if instruction.opcode == "scatter" else touched
            demand.add(target, max(0, demanded[min(array, len(demanded) - 1)] - kept))
        elif instruction.opcode == "scatter":
            demand.add(target, touched)  # combined with the old value


def _all_of(operands: Sequence[str], demand: _Demand) -> None:
    for operand in operands:
        demand.add_all(operand)


def _results(body: Computation) -> list[tuple[str, int]]:
    """Return the arrays that a body yields, as (value, array in it), through its root tuple."""
    root = body.root
    if root.opcode != "tuple":
        return [(root.name, array) for array in range(len(arrays_of(root.shape)))]
    result: list[tuple[str, int]] = []
    for operand in root.operands:
        result.extend((operand, array) for array in range(len(arrays_of(body.by_name[operand].shape))))
    return result


def _updates_in_place(
    body: Computation, name: str, arrays: Mapping[str, Sequence[Shape]], in_place: set[str], computed: set[str]
) -> int | None:
    """Return the elements of the updates that make a result from a parameter; ``None`` if it is made in another way.

    Adds the updates to ``in_place``, and those of a ``computed`` value. Updates already marked for another result are
    not counted again.
    """
    chain: list[Instruction] = []
    instruction = body.by_name[name]
    for instruction, _ in path(body, name, {*SAME_BUFFER, *UPDATES}):
        if instruction.name in in_place or instruction.name in computed:
            break
        if instruction.opcode in UPDATES:
            if not _updates(instruction, arrays):
                break
            chain.append(instruction)
    if instruction.name in in_place or (instruction.opcode == "parameter" and chain):
        in_place.update(instruction.name for instruction in chain)
        return sum(_update_elements(body, instruction) for instruction in chain)
    computed.update(instruction.name for instruction in chain)
    return None


def _update_elements(body: Computation, instruction: Instruction) -> int:
    operands = instruction.operands
    update = operands[1] if instruction.opcode == "dynamic-update-slice" else operands[len(operands) // 2 + 1]
    return body.by_name[update].shape.elements
