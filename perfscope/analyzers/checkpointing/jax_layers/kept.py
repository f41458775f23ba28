"""What the backward of a checkpointed layer reads of what it computed again: what keeping everything would keep.

``jax.checkpoint`` marks what runs again in the path of its instructions (``rematted_computation``), also inside
fusions. A value made there and read outside is one that the layer would hand from its forward to its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from perfscope.analyzers.checkpointing.jax_layers.again import Again
from perfscope.analyzers.checkpointing.jax_layers.layer import Layer
from perfscope.analyzers.checkpointing.jax_layers.layers import Kept, reached
from perfscope.analyzers.checkpointing.jax_layers.policies import Keeps
from perfscope.analyzers.checkpointing.jax_layers.reads import PRODUCTS, only_moves
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.flow import VIEWS, Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.scope import scope_of

_FREE = frozenset({"constant", "iota", "parameter", "tuple", "get-tuple-element", "broadcast"})
"""They take nothing to make again, and XLA keeps none of them."""


_DEAR = PRODUCTS | {"reduce", "reduce-window", "scatter", "sort"}
"""Opcodes whose result has a buffer: their readers do not compute it again."""

_MOVES = (VIEWS | {"slice", "pad", "concatenate"}) - {"convert", "broadcast"}
"""Opcodes that put elements elsewhere: what they take is kept, once."""


def runs_again(op_name: str, *, loops: bool) -> bool:
    """Whether an instruction runs a layer's forward again; what a layer recomputes of itself is inside a further loop.

    ``loops``: a loop runs the layers.
    """
    before, mark, _ = op_name.partition("rematted_computation")
    return bool(mark) and before.split("/").count("while") == int(loops)


def read_again(module: HloModule, flow: Flow, body: str, scope: tuple[str, ...] = ()) -> tuple[tuple[int, int], ...]:
    """Numbers in ``Flow`` and bytes of the values between recomputation and backward of one layer.

    ``body``: the computation that runs the backward of the layer, ``scope``: its path where it shares that computation.
    A value that its readers cast is counted as it is made. Of layers without a loop XLA computes what is cheap again by
    itself, within the readers: there it is what the value is computed from that is kept.
    """
    within = reached(module, body)
    found: dict[int, int] = {}
    for value in flow.values:
        one = value.instruction
        if value.computation.name not in within or value.names or not one.op_name or not _is_of(one.op_name, scope):
            continue
        if runs_again(one.op_name, loops=not scope):
            continue
        for operand in value.operands:
            for number in _made(flow, operand, within):
                for source in _kept_for(flow, number, within, one.opcode, alone=bool(scope)):
                    made = flow.values[source].instruction
                    if runs_again(made.op_name, loops=not scope) and made.opcode not in _FREE:
                        found[source] = made.shape.bytes
    return tuple(found.items())


def _kept_for(flow: Flow, number: int, within: frozenset[str], reader: str, *, alone: bool) -> list[int]:
    """What is kept so that a value can be read: the value, or what its reader computes it from."""
    if not alone or reader in PRODUCTS:
        return [number]
    found, waiting, seen = [], [number], set[int]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        value = flow.values[one]
        if value.instruction.opcode in _DEAR:
            found.append(one)
        elif runs_again(value.instruction.op_name, loops=not alone):
            waiting += [made for operand in value.operands for made in _made(flow, operand, within)]
    return found


def _is_of(op_name: str, scope: tuple[str, ...]) -> bool:
    return scope_of(op_name).path[: len(scope)] == scope


def _made(flow: Flow, number: int, within: frozenset[str]) -> list[int]:
    """What computes a value, behind other layouts of it, within the layer."""
    found, waiting, seen = [], [number], set[int]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        value = flow.values[one]
        if value.computation.name not in within or value.carried:
            continue
        if value.names:
            waiting.extend(value.names)
        elif value.instruction.opcode in _MOVES and not _of_kept(flow, value.operands, within):
            waiting.extend(value.operands)
        else:
            found.append(one)
    return found


def _of_kept(flow: Flow, numbers: tuple[int, ...], within: frozenset[str]) -> bool:
    """Whether something comes from outside of the layer's backward: a part of it is a value of its own."""
    waiting, seen = list(numbers), set[int]()
    while waiting:
        one = waiting.pop()
        value = flow.values[one]
        if one in seen:
            continue
        seen.add(one)
        if value.computation.name not in within or value.carried:
            return True
        if value.names or value.instruction.opcode in _MOVES | {"dynamic-slice"}:
            waiting.extend(value.names or value.operands[:1])
    return False


# What it takes to keep values of layers that a loop runs: stacks are filled, written, and read back.
#
# A value that the forward loop of ``jax.lax.scan`` hands to the backward loop has an array with a leading axis of
# layers.
# XLA fills it in front of the loop, writes a layer's part with ``dynamic-update-slice`` and takes it out again in the
# backward; for a GPU these are kernels of their own, so that such a value goes through memory up to five times beside
# the
# kernels that compute with it. Where it is not kept, they are gone: computing again may be quicker than keeping.


FUSED_WRITES = 2
"""Times that a value is written for being kept alone, where its readers could compute it within themselves: in the
forward, and in the kernel that is priced for computing it again."""

_HLO_STACKS_MOVES = frozenset(
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
            part.name in update or part.opcode in _HLO_STACKS_MOVES
            for part in inside
            if part.shape.dims or part.shape.parts
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
