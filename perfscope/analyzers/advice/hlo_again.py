"""What the backward of a compiled layer computes again where less is kept for it, and what lies in memory meanwhile.

Learnt from programs that XLA compiled for a GPU with and without ``jax.checkpoint``:

* What is not kept is computed again from what is: from products, reductions and loops on the way, which have a buffer
  each, until their last reader. All else is computed within its readers and has none, unless a product reads it.
* What is needed first decides: behind it everything before it in the layer is there again.
* What nobody needs is not computed: neither the layer's last product nor its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfscope.analyzers.advice.hlo_layers import PRODUCTS, Kept, Layers
from perfscope.analyzers.advice.hlo_policies import Keeps
from perfscope.analyzers.facts.hlo_flow import POINTWISE, VIEWS, Flow
from perfscope.analyzers.hlo.scope import scope_of

_BUFFERED = PRODUCTS | {
    "reduce", "reduce-window", "scatter", "sort", "rng", "rng-bit-generator", "select-and-scatter", "cholesky",
    "triangular-solve", "fft", "get-tuple-element",
}  # fmt: skip
"""Opcodes whose result has a buffer where it is computed again; a ``get-tuple-element`` is a loop's result."""

_FREE = frozenset({"constant", "iota", "partition-id", "replica-id", "parameter", "tuple"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value that is there again in the backward, of one layer."""

    number: int
    first: int
    last: int
    """Positions in the backward."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What one policy makes of the layers."""

    buffers: tuple[Buffer, ...]
    """Of one layer."""
    stacks: tuple[tuple[int, int], ...]
    """What the policy keeps: number in ``Flow``, bytes of all layers."""
    computed: frozenset[int]
    """All that is computed again, by number."""
    launched: frozenset[int]
    """Those of them that take a kernel: the others are computed within their readers."""


class Layer:
    """The forward of a layer as XLA computes it, seen through its fusions."""

    def __init__(self, flow: Flow, layers: Layers) -> None:
        """Linear in what is asked for."""
        self._flow = flow
        self._layers = layers
        self._roots: dict[int, frozenset[int]] = {}
        self._inputs: set[int] = set()
        self._arguments: dict[int, bool] = {}
        self._slices: dict[tuple[tuple[int, ...], str], int] = {}

    def again(self, dropped: Sequence[Kept], keeps: Keeps) -> Again:
        """What dropping values costs, where a policy keeps what ``keeps`` says and a layer's input."""
        walk = _Walk(self, keeps, self._layers.backward[0])
        for one in dropped:
            for reader in one.readers:
                for made in self.made(one.number):
                    for base in (made,) if reader.into_product else self.bases(made, keeps, walk.memory):
                        walk.touch(base, reader.first, reader.last)
        walk.settle()
        computed = frozenset(walk.computed(one.number for one in dropped))
        return Again(
            buffers=tuple(
                Buffer(number=number, first=first, last=last, bytes=self.bytes(number))
                for number, (first, last) in walk.held.items()
                if not self.nested(number) and not (keeps(number) and not self.carried(number))
            ),
            stacks=tuple(
                (number, self.bytes(number) * self._layers.count)
                for number in walk.held
                if keeps(number) or self.carried(number)
            ),
            computed=computed,
            launched=frozenset(one for one in computed if one in walk.held or self.is_product(one)),
        )

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
            value = self._flow.values[one]
            elsewhere = value.computation.name not in self._layers.within
            if elsewhere or (value.instruction.opcode in _FREE and not value.names):
                continue
            moves = value.instruction.opcode in VIEWS - {"convert", "broadcast"}
            if not value.names and not moves and self._is_input(one):
                if self._is_argument(one):
                    self._sliced(one)
                    continue
                self._inputs.add(one)
            if self._layers.scope and value.instruction.opcode == "slice" and self._is_argument(one):
                self._sliced(one)
            elif self.carried(one) or self.of_loop(one):
                yield one
            elif value.names:
                waiting.extend(value.names)
            elif moves:
                waiting.extend(value.operands)
            else:
                yield one

    def carried(self, number: int) -> bool:
        """It is what one layer hands to the next: the input of this one."""
        value = self._flow.values[number]
        if self._layers.scope:
            return number in self._inputs
        return value.carried and value.computation.name == self._layers.body.name and bool(value.instruction.shape.dims)

    def _is_argument(self, number: int) -> bool:
        """Weights, constants, and what is computed from them element by element: there anyway, or for nothing."""
        if number not in self._arguments:
            self._arguments[number] = False  # a loop's state leads back to itself
            value = self._flow.values[number]
            sources = value.names or value.operands
            plain = value.names or value.instruction.opcode in POINTWISE | _FREE | {
                "slice",
                "dynamic-slice",
                "concatenate",
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
            value = self._flow.values[one]
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
        """Of a single layer: another part of the program made it, and not from weights alone."""
        value = self._flow.values[number]
        name = value.instruction.op_name
        if not self._layers.scope or not name or value.instruction.opcode in _FREE:
            return False
        scope = scope_of(name)
        return scope.phase != "forward" or scope.path[: len(self._layers.scope)] != self._layers.scope

    def of_loop(self, number: int) -> bool:
        """It is the result of a loop in the layer."""
        value = self._flow.values[number]
        if value.instruction.opcode != "get-tuple-element" or value.computation.name not in self._layers.within:
            return False
        return value.computation.by_name[value.instruction.operands[0]].opcode == "while"

    def nested(self, number: int) -> bool:
        """It is inside a loop in the layer."""
        return self._flow.values[number].computation.name in self._layers.nested

    def behind(self, number: int) -> frozenset[int]:
        """What a value is computed from, within the layer."""
        value = self._flow.values[number]
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
        return self.carried(number) or self._flow.opcode(number) in _BUFFERED

    def is_product(self, number: int) -> bool:
        """Whether it is a matrix product or a loop's result: its inputs are buffers."""
        return self._flow.opcode(number) in PRODUCTS or self.of_loop(number)

    def bytes(self, number: int) -> int:
        """As it is written: behind the casts that end in the same kernel."""
        value = self._flow.values[number]
        for _ in range(_MOST_CASTS):
            users = [one for one in self._flow.users[number] if number not in self._flow.values[one].names]
            if self._flow.users[number] != users or len(users) != 1:
                break
            user = self._flow.values[users[0]]
            if user.instruction.opcode not in ("convert", "bitcast", "reshape", "transpose", "reduce-precision"):
                break
            number, value = users[0], user
        return value.instruction.shape.bytes


_MOST_CASTS = 8
"""Behind a product, within its kernel."""


class _Walk:
    """Which values are there again, and from when to when."""

    def __init__(self, layer: Layer, keeps: Keeps, begin: int) -> None:
        self._begin = begin
        self.held: dict[int, tuple[int, int]] = {}
        self.memory: dict[int, frozenset[int]] = {}
        self._layer = layer
        self._keeps = keeps
        self._waiting: list[int] = []

    def touch(self, number: int, first: int, last: int) -> None:
        """Needed from ``first`` to ``last``."""
        before = self.held.get(number)
        now = (first, last) if before is None else (min(first, before[0]), max(last, before[1]))
        if now != before:
            self.held[number] = now
            if before is None or now[0] != before[0]:
                self._waiting.append(number)

    def settle(self) -> None:
        """What is needed to make what is needed, until nothing is added."""
        layer = self._layer
        while self._waiting:
            number = self._waiting.pop()
            if self._keeps(number):
                continue
            at = self._begin if layer.has_buffer(number) else self.held[number][0]
            self.touch(number, at, at)
            for source in layer.behind(number):
                if layer.is_product(number) and not layer.of_loop(number):
                    self.touch(source, at, at)
                else:
                    for base in layer.bases(source, self._keeps, self.memory):
                        self.touch(base, at, at)

    def computed(self, numbers: Iterable[int]) -> Iterable[int]:
        """All that making values again computes, whatever has a buffer."""
        waiting = [made for number in numbers for made in self._layer.made(number)]
        seen: set[int] = set()
        while waiting:
            one = waiting.pop()
            if one in seen or self._layer.carried(one) or self._keeps(one):
                continue
            seen.add(one)
            waiting.extend(self._layer.behind(one))
        return seen
