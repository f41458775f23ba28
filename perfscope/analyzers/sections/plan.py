"""Plans of PyTorch programs as one bounded section of an analysis; what breaks in it breaks nothing else.

Counts and bytes are exact properties of a plan; every time in it is modelled for the target, as a range.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfscope.analyzers.ops.rules.unfused_ops.plan import pairs_apart
from perfscope.analyzers.plans.breaks import planned_breaks
from perfscope.analyzers.plans.exchanges import ExchangeSummary, exchange_summary
from perfscope.analyzers.plans.time import GraphWork, PlanWork, Work, plan_works
from perfscope.analyzers.predict.spans import Range
from perfscope.model.torch_plan import PlanLine, PlanMemory, PlanTotals, Registers, fits, memory_as_run, totals
from perfscope.model.trace import Trace

_log = logging.getLogger(__name__)

MOST_GRAPHS = 20
MOST_KERNELS = 20
"""Of all graphs: those with most bytes a step first."""
MOST_PAIRS = 20
MOST_LINES = 20
"""Breaks, recompilations, made-up values."""
MOST_OPS = 12
MOST_PLACES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """One planned graph, one run of it."""

    compile_id: str
    direction: str
    function: str | None
    place: PlanLine | None
    calls: int
    nodes: int
    kernels: int
    triton: int
    bytes: int
    flops: int
    saved_bytes: int
    dynamic: bool
    refusals: int
    device_ns: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One planned kernel, a run of it; ``calls``: runs a step, over layers that are alike."""

    name: str
    kind: str
    compile_id: str
    direction: str
    calls: int
    members: int
    ops: tuple[str, ...]
    places: tuple[PlanLine, ...]
    read_bytes: int
    written_bytes: int
    reread_bytes: int
    flops: int | None
    dtype: str | None
    shape: str | None
    device_ns: Range
    not_covered: str | None
    registers: Registers | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartRow:
    """Two kernels that inductor left apart, with a value between them."""

    first: str
    second: str
    direction: str
    reason: str
    shared_bytes: int
    place: PlanLine | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakRow:
    """A line that ends graphs."""

    file: str | None
    line: int | None
    functions: tuple[str, ...]
    reason: str
    eager: bool
    """The whole frame runs in eager mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """One plan."""

    name: str
    target: str
    compiled_by: str
    versions: dict[str, str]
    totals: PlanTotals
    inside: Work
    outside: Work | None
    compiled: Work | None
    eager: Work | None
    memory: PlanMemory | None
    """Peaks of the eager and of the planned step; ``None``: a plan of an earlier perfscope."""
    memory_bytes: int | None
    """Of one device of the target."""
    fits: bool | None
    """Whether the step as the program runs it does; ``None``: not known."""
    exchanges: ExchangeSummary | None
    """Of a job of several processes; ``None``: of one."""
    graphs: tuple[GraphRow, ...]
    kernels: tuple[KernelRow, ...]
    apart: tuple[ApartRow, ...]
    breaks: tuple[BreakRow, ...]
    recompiles: tuple[tuple[str, str], ...]
    """(function, reason)."""
    made_up: tuple[tuple[str, str, str, int], ...]
    """(what was read, where, what was answered, times)."""
    not_covered: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: str
    complete: bool
    failure: str | None
    fingerprint: str
    left: dict[str, int] = field(default_factory=dict)
    """Rows beyond the limits, by list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSection:
    """All plans of an analysis."""

    plans: tuple[PlanSummary, ...] = ()
    problems: tuple[str, ...] = ()
    """Why a plan is not in here."""


NO_PLANS = PlanSection()


def plan_section(traces: Sequence[Trace]) -> PlanSection:
    """The plans of all traces; one that breaks is named in ``problems``."""
    found: list[PlanSummary] = []
    problems: list[str] = []
    for trace in traces:
        if not trace.torch_plans:
            continue
        try:
            if trace.target is None:
                problems.append("the plan names no target that is known here: nothing of it is priced")
            found.extend(_summary(work, trace) for work in trace.fact(plan_works))
        except Exception as error:  # as with a rule: what breaks here must not cost the findings
            _log.warning("plans of %s", trace.source.path, exc_info=True)
            problems.append(f"the plan could not be summed up: {type(error).__name__}: {error}")
    return PlanSection(plans=tuple(found), problems=tuple(problems)) if found or problems else NO_PLANS


def _summary(work: PlanWork, trace: Trace) -> PlanSummary:
    plan, target = work.held.plan, trace.target
    step, capacity = memory_as_run(plan), None if target is None else target.memory_bytes
    kernels = sorted(_merged(_kernels(work)), key=lambda row: -row.calls * (row.read_bytes + row.written_bytes))
    apart = sorted(_apart(work), key=lambda row: -row.shared_bytes)
    broken = [
        BreakRow(
            file=one.place.file if one.place else None,
            line=one.place.line if one.place else None,
            functions=one.functions,
            reason=one.breaks[0].reason,
            eager=all(found.skipped_frame for found in one.breaks),
        )
        for one in planned_breaks(work.held)
    ]
    again = tuple((one.function or "a frame", reason) for one in plan.recompiles for reason in one.reasons[:1])
    made_up = tuple(
        (one.what, "-" if one.place is None else f"{one.place.file}:{one.place.line}", one.answer, one.times)
        for one in plan.made_up
    )
    lists: dict[str, tuple[int, int]] = {
        "graphs": (len(work.graphs), MOST_GRAPHS),
        "kernels": (len(kernels), MOST_KERNELS),
        "apart": (len(apart), MOST_PAIRS),
        "breaks": (len(broken), MOST_LINES),
        "recompiles": (len(again), MOST_LINES),
        "made_up": (len(made_up), MOST_LINES),
    }
    return PlanSummary(
        name=plan.name,
        target="" if target is None else target.shown,
        compiled_by=plan.compiled_by,
        versions=dict(plan.versions),
        totals=totals(plan),
        inside=work.inside,
        outside=work.outside,
        compiled=work.compiled,
        eager=work.eager,
        memory=plan.memory,
        memory_bytes=capacity,
        fits=None if step is None else fits(step, capacity),
        exchanges=exchange_summary(work),
        graphs=tuple(map(_graph, work.graphs[:MOST_GRAPHS])),
        kernels=tuple(kernels[:MOST_KERNELS]),
        apart=tuple(apart[:MOST_PAIRS]),
        breaks=tuple(broken[:MOST_LINES]),
        recompiles=again[:MOST_LINES],
        made_up=made_up[:MOST_LINES],
        not_covered=plan.not_covered[:MOST_LINES],
        notes=plan.notes[:MOST_LINES],
        stopped=plan.stopped,
        complete=plan.complete,
        failure=plan.failure,
        fingerprint=plan.fingerprint,
        left={name: count - most for name, (count, most) in lists.items() if count > most},
    )


def _graph(one: GraphWork) -> GraphRow:
    graph = one.graph
    return GraphRow(
        compile_id=graph.compile_id,
        direction=graph.direction,
        function=graph.function,
        place=graph.place,
        calls=graph.calls,
        nodes=graph.nodes,
        kernels=len(graph.kernels),
        triton=sum(kernel.name.startswith("triton_") for kernel in graph.kernels),
        bytes=one.once.bytes,
        flops=one.once.flops,
        saved_bytes=graph.saved_bytes,
        dynamic=graph.dynamic,
        refusals=len(graph.refusals) + graph.refusals_left,
        device_ns=one.once.device,
    )


def _kernels(work: PlanWork) -> Iterator[KernelRow]:
    for one in work.graphs:
        for kernel, took in zip(one.graph.kernels, one.kernels, strict=True):
            yield KernelRow(
                name=kernel.name,
                kind=kernel.kind,
                compile_id=one.graph.compile_id,
                direction=one.graph.direction,
                calls=one.graph.calls,
                members=len(kernel.members),
                ops=kernel.ops[:MOST_OPS],
                places=kernel.places[:MOST_PLACES],
                read_bytes=kernel.read_bytes,
                written_bytes=kernel.written_bytes,
                reread_bytes=kernel.reread_bytes,
                flops=kernel.flops,
                dtype=kernel.dtype,
                shape=kernel.shape,
                device_ns=took,
                not_covered=kernel.not_covered,
                registers=kernel.registers,
            )


def _merged(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """One row for launches of the same kernel on as many bytes: layers that are alike share one."""
    found: dict[tuple[object, ...], KernelRow] = {}
    for row in rows:
        key = (row.name, row.compile_id, row.direction, row.read_bytes, row.written_bytes, row.shape, row.places[:1])
        before = found.get(key)
        found[key] = row if before is None else replace(before, calls=before.calls + row.calls)
    return list(found.values())


def _apart(work: PlanWork) -> Iterator[ApartRow]:
    for one in pairs_apart(work):
        yield ApartRow(
            first=one.first.name,
            second=one.second.name,
            direction=one.graph.direction,
            reason=one.refusal.reason,
            shared_bytes=one.refusal.shared_bytes or 0,
            place=next(iter((*one.second.places, *one.first.places)), None),
        )
