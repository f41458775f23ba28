"""Cost of the collectives of a planned step: each as a range, with the part that the step waits for. All modelled.

The kernels of a step run one after another on the program's stream; each group's collectives run one after another on
their own stream. A collective begins when the work it was issued after is done, and the program's stream waits for it
where the program does. All ranks are assumed to reach it at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Target
from perfscope.analyzers.predict import (
    NO_TIME,
    CollectiveRange,
    Exchange,
    Factors,
    Played,
    Range,
    Task,
    exchange_range,
    play,
)
from perfscope.model.documents.torch_plan import PlannedCollective, PlannedProcesses, StepPosition

if TYPE_CHECKING:
    from perfscope.analyzers.plans.time import PlanWork

ENDS: tuple[Literal["low", "high"], ...] = ("low", "high")

XLA_KINDS = {
    "barrier": "all-reduce",
    "broadcast": "collective-broadcast",
    "gather": "all-gather",
    "recv": "collective-permute",
    "reduce": "collective-broadcast",
    "scatter": "all-gather",
    "send": "collective-permute",
}
"""Kind -> XLA kind with the same factor of the bus bandwidth (nccl-tests, PERFORMANCE.md); other kinds have equal
names."""

MOST_COLLECTIVES = 20
MOST_NOTES = 20


class CollectiveCost(Struct, frozen=True, kw_only=True):
    """One run of a collective in a step."""

    collective: PlannedCollective
    once: CollectiveRange
    exposed: Range
    """Time in which the program's stream ran nothing."""
    overlap: Range
    """Kernels that may run during it: between the work it waits for and the work that waits for it."""

    @property
    def blocks(self) -> bool:
        """Whether no kernel may run during it."""
        return self.overlap.high == 0


class StepExchanges(Struct, frozen=True, kw_only=True):
    """The collectives of a step."""

    rows: tuple[CollectiveCost, ...]
    busy: Range
    """Sum over all collectives."""
    exposed: Range
    """Time that they add to the step."""
    step: Range
    """The whole step including them."""

    @property
    def bytes(self) -> int:
        """Bytes of all exchanged arrays."""
        return sum(row.collective.bytes for row in self.rows)

    @property
    def known(self) -> bool:
        """Whether the link between the devices is known for every collective."""
        return all(row.once.known for row in self.rows)


def planned_collectives(
    processes: PlannedProcesses, outside: Sequence[Range], graphs: Sequence[Sequence[Range]]
) -> tuple[tuple[Range, ...], tuple[PlannedCollective, ...]]:
    """(kernels, collectives) of the planned step: ops outside of graphs, with the kernels of each graph at its place.

    Positions of the collectives count these kernels, as those of an eager step count its ops.
    ``outside``: the time of each op, ``graphs``: of each kernel of each graph.
    """
    kernels: list[Range] = []
    starts: list[int] = []
    runs: list[tuple[int, int]] = []
    done = 0
    for run in processes.runs:
        for op in range(done, max(done, min(run.ops, len(outside)))):
            starts.append(len(kernels))
            kernels.append(outside[op])
        done = max(done, run.ops)
        starts.append(len(kernels))
        if run.graph < len(graphs):
            runs.append((run.graph, len(kernels)))
            kernels += graphs[run.graph]
    for op in range(done, len(outside)):
        starts.append(len(kernels))
        kernels.append(outside[op])
    starts.append(len(kernels))

    def place(moment: StepPosition) -> int:
        return starts[min(moment.ops + moment.runs, len(starts) - 1)]

    placed = [_moved(collective, place) for collective in processes.outside or ()]
    inside = {collectives.graph: collectives.collectives for collectives in processes.inside}
    for graph, first in runs:
        placed += [replace(_moved(collective, _inside(first)), behind=()) for collective in inside.get(graph, ())]
    return tuple(kernels), tuple(placed)


def _inside(first: int) -> Callable[[StepPosition], int]:
    """Positions in a graph whose first kernel has this number."""
    return lambda moment: first + moment.ops


def _moved(collective: PlannedCollective, place: Callable[[StepPosition], int]) -> PlannedCollective:
    """The collective with positions that count the kernels of the whole step."""
    return replace(
        collective,
        at=StepPosition(ops=place(collective.at)),
        after=StepPosition(ops=place(collective.after)),
        until=None if collective.until is None else StepPosition(ops=place(collective.until)),
    )


def step_exchanges(
    kernels: Sequence[Range],
    step: Range,
    placed: Sequence[PlannedCollective],
    groups: Sequence[tuple[int, ...]],
    target: Target,
    factors: Factors,
) -> StepExchanges:
    """The collectives of a step with these ``kernels``, which the collectives' positions count.

    ``step``: its time without collectives, with launches.
    """
    times = [collective_once(collective, groups, target, factors) for collective in placed]
    sums, stretch = step_sums(kernels, step)
    played = [
        _played(sums[side], stretch[side], placed, [getattr(one.time, end) for one in times])
        for side, end in enumerate(ENDS)
    ]
    last = len(kernels)
    rows = tuple(
        CollectiveCost(
            collective=collective,
            once=once,
            exposed=_between(played[0][0].exposed[tasks[0]], played[1][0].exposed[tasks[1]]),
            overlap=_between(
                *(sums[side][_end(collective, last)] - sums[side][_begin(collective, last)] for side in (0, 1))
            ),
        )
        for collective, once, tasks in zip(placed, times, zip(played[0][1], played[1][1], strict=True), strict=True)
    )
    ends = [max(played.makespan, alone) for (played, _), alone in zip(played, (step.low, step.high), strict=True)]
    return StepExchanges(
        rows=rows,
        busy=sum((row.once.time for row in rows), NO_TIME),
        exposed=_between(ends[0] - step.low, ends[1] - step.high),
        step=Range(low=ends[0], high=ends[1]),
    )


def step_sums(kernels: Sequence[Range], step: Range) -> tuple[list[list[int]], list[float]]:
    """By end: times of all kernels before each kernel, and the factor that makes a step with its launches of them."""
    sums = [[0, *accumulate(getattr(one, end) for one in kernels)] for end in ENDS]
    alone = (step.low, step.high)
    return sums, [alone[side] / sums[side][-1] if sums[side][-1] else 0.0 for side in (0, 1)]


def overlapping_kernels(launched: Sequence[bool], placed: Sequence[PlannedCollective]) -> tuple[int, ...]:
    """Number of kernels of a step that may run during each collective; independent of a target.

    ``launched``: whether each kernel of the step runs on the device. 0 means `CollectiveCost.blocks`.
    """
    sums, last = [0, *accumulate(map(int, launched))], len(launched)
    return tuple(sums[_end(collective, last)] - sums[_begin(collective, last)] for collective in placed)


def _played(
    sums: Sequence[int], stretch: float, placed: Sequence[PlannedCollective], takes: Sequence[int]
) -> tuple[Played, tuple[int, ...]]:
    """Play the step; also return the task of each collective."""
    tasks, place = step_tasks(sums, stretch, placed, takes)
    return play(tasks), place


def step_tasks(
    sums: Sequence[int], stretch: float, placed: Sequence[PlannedCollective], takes: Sequence[int]
) -> tuple[list[Task], tuple[int, ...]]:
    """Tasks of a step, and the task of each collective: kernels on stream 0, a group's collectives on another one.

    Each pair of ranks has a separate stream for its sends and receives.
    """
    last = len(sums) - 1
    streams: dict[object, int] = {}
    marks = {0, last}
    for one in placed:
        marks |= {_begin(one, last), min(one.at.ops, last)} | (
            {min(one.until.ops, last)} if one.until is not None else set()
        )
    cuts = sorted(marks)
    begin: dict[int, list[int]] = {}
    wait: dict[int, list[int]] = {}
    for number, one in enumerate(placed):
        begin.setdefault(min(one.at.ops, last), []).append(number)
        if one.until is not None:
            wait.setdefault(min(one.until.ops, last), []).append(number)
    tasks: list[Task] = []
    place: dict[int, int] = {}
    done_at: dict[int, int] = {0: -1}
    """By cut the task of the kernels before it."""
    before = -1
    for index, cut in enumerate(cuts):
        done_at[cut] = before
        for number in begin.get(cut, ()):
            one = placed[number]
            waits = [done_at[_begin(one, last)], *(place[other] for other in one.behind if other in place)]
            place[number] = len(tasks)
            tasks.append(
                Task(
                    kind="communication",
                    stream=streams.setdefault(one.pairs or one.group, len(streams) + 1),
                    duration=takes[number],
                    waits=tuple(wait for wait in waits if wait >= 0),
                )
            )
        if index + 1 < len(cuts):
            length = round((sums[cuts[index + 1]] - sums[cut]) * stretch)
            waits = [place[number] for number in wait.get(cut, ()) if number in place]
            before = len(tasks)
            tasks.append(Task(kind="compute", stream=0, duration=length, waits=tuple(waits)))
    return tasks, tuple(place[number] for number in range(len(placed)))


def collective_once(
    collective: PlannedCollective, groups: Sequence[tuple[int, ...]], target: Target, factors: Factors
) -> CollectiveRange:
    """Time of a collective over the links of its ranks."""
    ranks = (
        collective.pairs
        if collective.pairs is not None
        else groups[collective.group]
        if collective.group < len(groups)
        else ()
    )
    if len(set(ranks)) < 2:
        return CollectiveRange(time=NO_TIME, algorithm="alone in its group", devices=1, nodes=1, known=True)
    return exchange_range(
        Exchange(kind=XLA_KINDS.get(collective.kind, collective.kind), bytes=collective.bytes, group=tuple(ranks)),
        target,
        factors,
    )


def _end(placed: PlannedCollective, last: int) -> int:
    return max(_begin(placed, last), last if placed.until is None else min(placed.until.ops, last))


def _begin(placed: PlannedCollective, last: int) -> int:
    return min(placed.after.ops, last)


def _between(first: int, second: int) -> Range:
    return Range(low=min(first, second), high=max(first, second))


class ExchangeTotals(Struct, frozen=True, kw_only=True):
    """Collectives of one step: counts and bytes exact, times modelled."""

    collectives: int
    bytes: int
    """Bytes of the exchanged arrays."""
    busy_ns: Range
    """Sum of their times."""
    exposed_ns: Range
    """Time that they add to the step."""
    blocking: int
    """Collectives during which no kernel can run."""
    known: bool
    """False: the link between the devices is unknown; times are latencies only."""


class ExchangeRow(Struct, frozen=True, kw_only=True):
    """Collectives of one kind requested by one line in one phase."""

    kind: str
    by: str
    """``the program``, or the part of torch that requests it."""
    phase: str
    file: str | None
    line: int | None
    times: int
    group_size: int
    bytes: int
    """Bytes of all of them."""
    dtype: str | None
    algorithm: str
    busy_ns: Range
    exposed_ns: Range
    """In which the step ran no kernel."""
    beside_ns: Range
    """Kernels that may run during them."""
    blocking: int


class BucketTotals(Struct, frozen=True, kw_only=True):
    """Buckets of gradients that DistributedDataParallel reduces."""

    buckets: int
    bytes: int
    largest_bytes: int
    smallest_bytes: int


class ExchangeSummary(Struct, frozen=True, kw_only=True):
    """The collectives of one rank of a job."""

    planned_rank: int
    world_size: int
    backend: str | None
    groups: int
    step: str
    """``eager`` or ``compiled``: the step that the rows describe, as the program runs it."""
    eager: ExchangeTotals | None
    compiled: ExchangeTotals | None
    rows: tuple[ExchangeRow, ...]
    buckets: BucketTotals | None
    """Buckets of DistributedDataParallel, modelled from the sizes of the parameters."""
    notes: tuple[str, ...]
    left: int
    """Rows that are not shown."""


def exchange_summary(work: PlanWork) -> ExchangeSummary | None:
    """Summarise a plan; ``None`` for a single process."""
    processes = work.held.plan.processes
    if processes is None:
        return None
    compiled = work.held.plan.compiled_by == "program"
    step = work.compiled_exchanges if compiled else work.eager_exchanges
    rows = () if step is None else tuple(exchange_rows(step.rows, processes.groups))
    sizes = [bucket.bytes for bucket in processes.buckets]
    return ExchangeSummary(
        planned_rank=processes.planned_rank,
        world_size=processes.world_size,
        backend=processes.backend,
        groups=len(processes.groups),
        step="compiled" if compiled else "eager",
        eager=_totals(work.eager_exchanges),
        compiled=_totals(work.compiled_exchanges),
        rows=rows[:MOST_COLLECTIVES],
        buckets=BucketTotals(buckets=len(sizes), bytes=sum(sizes), largest_bytes=max(sizes), smallest_bytes=min(sizes))
        if sizes
        else None,
        notes=processes.notes[:MOST_NOTES],
        left=len(rows[MOST_COLLECTIVES:]),
    )


def exchange_rows(costs: Iterable[CollectiveCost], groups: tuple[tuple[int, ...], ...]) -> list[ExchangeRow]:
    """Collectives by kind, line, phase and group, longest exposed time first."""
    costs_by_key: dict[tuple[object, ...], list[CollectiveCost]] = {}
    for cost in costs:
        what = cost.collective
        costs_by_key.setdefault(
            (what.kind, what.by, what.phase, what.file, what.line, what.group, what.dtype), []
        ).append(cost)
    rows = [_exchange_row(costs, groups) for costs in costs_by_key.values()]
    return sorted(rows, key=lambda row: (-row.exposed_ns.middle, -row.busy_ns.middle, row.kind, row.file or ""))


def _exchange_row(costs: list[CollectiveCost], groups: tuple[tuple[int, ...], ...]) -> ExchangeRow:
    first = costs[0].collective
    return ExchangeRow(
        kind=first.kind,
        by=first.by,
        phase=first.phase,
        file=first.file,
        line=first.line,
        times=len(costs),
        group_size=len(groups[first.group]) if first.group < len(groups) else 0,
        bytes=sum(cost.collective.bytes for cost in costs),
        dtype=first.dtype,
        algorithm=max(costs, key=lambda cost: cost.collective.bytes).once.algorithm,
        busy_ns=sum((cost.once.time for cost in costs), NO_TIME),
        exposed_ns=sum((cost.exposed for cost in costs), NO_TIME),
        beside_ns=sum((cost.overlap for cost in costs), NO_TIME),
        blocking=sum(cost.blocks for cost in costs),
    )


def _totals(step: StepExchanges | None) -> ExchangeTotals | None:
    if step is None:
        return None
    return ExchangeTotals(
        collectives=len(step.rows),
        bytes=step.bytes,
        busy_ns=step.busy,
        exposed_ns=step.exposed,
        blocking=sum(row.blocks for row in step.rows),
        known=step.known,
    )
