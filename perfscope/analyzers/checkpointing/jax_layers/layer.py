"""The forward of a layer as XLA computes it, seen through its fusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfscope.analyzers.checkpointing.jax_layers.layers import Layers
from perfscope.analyzers.checkpointing.jax_layers.policies import Keeps, nothing
from perfscope.analyzers.checkpointing.jax_layers.reads import PRODUCTS
from perfscope.analyzers.hlo.flow import POINTWISE, VIEWS, Flow
from perfscope.analyzers.hlo.scope import scope_of

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
        self._same: dict[tuple[object, ...], int] = {}
        self._bases: dict[int, frozenset[int]] = {}
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
            elsewhere = value.computation.name not in self.layers.within
            if elsewhere or (value.instruction.opcode in _FREE and not value.names):
                continue
            moves = value.instruction.opcode in VIEWS - {"convert", "broadcast"} and one not in self.laid_out
            if not value.names and not moves and self._is_input(one):
                if self._is_argument(one):
                    continue
                self._inputs.add(one)
            if self.layers.scope and value.instruction.opcode == "slice" and self._is_argument(one):
                continue
            if self.carried(one) or self.of_loop(one):
                yield one
            elif value.names:
                waiting.extend(value.names)
            elif moves:
                waiting.extend(value.operands)
            else:
                yield one

    def first_of_its_kind(self, number: int) -> int:
        """XLA computes a value within each kernel that reads it; where it is made again, there is one."""
        one = self.flow.values[number].instruction
        if self.layers.scope or self.has_buffer(number):
            return number
        bases = self.bases(number, nothing, self._bases)
        shape = (one.shape.dtype, one.shape.dims)
        kind = (one.opcode, one.op_name, one.attributes.get("slice", ""), shape, bases, self._constant(number))
        return self._same.setdefault(kind, number)

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
        return buffered or self.carried(number)

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
