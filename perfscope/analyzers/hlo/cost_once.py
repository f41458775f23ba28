"""Cost of running each computation and instruction of a module once, callees before callers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from perfscope.analyzers.hlo.cost_collectives import COLLECTIVES, group_size, wire_bytes
from perfscope.analyzers.hlo.cost_custom_calls import MOVES, NO_WORK, custom_call_work, without_scratch
from perfscope.analyzers.hlo.cost_fusion import BodyTraffic, body_traffic
from perfscope.analyzers.hlo.cost_ops import op_work
from perfscope.analyzers.hlo.cost_traffic import copy_traffic, fusion_traffic, op_traffic
from perfscope.analyzers.hlo.cost_types import NOTHING, Cost, Traffic, Work, cost_of
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape

CONTROL = frozenset({"while", "conditional", "call"})
ASYNC = frozenset({"async-start", "call-start", "custom-call-start", "fusion-start"})
"""Starts of what another computation describes."""
CONTAINERS = CONTROL | ASYNC | {"fusion"}
"""Opcodes whose arithmetic is that of the instructions in the computations they call."""

FREE = Cost()

_VIEWS = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"})
"""Most instructions of a module: answered before anything is looked up."""


class OnceCosts:
    """Costs of running each computation and instruction once; callees are counted before callers."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.sums: dict[str, Cost] = {}
        self.costs: dict[str, list[Cost]] = {}
        self.branches: dict[tuple[str, str], tuple[Cost, ...]] = {}
        self._bodies: dict[str, BodyTraffic] = {}
        fusions = (one for _, one in module.instructions() if one.opcode in ("fusion", "fusion-start"))
        self._fused = {called for one in fusions for called in one.called}
        self._started = _started_channels(module)

    def count(self, computation: Computation) -> None:
        """Count a computation whose callees are counted."""
        inside = computation.name in self._fused
        costs = []
        total = FREE
        for instruction in computation.instructions:
            cost = self._cost(computation, instruction, inside=inside)
            costs.append(cost)
            if cost is not FREE:
                total = total + cost
        self.costs[computation.name] = costs
        self.sums[computation.name] = total
        if inside:
            self._bodies[computation.name] = body_traffic(computation, self._bodies)

    def _cost(self, computation: Computation, instruction: Instruction, *, inside: bool) -> Cost:
        opcode = instruction.opcode
        if opcode in CONTROL:
            return self._control(computation, instruction)
        if opcode.endswith(("-done", "-update")) or opcode in _VIEWS:
            return FREE  # a start has the cost of what it starts
        operands = [computation.by_name[name].shape for name in instruction.operands]
        if opcode in ASYNC and instruction.called and opcode != "fusion-start":
            return self.sums[instruction.called[0]]
        if opcode.endswith("-start"):
            instruction = _blocking(instruction)
        cost = cost_of(self._work(instruction, operands), NOTHING)
        if instruction.opcode == "fusion" and instruction.called:
            cost = self.sums[instruction.called[0]]
        traffic = self._traffic(computation, instruction, operands, inside=inside)
        return _with_traffic(cost, traffic)

    def _control(self, computation: Computation, instruction: Instruction) -> Cost:
        called = [self.sums[name] for name in instruction.called]
        if instruction.opcode == "conditional":
            self.branches[computation.name, instruction.name] = tuple(called)
            return max(called, key=dearness, default=FREE)
        total = sum(called, start=FREE)
        if instruction.opcode == "while":
            return total.times(trips(instruction), exact=instruction.trip_count is not None)
        return total

    def _work(self, instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
        if instruction.opcode == "fusion":
            return Work()
        if instruction.opcode == "custom-call":
            return custom_call_work(instruction, operands)
        return op_work(instruction, operands, lambda number: self._operator(instruction, number))

    def _operator(self, instruction: Instruction, number: int) -> Work | None:
        """Work of applying an instruction's operator once."""
        if number >= len(instruction.called):
            return None
        cost = self.sums[instruction.called[number]]
        return None if cost.unknown else Work(flops=cost.flops, transcendentals=cost.transcendentals, exact=cost.exact)

    def _traffic(
        self, computation: Computation, instruction: Instruction, operands: Sequence[Shape], *, inside: bool
    ) -> Traffic:
        opcode, platform = instruction.opcode, self.module.platform
        wire = self._wire(computation, instruction, operands, inside=inside) if opcode in COLLECTIVES else 0
        if inside:
            return Traffic(wire=wire)
        if opcode == "fusion" and instruction.called:
            return fusion_traffic(instruction, operands, self._bodies[instruction.called[0]], platform)
        if opcode == "copy-start":
            return copy_traffic(instruction, operands, platform)
        if opcode == "custom-call":
            target = instruction.custom_call_target or ""
            if target in NO_WORK:
                return NOTHING
            if target not in MOVES:
                instruction = dataclasses.replace(instruction, shape=without_scratch(instruction))
        moved = op_traffic(instruction, operands, platform)
        return dataclasses.replace(moved, wire=wire) if wire else moved

    def _wire(
        self, computation: Computation, instruction: Instruction, operands: Sequence[Shape], *, inside: bool
    ) -> int:
        # the TPU compiler repeats a collective in each fusion that works beside it: the one that starts it counts
        start = self._started.get(instruction.channel_id)
        if inside and start is not None and start != computation.name:
            return 0
        return wire_bytes(instruction.opcode, operands, instruction.shape, group_size(self.module, instruction))


def _with_traffic(cost: Cost, traffic: Traffic) -> Cost:
    if traffic is NOTHING:
        return cost
    return dataclasses.replace(
        cost,
        bytes_read=traffic.read,
        bytes_written=traffic.written,
        wire_bytes=cost.wire_bytes + traffic.wire,
        host_bytes=traffic.host,
    )


def _blocking(instruction: Instruction) -> Instruction:
    """The op that an asynchronous start begins, with the shape of what it yields in the end.

    A start's shape is (operands, results, ...), except for ``all-reduce-start``, whose is the result alone,
    and copies, which have a rule of their own.
    """
    opcode = instruction.opcode
    shape = instruction.shape
    if opcode != "copy-start":
        if opcode != "all-reduce-start" and len(shape.parts) > 1:
            shape = shape.parts[1]
        opcode = opcode.removesuffix("-start")
    return dataclasses.replace(instruction, opcode=opcode, shape=shape)


def _started_channels(module: HloModule) -> dict[int | None, str]:
    """Computation in which the TPU compiler starts an asynchronous collective, by channel."""
    found: dict[int | None, str] = {}
    for computation in module.computations.values():
        for one in computation.instructions:
            if one.custom_call_target == "AsyncCollectiveStart":
                for name in one.operands:
                    channel = computation.by_name[name].channel_id
                    if channel is not None:
                        found.setdefault(channel, computation.name)
    return found


def dearness(cost: Cost) -> tuple[int, int]:
    """Order of branches: by arithmetic, then by bytes."""
    return cost.flops + cost.transcendentals, cost.bytes


def trips(instruction: Instruction) -> int:
    """Turns of a loop; 1 where they are not known."""
    return 1 if instruction.trip_count is None else instruction.trip_count


def callees_first(module: HloModule) -> list[str]:
    """Computations that the entry reaches, each after those it calls; walked with a stack of our own."""
    finished: dict[str, bool] = {}
    waiting = [(module.entry, False)]
    order = []
    while waiting:
        name, left = waiting.pop()
        if left:
            finished[name] = True
            order.append(name)
            continue
        if name in finished:
            if not finished[name]:
                raise ValueError(f"computation {name[:80]!r} calls itself")
            continue
        finished[name] = False
        waiting.append((name, True))
        called = {one for instruction in module.computations[name].instructions for one in instruction.called}
        waiting.extend((one, False) for one in sorted(called) if not finished.get(one, False))
    return order
