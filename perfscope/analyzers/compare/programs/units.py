"""A compiled program as its launches: each kernel, library call and collective with its ops."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from perfscope.analyzers.hlo import (
    MOVES_NOTHING,
    SAME_BUFFER,
    Collective,
    Computation,
    HloModule,
    Instruction,
    InstructionCost,
    ModuleCost,
    callees_first,
    collectives_of,
    phase_of,
    sources,
)

BYTES = "bytes moved per run"
FLOPS = "FLOPs per run"
LAUNCHES = "instructions launched per run"
RECOMPUTED = "recomputed FLOPs per run"
WIRE = "collective bytes per run"
PEAK = "peak memory of the program"

PLAN_BYTES = "bytes of planned kernels per step"
PLAN_FLOPS = "FLOPs of planned kernels per step"
PLAN_LAUNCHES = "planned kernels per step"
PLAN_BREAKS = "planned graph breaks"
PLAN_PEAK = "planned peak memory of a step"
PLAN_COLLECTIVES = "planned collectives per step"
PLAN_WIRE = "planned collective bytes per step"
PLAN_BLOCKED = "planned blocking collectives per step"
PLAN_BLOCKED_WIRE = "planned blocking collective bytes per step"

EXCHANGED = (PLAN_COLLECTIVES, PLAN_WIRE, PLAN_BLOCKED, PLAN_BLOCKED_WIRE)
"""Metrics of a plan of several processes."""

UNITS: Mapping[str, str] = {
    BYTES: "bytes", FLOPS: "FLOP", LAUNCHES: "count", RECOMPUTED: "FLOP", WIRE: "bytes", PEAK: "bytes",
    PLAN_BYTES: "bytes", PLAN_FLOPS: "FLOP", PLAN_LAUNCHES: "count", PLAN_BREAKS: "count", PLAN_PEAK: "bytes",
    PLAN_COLLECTIVES: "count", PLAN_WIRE: "bytes", PLAN_BLOCKED: "count", PLAN_BLOCKED_WIRE: "bytes",
}  # fmt: skip
"""Exact metrics of a program that are broken down by instruction, with their units."""

MOST_SOURCES = 64
"""Maximum number of values of one view; the tuple of a loop holds hundreds, so its readers are unknown.
"""


class Op(Struct, frozen=True, eq=False):
    """One op of a program that computes or moves data: a launch by itself, or part of one."""

    instruction: Instruction
    computation: str
    flops: int
    """FLOPs of one run of its unit."""


class Unit(Struct, eq=False):
    """Work of one launch. Amounts are for all its runs in one run of the program."""

    number: int
    """Position in the program: callers first, then as scheduled."""
    computation: str
    instruction: Instruction
    runs: int
    amounts: Mapping[str, int]
    """Metric -> amount, without zeros."""
    ops: tuple[Op, ...]
    digest: str
    """Digest of the whole computation, without names and places."""
    reads: list[int] = field(default_factory=list)
    """Numbers of the units whose values it reads, in the order of its operands."""
    blocks: str | None = None
    """Reason that the device waits for a collective; ``None`` if it does not, or this is not a collective."""
    is_collective: bool = False


class Units(Struct, frozen=True, eq=False):
    """All launches of a program that run, and its totals."""

    module: HloModule
    units: tuple[Unit, ...]
    totals: Mapping[str, int]
    digests: Mapping[str, str]
    """Digest of each computation."""
    origins: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By computation: sources of each instruction's values, through views (`origins`)."""


def units_of(cost: ModuleCost) -> Units:
    """Return the launches of a program. Their amounts sum to its totals exactly. Linear in its instructions."""
    module = cost.module
    digests = computation_digests(module)
    collectives = {
        (collective.computation.name, collective.start.name): collective for collective in collectives_of(module)
    }
    inner: dict[str, tuple[Op, ...]] = {}
    units: list[Unit] = []
    for row in cost.launched:
        if not row.runs:
            continue
        ops = tuple(_ops(module, cost, row, inner))
        collective = collectives.get((row.computation, row.instruction.name))
        units.append(_unit(len(units), row, ops, digests, collective))
    made = _link(module, units)
    totals = dict.fromkeys((BYTES, FLOPS, LAUNCHES, RECOMPUTED, WIRE), 0)
    for unit in units:
        for name, amount in unit.amounts.items():
            totals[name] += amount
    return Units(module, tuple(units), totals, digests, made)


def _unit(
    number: int, row: InstructionCost, ops: tuple[Op, ...], digests: Mapping[str, str], collective: Collective | None
) -> Unit:
    again = sum(op.flops for op in ops if phase_of(op.instruction.op_name) == "recompute") * row.runs
    amounts = {
        BYTES: row.total.bytes, FLOPS: row.total.flops, LAUNCHES: row.runs, RECOMPUTED: again,
        WIRE: row.total.wire_bytes,
    }  # fmt: skip
    instruction = row.instruction
    return Unit(
        number=number,
        computation=row.computation,
        instruction=instruction,
        runs=row.runs,
        amounts={name: amount for name, amount in amounts.items() if amount},
        ops=ops,
        digest=instruction_digest(instruction, digests),
        blocks=None if collective is None else collective.blocks,
        is_collective=collective is not None,
    )


def _ops(module: HloModule, cost: ModuleCost, row: InstructionCost, inner: dict[str, tuple[Op, ...]]) -> Iterator[Op]:
    """Yield the ops of a launch, including those of fusions inside fusions."""
    instruction = row.instruction
    if instruction.opcode in ("fusion", "async-start", "fusion-start", "call-start") and instruction.called:
        yield from _ops_of(module, cost, instruction.called[0], inner)
    else:
        yield Op(instruction, row.computation, row.once.flops)


def _ops_of(module: HloModule, cost: ModuleCost, name: str, inner: dict[str, tuple[Op, ...]]) -> tuple[Op, ...]:
    known = inner.get(name)
    if known is not None:
        return known
    ops: list[Op] = []
    for instruction in module.computations[name].instructions:
        if instruction.opcode == "fusion" and instruction.called:
            ops += _ops_of(module, cost, instruction.called[0], inner)
        elif instruction.opcode not in MOVES_NOTHING:
            row = cost.by_name.get((name, instruction.name))
            ops.append(Op(instruction, name, 0 if row is None else row.once.flops))
    inner[name] = tuple(ops)
    return inner[name]


def _link(module: HloModule, units: list[Unit]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Link readers to the writers of their values, through views."""
    number_of = {(unit.computation, unit.instruction.name): unit.number for unit in units}
    every = {name: origins(module.computations[name]) for name in dict.fromkeys(unit.computation for unit in units)}
    for name, made in every.items():
        computation = module.computations[name]
        for instruction in computation.instructions:
            number = number_of.get((name, instruction.name))
            if number is None:
                continue
            sources = (number_of.get((name, source)) for operand in instruction.operands for source in made[operand])
            units[number].reads = list(dict.fromkeys(source for source in sources if source is not None))
    return every


def origins(computation: Computation) -> dict[str, tuple[str, ...]]:
    """Return name -> instructions that made its values, through views and the ends of asynchronous operations."""
    made = sources(computation, _handed_on)
    return {
        name: tuple(dict.fromkeys(source for part in parts for source, _ in part))[:MOST_SOURCES]
        for name, parts in made.items()
    }


def _handed_on(one: Instruction) -> str | None:
    ends = one.opcode in SAME_BUFFER or one.opcode.endswith(("-done", "-update"))
    return one.operands[0] if ends and one.operands else None


def computation_digests(module: HloModule) -> dict[str, str]:
    """Return the digest of each computation reachable from the entry: its work without names and places."""
    made: dict[str, str] = {}
    for name in callees_first(module, lambda instruction: bool(instruction.called)):
        made[name] = _digest(module.computations[name], made)
    return made


def _digest(computation: Computation, made: Mapping[str, str]) -> str:
    position_of = {instruction.name: number for number, instruction in enumerate(computation.instructions)}
    digest = hashlib.sha256()
    for instruction in computation.instructions:
        operands = [position_of.get(name, -1) for name in instruction.operands]
        digest.update(repr((_content(instruction, made), operands, instruction.is_root)).encode())
    return digest.hexdigest()


def instruction_digest(instruction: Instruction, made: Mapping[str, str]) -> str:
    """Return the digest of an instruction, independent of operand names. ``made``: digests of computations."""
    return hashlib.sha256(repr(_content(instruction, made)).encode()).hexdigest()


def _content(instruction: Instruction, made: Mapping[str, str]) -> tuple[object, ...]:
    called = [made.get(name, "") for name in instruction.called]
    attributes = sorted((key, value) for key, value in instruction.attributes.items() if "%" not in value)
    return (
        instruction.opcode, repr(instruction.shape), called, instruction.fusion_kind, instruction.custom_call_target,
        instruction.parameter_number, instruction.value, instruction.replica_groups, instruction.trip_count, attributes,
        _waits(instruction),
    )  # fmt: skip


def _waits(instruction: Instruction) -> bool:
    """Return whether the backend marked a collective as blocking."""
    config = instruction.backend_config.get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True
