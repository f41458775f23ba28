"""A compiled program as what it launches: each kernel, library call and collective with the ops that it is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from perfscope.analyzers.hlo.collectives import Collective, collectives_of
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.cost.types import phase_of
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.program import NO_WORK
from perfscope.analyzers.hlo.structure import callees_first

BYTES = "bytes moved a run"
FLOPS = "FLOPs a run"
LAUNCHES = "instructions launched a run"
RECOMPUTED = "recomputed FLOPs a run"
WIRE = "collective bytes a run"
PEAK = "peak memory of the program"

PLAN_BYTES = "bytes of planned kernels a step"
PLAN_FLOPS = "FLOPs of planned kernels a step"
PLAN_LAUNCHES = "planned kernels a step"
PLAN_BREAKS = "planned graph breaks"
PLAN_PEAK = "planned peak memory of a step"
PLAN_COLLECTIVES = "planned collectives a step"
PLAN_WIRE = "planned collective bytes a step"
PLAN_BLOCKED = "planned collectives that block a step"
PLAN_BLOCKED_WIRE = "planned collective bytes that block a step"

EXCHANGED = (PLAN_COLLECTIVES, PLAN_WIRE, PLAN_BLOCKED, PLAN_BLOCKED_WIRE)
"""Of a plan of one of several processes."""

UNITS: Mapping[str, str] = {
    BYTES: "bytes", FLOPS: "FLOP", LAUNCHES: "count", RECOMPUTED: "FLOP", WIRE: "bytes", PEAK: "bytes",
    PLAN_BYTES: "bytes", PLAN_FLOPS: "FLOP", PLAN_LAUNCHES: "count", PLAN_BREAKS: "count", PLAN_PEAK: "bytes",
    PLAN_COLLECTIVES: "count", PLAN_WIRE: "bytes", PLAN_BLOCKED: "count", PLAN_BLOCKED_WIRE: "bytes",
}  # fmt: skip
"""Exact metrics of a program that are taken apart by instruction, with their units."""

_LOOKED_THROUGH = frozenset({"bitcast", "get-tuple-element", "tuple", "opt-barrier", "optimization-barrier"})


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One op of a program that computes or moves something: a launch of its own, or inside one."""

    instruction: Instruction
    computation: str
    flops: int
    """Of one run of its unit."""


@dataclass(slots=True, eq=False)
class Unit:
    """What one launch does. Amounts are of all its runs in one run of the program."""

    number: int
    """In the order of the program: callers first, then as scheduled."""
    computation: str
    instruction: Instruction
    runs: int
    amounts: Mapping[str, int]
    """Metric -> amount, those that are not 0."""
    ops: tuple[Op, ...]
    digest: str
    """Of all that it computes, without names and places."""
    reads: list[int] = field(default_factory=list)
    """Numbers of the units whose values it reads, in the order of its operands."""
    blocks: str | None = None
    """Of a collective, why the device waits for it; ``None``: it does not, or this is none."""
    is_collective: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """All launches of a program that run, and its totals."""

    module: HloModule
    units: tuple[Unit, ...]
    totals: Mapping[str, int]
    digests: Mapping[str, str]
    """Of each computation."""
    origins: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By computation: whose values each instruction is, seen through views (`origins`)."""


def units_of(cost: ModuleCost) -> Units:
    """The launches of a program. Their amounts sum to its totals exactly. Linear in its instructions."""
    module = cost.module
    digests = computation_digests(module)
    collectives = {(one.computation.name, one.start.name): one for one in collectives_of(module)}
    inner: dict[str, tuple[Op, ...]] = {}
    found: list[Unit] = []
    for row in cost.launched:
        if not row.runs:
            continue
        ops = tuple(_ops(module, cost, row, inner))
        one = collectives.get((row.computation, row.instruction.name))
        found.append(_unit(len(found), row, ops, digests, one))
    made = _link(module, found)
    totals = dict.fromkeys((BYTES, FLOPS, LAUNCHES, RECOMPUTED, WIRE), 0)
    for unit in found:
        for name, amount in unit.amounts.items():
            totals[name] += amount
    return Units(module, tuple(found), totals, digests, made)


def _unit(
    number: int, row: InstructionCost, ops: tuple[Op, ...], digests: Mapping[str, str], collective: Collective | None
) -> Unit:
    again = sum(op.flops for op in ops if phase_of(op.instruction.op_name) == "recompute") * row.runs
    amounts = {
        BYTES: row.total.bytes, FLOPS: row.total.flops, LAUNCHES: row.runs, RECOMPUTED: again,
        WIRE: row.total.wire_bytes,
    }  # fmt: skip
    one = row.instruction
    return Unit(
        number=number,
        computation=row.computation,
        instruction=one,
        runs=row.runs,
        amounts={name: amount for name, amount in amounts.items() if amount},
        ops=ops,
        digest=instruction_digest(one, digests),
        blocks=None if collective is None else collective.blocks,
        is_collective=collective is not None,
    )


def _ops(module: HloModule, cost: ModuleCost, row: InstructionCost, inner: dict[str, tuple[Op, ...]]) -> Iterator[Op]:
    """What a launch is made of; fusions inside fusions are looked into."""
    one = row.instruction
    if one.opcode in ("fusion", "async-start", "fusion-start", "call-start") and one.called:
        yield from _ops_of(module, cost, one.called[0], inner)
    else:
        yield Op(one, row.computation, row.once.flops)


def _ops_of(module: HloModule, cost: ModuleCost, name: str, inner: dict[str, tuple[Op, ...]]) -> tuple[Op, ...]:
    known = inner.get(name)
    if known is not None:
        return known
    found: list[Op] = []
    for one in module.computations[name].instructions:
        if one.opcode == "fusion" and one.called:
            found += _ops_of(module, cost, one.called[0], inner)
        elif one.opcode not in NO_WORK:
            row = cost.by_name.get((name, one.name))
            found.append(Op(one, name, 0 if row is None else row.once.flops))
    inner[name] = tuple(found)
    return inner[name]


def _link(module: HloModule, units: list[Unit]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Who reads whose value, through views of it."""
    at = {(one.computation, one.instruction.name): one.number for one in units}
    every = {name: origins(module.computations[name]) for name in dict.fromkeys(one.computation for one in units)}
    for name, made in every.items():
        computation = module.computations[name]
        for one in computation.instructions:
            number = at.get((name, one.name))
            if number is None:
                continue
            sources = (at.get((name, source)) for operand in one.operands for source in made[operand])
            units[number].reads = list(dict.fromkeys(source for source in sources if source is not None))
    return every


def origins(computation: Computation) -> dict[str, tuple[str, ...]]:
    """Name -> the instructions whose values it is, seen through tuples, their elements and bitcasts."""
    found: dict[str, tuple[str, ...]] = {}
    for one in computation.instructions:
        if one.opcode in _LOOKED_THROUGH or one.opcode.endswith(("-done", "-update")):
            held = dict.fromkeys(source for operand in one.operands for source in found[operand])
            found[one.name] = tuple(held)[:MOST_SOURCES]
        else:
            found[one.name] = (one.name,)
    return found


MOST_SOURCES = 64
"""Values behind one view: the tuple that a loop carries holds hundreds, and says nothing of who reads what."""


def computation_digests(module: HloModule) -> dict[str, str]:
    """Of each computation that the entry reaches: what it computes and how, without names and places."""
    made: dict[str, str] = {}
    for name in callees_first(module, lambda one: bool(one.called)):
        made[name] = _digest(module.computations[name], made)
    return made


def _digest(computation: Computation, made: Mapping[str, str]) -> str:
    place = {one.name: number for number, one in enumerate(computation.instructions)}
    held = hashlib.sha256()
    for one in computation.instructions:
        operands = [place.get(name, -1) for name in one.operands]
        held.update(repr((_said(one, made), operands, one.is_root)).encode())
    return held.hexdigest()


def instruction_digest(one: Instruction, made: Mapping[str, str]) -> str:
    """What an instruction computes, whatever its operands are called. ``made``: digests of computations."""
    return hashlib.sha256(repr(_said(one, made)).encode()).hexdigest()


def _said(one: Instruction, made: Mapping[str, str]) -> tuple[object, ...]:
    called = [made.get(name, "") for name in one.called]
    attributes = sorted((key, value) for key, value in one.attributes.items() if "%" not in value)
    return (
        one.opcode, repr(one.shape), called, one.fusion_kind, one.custom_call_target, one.parameter_number, one.value,
        one.replica_groups, one.trip_count, attributes, _waits(one),
    )  # fmt: skip


def _waits(one: Instruction) -> bool:
    """Whether the backend marked a collective as one that the device waits for."""
    config = one.backend_config.get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True
