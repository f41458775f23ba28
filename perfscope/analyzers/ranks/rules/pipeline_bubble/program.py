"""Findings of ``pipeline_bubble`` about pipelines inside compiled XLA programs."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.hlo import line_of
from perfscope.analyzers.programs import ProgramPipeline, pipeline_price, priced, program_pipelines
from perfscope.model.finding import Finding, Where
from perfscope.model.trace import Trace

MIN_BUBBLE = 0.05
"""Share of idle turns from which a pipeline is reported: 64 microbatches on 4 stages have as much, and more gain
little.
"""

AMPLE = 4
"""Microbatches per stage from which GPipe's authors call the bubble negligible (Huang et al. 2019)."""


def pipeline_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line with pipelines whose stages idle in at least a twentieth of the turns."""
    places: dict[Where, list[ProgramPipeline]] = {}
    for pipeline in trace.fact(program_pipelines):
        if pipeline.bubble >= MIN_BUBBLE:
            places.setdefault(line_of(pipeline.permute.op), []).append(pipeline)
    for place, members in places.items():
        yield _finding(trace, place, members)


def _finding(trace: Trace, where: Where, members: list[ProgramPipeline]) -> Finding:
    worst = max(members, key=lambda one: one.bubble)
    idle, more = worst.stages - 1, AMPLE * worst.stages
    finding = Finding(
        subject="pipeline bubble",
        title=f"pipeline of {worst.stages:,} stages: {idle:,} of {worst.turns:,} turns are bubble",
        detail=f"{worst.microbatches:,} microbatches take {worst.turns:,} turns, and each stage has work in "
        f"{worst.microbatches:,} of them; it computes on nothing in the others.",
        severity="medium",
        basis="structural",
        where=where,
        evidence=tuple(
            {
                "loop": one.loop.name,
                "program": one.module.name,
                "stages": one.stages,
                "microbatches": one.microbatches,
                "turns": one.turns,
                "bubble_turns": one.stages - 1,
                "loop_runs": one.entered,
            }
            for one in members
        ),
        advice=f"Divide the batch into more microbatches: with {more:,} the bubble is {idle:,} of {more + idle:,} "
        "turns. Or give each device several stages around the ring (a circular schedule): v of them "
        "make the bubble v times smaller.",
    )
    saved = pipeline_price(trace, members)
    return priced(finding, saved) if saved is not None and saved.cost["cost_ns"] else finding
