"""Compiled XLA programs of both sides: which is which, and what of them does not depend on a clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.compare.programs.exchange import plan_exchanges
from perfscope.analyzers.compare.programs.plan import plan_fingerprint, plan_totals, plan_units
from perfscope.analyzers.compare.programs.units import (
    BYTES,
    FLOPS,
    LAUNCHES,
    PEAK,
    PLAN_COLLECTIVES,
    PLAN_LAUNCHES,
    RECOMPUTED,
    UNITS,
    WIRE,
    computation_digests,
)
from perfscope.analyzers.compare.runs.measures import LEAST_OF_PROGRAM, Measure
from perfscope.analyzers.hlo.buffers import memory_timeline
from perfscope.analyzers.hlo.collectives import collectives_of
from perfscope.analyzers.hlo.cost.module import CONTAINERS, ModuleCost, hlo_costs
from perfscope.analyzers.hlo.cost.phase import phase_of
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.program import program_label
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import Trace

MOST_PROGRAMS = 8
"""Programs that are compared one by one, those that do most: a script has two or three that matter."""

BLOCKED = "collectives that block a run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSide:
    """One program of one side."""

    name: str
    """Its module's name, without what tells it from others of that name."""
    label: str
    fingerprint: str
    measures: Mapping[str, Measure]
    processes: int = 0
    """Of a plan: of how many processes it is the first; 0: its program sets up none."""
    failed: bool = False
    """Of a plan: its program failed while it was planned."""


def fingerprint(module: HloModule) -> str:
    """What a program computes and how, as 16 hexadecimal digits: equal for programs that differ in names only.

    Of each instruction: opcode, shape, operands by place, attributes, whether a collective waits, and what it calls; no
    names, no metadata, no values of constants but those that loops count with.
    """
    return computation_digests(module)[module.entry][:16]


def program_sides(trace: Trace) -> tuple[ProgramSide, ...]:
    """The programs and plans of a trace, those that do most first."""
    costs = trace.fact(hlo_costs)
    ordered = sorted(costs, key=lambda cost: -(cost.total.bytes + cost.total.flops))[:MOST_PROGRAMS]
    plans = tuple(_plan_side(held) for held in trace.torch_plans)
    if not trace.hlo:
        return plans
    return plans + tuple(
        ProgramSide(
            name=cost.module.name.partition("(")[0],
            label=program_label(cost.module, trace),
            fingerprint=fingerprint(cost.module),
            measures={one.name: one for one in _measures(cost)},
        )
        for cost in ordered
    )


def _plan_side(held: LoadedPlan) -> ProgramSide:
    """What torch.compile would make of a program."""
    totals, units = plan_totals(held), plan_units(held.plan)
    places: dict[str, dict[str, float]] = {name: {} for name in totals}
    parts = [(f"{place.file}:{place.line}", unit.amounts) for unit in units for place in unit.kernel.places[:1]]
    parts += [(one.place(), one.amounts) for one in plan_exchanges(held) or () if one.place()]
    for at, amounts in parts:
        for name, amount in amounts.items():
            places[name][at] = places[name].get(at, 0) + amount
    found = [
        Measure(
            name=name, unit=UNITS[name], value=value, places={at: part for at, part in places[name].items() if part},
            least=LEAST_OF_PROGRAM if name == PLAN_LAUNCHES else 0.0, neutral=name == PLAN_COLLECTIVES,
        )
        for name, value in totals.items()
    ]  # fmt: skip
    return ProgramSide(
        name=held.plan.name,
        label=held.plan.name,
        fingerprint=plan_fingerprint(held),
        measures={one.name: one for one in found},
        processes=0 if held.plan.processes is None else held.plan.processes.world_size,
        failed=held.plan.failure is not None,
    )


def paired_programs(
    base: Sequence[ProgramSide], head: Sequence[ProgramSide]
) -> tuple[tuple[ProgramSide, ProgramSide], ...]:
    """Programs of one name in order of size; one against one whatever their names."""
    if len(base) == len(head) == 1:
        return ((base[0], head[0]),)
    left: dict[str, list[ProgramSide]] = {}
    for one in base:
        left.setdefault(one.name, []).append(one)
    return tuple((left[one.name].pop(0), one) for one in head if left.get(one.name))


def _measures(cost: ModuleCost) -> Iterator[Measure]:
    module = cost.module
    launched = [row for row in cost.launched if row.runs]
    unknown = (f"{cost.total.unknown} instructions without a formula",) if cost.total.unknown else ()
    ops = [row for row in cost.rows if row.place != "control" and row.instruction.opcode not in CONTAINERS]
    computing = [(row.instruction, row.total.flops) for row in ops if row.total.flops]
    yield Measure(
        name=FLOPS,
        unit="FLOP",
        value=cost.total.flops,
        places=_by_line(computing),
        remarks=unknown,
        least=LEAST_OF_PROGRAM,
    )
    if module.is_scheduled:
        moving = [(row.instruction, row.total.bytes) for row in launched if row.total.bytes]
        yield Measure(name=BYTES, unit="bytes", value=cost.total.bytes, places=_by_line(moving))
        yield Measure(
            name=LAUNCHES,
            unit="count",
            value=sum(row.runs for row in launched),
            places=_by_line((row.instruction, row.runs) for row in launched),
            least=LEAST_OF_PROGRAM,
        )
        fusions = [(row.instruction, 1) for row in cost.launched if row.instruction.opcode == "fusion"]
        yield Measure(name="fusions", unit="count", value=len(fusions), places=_by_line(fusions), neutral=True)
        yield from _collectives(cost)
    again = [
        (row.instruction, row.total.flops)
        for row in ops
        if phase_of(row.instruction.op_name) == "recompute" and row.total.flops
    ]
    yield Measure(name=RECOMPUTED, unit="FLOP", value=sum(n for _, n in again), places=_by_line(again))
    memory = memory_timeline(module)
    if memory is not None:
        yield Measure(name=PEAK, unit="bytes", value=memory.peak_bytes)


def _collectives(cost: ModuleCost) -> Iterator[Measure]:
    """What goes over links, and how often the device waits for it; nothing of programs for one device."""
    sending = [(row.instruction, row.total.wire_bytes) for row in cost.launched if row.total.wire_bytes]
    found = collectives_of(cost.module)
    if not sending and not found:
        return
    waited = [(one.start, one.runs.times) for one in found if one.blocks is not None]
    yield Measure(name=WIRE, unit="bytes", value=cost.total.wire_bytes, places=_by_line(sending))
    yield Measure(name=BLOCKED, unit="count", value=sum(times for _, times in waited), places=_by_line(waited))


def _by_line(rows: Iterable[tuple[Instruction, int]]) -> dict[str, float]:
    places: dict[str, float] = {}
    for one, amount in rows:
        if one.file is not None:
            at = f"{one.file}:{one.line}" if one.line is not None else one.file
            places[at] = places.get(at, 0) + amount
    return places
