"""The layers of a compiled training step: which loop runs them forward, which backward, and what goes between the two.

``jax.lax.scan`` over layers becomes two loops. What the backward needs of a layer is written by the forward loop into
arrays with a leading axis of layers (stacks), and the backward loop reads it back a layer at a time. A loop that hands
nothing else from one turn to the next has no layers: on TPU XLA computes what does not depend on the layers ahead of
them (the masks of blocks) in such a loop, and theirs reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfscope.analyzers.checkpointing.xla_model.outputs import PRODUCTS, only_moves, takes_buffers, takes_part
from perfscope.analyzers.checkpointing.xla_model.policies import Keeps, nothing
from perfscope.analyzers.hlo.flow import POINTWISE, VIEWS, Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.scope import scope_of

_MOST_STEPS = 64
"""From an operand of a loop to the loop that made it: casts, views and copies in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """An instruction of the backward that reads what the forward kept. Positions are those of ``Schedule``."""

    first: int
    last: int
    into_product: bool
    """It is, or holds, a matrix product or a loop: it takes the value as a buffer and not element by element."""
    result: int = 0
    """Bytes of what it makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the forward of a layer hands to its backward."""

    number: int
    """In ``Flow``: what is written."""
    bytes: int
    """Of all layers that it holds together."""
    makers: frozenset[str]
    """Instructions that the block of memory may be named after, with the part of their tuple where it matters."""
    copies: frozenset[str]
    """Instructions of the backward that only take a layer's part out of it, or lay it out in another way."""
    readers: tuple[Reader, ...]
    part: tuple[str, int | None] = ("", None)
    """Of a single layer: the instruction that makes it, and which part of its tuple."""
    stored: int = -1
    """Element of the forward loop's state that it is; -1 without a loop."""
    read: int = -1
    """Element of the backward loop's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers that run alike, in one loop (then all have one policy), or a single one."""

    name: str
    group: str
    """Equal for layers that differ by their number only."""
    count: int
    """Layers; 1 of a single one."""
    forward: tuple[int, int]
    """Positions, half open."""
    backward: tuple[int, int]
    kept: tuple[Kept, ...]
    body: Computation
    """Of the forward."""
    within: frozenset[str]
    """Computations of the forward: the body and what it calls."""
    nested: frozenset[str]
    """Those of them that run in loops inside the body."""
    takers: frozenset[str]
    """Instructions that read what is kept only to keep it, or to use it in the backward: gone where it is not kept."""
    late: frozenset[str] = frozenset()
    """Those of them that run behind ``backward`` although nothing holds them up: gradients of weights."""
    scope: tuple[str, ...] = ()
    """Of a single layer, the path that its instructions begin with; empty of a loop."""
    path: tuple[str, ...] = ()
    """Of a loop, the scope that it is in."""


def layer_loops(module: HloModule, flow: Flow, schedule: Schedule) -> tuple[Layers, ...]:
    """Pairs of loops of the entry that hand stacks from one to the other, in program order. Linear in the module."""
    entry = module.entry_computation()
    loops = [one for one in entry.instructions if one.opcode == "while" and len(one.called) == 2]
    found = []
    for at, forward in enumerate(loops):
        stacks = dict(_stacks(module, flow, forward))
        if not _hands_on(module.computations[forward.called[1]], stacks):
            continue
        for backward in loops[at + 1 :] if stacks else ():
            if backward.trip_count != forward.trip_count or not forward.trip_count:
                continue
            kept = _handed_on(module, flow, schedule, (forward, backward), stacks)
            if kept:
                found.append(_layers(module, schedule, forward, backward, kept))
                break
    return tuple(found)


def _hands_on(body: Computation, stacks: Collection[int]) -> bool:
    """Whether a turn gives the next one an array besides the stacks: what a layer gives to the one behind it."""
    if body.root.opcode != "tuple":
        return False
    for element, name in enumerate(body.root.operands):
        one = body.by_name[name]
        source = body.by_name[one.operands[0]] if one.opcode == "get-tuple-element" else one
        same = source.opcode == "parameter" and one.attributes.get("index") == str(element)
        if element not in stacks and one.shape.dims and not same:
            return True
    return False


def backward_body(module: HloModule, schedule: Schedule, layers: Layers) -> str:
    """The computation that runs the backward of layers: the body of their loop, else the entry."""
    for one in module.entry_computation().instructions:
        if one.opcode == "while" and schedule.positions[one.name] + 1 == layers.backward[1]:
            return one.called[-1]
    return module.entry


def reached(module: HloModule, name: str, loops_only: bool = False) -> frozenset[str]:
    """A computation and all it calls; with ``loops_only`` those that run in loops in it, without itself."""
    found: set[str] = set()
    waiting = [(name, False)]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        one, looped = waiting.pop()
        if (one, looped) in seen:
            continue
        seen.add((one, looped))
        if looped or not loops_only:
            found.add(one)
        for instruction in module.computations[one].instructions:
            inner = looped or instruction.opcode == "while"
            waiting += [(called, inner) for called in instruction.called]
    return frozenset(found)


def _layers(
    module: HloModule, schedule: Schedule, forward: Instruction, backward: Instruction, kept: tuple[Kept, ...]
) -> Layers:
    return Layers(
        name=_label(forward),
        group=_label(forward),
        count=forward.trip_count or 1,
        forward=(schedule.begins[forward.name], schedule.positions[forward.name] + 1),
        backward=(schedule.begins[backward.name], schedule.positions[backward.name] + 1),
        kept=kept,
        body=module.computations[forward.called[1]],
        within=reached(module, forward.called[1]),
        nested=reached(module, forward.called[1], loops_only=True),
        takers=frozenset(name for one in kept for name in one.makers),
        path=scope_of(forward.op_name).path if forward.op_name else (),
    )


def _label(loop: Instruction) -> str:
    """``layers of mlp at model.py:73`` for a loop in a scope of the user's."""
    path = scope_of(loop.op_name).path if loop.op_name else ()
    line = "" if loop.file is None or loop.line is None else f"{PurePosixPath(loop.file).name}:{loop.line}"
    if path:
        return f"layers of {'/'.join(path)}" + (f" at {line}" if line else "")
    return f"layers of the scan at {line}" if line else f"layers of {loop.name}"


def _stacks(module: HloModule, flow: Flow, loop: Instruction) -> Iterator[tuple[int, tuple[int, frozenset[str]]]]:
    """Elements of a loop's state that a layer writes its part into: what is written, and who makes the block."""
    body = module.computations[loop.called[1]]
    entry = module.entry_computation()
    start = entry.by_name[loop.operands[0]]
    if body.root.opcode != "tuple":
        return
    for element, name in enumerate(body.root.operands):
        writer = body.by_name[name]
        while writer.opcode == "bitcast":
            writer = body.by_name[writer.operands[0]]
        update = next(
            (
                one
                for one in _written(flow, flow.numbers[body.name, name])
                if flow.opcode(one) == "dynamic-update-slice"
            ),
            None,
        )
        if update is None or not writer.shape.elements or element >= len(start.operands):
            continue
        first = entry.by_name[start.operands[element]]
        makers = {writer.name, first.name}
        while first.opcode in ("bitcast", "get-tuple-element", "copy") and first.operands:
            first = entry.by_name[first.operands[0]]
            makers.add(first.name)
        yield element, (flow.values[update].operands[1], frozenset(makers))


def _written(flow: Flow, number: int) -> Iterator[int]:
    """What computes a value, behind other layouts of it."""
    for one in flow.back([number]):
        for _ in range(_MOST_STEPS):
            if flow.opcode(one) not in ("bitcast", "transpose", "reshape", "copy"):
                break
            one = next(flow.back(flow.values[one].operands[:1]), one)
        yield one


def _handed_on(
    module: HloModule,
    flow: Flow,
    schedule: Schedule,
    loops: tuple[Instruction, Instruction],
    stacks: dict[int, tuple[int, frozenset[str]]],
) -> tuple[Kept, ...]:
    """Stacks of the first loop that the second one reads."""
    forward, backward = loops
    entry = module.entry_computation()
    start = entry.by_name[backward.operands[0]]
    body = module.computations[backward.called[1]]
    found = []
    for element, name in enumerate(start.operands):
        source, copies = _element_of(entry, flow, name, forward)
        if source not in stacks:
            continue
        number, makers = stacks[source]
        readers, slices = _readers(module, schedule, body, element)
        if readers:
            found.append(
                Kept(
                    number=number,
                    bytes=forward.shape.parts[source].bytes,
                    makers=makers,
                    copies=copies | slices,
                    readers=tuple(readers),
                    stored=source,
                    read=element,
                )
            )
    return tuple(found)


def _element_of(entry: Computation, flow: Flow, name: str, loop: Instruction) -> tuple[int | None, frozenset[str]]:
    """Which element of a loop's result a value is, with the copies of it on the way."""
    copies: set[str] = set()
    for _ in range(_MOST_STEPS):
        one = entry.by_name[name]
        if one.opcode == "get-tuple-element":
            if one.operands[0] == loop.name:
                return int(one.attributes["index"]), frozenset(copies)
            return None, frozenset()
        if one.opcode == "bitcast":
            name = one.operands[0]
        elif len(one.operands) == 1 and only_moves(flow.module, one):
            copies.add(one.name)
            name = one.operands[0]
        else:
            return None, frozenset()
    return None, frozenset()


def _readers(
    module: HloModule, schedule: Schedule, body: Computation, element: int
) -> tuple[list[Reader], frozenset[str]]:
    """Who reads an element of the loop's state, behind those that only take the layer's part of it."""
    views = {
        one.name
        for one in body.instructions
        if one.opcode == "get-tuple-element"
        and one.attributes.get("index") == str(element)
        and body.by_name[one.operands[0]].opcode == "parameter"
    }
    slices: set[str] = set()
    loops = {one.operands[0]: one for one in body.instructions if one.opcode == "while"}  # by what they begin with
    found = []
    for one in body.instructions:
        if views.isdisjoint(one.operands) or one.name in views or one is body.root:
            continue
        if one.opcode == "bitcast":
            views.add(one.name)
        elif takes_part(module, one):
            views.add(one.name)
            slices.add(one.name)
        else:
            user = loops.get(one.name, one)
            found.append(
                Reader(
                    first=min(schedule.begins[one.name], schedule.begins[user.name]),
                    last=schedule.positions[user.name],
                    into_product=takes_buffers(module, user),
                    result=user.shape.bytes,
                )
            )
    return found, frozenset(slices)


# The forward of a layer as XLA computes it, seen through its fusions.


_BUFFERED = PRODUCTS | {
    "reduce", "reduce-window", "scatter", "sort", "rng", "rng-bit-generator", "select-and-scatter", "cholesky",
    "triangular-solve", "fft", "get-tuple-element", "all-gather-done", "all-reduce-done", "async-done",
    "collective-permute-done",
}  # fmt: skip
"""Opcodes whose result has a buffer where it is computed again; a ``get-tuple-element`` is a loop's result."""

_FREE = frozenset({"constant", "iota", "partition-id", "replica-id", "parameter", "tuple"})

_MOST_CASTS = 8
"""Behind a product, within its kernel."""


class Layer:
    """The forward of a layer as XLA computes it, seen through its fusions."""

    def __init__(self, flow: Flow, layers: Layers) -> None:
        """Linear in what is asked for."""
        self.flow = flow
        self.layers = layers
        self._roots: dict[int, frozenset[int]] = {}
        self._inputs: set[int] = set()
        self._arguments: dict[int, bool] = {}
        self._slices: dict[tuple[tuple[int, ...], str], int] = {}
        self._same: dict[tuple[object, ...], int] = {}
        self._bases: dict[int, frozenset[int]] = {}
        self._written: Mapping[int, int] = {}
        self.held: Collection[int] = ()
        """Arrays of one number that are in memory for other readers: whoever could make them reads them there."""
        self.laid_out = frozenset(self._laid_out()) if not layers.scope else frozenset()
        """Values in another order of axes, with a kernel of their own: XLA fuses none into a product."""

    def _laid_out(self) -> Iterator[int]:
        """Roots of the body's kernels that only transpose."""
        body = self.layers.body
        for one in body.instructions:
            if one.opcode != "fusion" or not one.shape.dims:
                continue
            inside = self.flow.module.computations[one.called[0]]
            root = inside.root
            while root.opcode == "bitcast":
                root = inside.by_name[root.operands[0]]
            if root.opcode == "transpose":
                yield self.flow.numbers[inside.name, root.name]

    def made(self, number: int) -> frozenset[int]:
        """What computes a value within the layer: the layer's input, or an instruction; nothing for weights."""
        if number not in self._roots:
            self._roots[number] = frozenset(self._resolve(number))
        return self._roots[number]

    def _resolve(self, number: int) -> Iterable[int]:
        waiting, seen = [number], set[int]()
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            value = self.flow.values[one]
            if one in self.held:
                yield one
                continue
            elsewhere = value.computation.name not in self.layers.within
            if elsewhere or (value.instruction.opcode in _FREE and not value.names):
                continue
            moves = value.instruction.opcode in VIEWS - {"convert", "broadcast"} and one not in self.laid_out
            if not value.names and not moves and self._is_input(one):
                if self._is_argument(one):
                    self._sliced(one)
                    continue
                self._inputs.add(one)
            if self.layers.scope and value.instruction.opcode == "slice" and self._is_argument(one):
                self._sliced(one)
            elif self.carried(one) or self.of_loop(one):
                yield one
            elif value.names:
                waiting.extend(value.names)
            elif moves:
                waiting.extend(value.operands)
            else:
                yield one

    def write(self, numbers: Mapping[int, int]) -> None:
        """Values that XLA writes where they are made again, each with the first that is the same."""
        self._written = numbers
        self._bases.clear()

    def first_of_its_kind(self, number: int) -> int:
        """XLA computes a value within each kernel that reads it; where it is made again, there is one."""
        if number in self._written:
            return self._written[number]
        one = self.flow.values[number].instruction
        if self.layers.scope or self.has_buffer(number):
            return number
        bases = self.bases(number, nothing, self._bases)
        shape = (one.shape.dtype, one.shape.dims)
        kind = (one.opcode, one.op_name, one.attributes.get("slice", ""), shape, bases, self._constant(number))
        return self._same.setdefault(kind, number)

    def is_filled(self, number: int) -> bool:
        """Whether it is an array of one number throughout."""
        return bool(self.flow.values[number].instruction.shape.dims) and self._constant(number) is not None

    def zeros(self, number: int) -> tuple[str, tuple[int, ...]] | None:
        """Type and dimensions of an array of zeros; ``None``: it is none."""
        shape = self.flow.values[number].instruction.shape
        filled = self._constant(number) if shape.dims else None
        return (shape.dtype, shape.dims) if filled is not None and filled[0] else None

    def _constant(self, number: int) -> tuple[bool, int | None] | None:
        """Which single number fills an array, as far as the program is read: whether it is zero, and an integer."""
        for _ in range(_MOST_CASTS):
            value = self.flow.values[number]
            if value.instruction.opcode == "constant":
                return value.instruction.is_zero, value.instruction.value
            sources = value.names or (value.operands if value.instruction.opcode in VIEWS else ())
            if len(sources) != 1:
                break
            (number,) = sources
        return None

    def carried(self, number: int) -> bool:
        """It is what one layer hands to the next: the input of this one."""
        value = self.flow.values[number]
        if self.layers.scope:
            return number in self._inputs
        return value.carried and value.computation.name == self.layers.body.name and bool(value.instruction.shape.dims)

    def _is_argument(self, number: int) -> bool:
        """Weights, constants, and what is computed from them element by element: there anyway, or for nothing."""
        if number not in self._arguments:
            self._arguments[number] = False  # a loop's state leads back to itself
            value = self.flow.values[number]
            sources = value.names or value.operands
            plain = value.names or value.instruction.opcode in POINTWISE | _FREE | {
                "slice",
                "dynamic-slice",
                "concatenate",
                "sine",
                "cosine",
            }
            self._arguments[number] = bool(plain) and all(self._is_argument(one) for one in sources)
        return self._arguments[number]

    def _sliced(self, number: int) -> None:
        """Parts of stacked weights: ``jax.checkpoint`` keeps its inputs, so each has a buffer up to the backward."""
        waiting, seen = [number], set[int]()
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            value = self.flow.values[one]
            if value.instruction.opcode == "slice":
                self._slices[(value.operands, value.instruction.attributes.get("slice", ""))] = (
                    value.instruction.shape.bytes
                )
            else:
                waiting.extend(value.names or value.operands)

    def argument_bytes(self) -> int:
        """Of the weights that are parts of larger arrays, as far as they were asked for."""
        return sum(self._slices.values())

    def _is_input(self, number: int) -> bool:
        """Of a single layer: another part of the program made it."""
        value = self.flow.values[number]
        name = value.instruction.op_name
        if not self.layers.scope or not name or value.instruction.opcode in _FREE:
            return False
        # the forward cannot depend on the backward: what has the layer's path and is marked so is shared by both
        return scope_of(name).path[: len(self.layers.scope)] != self.layers.scope

    def of_loop(self, number: int) -> bool:
        """It is the result of a loop in the layer."""
        value = self.flow.values[number]
        if value.instruction.opcode != "get-tuple-element" or value.computation.name not in self.layers.within:
            return False
        return value.computation.by_name[value.instruction.operands[0]].opcode == "while"

    def nested(self, number: int) -> bool:
        """It is inside a loop in the layer."""
        return self.flow.values[number].computation.name in self.layers.nested

    def behind(self, number: int) -> frozenset[int]:
        """What a value is computed from, within the layer."""
        value = self.flow.values[number]
        if self.carried(number):
            return frozenset()
        sources = (
            value.names if self.of_loop(number) else value.operands
        )  # a loop works in place on what it begins with
        return frozenset(made for source in sources for made in self.made(source))

    def bases(self, number: int, keeps: Keeps, memory: dict[int, frozenset[int]]) -> frozenset[int]:
        """Values with buffers that a value is computed from element by element; itself if it has one."""
        if number in memory:
            return memory[number]
        found: set[int] = set()
        waiting, seen = [number], set[int]()
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            if self.has_buffer(one) or keeps(one):
                found.add(one)
            else:
                waiting.extend(self.behind(one))
        memory[number] = frozenset(found)
        return memory[number]

    def has_buffer(self, number: int) -> bool:
        """Whether it has a buffer wherever it is computed."""
        buffered = self.flow.opcode(number) in _BUFFERED or number in self.laid_out
        return buffered or number in self._written or number in self.held or self.carried(number)

    def is_product(self, number: int) -> bool:
        """Whether it is a matrix product or a loop's result: its inputs are buffers."""
        return self.flow.opcode(number) in PRODUCTS or self.of_loop(number)

    def bytes(self, number: int) -> int:
        """As it is written: behind the casts that end in the same kernel."""
        value = self.flow.values[number]
        for _ in range(_MOST_CASTS):
            users = [one for one in self.flow.users[number] if number not in self.flow.values[one].names]
            if self.flow.users[number] != users or len(users) != 1:
                break
            user = self.flow.values[users[0]]
            if user.instruction.opcode not in ("convert", "bitcast", "reshape", "transpose", "reduce-precision"):
                break
            number, value = users[0], user
        return value.instruction.shape.bytes
