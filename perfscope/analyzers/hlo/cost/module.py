"""Cost of an HLO program by instruction, multiplied by the number of runs.

Modelled from the program alone: arithmetic by documented formulas, memory traffic as if no cache kept data between two
instructions and each instruction read its inputs once. Loops count for each turn, unlike in XLA's own cost analysis.
Arithmetic without a formula is unknown, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec
from msgspec import Struct

from perfscope.analyzers.hlo.cost.collectives import COLLECTIVES, group_size, wire_bytes
from perfscope.analyzers.hlo.cost.fusion import BodyTraffic, arrays_of, body_traffic
from perfscope.analyzers.hlo.cost.ops import (
    MOVES,
    NO_WORK,
    custom_call_work,
    is_stated,
    op_work,
    stated_traffic,
    without_scratch,
)
from perfscope.analyzers.hlo.cost.products import PRODUCTS
from perfscope.analyzers.hlo.cost.types import NO_PRODUCTS, NOTHING, Cost, Phase, Traffic, Work, cost_of, phase_of
from perfscope.analyzers.hlo.module import ITEM_BITS, Computation, HloModule, Instruction, Platform, Shape
from perfscope.analyzers.hlo.views import MOVES_NOTHING
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

_HBM = 0
_HOST = 5
"""Memory space of the host on every target (``S(5)``)."""

CONTROL = frozenset({"while", "conditional", "call"})

ASYNC = frozenset({"async-start", "call-start", "custom-call-start", "fusion-start"})
"""Starts of work that another computation describes."""

CONTAINERS = CONTROL | ASYNC | {"fusion"}
"""Opcodes whose arithmetic is that of the instructions in the computations they call."""

FREE = Cost()

MAX_AMOUNT = 1 << 128
"""Limit on operations, bytes or runs of a module: 10^38, a million exaFLOP/s machines for a million years, within the
range of floats.
"""

Place = Literal["launched", "control", "inside"]


# Bytes that an instruction moves through device memory: operands and results, or the touched parts of them.


def in_device_memory(shape: Shape, platform: Platform | None) -> bool:
    """Whether an array is in the device's large memory.

    On TPU only space 0 is HBM (1 is VMEM, 2 flags). On GPU it is every space except the host's: ``S(1)`` is memory that
    collectives can use directly.
    """
    return shape.memory_space == _HBM or (platform != "tpu" and shape.memory_space != _HOST)


def memory_bytes(shape: Shape, platform: Platform | None) -> int:
    """Return the bytes of a value in device memory."""
    return sum(array.bytes for array in arrays_of(shape) if in_device_memory(array, platform))


def host_bytes(shapes: Iterable[Shape]) -> int:
    """Return the bytes of values in the host's memory."""
    return sum(array.bytes for shape in shapes for array in arrays_of(shape) if array.memory_space == _HOST)


def elements_bytes(elements: int, array: Shape, platform: Platform | None) -> int:
    """Return the bytes of some elements of an array in device memory."""
    return -(-elements * ITEM_BITS.get(array.dtype, 0) // 8) if in_device_memory(array, platform) else 0


def fusion_traffic(
    instruction: Instruction, operands: Sequence[Shape], body: BodyTraffic, platform: Platform | None
) -> Traffic:
    """Return the traffic of a fusion: the parts that its body reads of each operand and writes of each result."""
    read = sum(
        elements_bytes(elements, array, platform)
        for shape, touched in zip(operands, body.read, strict=False)
        for array, elements in zip(arrays_of(shape), touched, strict=False)
    )
    written = sum(
        elements_bytes(elements, array, platform)
        for array, elements in zip(arrays_of(instruction.shape), body.written, strict=False)
    )
    return Traffic(read=read, written=written)


def op_traffic(instruction: Instruction, operands: Sequence[Shape], platform: Platform | None) -> Traffic:
    """Return the traffic of an instruction without calls, or with an operator only.

    An operand used twice is read once.
    """
    opcode = instruction.opcode
    if opcode in MOVES_NOTHING:
        return NOTHING
    if opcode in ("slice", "dynamic-slice", "gather") and operands:
        touched = elements_bytes(instruction.shape.elements, operands[0], platform)
        return Traffic(read=touched + _sum(operands[1:], platform), written=memory_bytes(instruction.shape, platform))
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        written = elements_bytes(operands[1].elements, operands[0], platform)
        return Traffic(read=_sum(operands[1:], platform), written=written)
    if opcode == "scatter" and len(operands) > 2:
        sets = len(operands) // 2
        updates = operands[sets + 1 :]
        # in place: the updated part is read, combined and written
        touched = sum(
            elements_bytes(update.elements, target, platform)
            for target, update in zip(operands[:sets], updates, strict=False)
        )
        return Traffic(read=touched + _sum(operands[sets:], platform), written=touched)
    distinct = dict(zip(instruction.operands, operands, strict=False))
    return Traffic(
        read=_sum(distinct.values(), platform),
        written=memory_bytes(instruction.shape, platform),
        host=host_bytes((*distinct.values(), instruction.shape)),
    )


def copy_traffic(instruction: Instruction, operands: Sequence[Shape], platform: Platform | None) -> Traffic:
    """Return the traffic of a ``copy-start``, whose result is (destination, source, context)."""
    target = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return Traffic(
        read=_sum(operands[:1], platform),
        written=memory_bytes(target, platform),
        host=host_bytes((*operands[:1], target)),
    )


def _sum(shapes: Iterable[Shape], platform: Platform | None) -> int:
    return sum(memory_bytes(shape, platform) for shape in shapes)


# Cost of running each computation and instruction of a module once, callees before callers.


class OnceCosts:
    """Costs of running each computation and instruction once; callees are counted before callers."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.sums: dict[str, Cost] = {}
        self.costs: dict[str, list[Cost]] = {}
        self.branches: dict[tuple[str, str], tuple[Cost, ...]] = {}
        self._bodies: dict[str, BodyTraffic] = {}
        fusions = (
            instruction for _, instruction in module.instructions() if instruction.opcode in ("fusion", "fusion-start")
        )
        self._fused = {called for fusion in fusions for called in fusion.called}
        self._started = _started_channels(module)

    def count(self, computation: Computation) -> None:
        """Count a computation after its callees."""
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
        if opcode.endswith(("-done", "-update")) or opcode in MOVES_NOTHING:
            return FREE  # a start has the cost of the started operation
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
            return max(called, key=branch_cost, default=FREE)
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
        """Return the work of applying an instruction's operator once."""
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
                instruction = msgspec.structs.replace(instruction, shape=without_scratch(instruction))
            stated = stated_traffic(instruction, memory_bytes(instruction.shape, platform))
            if stated is not None:
                return Traffic(read=stated[0], written=stated[1])
        moved = op_traffic(instruction, operands, platform)
        return msgspec.structs.replace(moved, wire=wire) if wire else moved

    def _wire(
        self, computation: Computation, instruction: Instruction, operands: Sequence[Shape], *, inside: bool
    ) -> int:
        # the TPU compiler repeats a collective in each fusion that overlaps it; only the start counts
        start = self._started.get(instruction.channel_id)
        if inside and start is not None and start != computation.name:
            return 0
        return wire_bytes(instruction.opcode, operands, instruction.shape, group_size(self.module, instruction))


def _with_traffic(cost: Cost, traffic: Traffic) -> Cost:
    if traffic is NOTHING:
        return cost
    return msgspec.structs.replace(
        cost,
        bytes_read=traffic.read,
        bytes_written=traffic.written,
        wire_bytes=cost.wire_bytes + traffic.wire,
        host_bytes=traffic.host,
    )


def _blocking(instruction: Instruction) -> Instruction:
    """Return the op that an asynchronous start begins, with the shape of its final result.

    A start's shape is (operands, results, ...), except for ``all-reduce-start``, whose shape is the result alone, and
    copies, which have a separate rule.
    """
    opcode = instruction.opcode
    shape = instruction.shape
    if opcode != "copy-start":
        if opcode != "all-reduce-start" and len(shape.parts) > 1:
            shape = shape.parts[1]
        opcode = opcode.removesuffix("-start")
    return msgspec.structs.replace(instruction, opcode=opcode, shape=shape)


def _started_channels(module: HloModule) -> dict[int | None, str]:
    """Return, by channel, the computation in which the TPU compiler starts an asynchronous collective."""
    result: dict[int | None, str] = {}
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.custom_call_target == "AsyncCollectiveStart":
                for name in instruction.operands:
                    channel = computation.by_name[name].channel_id
                    if channel is not None:
                        result.setdefault(channel, computation.name)
    return result


def branch_cost(cost: Cost) -> tuple[int, int]:
    """Order of branches: by arithmetic, then by bytes."""
    return cost.flops + cost.transcendentals, cost.bytes


def trips(instruction: Instruction) -> int:
    """Return the turns of a loop; 1 if unknown."""
    return 1 if instruction.trip_count is None else instruction.trip_count


def callees_first(module: HloModule) -> list[str]:
    """Return the computations reachable from the entry, callees first; iterative, so that depth is not limited."""
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
        called = {name for instruction in module.computations[name].instructions for name in instruction.called}
        waiting.extend((name, False) for name in sorted(called) if not finished.get(name, False))
    return order


class InstructionCost(Struct, frozen=True, kw_only=True):
    """Cost of each run of an instruction, and its number of runs in one run of the module."""

    computation: str
    instruction: Instruction
    place: Place
    """``launched``: runs by itself and has all of its traffic. ``control``: a loop, branch or call, with the cost of
    the code it runs. ``inside``: part of a fusion or of an asynchronous op, which has its traffic.
    """
    once: Cost
    runs: int
    """Number of runs. Totals include only the costliest branch of a conditional; instructions of other branches have 0.
    """
    runs_exact: bool
    """False if it is in a loop with an unknown trip count, which counts once."""
    branches: tuple[Cost, ...] = ()
    """For a conditional: every branch, in written order."""

    @property
    def flops(self) -> int | None:
        """FLOPs per run; ``None`` if none of its arithmetic can be counted. A lower bound unless ``once.exact``."""
        return None if self.once.unknown and not self.once.flops else self.once.flops

    @property
    def is_product(self) -> bool:
        """Whether it runs and is itself a matrix product, or a library call of one; a fusion around one is not."""
        opcode = self.instruction.opcode
        library = opcode == "custom-call" and not is_stated(self.instruction)
        return bool(self.once.products and self.runs) and (opcode in PRODUCTS or library)

    @property
    def total(self) -> Cost:
        """The cost of all its runs."""
        return self.once.times(self.runs, exact=self.runs_exact)


class ModuleCost(Struct, frozen=True, kw_only=True, dict=True):
    """Cost of one run of a module on one device."""

    module: HloModule
    total: Cost
    rows: tuple[InstructionCost, ...]
    """Every instruction that runs, except operators of reductions; callers first."""
    by_name: Mapping[tuple[str, str], InstructionCost]
    """By computation and instruction."""

    @cached_property
    def launched(self) -> tuple[InstructionCost, ...]:
        """Instructions that are launched on their own; their costs sum to the program's."""
        return tuple(row for row in self.rows if row.place == "launched" and row.once != FREE)

    @cached_property
    def phases(self) -> Mapping[Phase, Cost]:
        """Total by phase: arithmetic by the purpose of each op inside a fusion, traffic by the fusion's own name."""
        result: dict[Phase, Cost] = {}
        for row in self.rows:
            if row.place == "control" or not row.runs:
                continue
            part = row.total
            if row.instruction.called and row.instruction.opcode in CONTAINERS:
                part = msgspec.structs.replace(part, flops=0, transcendentals=0, products=NO_PRODUCTS, unknown=0)
            if part != FREE:
                phase = phase_of(row.instruction.op_name)
                result[phase] = result[phase] + part if phase in result else part
        return result

    def recompute_share(self) -> float:
        """Share of the FLOPs that recompute the forward pass; 0 without recomputation."""
        again = self.phases.get("recompute")
        return again.flops / self.total.flops if again is not None and self.total.flops else 0.0


def module_cost(module: HloModule) -> ModuleCost:
    """Return the cost of a module. Time and memory are linear in its instructions.

    ``DataError``, one line, for unrealistic sizes and trip counts; ``ValueError`` for cyclic calls, which readers
    reject.
    """
    order = callees_first(module)
    model = OnceCosts(module)
    for name in order:
        model.count(module.computations[name])
    rows = _placed(module, model, order)
    total = model.sums[module.entry]
    if max(total.flops, total.transcendentals, total.bytes, total.wire_bytes, *(row.runs for row in rows)) > MAX_AMOUNT:
        raise DataError(f"{module.source}: sizes or trip counts are unrealistic: the program would never end")
    return ModuleCost(
        module=module,
        total=total,
        rows=rows,
        by_name={(row.computation, row.instruction.name): row for row in rows},
    )


def _arithmetic(cost: Cost) -> Cost:
    """Return a cost without its traffic."""
    if not (cost.bytes or cost.wire_bytes or cost.host_bytes):
        return cost
    return msgspec.structs.replace(cost, bytes_read=0, bytes_written=0, wire_bytes=0, host_bytes=0)


def _placed(module: HloModule, model: OnceCosts, order: list[str]) -> tuple[InstructionCost, ...]:
    """Return rows of all computations that run, callers first, with their number of runs."""
    runs: dict[str, tuple[int, bool]] = {module.entry: (1, True)}
    inside: set[str] = set()
    rows = []
    for name in reversed(order):
        if name not in runs:
            continue  # an operator of a reduction, or a computation called only by operators
        times, exact = runs[name]
        for instruction, once in zip(module.computations[name].instructions, model.costs[name], strict=True):
            control = instruction.opcode in CONTROL
            branches = model.branches.get((name, instruction.name), ())
            rows.append(
                InstructionCost(
                    computation=name,
                    instruction=instruction,
                    place="inside" if name in inside else "control" if control else "launched",
                    once=_arithmetic(once) if name in inside else once,
                    runs=times,
                    runs_exact=exact,
                    branches=branches,
                )
            )
            if instruction.opcode not in CONTAINERS:
                continue  # it calls only an operator, applied to elements
            costliest = max(range(len(branches)), key=lambda index: branch_cost(branches[index])) if branches else None
            loop = instruction.opcode == "while"
            for index, called in enumerate(instruction.called if control else instruction.called[:1]):
                more = times * (trips(instruction) if loop else 1) if costliest in (None, index) else 0
                before, known = runs.get(called, (0, True))
                runs[called] = (before + more, known and exact and not (loop and instruction.trip_count is None))
                if name in inside or not control:
                    inside.add(called)
    return tuple(rows)


# Cost of the compiled programs of a trace, each counted once.


def hlo_costs(trace: Trace) -> tuple[ModuleCost, ...]:
    """Return the modelled cost of one run of each program in ``trace.hlo``, in the same order."""
    return tuple(module_cost(module) for module in trace.hlo)
