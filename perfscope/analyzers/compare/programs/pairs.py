"""Which compiled programs of two runs are one another, each pair explained by instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfscope.analyzers.compare.programs.diff import program_change
from perfscope.analyzers.compare.programs.plan import plan_change
from perfscope.analyzers.compare.programs.row import ProgramChange
from perfscope.analyzers.compare.programs.side import paired_programs, program_sides
from perfscope.analyzers.hlo.cost.module import ModuleCost, hlo_costs
from perfscope.analyzers.plans import PlanWork, plan_works
from perfscope.analyzers.plans.collectives import StepExchanges
from perfscope.analyzers.predict import estimate
from perfscope.analyzers.readers.hlo.unoptimized import unoptimized_program
from perfscope.model.errors import DataError
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOfSide:
    """What the programs of a side are for; ``''``: nobody says."""

    base: str
    head: str

    @property
    def differ(self) -> bool:
        """They are known not to be for one machine."""
        return bool(self.base and self.head) and self.base != self.head

    @property
    def known(self) -> bool:
        """Both sides say it, and it is one."""
        return bool(self.base) and self.base == self.head


NO_TARGETS = TargetOfSide(base="", head="")


def program_changes(base: Sequence[Trace], head: Sequence[Trace]) -> tuple[ProgramChange, ...]:
    """Every program and plan that both sides have, those that do most first; none where a side has none."""
    return (*_compiled(base, head), *_planned(base, head))


def _planned(base: Sequence[Trace], head: Sequence[Trace]) -> Iterator[ProgramChange]:
    """Plans of torch.compile: of one name in order, one against one whatever their names."""
    sides = [[held for trace in side for held in trace.torch_plans] for side in (base, head)]
    works = [{id(work.held): work for trace in side for work in plan_works(trace)} for side in (base, head)]
    pairs = list(zip(*sides, strict=True)) if len(sides[0]) == len(sides[1]) == 1 else []
    if not pairs:
        left: dict[str, list[LoadedPlan]] = {}
        for one in sides[0]:
            left.setdefault(one.plan.name, []).append(one)
        pairs = [(left[one.plan.name].pop(0), one) for one in sides[1] if left.get(one.plan.name)]
    for one, other in pairs:
        first, last = (held.get(id(plan)) for held, plan in zip(works, (one, other), strict=True))
        if first is None or last is None or targets(base, head).differ:
            yield plan_change(one, other)
            continue
        waits = _exchanges(first), _exchanges(last)
        spans = [work.inside.step for work in (first, last)]
        if waits[0] is not None and waits[1] is not None:
            spans = [step.step for step in waits if step is not None]
        change = plan_change(one, other, waits)
        yield replace(change, modelled_ns=((spans[0].low, spans[0].high), (spans[1].low, spans[1].high)))


def _exchanges(work: PlanWork) -> StepExchanges | None:
    """The collectives of a step as the program runs it."""
    return work.compiled_exchanges if work.held.plan.compiled_by == "program" else work.eager_exchanges


def _compiled(base: Sequence[Trace], head: Sequence[Trace]) -> tuple[ProgramChange, ...]:
    """Compiled programs that both sides have; none where a side has no scheduled one."""
    sides = [next((trace for trace in side if trace.hlo), None) for side in (base, head)]
    mine, theirs = sides
    if mine is None or theirs is None:
        return ()
    costs = [
        {id(side): cost for side, cost in zip(trace.fact(program_sides), _ordered(trace), strict=False)}
        for trace in (mine, theirs)
    ]
    pairs = paired_programs(mine.fact(program_sides), theirs.fact(program_sides))
    found = []
    for one, other in pairs:
        left, right = costs[0][id(one)], costs[1][id(other)]
        if left.module.is_scheduled and right.module.is_scheduled:
            change = program_change(
                left.module,
                right.module,
                before=(unoptimized_program(left.module.source), unoptimized_program(right.module.source)),
                costs=(left, right),
                name=other.label,
            )
            found.append(replace(change, modelled_ns=_modelled(left, mine, right, theirs)))
    return tuple(found)


def _modelled(
    base: ModuleCost, base_trace: Trace, head: ModuleCost, head_trace: Trace
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The time of a run of both by the model; ``None`` unless both are for one target."""
    if base_trace.target is None or head_trace.target is None or targets([base_trace], [head_trace]).differ:
        return None
    try:
        spans = [
            estimate(cost.module, target, cost=cost).step_ns
            for cost, target in ((base, base_trace.target), (head, head_trace.target))
        ]
    except DataError:  # compiled for another platform than it says
        return None
    return (spans[0].low, spans[0].high), (spans[1].low, spans[1].high)


def _ordered(trace: Trace) -> list[ModuleCost]:
    """Costs in the order of ``program_sides``."""
    return sorted(trace.fact(hlo_costs), key=lambda cost: -(cost.total.bytes + cost.total.flops))


def targets(base: Sequence[Trace], head: Sequence[Trace]) -> TargetOfSide:
    """The machine each side was compiled for, where it was compiled for one that is named."""
    said = [next((_target(trace) for trace in side if trace.target is not None), "") for side in (base, head)]
    return TargetOfSide(base=said[0], head=said[1])


def _target(trace: Trace) -> str:
    target = trace.target
    if target is None:
        return ""
    memory = "" if target.memory_bytes is None else f", {target.memory_bytes:,} B each"
    return f"{target.shown} ({target.layout}){memory}"
