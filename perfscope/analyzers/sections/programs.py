"""The compiled programs of all traces as one bounded section; a failure in it does not affect the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.sections import guarded
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import HloModule
    from perfscope.analyzers.plans import ExchangeSummary, GraphWork, PipelineStep, PlanWork, Work
    from perfscope.analyzers.predict import Calibration, Estimate, LineTime, Range, StepOfSeveral
    from perfscope.analyzers.programs import HotSpots, Program
    from perfscope.analyzers.torch_compile import PlannedPair
    from perfscope.model.torch_plan import PlanMemory, PlannedGraph, PlannedKernel, PlanTotals

MOST_PROGRAMS = 20
"""Most programs of a section: a training script has two or three relevant ones and dozens of single ops."""

MOST_ROWS = 20
"""Most instructions, lines and scopes of a trace: those below the twentieth take a percent or two each."""

MOST_SPOTS = 8
"""Most recordings (or programs) whose instructions are listed, longest time first: a node's ranks."""

MOST_MODELLED = 8
"""Most programs of a section, longest time first: a training script has two or three relevant ones."""

MOST_GRAPHS = 20
MOST_KERNELS = 20
"""Most kernels over all graphs, most bytes per step first."""
MOST_PAIRS = 20
MOST_LINES = 20
"""Most breaks, recompilations and made-up values."""


class ProgramsSection(Struct, frozen=True, kw_only=True):
    """Programs and where their time goes, worst first; bounded, the rest is counted."""

    programs: tuple[Program, ...] = ()
    """Compiled XLA programs, the longest measured first; at most 20."""
    programs_left: int = 0
    """Programs that are not in ``programs``."""
    ran: int = 0
    """Programs that ran in a recording."""
    instructions_ns: int = 0
    """Measured time of all instructions of all programs that enclose no other, including those left out."""
    on_cpu: bool = False
    """Whether everything that ran used XLA's CPU backend."""
    hot_spots: tuple[HotSpots, ...] = ()
    """One per recording, or one per program without a recording; longest time first."""
    spots_left: int = 0
    """Recordings or programs whose hot spots are left out."""
    problems: tuple[str, ...] = ()
    """Why a trace's programs are missing."""


NO_PROGRAMS = ProgramsSection()


def programs_section(traces: Sequence[Trace]) -> ProgramsSection:
    """The section of all traces; a trace whose programs cause an error is named in ``problems``."""
    compiled = [trace for trace in traces if trace.hlo or len(trace.rows["hlo_ops"])]
    if not compiled:
        return NO_PROGRAMS
    from perfscope.analyzers.programs import hot_instructions, programs

    result: list[Program] = []
    spots: list[HotSpots] = []
    problems: list[str] = []
    spots_left = 0
    for trace in compiled:
        with guarded("the compiled programs could not be summed up", trace.source.path, problems):
            mine, hot = trace.fact(programs), trace.fact(hot_instructions)
            result += mine
            spots += [hot_spots.top(MOST_ROWS) for hot_spots in hot[:MOST_SPOTS]]
            spots_left += max(0, len(hot) - MOST_SPOTS)
    if len(traces) > 1:
        result.sort(key=lambda program: -(program.execution.instructions_ns if program.execution else -1))
        spots.sort(key=lambda hot_spots: -hot_spots.total_ns)
    ran = [program for program in result if program.execution is not None]
    return ProgramsSection(
        programs=tuple(result[:MOST_PROGRAMS]),
        programs_left=max(0, len(result) - MOST_PROGRAMS),
        ran=len(ran),
        instructions_ns=sum(program.execution.instructions_ns for program in ran if program.execution is not None),
        on_cpu=bool(ran)
        and all(program.platform in ("cpu", None) for program in ran)
        and any(program.platform for program in ran),
        hot_spots=tuple(spots[:MOST_SPOTS]),
        spots_left=spots_left + max(0, len(spots) - MOST_SPOTS),
        problems=tuple(problems),
    )


# Modelled time of programs compiled for a target, as one bounded section of an analysis.
#
# If the analysis includes a recording of the same program on the same device, the model is compared with it. A failure
# in it does not affect the others.


class ProgramTime(Struct, frozen=True, kw_only=True):
    """One program on the target, with its largest rows and lines."""

    label: str
    estimate: Estimate
    lines: tuple[LineTime, ...]
    """The user's lines, the most time first."""
    lines_left: int
    rows_left: int
    launched: int
    """Instructions that are launched, including those left out."""
    calls: int | None
    """Observed calls; None: unknown."""
    calibration: Calibration | None = None
    """Comparison of the model with a recording of the same program."""


class EstimateSection(Struct, frozen=True, kw_only=True):
    """Programs compiled for a target and their modelled time, longest first; bounded, the rest is counted."""

    programs: tuple[ProgramTime, ...] = ()
    programs_left: int = 0
    """Programs that are not in the list."""
    step: StepOfSeveral | None = None
    """Step of several programs, if the observed calls determine it."""
    problems: tuple[str, ...] = ()
    """Why the time of a program is missing."""


NO_ESTIMATE = EstimateSection()


def estimate_section(traces: Sequence[Trace]) -> EstimateSection:
    """The section of all traces that were compiled for a target."""
    programs: list[ProgramTime] = []
    problems: list[str] = []
    steps: list[StepOfSeveral] = []
    for trace in traces:
        if trace.target is None:
            continue
        recorded = [other for other in traces if other is not trace and _ran_on(other, trace.target.device.name)]
        program_times, step = _of_trace(trace, recorded, problems)
        programs += program_times
        if step is not None:
            steps.append(step)
    programs.sort(key=lambda program_time: -program_time.estimate.step_ns.middle * (program_time.calls or 1))
    return EstimateSection(
        programs=tuple(programs[:MOST_MODELLED]),
        programs_left=max(0, len(programs) - MOST_MODELLED),
        step=steps[0] if len(steps) == 1 else None,
        problems=tuple(problems),
    )


def _ran_on(trace: Trace, device: str) -> bool:
    """Whether a trace is a recording of programs on a device of that name."""
    from perfscope.analyzers.hlo import recorded_device

    if not len(trace.rows["hlo_ops"]):
        return False
    result = recorded_device(trace)
    return result is not None and result.name == device


def _of_trace(
    trace: Trace, recorded: Sequence[Trace], problems: list[str]
) -> tuple[list[ProgramTime], StepOfSeveral | None]:
    from perfscope.analyzers.hlo import program_labels
    from perfscope.analyzers.predict import calls_seen, step_of

    programs, whole, counts = [], [], []
    calls, labels = calls_seen(trace), program_labels(trace.hlo)
    for index, module in enumerate(trace.hlo):
        if not module.is_scheduled:
            continue
        with guarded(f"the time of {labels[index]} could not be modelled", trace.source.path, problems):
            try:
                modelled = _modelled(trace, index, module)
            except DataError as error:
                problems.append(str(error))
                continue
            calibration = _calibrated(modelled, module, recorded, problems)
            programs.append(_bounded(labels[index], modelled, calls.get(index), calibration))
            whole.append(modelled)
            counts.append(calls.get(index))
    known = [count for count in counts if count is not None]
    step = step_of(whole, known) if len(known) == len(whole) > 1 else None
    return programs, step


def _modelled(trace: Trace, index: int, module: HloModule) -> Estimate:
    from perfscope.analyzers.hlo import hlo_costs
    from perfscope.analyzers.predict import estimate

    assert trace.target is not None
    return estimate(module, trace.target, cost=trace.fact(hlo_costs)[index])


def _calibrated(
    modelled: Estimate, module: HloModule, recorded: Sequence[Trace], problems: list[str]
) -> Calibration | None:
    from perfscope.analyzers.predict import bounded, calibrate

    calibration: Calibration | None = None
    for other in recorded:
        path = other.source.path
        # the model is kept without a comparison
        with guarded(f"{module.name} could not be compared with {path}", path, problems):
            calibration = calibration or calibrate(modelled, module, other)
    return None if calibration is None else bounded(calibration, MOST_ROWS)


def _bounded(label: str, modelled: Estimate, calls: int | None, calibration: Calibration | None) -> ProgramTime:
    lines = modelled.lines()
    kept = replace(modelled, rows=modelled.rows[:MOST_ROWS])
    return ProgramTime(
        label=label,
        estimate=kept,
        lines=lines[:MOST_ROWS],
        lines_left=max(0, len(lines) - MOST_ROWS),
        rows_left=max(0, len(modelled.rows) - MOST_ROWS),
        launched=len(modelled.rows),
        calls=calls,
        calibration=calibration,
    )


# Plans of PyTorch programs as one bounded section; a failure in it does not affect the others.
#
# Counts and bytes are exact properties of a plan; every time is modelled for the target, as a range.


class KernelRuns(Struct, frozen=True, kw_only=True):
    """A planned kernel; equal ones of similar layers share a row."""

    kernel: PlannedKernel
    graph: PlannedGraph
    """Graph of the first of them."""
    calls: int
    """Runs per step, of all of them."""
    device_ns: Range
    """One run."""


class BreakRow(Struct, frozen=True, kw_only=True):
    """A line that ends graphs."""

    file: str | None
    line: int | None
    functions: tuple[str, ...]
    reason: str
    eager: bool
    """The whole frame runs in eager mode."""


class PlanSummary(Struct, frozen=True, kw_only=True):
    """One plan."""

    name: str
    target: str
    compiled_by: str
    """``perfscope``: the program runs eagerly, and was planned as if its outermost modules were compiled."""
    versions: dict[str, str]
    totals: PlanTotals
    """Totals of one step, exact."""
    inside: Work
    """Kernels in a row: exact counts, modelled time; ``step_ns`` is the host's launches where they take longer."""
    outside: Work | None
    compiled: Work | None
    eager: Work | None
    memory: PlanMemory | None
    """Peaks of the eager and of the planned step; ``None``: a plan of an earlier perfscope."""
    memory_bytes: int | None
    """Memory of one device of the target."""
    fits: bool | None
    """Whether the step as the program runs it fits; ``None``: unknown."""
    exchanges: ExchangeSummary | None
    """Exchanges of a job of several processes; ``None``: a single process."""
    graphs: tuple[GraphWork, ...]
    kernels: tuple[KernelRuns, ...]
    apart: tuple[PlannedPair, ...]
    breaks: tuple[BreakRow, ...]
    recompiles: tuple[tuple[str, str], ...]
    """(function, reason)."""
    made_up: tuple[tuple[str, str, str, int], ...]
    """(value read, place, answer, times)."""
    not_covered: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: str
    complete: bool
    failure: str | None
    fingerprint: str
    left: dict[str, int] = field(default_factory=dict)
    """Rows beyond the limits, by list."""


class PlanSection(Struct, frozen=True, kw_only=True):
    """All plans of an analysis."""

    plans: tuple[PlanSummary, ...] = ()
    problems: tuple[str, ...] = ()
    """Why a plan is missing."""
    pipelines: tuple[PipelineStep, ...] = ()
    """Pipelines whose ranks were planned; ``plans`` has the rank of each that works longest."""


NO_PLANS = PlanSection()


def plan_section(traces: Sequence[Trace]) -> PlanSection:
    """The plans of all traces; a plan that causes an error is named in ``problems``."""
    planned = [trace for trace in traces if trace.torch_plans]
    if not planned:
        return NO_PLANS
    from perfscope.analyzers.plans import pipeline_step, plan_works, rank_of

    summaries: list[PlanSummary] = []
    pipelines: list[PipelineStep] = []
    problems: list[str] = []
    for trace in planned:
        if trace.target is None:
            problems.append("the plan's target is unknown here, so nothing is priced")
        with guarded("the plan could not be summed up", trace.source.path, problems):
            works, pipeline = trace.fact(plan_works), trace.fact(pipeline_step)
            if pipeline is not None:
                pipelines.append(pipeline)
                works = tuple(work for work in works if rank_of(work) == pipeline.slowest.rank)
            summaries.extend(_summary(work, trace) for work in works)
    return PlanSection(plans=tuple(summaries), problems=tuple(problems), pipelines=tuple(pipelines))


def _summary(work: PlanWork, trace: Trace) -> PlanSummary:
    from perfscope.analyzers.plans import exchange_summary
    from perfscope.analyzers.torch_compile import planned_pairs
    from perfscope.model.torch_plan import fits, memory_as_run, totals

    plan, target = work.held.plan, trace.target
    step, capacity = memory_as_run(plan), None if target is None else target.memory_bytes
    kernels = sorted(_kernels(work), key=lambda row: -row.calls * row.kernel.bytes)
    apart = sorted(planned_pairs(plan), key=lambda pair: -pair.value_bytes)
    broken = list(_breaks(work))
    again = tuple(
        (recompile.function or "a frame", reason) for recompile in plan.recompiles for reason in recompile.reasons[:1]
    )
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
        graphs=work.graphs[:MOST_GRAPHS],
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


def _breaks(work: PlanWork) -> Iterator[BreakRow]:
    from perfscope.analyzers.torch_compile import planned_breaks

    for planned_break in planned_breaks(work.held):
        yield BreakRow(
            file=planned_break.place.file if planned_break.place else None,
            line=planned_break.place.line if planned_break.place else None,
            functions=planned_break.functions,
            reason=planned_break.breaks[0].reason,
            eager=all(graph_break.skipped_frame for graph_break in planned_break.breaks),
        )


def _kernels(work: PlanWork) -> Iterable[KernelRuns]:
    """One row for launches of the same kernel on equally many bytes."""
    rows: dict[tuple[object, ...], KernelRuns] = {}
    for graph_work in work.graphs:
        graph = graph_work.graph
        for kernel, time in zip(graph.kernels, graph_work.kernels, strict=True):
            sizes = (kernel.read_bytes, kernel.written_bytes, kernel.shape)
            key = (kernel.name, graph.compile_id, graph.direction, *sizes, kernel.places[:1])
            row = rows.get(key) or KernelRuns(kernel=kernel, graph=graph, calls=0, device_ns=time)
            rows[key] = replace(row, calls=row.calls + graph.calls)
    return rows.values()
