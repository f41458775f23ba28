"""Findings about the collectives of a planned step: modelled waits for them on the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perfscope.analyzers.plans import ExchangeRow, exchange_rows, plan_works
from perfscope.analyzers.time import planned_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes


def planned_exposure(
    trace: Trace, *, least: float, part: float, advice: Callable[[str, str], str]
) -> Iterator[Finding]:
    """Yield one finding per kind of collective that the step waits for, at the low end of the modelled range.

    ``least``: minimum share of the step for all collectives; ``part``: for one kind; ``advice(kind, by)``: text, by
    who requested them.
    Collectives over links of unknown speed cost only their latency, and the finding states that.
    """
    for work in trace.fact(plan_works):
        plan = work.held.plan
        compiled = plan.compiled_by == "program"
        exchanges, step = (work.compiled_exchanges, work.compiled) if compiled else (work.eager_exchanges, work.eager)
        if plan.processes is None:
            continue
        if exchanges is None or step is None:
            raise AbstainError("no whole step of the job was planned")
        whole = step.step.low
        if exchanges.exposed.low < least * whole:
            continue
        kinds: dict[str, list[ExchangeRow]] = {}
        for row in exchange_rows(exchanges.rows, plan.processes.groups):
            kinds.setdefault(row.kind, []).append(row)
        for kind, rows in kinds.items():
            cost = sum(row.exposed_ns.low for row in rows)
            if cost and cost >= part * whole:
                yield _finding(kind, rows, cost, whole, advice(kind, rows[0].by), known=exchanges.known)


def _finding(kind: str, rows: list[ExchangeRow], cost: int, whole: int, advice: str, *, known: bool) -> Finding:
    times, blocking = sum(row.times for row in rows), sum(row.blocking for row in rows)
    moved = sum(row.bytes for row in rows)
    worst = rows[0]
    several = f"{times:,} {kind}s of {format_bytes(moved)}" if times > 1 else f"{kind} of {format_bytes(moved)}"
    overlap = {0: "kernels can overlap with all of them", times: "no kernel can overlap with any"}.get(
        blocking, f"no kernel can overlap with {blocking:,} of them"
    )
    least = "" if known else "; the links are not known, so this is the least"
    return Finding(
        subject=f"exposed {kind} (planned)",
        title=f"planned: the step waits for {several}",
        detail=f"{overlap[0].upper()}{overlap[1:]}{least}.",
        **planned_cost(cost, whole),
        cost_bytes=moved,
        where=Where(file=worst.file, line=worst.line, op=kind),
        evidence=tuple(
            {
                "at": Where(file=row.file, line=row.line).label(),
                "asked_for_by": row.by,
                "phase": row.phase,
                "times": row.times,
                "ranks": row.group_size,
                "moved_bytes": row.bytes,
                "takes_ns": row.busy_ns.low,
                "exposed_ns": row.exposed_ns.low,
                "beside_ns": row.beside_ns.low,
                "over": row.algorithm,
            }
            for row in rows[:MOST_ROWS]
        ),
        advice=advice,
    )
