"""Pairs of compiled programs of two runs, each compared by instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.diff import program_change
from perfscope.analyzers.compare.programs.exchange import plan_exchanges
from perfscope.analyzers.compare.programs.plan import plan_change, plan_fingerprint, plan_totals, plan_units
from perfscope.analyzers.compare.programs.row import ProgramChange
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
from perfscope.analyzers.hlo import (
    CONTAINERS,
    HloModule,
    Instruction,
    ModuleCost,
    assigned_memory,
    collectives_of,
    hlo_costs,
    phase_of,
    program_label,
)
from perfscope.analyzers.plans import PlanWork, StepExchanges, plan_works
from perfscope.analyzers.predict import Range, estimate
from perfscope.analyzers.readers import unoptimized_program
from perfscope.model.errors import DataError
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import Trace

# Compiled XLA programs of both sides: the pairs, and the amounts that do not depend on a clock.


MOST_PROGRAMS = 8
"""Maximum number of programs compared one by one, the largest first; a script has two or three large ones."""

BLOCKED = "blocking collectives per run"

Program = TypeVar("Program")


class ProgramSide(Struct, frozen=True, kw_only=True):
    """One program of one side."""

    name: str
    """Module name without the suffix that makes it unique."""
    label: str
    fingerprint: str
    measures: Mapping[str, Measure]
    processes: int = 0
    """Number of processes of a plan, of which this is the first; 0 if its program sets up none."""
    failed: bool = False
    """Whether the program of a plan failed while it was planned."""


def fingerprint(module: HloModule) -> str:
    """Return a digest of a program's computation, 16 hexadecimal digits; equal if programs differ in names only.

    It covers, per instruction: opcode, shape, operands by place, attributes, whether a collective waits, and its calls.
    It leaves out names, metadata and constants other than loop counters.
    """
    return computation_digests(module)[module.entry][:16]


def program_sides(trace: Trace) -> tuple[ProgramSide, ...]:
    """Return the programs and plans of a trace, largest first."""
    plans = tuple(_plan_side(loaded) for loaded in trace.torch_plans)
    if not trace.hlo:
        return plans
    return plans + tuple(
        ProgramSide(
            name=cost.module.name.partition("(")[0],
            label=program_label(cost.module, trace),
            fingerprint=fingerprint(cost.module),
            measures={measure.name: measure for measure in _measures(cost)},
        )
        for cost in _costs(trace)
    )


def _costs(trace: Trace) -> list[ModuleCost]:
    """Return the costs of the compiled programs that are compared, largest first."""
    return sorted(trace.fact(hlo_costs), key=lambda cost: -(cost.total.bytes + cost.total.flops))[:MOST_PROGRAMS]


def _plan_side(loaded: LoadedPlan) -> ProgramSide:
    """Return the plan of torch.compile for a program."""
    totals, units = plan_totals(loaded), plan_units(loaded.plan)
    places: dict[str, dict[str, float]] = {name: {} for name in totals}
    parts = [(f"{line.file}:{line.line}", unit.amounts) for unit in units for line in unit.kernel.places[:1]]
    parts += [(exchange.place(), exchange.amounts) for exchange in plan_exchanges(loaded) or () if exchange.place()]
    for location, amounts in parts:
        for name, amount in amounts.items():
            places[name][location] = places[name].get(location, 0) + amount
    measures = [
        Measure(
            name=name,
            unit=UNITS[name],
            value=value,
            places={location: part for location, part in places[name].items() if part},
            least=LEAST_OF_PROGRAM if name == PLAN_LAUNCHES else 0.0,
            neutral=name == PLAN_COLLECTIVES,
        )
        for name, value in totals.items()
    ]
    return ProgramSide(
        name=loaded.plan.name,
        label=loaded.plan.name,
        fingerprint=plan_fingerprint(loaded),
        measures={measure.name: measure for measure in measures},
        processes=0 if loaded.plan.processes is None else loaded.plan.processes.world_size,
        failed=loaded.plan.failure is not None,
    )


def paired_programs(
    base: Sequence[Program], head: Sequence[Program], name: Callable[[Program], str]
) -> tuple[tuple[Program, Program], ...]:
    """Pair programs of one name in order; a single program on each side in any case."""
    if len(base) == len(head) == 1:
        return ((base[0], head[0]),)
    left: dict[str, list[Program]] = {}
    for program in base:
        left.setdefault(name(program), []).append(program)
    return tuple((left[name(program)].pop(0), program) for program in head if left.get(name(program)))


def paired_sides(
    base: Sequence[ProgramSide], head: Sequence[ProgramSide]
) -> tuple[tuple[ProgramSide, ProgramSide], ...]:
    """Pair programs of two sides by name."""
    return paired_programs(base, head, lambda side: side.name)


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
    memory = assigned_memory(module)
    if memory is not None:
        yield Measure(name=PEAK, unit="bytes", value=memory.peak_bytes)


def _collectives(cost: ModuleCost) -> Iterator[Measure]:
    """Yield the bytes over links and the number of waits; nothing for programs of one device."""
    sending = [(row.instruction, row.total.wire_bytes) for row in cost.launched if row.total.wire_bytes]
    collectives = collectives_of(cost.module)
    if not sending and not collectives:
        return
    waited = [(collective.start, collective.runs.times) for collective in collectives if collective.blocks is not None]
    yield Measure(name=WIRE, unit="bytes", value=cost.total.wire_bytes, places=_by_line(sending))
    yield Measure(name=BLOCKED, unit="count", value=sum(times for _, times in waited), places=_by_line(waited))


def _by_line(rows: Iterable[tuple[Instruction, int]]) -> dict[str, float]:
    places: dict[str, float] = {}
    for instruction, amount in rows:
        if instruction.file is not None:
            location = f"{instruction.file}:{instruction.line}" if instruction.line is not None else instruction.file
            places[location] = places.get(location, 0) + amount
    return places


class TargetOfSide(Struct, frozen=True, kw_only=True):
    """Targets of the sides' programs; ``''`` if unknown."""

    base: str
    head: str

    @property
    def differ(self) -> bool:
        """Whether both targets are known and differ."""
        return bool(self.base and self.head) and self.base != self.head

    @property
    def known(self) -> bool:
        """Whether both targets are known and equal."""
        return bool(self.base) and self.base == self.head


NO_TARGETS = TargetOfSide(base="", head="")


def program_changes(base: Sequence[Trace], head: Sequence[Trace]) -> tuple[ProgramChange, ...]:
    """Return the changes of every program and plan of both sides, largest first; empty if a side has none."""
    return (*_compiled(base, head), *_planned(base, head))


def _planned(base: Sequence[Trace], head: Sequence[Trace]) -> Iterator[ProgramChange]:
    """Pair plans of torch.compile by name in order; a single plan on each side in any case."""
    sides = [[loaded for trace in side for loaded in trace.torch_plans] for side in (base, head)]
    works = [{id(work.held): work for trace in side for work in plan_works(trace)} for side in (base, head)]
    for loaded, other in paired_programs(sides[0], sides[1], lambda loaded: loaded.plan.name):
        first, last = (side_works.get(id(plan)) for side_works, plan in zip(works, (loaded, other), strict=True))
        if first is None or last is None or targets(base, head).differ:
            yield plan_change(loaded, other)
            continue
        waits = _exchanges(first), _exchanges(last)
        spans = [work.inside.step for work in (first, last)]
        if waits[0] is not None and waits[1] is not None:
            spans = [step.step for step in waits if step is not None]
        change = plan_change(loaded, other, waits)
        yield replace(change, modelled_ns=(spans[0], spans[1]))


def _exchanges(work: PlanWork) -> StepExchanges | None:
    """Return the collectives of a step as the program runs it."""
    return work.compiled_exchanges if work.held.plan.compiled_by == "program" else work.eager_exchanges


def _compiled(base: Sequence[Trace], head: Sequence[Trace]) -> tuple[ProgramChange, ...]:
    """Return the changes of compiled programs of both sides; empty if a side has no scheduled program."""
    sides = [next((trace for trace in side if trace.hlo), None) for side in (base, head)]
    mine, theirs = sides
    if mine is None or theirs is None:
        return ()
    compiled = [trace.fact(program_sides)[len(trace.torch_plans) :] for trace in (mine, theirs)]
    costs = [
        {id(side): cost for side, cost in zip(programs, _costs(trace), strict=True)}
        for programs, trace in zip(compiled, (mine, theirs), strict=True)
    ]
    changes = []
    for program_side, other in paired_sides(*compiled):
        left, right = costs[0][id(program_side)], costs[1][id(other)]
        if left.module.is_scheduled and right.module.is_scheduled:
            change = program_change(
                left.module,
                right.module,
                before=(unoptimized_program(left.module.source), unoptimized_program(right.module.source)),
                costs=(left, right),
                name=other.label,
            )
            changes.append(replace(change, modelled_ns=_modelled(left, mine, right, theirs)))
    return tuple(changes)


def _modelled(base: ModuleCost, base_trace: Trace, head: ModuleCost, head_trace: Trace) -> tuple[Range, Range] | None:
    """Return the modelled time of a run of both; ``None`` unless both are for one target."""
    if base_trace.target is None or head_trace.target is None or targets([base_trace], [head_trace]).differ:
        return None
    try:
        spans = [
            estimate(cost.module, target, cost=cost).step_ns
            for cost, target in ((base, base_trace.target), (head, head_trace.target))
        ]
    except DataError:  # The program was compiled for another platform than it names.
        return None
    return spans[0], spans[1]


def targets(base: Sequence[Trace], head: Sequence[Trace]) -> TargetOfSide:
    """Return the machine that each side was compiled for, if its target has a name."""
    names = [next((_target(trace) for trace in side if trace.target is not None), "") for side in (base, head)]
    return TargetOfSide(base=names[0], head=names[1])


def _target(trace: Trace) -> str:
    target = trace.target
    if target is None:
        return ""
    memory = "" if target.memory_bytes is None else f", {target.memory_bytes:,} B each"
    return f"{target.shown} ({target.layout}){memory}"
