"""What a planned rank exchanges with the others, summed up for reports: by kind and line, the most exposed first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfscope.analyzers.plans.collectives import CollectiveCost, StepExchanges
from perfscope.analyzers.plans.time import PlanWork
from perfscope.analyzers.predict.spans import NO_TIME, Range

MOST_COLLECTIVES = 20
MOST_NOTES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTotals:
    """Collectives of one step: counts and bytes exact, times modelled."""

    collectives: int
    bytes: int
    """Of the arrays that are exchanged."""
    busy_ns: Range
    """One after another."""
    exposed_ns: Range
    """What they add to the step."""
    blocking: int
    """Beside which nothing can run."""
    known: bool
    """False: what joins the devices is not known; times are those of the steps alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRow:
    """Collectives of one kind that one line asks for, in one phase."""

    kind: str
    by: str
    """``the program``, or what of torch asks for it."""
    phase: str
    file: str | None
    line: int | None
    times: int
    group_size: int
    bytes: int
    """Of all of them."""
    dtype: str | None
    algorithm: str
    busy_ns: Range
    exposed_ns: Range
    beside_ns: Range
    """Kernels that may run beside them."""
    blocking: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTotals:
    """What DistributedDataParallel sums up together."""

    buckets: int
    bytes: int
    largest_bytes: int
    smallest_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSummary:
    """Rank 0 of a job."""

    world_size: int
    backend: str | None
    groups: int
    step: str
    """``eager`` or ``compiled``: which the rows are of, the step as the program runs it."""
    eager: ExchangeTotals | None
    compiled: ExchangeTotals | None
    rows: tuple[ExchangeRow, ...]
    buckets: BucketTotals | None
    notes: tuple[str, ...]
    left: int
    """Rows that are not shown."""


def exchange_summary(work: PlanWork) -> ExchangeSummary | None:
    """Of a plan; ``None`` for one of one process."""
    processes = work.held.plan.processes
    if processes is None:
        return None
    compiled = work.held.plan.compiled_by == "program"
    step = work.compiled_exchanges if compiled else work.eager_exchanges
    rows = () if step is None else tuple(exchange_rows(step.rows, processes.groups))
    sizes = [bucket.bytes for bucket in processes.buckets]
    return ExchangeSummary(
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
    """Collectives by kind, line, phase and group, those the step waits for most first."""
    found: dict[tuple[object, ...], list[CollectiveCost]] = {}
    for one in costs:
        what = one.collective
        found.setdefault((what.kind, what.by, what.phase, what.file, what.line, what.group, what.dtype), []).append(one)
    rows = [_row(held, groups) for held in found.values()]
    return sorted(rows, key=lambda row: (-row.exposed_ns.middle, -row.busy_ns.middle, row.kind, row.file or ""))


def _row(held: list[CollectiveCost], groups: tuple[tuple[int, ...], ...]) -> ExchangeRow:
    first = held[0].collective
    return ExchangeRow(
        kind=first.kind,
        by=first.by,
        phase=first.phase,
        file=first.file,
        line=first.line,
        times=len(held),
        group_size=len(groups[first.group]) if first.group < len(groups) else 0,
        bytes=sum(one.collective.bytes for one in held),
        dtype=first.dtype,
        algorithm=max(held, key=lambda one: one.collective.bytes).once.algorithm,
        busy_ns=_sum(one.once.time for one in held),
        exposed_ns=_sum(one.exposed for one in held),
        beside_ns=_sum(one.beside for one in held),
        blocking=sum(one.blocks for one in held),
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


def _sum(ranges: Iterable[Range]) -> Range:
    return sum(ranges, NO_TIME)
