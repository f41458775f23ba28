"""What it takes to keep values of layers that a loop runs: stacks are filled, written, and read back.

A value that the forward loop of ``jax.lax.scan`` hands to the backward loop has an array with a leading axis of layers.
XLA fills it in front of the loop, writes a layer's part with ``dynamic-update-slice`` and takes it out again in the
backward; for a GPU these are kernels of their own, so that such a value goes through memory up to five times beside the
kernels that compute with it. Where it is not kept, they are gone: computing again may be quicker than keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from perfscope.analyzers.advice.hlo_again import Again
from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_layers import Kept
from perfscope.analyzers.advice.hlo_policies import Keeps
from perfscope.analyzers.advice.hlo_reads import only_moves
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost

FUSED_WRITES = 2
"""Times that a value is written for being kept alone, where its readers could compute it within themselves: in the
forward, and in the kernel that is priced for computing it again."""

_MOVES = frozenset(
    {"bitcast", "broadcast", "constant", "copy", "reshape", "slice", "transpose", "tuple", "get-tuple-element"}
)
"""Opcodes of a kernel that only stores, beside its updates and slices."""


class Stacks:
    """The stacks of one loop over layers. Times in ns of one run of the program."""

    def __init__(
        self,
        layer: Layer,
        cost: ModuleCost,
        time: Callable[[InstructionCost], float],
        bytes_ns: Callable[[float], float],
    ) -> None:
        """``time``: of all runs of an instruction; ``bytes_ns``: least time to move bytes. Linear in the module."""
        self._layer = layer
        self._rows = {row.instruction.name: row for row in cost.launched}
        self._time = time
        self._bytes_ns = bytes_ns

    def keeping_ns(self, kept: Iterable[Kept]) -> float:
        """Time of the kernels, or of their share, that only fill, write and read back what is kept."""
        return sum(self._of(name, one) for one in kept for name in one.makers | one.copies)

    def _of(self, name: str, one: Kept) -> float:
        row = self._rows.get(name)
        if row is None or not row.runs or not row.instruction.shape.bytes:
            return 0.0
        if not self._only_stores(row):
            return self._bytes_ns(one.bytes)  # a kernel that computes it writes it there
        into = row.instruction.shape.bytes * (row.runs if name in one.copies else 1)
        return self._time(row) * min(1.0, one.bytes / into)

    def _only_stores(self, row: InstructionCost) -> bool:
        """Whether a kernel only fills an array, takes a part out of one, or puts one into it."""
        one, module = row.instruction, self._layer.flow.module
        if only_moves(module, one) or one.opcode in ("dynamic-update-slice", "dynamic-slice", "broadcast"):
            return True
        if one.opcode != "fusion":
            return False
        inside = module.computations[one.called[0]].instructions
        update = {part.name for part in inside if part.opcode in ("dynamic-update-slice", "dynamic-slice", "parameter")}
        return all(
            part.name in update or part.opcode in _MOVES for part in inside if part.shape.dims or part.shape.parts
        )

    def changed_ns(self, again: Again, keeps: Keeps, kept: Collection[Kept]) -> float:
        """Time that a policy takes more (negative: less) than keeping ``kept``, beside what runs again."""
        gone = [one for one in kept if not self._stays(one, keeps)]
        fused = sum(one.bytes for one in gone if again.launched.isdisjoint(self._layer.made(one.number)))
        held = {made for one in kept for made in self._layer.made(one.number)}
        new = sum(self._bytes(number) for number in self._kept_instead(gone, keeps) - held)
        return new * self.ns_a_byte(kept) - self.keeping_ns(gone) - FUSED_WRITES * self._bytes_ns(fused)

    def more_ns(self, size: float, kept: Collection[Kept]) -> float:
        """Time that it takes to keep ``size`` bytes more, as the stacks that are there tell.

        What is read again is in memory already, where it is made again.
        """
        return size * self.ns_a_byte(kept)

    def ns_a_byte(self, kept: Collection[Kept]) -> float:
        """Of the stacks that the program has."""
        return self.keeping_ns(kept) / max(1, sum(one.bytes for one in kept))

    def _stays(self, one: Kept, keeps: Keeps) -> bool:
        return all(self._layer.carried(made) or keeps(made) for made in self._layer.made(one.number))

    def _kept_instead(self, gone: Iterable[Kept], keeps: Keeps) -> set[int]:
        """What values are computed from that the policy keeps, and the layer's input."""
        waiting = [made for one in gone for made in self._layer.made(one.number)]
        found, seen = set[int](), set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            if self._layer.carried(number) or keeps(number):
                found.add(number)
            else:
                waiting.extend(self._layer.behind(number))
        return found

    def _bytes(self, number: int) -> int:
        return self._layer.layers.count * self._layer.flow.values[number].instruction.shape.bytes
