"""What the backward of a compiled layer computes again where less is kept for it, and what lies in memory meanwhile.

Learnt from programs that XLA compiled for a GPU with and without ``jax.checkpoint``:

* What is not kept is computed again from what is: from products, reductions and loops on the way, which have a buffer
  each, until their last reader. All else is computed within its readers and has none, unless a product reads it.
* What is needed first decides: behind it everything before it in the layer is there again.
* What nobody needs is not computed: neither the layer's last product nor its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_layers import PRODUCTS, Kept, Reader
from perfscope.analyzers.advice.hlo_policies import Keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A value that is there again in the backward, of one layer."""

    number: int
    first: int
    last: int
    """Positions in the backward."""
    bytes: int
    frees: bool = False
    """Only a product reads it, whose result is no larger: gone at once where what frees memory runs first."""


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


def again_of(layer: Layer, dropped: Sequence[Kept], keeps: Keeps) -> Again:
    """What dropping values costs, where a policy keeps what ``keeps`` says and a layer's input."""
    walk = _Walk(layer, keeps, layer.layers.backward[0])
    merged = _merged(layer, dropped, keeps, walk.memory)
    for one in dropped:
        for reader in one.readers:
            for made in layer.made(one.number):
                if reader.into_product:
                    walk.touch(made, min(reader.first, merged.get(made, reader.first)), reader.last)
                else:
                    for base in layer.bases(made, keeps, walk.memory):
                        walk.touch(base, reader.first, reader.last)
    walk.settle()
    freed = _freed(layer, dropped, merged)
    computed = frozenset(walk.computed(one.number for one in dropped))
    return Again(
        buffers=tuple(
            Buffer(number=number, first=first, last=last, bytes=layer.bytes(number), frees=number in freed)
            for number, (first, last) in walk.held.items()
            if not layer.nested(number)
            and (layer.carried(number) or not keeps(number) or _is_copied(layer, first, last))
        )
        + tuple(_weights(layer, walk, keeps)),
        stacks=tuple(
            (number, layer.bytes(number) * layer.layers.count)
            for number in walk.held
            if keeps(number) or layer.carried(number)
        ),
        computed=computed,
        launched=frozenset(one for one in computed if one in walk.held or layer.is_product(one)),
    )


def _freed(layer: Layer, dropped: Sequence[Kept], merged: dict[int, int]) -> frozenset[int]:
    """Values of ``_merged`` that a single product reads, whose result is no larger than they are."""
    readers: dict[int, list[Reader]] = {}
    for one in dropped:
        for made in layer.made(one.number):
            readers.setdefault(layer.first_of_its_kind(made), []).extend(one.readers)
    return frozenset(
        made
        for made in map(layer.first_of_its_kind, merged)
        if len(readers[made]) == 1 and readers[made][0].into_product and readers[made][0].result <= layer.bytes(made)
    )


def _weights(layer: Layer, walk: _Walk, keeps: Keeps) -> Iterator[Buffer]:
    """A layer's part of weights that a product reads again and the backward reads once more: one copy for both."""
    for number, (first, last) in walk.held.items():
        again = layer.flow.opcode(number) in PRODUCTS and not keeps(number) and not layer.nested(number)
        if again and not layer.layers.scope:
            for operand in layer.flow.values[number].operands:
                if not layer.made(operand):
                    size = layer.flow.values[operand].instruction.shape.bytes
                    yield Buffer(number=operand, first=first, last=last, bytes=size)


def _is_copied(layer: Layer, first: int, last: int) -> bool:
    """Whether a layer's part of a stack has a buffer: a single reader takes it out of the stack itlayer."""
    return first < last and not layer.layers.scope


def _merged(layer: Layer, dropped: Sequence[Kept], keeps: Keeps, memory: dict[int, frozenset[int]]) -> dict[int, int]:
    """Values that a product reads and when they are there: XLA merges kernels that read the same buffer alone.

    What the backward computes element by element from a buffer is one kernel with what else is computed from it
    (the gradient of an activation and, for the gradient of the weights behind it, the activation).
    """
    alone = [
        (made, base, reader)
        for one in dropped
        for made in layer.made(one.number)
        for bases in (layer.bases(made, keeps, memory),)
        if len(bases) == 1 and made not in bases and not layer.layers.scope
        for base in bases
        for reader in one.readers
    ]
    first: dict[int, int] = {}
    for _, base, reader in alone:
        if not reader.into_product:
            first[base] = min(reader.first, first.get(base, reader.first))
    return {made: first[base] for made, base, reader in alone if reader.into_product and base in first}


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
        number = self._layer.first_of_its_kind(number)
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
