"""Memory grows step by step.

Example:
    Before::

        losses.append(loss)                     # keeps the graph of each step

    After::

        losses.append(loss.detach())

Why it costs: a program that keeps data of every step finally runs out of memory, often after hours and at an unrelated
line. Until then the caching allocator works with less and less free memory.

How it is found: used memory is read at the end of every step. It must grow in nearly every step, also in the second
half, so that a cache that fills up is not reported; the first step is left out. With only three or four recorded steps,
one place in the program must hold the same additional amount after each of them.

A run of `perfscope run` with more than twenty steps is judged as a whole: used memory of the device (torch's allocator,
living JAX arrays), else the resident memory of the process, is read after steps without a profiler and must nearly
always rise, also in the second half. Variables of the program that grew meanwhile show the cause, each with its line: a
tensor whose autograd graph grows, a list of tensors, an array that becomes longer. Data that a generation loop keeps
for one batch of sequences (their tokens, a cache of keys and values) is not counted; growth over several generations
is. A finding names the lines whose memory grows: allocations that were never freed or were replaced by larger ones. If
a run counted the allocator's bytes before its first pass and after the last one, growth is also visible with one
recorded step, and the place is that of the memory that this step left allocated.

In a JAX program two device memory profiles without queued work are compared: a stack leaks if it holds as many
additional buffers as there were steps between the profiles, or a multiple. Growth below `LEAST_BYTES` per step is
ignored, because it may be a logged number. The time at which the device is full is modelled from the growth per step. A
list that is cleared every N steps looks like a leak within fewer steps, so the finding includes the number of steps.

Fix: keep values instead of tensors with their history: ``losses.append(loss.item())`` occasionally or
``loss.detach()`` in every step, since a result that needs a gradient keeps everything that its backward pass would
read. Delete outputs, hooks and caches of a step at its end. Allocate growing data with its final size at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from perfscope.analyzers.memory.categories import memory_phases, memory_timelines
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
from perfscope.analyzers.memory.run_growth import RunGrowth, run_growth
from perfscope.analyzers.ops import spans_of_blocks
from perfscope.analyzers.time import GrownName, framework, grown_names, one_generation, step_windows
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Cell, Finding, Scope, Where, fit_title
from perfscope.model.memory import MemoryPhase, MemoryTimeline
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_bytes

LEAST_BYTES = 4096
"""Smallest growth per step. A few scalars, each rounded up to 512 B by CUDA's allocator, are metrics that are kept on
purpose.
"""

HORIZON_STEPS = 10_000
"""A short training run. Growth by less than `HORIZON_SHARE` of the peak within it does not fill a device."""

HORIZON_SHARE = 0.1
"""Smallest growth within `HORIZON_STEPS`, as a share of the peak; equals the room left on a nearly full device
(`oom_near`).
"""

URGENT_STEPS = 1_000
"""Steps until the device is full below which a leak has high severity: less than the distance of evaluations or
checkpoints.
"""

LEAST_LOOKS = 4
"""At a variable: three that rise are chance more often."""
LEAST_RUN = 15
"""Steps from the first look to the last: less may be one accumulation of gradients."""

ALIKE = 1.5
"""Largest ratio of the bytes that one place left in the recorded step to the growth per step: steps differ a little,
and the next step replaces what a place left beyond that.
"""

ROW_SHARE = 0.01
"""Smallest share of the growth per step for a row of the evidence."""


KEPT = {
    MemoryCategory.ACTIVATION: "Find the variable or list that keeps that line's result. If it needs a gradient, "
    "such as a loss or a metric, it keeps everything that its backward pass would read: keep loss.detach(), or "
    "loss.item() where waiting for the device does not matter",
    MemoryCategory.OUTPUT: "Keep only what is read of a step's results, detached, on the host",
    MemoryCategory.INPUT: "Release each batch when its step is over",
    MemoryCategory.GRADIENT: "Set gradients to None after each step, and do not collect them over steps",
}
"""Advice by category of the largest block."""

OTHERWISE = (
    "Find the variable or list that keeps that line's result, and release it at the end of the step; keep "
    "tensor.detach() where only the value is needed"
)

_KEEPS: dict[tuple[str, bool], str] = {
    ("graph", True): "keeps the graph of every step",
    ("graph", False): "keeps the graph of every step",
    ("container", True): "keeps tensors with the graph of every step",
    ("container", False): "keeps arrays of every step",
    ("array", True): "grows in every step",
    ("array", False): "is made longer in every step",
}


def examined(trace: Trace) -> Scope:
    """Count the allocations in the recording; without any, the readings of the process's memory."""
    records = memory_records(trace)
    return records if records.count else Scope(len(trace.rows["run_memory"]), "readings of the process's memory")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per growing memory, or per stack of a JAX program."""
    over_run = trace.fact(run_growth)
    profiles = trace.fact(jax_growth)
    findings: list[Finding] = [] if profiles is None else list(_of_profiles(profiles))
    if profiles is None and (over_run is None or trace.fact(memory_timelines)):
        findings = _of_recording(trace, over_run)
    if over_run is not None and over_run.growing and not findings and not _generates(trace, over_run):
        findings = [_of_run(trace, over_run)]
    names = trace.fact(grown_names)
    if profiles is not None and findings:
        findings = [_with_name(finding, names, profiles.steps) for finding in findings]
    return findings or [_of_graph(name) for name in names if name.keeps_graphs and _long(name)][:1]


def _long(name: GrownName) -> bool:
    """Whether a variable grew over enough steps."""
    return len(name.step) >= LEAST_LOOKS and name.step[-1] - name.step[0] >= LEAST_RUN


def _with_name(finding: Finding, names: Sequence[GrownName], steps: int) -> Finding:
    """Return a finding about JAX's arrays at the line of the variable that keeps them, if one grows as much."""
    per_step = (finding.cost_bytes or 0) / max(1, steps)
    keeper = next((name for name in names if ALIKE * name.bytes_per_step >= per_step > 0), None)
    if keeper is None:
        return finding
    made = "" if finding.where.line is None else f" They are made at {finding.where.label()}."
    return replace(
        finding,
        title=fit_title(f"{finding.title}: `{keeper.name}` {_KEEPS[keeper.kind, keeper.graphs]}", keeper.name),
        detail=f"{finding.detail}{made}",
        where=keeper.where(),
        advice=_keep_less(keeper, "jax"),
    )


def _of_graph(name: GrownName) -> Finding:
    """Return a finding about a variable whose autograd graph grows, if the memory does not show it yet."""
    more = f"{name.size_per_step:.3g} {'nodes' if name.kind == 'graph' else 'tensors'}"
    return Finding(
        subject="growth of a graph",
        title=fit_title(f"`{name.name}` {_KEEPS[name.kind, name.graphs]}", name.name),
        detail=f"It holds {more} more after each step, from step {name.step[0]:,} to step {name.step[-1]:,}. The "
        "backward pass frees a part of what a graph keeps; the memory of the process does not show the rest yet.",
        severity="low",
        basis="structural",
        where=name.where(),
        advice=_keep_less(name, "torch"),
    )


def _of_recording(trace: Trace, over_run: RunGrowth | None) -> list[Finding]:
    """Return findings from the allocator's events and counters of the recorded steps. `AbstainError` without data."""
    findings: list[Finding] = []
    blind: list[str] = []
    looked = over_run is not None
    for timeline in judged_timelines(trace):
        growth = growth_of(trace, timeline)
        if growth is not None:
            looked = True
            findings += _of_steps(growth)
            continue
        counted = None if over_run is not None else _counted(trace, timeline)
        if counted is None:
            blind.append(_why_blind(trace, timeline))
        else:
            looked = True
            findings += counted
    if not looked:
        raise AbstainError("; ".join(dict.fromkeys(blind)))
    return worst_of_devices(findings)


def _generates(trace: Trace, growth: RunGrowth) -> bool:
    """Whether a loop that generates tokens keeps the growth, which then ends with the sequence."""
    names = trace.fact(grown_names) if growth.name is None else (growth.name,)
    return bool(names) and not any(name.keeps_graphs for name in names) and trace.fact(one_generation)


def _of_run(trace: Trace, growth: RunGrowth) -> Finding:
    """Return a finding from readings over the run, with the variable or the place that keeps the memory."""
    name, steps = growth.name, growth.last_step - growth.first_step
    places = () if name is not None else _left_in_step(trace, growth)
    place = places[0] if places else None
    whose = "memory of the process" if growth.space == "host" else "device memory"
    if growth.space == "device" and framework(trace) == "jax":
        whose = "memory of arrays"
    who = "" if name is None else f": `{name.name}` {_KEEPS[name.kind, name.graphs]}"
    left = "" if place is None else f"; the recorded step left {format_bytes(place.bytes_per_step)} at {_named(place)}"
    per_step = round(growth.per_step)
    return Finding(
        subject=f"growth of {growth.space} memory",
        title=fit_title(f"{whose} grows {format_bytes(per_step)} per step{who}", "" if name is None else name.name),
        detail=f"From {format_bytes(growth.first_bytes)} after step {growth.first_step:,} to "
        f"{format_bytes(growth.last_bytes)} after step {growth.last_step:,}, by {growth.readings:,} readings{left}.",
        severity=_urgency(growth),
        basis="measured",
        cost_bytes=round(growth.per_step * steps),
        bytes_are="freed",
        where=_where(place) if name is None else name.where(),
        evidence=tuple(
            {"variable": known.name, "place": known.where().label(), "per_step_bytes": round(known.bytes_per_step),
             "size_per_step": round(known.size_per_step, 2), "keeps_graphs": known.keeps_graphs}
            for known in trace.fact(grown_names)[:MOST_ROWS]
        ),
        advice=_advice(place) if name is None else _keep_less(name, framework(trace)),
    )  # fmt: skip


def _keep_less(name: GrownName, whose: str) -> str:
    """Return the fix for the variable that keeps the memory."""
    if name.kind == "graph":
        return (
            f"Add values to `{name.name}` without their history: `.detach()` at this line, or `.item()` where waiting "
            "for the device does not matter"
        )
    if name.graphs:
        return (
            f"Put detached values into `{name.name}`: `.detach()` at this line. A result that needs a gradient keeps "
            "everything that its backward pass would read"
        )
    if name.kind == "array":
        return f"Give `{name.name}` its final size before the loop and write into it, or keep only what is still read"
    kept = "`jax.device_get`" if whose == "jax" else "`.cpu()`"
    return (
        f"Clear `{name.name}` when its contents have been used, or keep numbers in it; what must stay until the end "
        f"goes to the host ({kept})"
    )


def _left_in_step(trace: Trace, growth: RunGrowth) -> tuple[GrowingPlace, ...]:
    """Return the places that the recorded step left, closest to the growth per step first."""
    for timeline in trace.fact(memory_timelines):
        windows = timeline.of(trace).fact(step_windows)
        if timeline.space == growth.space and timeline.axis == "ns" and windows.count:
            return _alike(left_behind(trace, timeline, windows.ends[-1:]), growth.per_step)
    return ()


def _alike(places: Iterable[GrowingPlace], per_step: float) -> tuple[GrowingPlace, ...]:
    """Return the places that may grow by ``per_step``; a step also leaves blocks that the next one replaces."""
    alike = [place for place in places if LEAST_BYTES <= place.bytes_per_step <= ALIKE * per_step]
    return tuple(sorted(alike, key=lambda place: abs(place.bytes_per_step - per_step)))


def _urgency(growth: RunGrowth) -> Severity:
    """Return the severity by the number of steps until the memory doubles."""
    if growth.per_step * URGENT_STEPS >= growth.last_bytes:
        return "high"
    return "medium" if growth.per_step * HORIZON_STEPS >= growth.last_bytes else "low"


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
    """Return the blocks of the places that are never freed."""
    lines = {growing_place.line for growing_place in growing_places if growing_place.line is not None}
    leaking = [index for index, line in enumerate(timeline.lines) if line in lines]
    blocks = timeline.blocks
    return np.flatnonzero(np.isin(blocks["line"], leaking) & blocks["after"] & ~blocks["before"])


def _counted(trace: Trace, timeline: MemoryTimeline) -> list[Finding] | None:
    """Return findings from the allocator's counters of a run.

    None without counters or with too few steps between them.
    """
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
        growing_places = _alike(left_behind(trace, timeline, windows.ends[-1:]), per_step)
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
        advice="Find the variable or list that keeps that line's result. Keep numbers, not arrays: "
        "float(loss) every so many steps, or jax.device_get of a list that is then cleared; donate arrays that a step "
        "replaces",
    )


def _grows(grown_stack: GrownStack, growth: JaxGrowth) -> bool:
    per_step = grown_stack.grown_bytes / growth.steps
    return per_step >= LEAST_BYTES and per_step * HORIZON_STEPS >= HORIZON_SHARE * growth.bytes_after


def _why_blind(trace: Trace, timeline: MemoryTimeline) -> str:
    if timeline.first == timeline.last:
        return "a single moment was recorded, but growth needs a history of several steps"
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
