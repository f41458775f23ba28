"""Neighbouring kernels of a plan that inductor would leave apart, and what goes through memory between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.ops.fusion import NOTHING_LOST, fusion_reason
from perfscope.analyzers.plans.time import PlanWork, bytes_ns, plan_works
from perfscope.model.finding import Finding, Where, severity_of
from perfscope.model.torch_plan import PlanLine, PlannedGraph, PlannedKernel, PlannedRefusal
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A pair of kernels, in one graph."""

    graph: PlannedGraph
    refusal: PlannedRefusal
    first: PlannedKernel
    second: PlannedKernel
    saved_bytes: int
    """In one run: the read, and the write where nothing else needs the value."""


def pairs_apart(work: PlanWork) -> tuple[Apart, ...]:
    """Pairs with a value between them whose reason is not one that is right. A pair with two reasons counts once."""
    found: dict[tuple[int, int, int], Apart] = {}
    for number, one in enumerate(work.graphs):
        for refusal in one.graph.refusals:
            if not refusal.shared_bytes or NOTHING_LOST.search(refusal.reason):
                continue
            first, second = one.graph.kernels[refusal.first], one.graph.kernels[refusal.second]
            saved = refusal.shared_bytes * (1 if refusal.needed_elsewhere else 2)
            apart = Apart(graph=one.graph, refusal=refusal, first=first, second=second, saved_bytes=saved)
            found.setdefault((number, refusal.first, refusal.second), apart)
    return tuple(found.values())


def fusion_findings(trace: Trace, *, least: float) -> Iterator[Finding]:
    """One finding for each line and reason that costs at least ``least`` of the planned step."""
    target = trace.target
    for work in trace.fact(plan_works):
        if target is None:
            continue
        whole = (work.compiled or work.inside).device.low
        places: dict[tuple[PlanLine | None, str], list[Apart]] = defaultdict(list)
        for apart in pairs_apart(work):
            place = next(iter((*apart.second.places, *apart.first.places)), None)
            places[place, apart.refusal.reason].append(apart)
        for (place, reason), pairs in places.items():
            moved = sum(one.graph.calls * one.saved_bytes for one in pairs)
            saved = bytes_ns(target, moved)
            if not saved or saved < least * whole:
                continue
            means = fusion_reason(reason)
            yield Finding(
                subject=f"not fused by inductor: {reason.split(' (')[0][:60]}",
                title=f"inductor would keep {len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'} of neighbouring "
                f"kernels apart: {means.meaning}; {format_bytes(moved)} a step go through memory between them, up to "
                f"{format_ns(saved)} ({format_share(saved, whole)})",
                severity=severity_of(saved, whole),
                basis="modelled",
                cost_ns=saved,
                cost_ns_per_step=saved,
                cost_bytes=moved,
                where=Where() if place is None else Where(file=place.file, line=place.line),
                evidence=tuple(
                    {
                        "writes": one.first.name,
                        "reads": one.second.name,
                        "direction": one.graph.direction,
                        "inductor_says": one.refusal.reason,
                        "value_bytes": one.refusal.shared_bytes,
                        "saved_bytes": one.saved_bytes,
                        "runs_a_step": one.graph.calls,
                    }
                    for one in sorted(pairs, key=lambda one: -one.saved_bytes)[:MAX_ROWS]
                ),
                advice=means.fix
                or "See both kernels with TORCH_LOGS=fusion,output_code; bring what they compute into one order of "
                "elements.",
            )
