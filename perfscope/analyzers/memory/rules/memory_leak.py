"""Memory grows step by step.

Why it costs: a program that keeps something of every step runs out of memory in the end, often after hours, at a line
that has nothing to do with it. Until then the caching allocator works with ever less room.

How it is found: what is in use is read at the end of every step. It must grow in nearly every one of them, and still in
the second half, so that a cache that fills up is none; the first step is left out. Where the recording has three or
four steps, a place in the program must hold the same amount more after each of them. The lines behind it are those
whose own bytes grow: what was never let go, and what was replaced by something larger. Where a run counted the
allocator's bytes before its first pass and behind the last one, growth shows also with one recorded step, and the
place is what that step left behind. Of a JAX program two device memory profiles are compared, with no work queued at
either: a stack that holds as many more buffers as there were steps between, or a multiple of that, leaks. What is
smaller than `LEAST_BYTES` a step is a number that is logged. When the device will be full is modelled from the growth
a step. A list that is cleared every so many steps looks the same within the steps before that: how many were looked at
is told.

Fix: keep values and not tensors with their history, ``losses.append(loss.item())`` once in a while or
``loss.detach()`` in every step, since a result that needs a gradient holds all that its backward pass would read; let
go of outputs, hooks and caches of a step when it is over; and give what must grow its final size at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.memory.categories import memory_phases
from perfscope.analyzers.memory.growth import (
    FEWEST_STEPS,
    GrowingPlace,
    GrownStack,
    JaxGrowth,
    MemoryGrowth,
    growth_of,
    jax_growth,
    left_behind,
    step_ends,
    steps_until_full,
)
from perfscope.analyzers.memory.holders import (
    judged_timelines,
    memory_records,
    peak_held,
    short_line,
    where_of,
    worst_of_devices,
)
from perfscope.analyzers.ops import spans_of_blocks
from perfscope.analyzers.time import step_windows
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Cell, Finding, Where
from perfscope.model.memory import MemoryPhase, MemoryTimeline
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_bytes

LEAST_BYTES = 4096
"""A step. A few scalars, each rounded up to 512 B by CUDA's allocator, are metrics that are kept on purpose."""

HORIZON_STEPS = 10_000
"""A short training run. What does not grow by `HORIZON_SHARE` of the peak within it fills no device."""

HORIZON_SHARE = 0.1
"""Of the peak. It is also the room that is left where a device is called nearly full (`oom_near`)."""

URGENT_STEPS = 1_000
"""Steps until the device is full from which a leak is high: less than one evaluation or checkpoint apart."""

ALIKE = 1.5
"""Times the growth a step that one place may have left in the step that was recorded: steps differ a little, and a
place that left more is replaced in the next one."""

ROW_SHARE = 0.01
"""Of the growth a step, below which a place is no row of the evidence."""


KEPT = {
    MemoryCategory.ACTIVATION: "Look for what that line's result is appended or assigned to. If it needs a gradient, "
    "such as a loss or a metric, it keeps all that its backward pass would read: keep loss.detach(), or loss.item() "
    "where waiting for the device does not matter",
    MemoryCategory.OUTPUT: "Keep only what is read of a step's results, detached, on the host",
    MemoryCategory.INPUT: "Release each batch when its step is over",
    MemoryCategory.GRADIENT: "Set gradients to None after each step, and do not collect them over steps",
}
"""What to do, by what the largest block is."""

OTHERWISE = (
    "Look for what that line's result is appended or assigned to, and let go of it when the step is over; keep "
    "tensor.detach() where only the value is needed"
)


examined = memory_records


def check(trace: Trace) -> Iterable[Finding]:
    """One finding a memory that grows, or a stack of a JAX program."""
    profiles = trace.fact(jax_growth)
    if profiles is not None:
        return list(_of_profiles(profiles))
    findings: list[Finding] = []
    blind: list[str] = []
    looked = False
    for timeline in judged_timelines(trace):
        growth = growth_of(trace, timeline)
        if growth is not None:
            looked = True
            findings += _of_steps(growth)
            continue
        counted = _counted(trace, timeline)
        if counted is None:
            blind.append(_why_blind(trace, timeline))
        else:
            looked = True
            findings += counted
    if not looked:
        raise AbstainError("; ".join(dict.fromkeys(blind)))
    return worst_of_devices(findings)


def _matters(per_step: float, timeline: MemoryTimeline) -> bool:
    peak = peak_held(timeline)
    return per_step >= LEAST_BYTES and per_step * HORIZON_STEPS >= HORIZON_SHARE * peak


def _of_steps(growth: MemoryGrowth) -> Iterator[Finding]:
    timeline = growth.timeline
    if not growth.growing or not _matters(growth.slope_bytes, timeline):
        return
    growing_place = growth.places[0] if growth.places else None
    per_step = round(growth.slope_bytes)
    left = steps_until_full(timeline, growth.slope_bytes)
    who = ""
    if growing_place is not None:
        who = f"; {_named(growing_place)} holds {format_bytes(growing_place.bytes_per_step)} more after each"
    yield Finding(
        subject=f"growth of {timeline.space} memory",
        title=f"{timeline.label} memory grows: {format_bytes(per_step)} per step, over {growth.judged:,} steps",
        detail=f"{format_bytes(per_step * growth.judged)} in all{who}{_full(left)}.",
        severity=_severity(left, growth.by_trend),
        basis="measured",
        cost_bytes=per_step * growth.judged,
        bytes_are="freed",
        where=_where(growing_place),
        evidence=tuple(
            _row(growing_place)
            for growing_place in growth.places[:MOST_ROWS]
            if growing_place.bytes_per_step >= ROW_SHARE * per_step
        ),
        spans=spans_of_blocks(timeline, _left(timeline, growth.places)),
        advice=_advice(growing_place),
    )


def _left(timeline: MemoryTimeline, growing_places: Iterable[GrowingPlace]) -> npt.NDArray[np.intp]:
    """Blocks of the places that nobody lets go."""
    lines = {growing_place.line for growing_place in growing_places if growing_place.line is not None}
    leaking = [index for index, line in enumerate(timeline.lines) if line in lines]
    blocks = timeline.blocks
    return np.flatnonzero(np.isin(blocks["line"], leaking) & blocks["after"] & ~blocks["before"])


def _counted(trace: Trace, timeline: MemoryTimeline) -> list[Finding] | None:
    """By the allocator's counters of a run; None where there are none, or too few steps between them."""
    counters = trace.allocator_counters
    if timeline.space != "device" or counters is None or counters.grown_bytes is None:
        return None
    if counters.steps is None or counters.steps < FEWEST_STEPS:
        return None
    per_step = counters.grown_bytes / counters.steps
    if not _matters(per_step, timeline):
        return []
    windows = timeline.of(trace).fact(step_windows)
    growing_places: tuple[GrowingPlace, ...] = ()
    if windows.count and timeline.axis == "ns":
        growing_places = left_behind(trace, timeline, windows.ends[-1:])
        # a step also leaves what the next one replaces: no single place can hold more than all of them grow by
        alike = [
            growing_place
            for growing_place in growing_places
            if LEAST_BYTES <= growing_place.bytes_per_step <= ALIKE * per_step
        ]
        growing_places = tuple(sorted(alike, key=lambda growing_place: abs(growing_place.bytes_per_step - per_step)))
    growing_place = growing_places[0] if growing_places else None
    who = (
        ""
        if growing_place is None
        else f"; the recorded step left {format_bytes(growing_place.bytes_per_step)} at {_named(growing_place)}"
    )
    left = steps_until_full(timeline, per_step)
    return [
        Finding(
            subject=f"growth of {timeline.space} memory",
            title=f"{timeline.label} memory grows: {format_bytes(per_step)} per step, over {counters.steps:,} steps",
            detail=f"{format_bytes(counters.grown_bytes)} in all{who}{_full(left)}.",
            severity=_severity(left, False) if growing_place is not None else "low",
            basis="measured",
            cost_bytes=counters.grown_bytes,
            bytes_are="freed",
            where=_where(growing_place),
            evidence=tuple(_row(growing_place) for growing_place in growing_places[:MOST_ROWS]),
            spans=spans_of_blocks(timeline, _left(timeline, growing_places)),
            advice=_advice(growing_place) + ". `perfscope run --level deep` records three steps and names the lines",
        )
    ]


def _of_profiles(growth: JaxGrowth) -> Iterator[Finding]:
    leaking = [
        grown_stack
        for grown_stack in growth.stacks
        if grown_stack.grown >= growth.steps and grown_stack.grown % growth.steps == 0
    ]
    leaking = [grown_stack for grown_stack in leaking if _grows(grown_stack, growth)]
    if not leaking or growth.steps < 2:
        return
    worst = leaking[0]
    per_step = sum(grown_stack.grown_bytes for grown_stack in leaking) / growth.steps
    line = worst.place
    yield Finding(
        subject="growth of arrays",
        title=f"arrays grow: {format_bytes(per_step)} per step, over {growth.steps:,} steps",
        detail=f"{short_line(line) or 'An unknown line'} makes {worst.grown // growth.steps:,} in each step that are "
        "never "
        "released.",
        severity="medium",
        basis="measured",
        cost_bytes=sum(grown_stack.grown_bytes for grown_stack in leaking),
        bytes_are="freed",
        where=where_of(line),
        evidence=tuple(
            {
                "place": short_line(grown_stack.place) or "unknown",
                "per_step_bytes": round(grown_stack.grown_bytes / growth.steps),
                "held_bytes": grown_stack.bytes,
                "blocks": grown_stack.count,
            }
            for grown_stack in leaking[:MOST_ROWS]
        ),
        advice="Look for what that line's result is appended to, or assigned to. Keep numbers, not arrays: "
        "float(loss) every so many steps, or jax.device_get of a list that is then cleared; donate what a step "
        "replaces",
    )


def _grows(grown_stack: GrownStack, growth: JaxGrowth) -> bool:
    per_step = grown_stack.grown_bytes / growth.steps
    return per_step >= LEAST_BYTES and per_step * HORIZON_STEPS >= HORIZON_SHARE * growth.bytes_after


def _why_blind(trace: Trace, timeline: MemoryTimeline) -> str:
    if timeline.first == timeline.last:
        return "one moment was recorded, and growth takes a history of several steps"
    windows = timeline.of(trace).fact(step_windows)
    known = step_ends(trace, timeline)
    if known is not None:
        steps = len(known)
    else:
        marked = memory_phases(trace, timeline).phase == MemoryPhase.OPTIMIZER  # one: a history of a single step
        steps = max(windows.count, int(marked.sum()))
    if not steps:
        return "no steps are known on the memory's clock: mark them with perfscope.step(), or record optimizer steps"
    more = "record five or more (`perfscope run --level deep` records three after the warm-up, which is enough)"
    return f"{steps} {'step was' if steps == 1 else 'steps were'} recorded with memory: {more}"


def _full(left: int | None) -> str:
    return "" if left is None else f"; at that rate the device is full in about {left:,} steps"


def _severity(left: int | None, sure: bool) -> Severity:
    if left is not None and left < URGENT_STEPS:
        return "high"
    return "medium" if sure or left is None or left < HORIZON_STEPS else "low"


def _named(growing_place: GrowingPlace) -> str:
    return short_line(growing_place.line) or growing_place.op or "an op without a line"


def _where(growing_place: GrowingPlace | None) -> Where:
    return (
        NOWHERE
        if growing_place is None
        else where_of(growing_place.line, op=growing_place.op, module=growing_place.module)
    )


def _row(growing_place: GrowingPlace) -> dict[str, Cell]:
    return {
        "place": _named(growing_place),
        "per_step_bytes": growing_place.bytes_per_step,
        "held_bytes": int(growing_place.held_bytes[-1]),
        "blocks": growing_place.blocks,
        "op": growing_place.op,
        "category": growing_place.category.name.lower().replace("_", " "),
    }


def _advice(growing_place: GrowingPlace | None) -> str:
    return OTHERWISE if growing_place is None else KEPT.get(growing_place.category, OTHERWISE)
