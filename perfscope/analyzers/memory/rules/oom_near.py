"""Device memory ran out, or nearly does.

Example:
    Before::

        loss = model(batch)
        loss.backward()

    After::

        for part in batch.chunk(4):             # a quarter of the activations at a time
            (model(part) / 4).backward()

Why it costs: a program that runs out of memory loses everything since its last checkpoint. Close to the limit, a longer
batch, an evaluation, or a library that allocates its scratch memory late is enough. Before PyTorch gives up, it returns
its whole cache to the driver and tries again (``num_alloc_retries``): every retry waits for the device, and the cache
must be reserved again.

How it is found: a failed allocation in the recording; retries that the allocator counted; or, at the peak of reserved
memory, at most a tenth of the device left, the default of vLLM (``gpu_memory_utilization``). Memory of other processes
and libraries is unknown, so the reported headroom is an upper bound. XLA's allocator takes its share of the device at
once, so there the peak of used memory is compared with the limit of the allocator. The rule does not judge devices of
unknown size, nor the host's memory.

In a planned PyTorch program (`perfscope compile`): the planned peak of the step as the program runs it, against the
memory of one device of the target. Memory that is reserved beyond that is unknown.

Fix: see what holds the peak (`perfscope explain peak_owner`), and what a smaller peak would cost: ``perfscope advise
memory RUN --budget BYTES``. If much is reserved and little used, see `perfscope explain memory_fragmentation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.examined import plan_records
from perfscope.analyzers.memory.blocks import memory_of, memory_rows
from perfscope.analyzers.memory.fragmentation import fragmentation_of
from perfscope.analyzers.memory.holders import (
    HOST_ONLY,
    SCARCE_SHARE,
    PeakHolders,
    holders_at,
    judged_timelines,
    line_of,
    memory_records,
    peak_held,
    short_line,
    where_of,
    worst_of_devices,
)
from perfscope.analyzers.memory.sites import Numbered, block_sites
from perfscope.analyzers.ops import spans_at
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Scope, Where
from perfscope.model.memory import MemoryTimeline, SourceLine
from perfscope.model.severity import Severity
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryAction, MemoryCategory
from perfscope.model.units import format_bytes, format_share

if TYPE_CHECKING:
    from perfscope.model.torch_plan import StepMemory

ADVICE = "perfscope advise memory RUN --budget BYTES lists what to checkpoint, offload or shard, and what it costs"


def examined(trace: Trace) -> Scope:
    """Count the planned programs, else the allocations."""
    return plan_records(trace) if trace.torch_plans else memory_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per device: memory that ran out, retries, or too little headroom."""
    findings, unknown, judged = [], [], 0
    for timeline in _devices(trace):
        if timeline.out_of_memory:
            findings.append(_ran_out(trace, timeline))
            continue
        counters = trace.allocator_counters
        limit = None if counters is None else counters.limit_bytes
        capacity = limit if limit is not None else timeline.capacity_bytes
        retries = 0 if trace.allocator_counters is None else trace.allocator_counters.retries
        if capacity is None and not retries:
            unknown.append(f"the memory size of {timeline.label} was not recorded")
            continue
        held_bytes = _held(trace, timeline)
        if timeline.sums_only and not retries and (capacity is None or held_bytes < SCARCE_SHARE * capacity):
            unknown.append(f"memory of {timeline.label} from before the recording is unknown")
            continue
        judged += 1
        if retries or (capacity is not None and held_bytes >= SCARCE_SHARE * capacity):
            findings.append(_close(trace, timeline, held_bytes, capacity, retries))
    findings += _failed_unseen(trace, findings)
    if not findings and not judged:
        raise AbstainError(f"{'; '.join(unknown)}: the headroom is unknown")
    return worst_of_devices(findings)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield a finding if the planned peak of a PyTorch program is near or above the memory of the target."""
    from perfscope.model.torch_plan import memory_as_run

    findings, judged = [], 0
    for plan in trace.torch_plans:
        step = memory_as_run(plan.plan)
        capacity = None if trace.target is None else trace.target.memory_bytes
        if step is None or capacity is None:
            continue
        judged += 1
        if step.peak_bytes >= SCARCE_SHARE * capacity:
            findings.append(_planned(step, capacity, "" if trace.target is None else trace.target.shown))
    if not judged:
        raise AbstainError("the plan lacks the peak of a step, or the memory size of its target")
    return findings


def _planned(step: StepMemory, capacity: int, target: str) -> Finding:
    from perfscope.model.torch_plan import by_category, category_label

    over = step.peak_bytes - capacity
    headline = (
        f"the step needs {format_bytes(step.peak_bytes)}, {format_bytes(over)} more than there is"
        if over > 0
        else f"the step needs {format_bytes(step.peak_bytes)} of {format_bytes(capacity)} "
        f"({format_share(step.peak_bytes, capacity)})"
    )
    rows = by_category(step)
    shown: list[dict[str, Cell]] = [
        {
            "held_by": category_label(row.category) if row.most.file is None else f"{row.most.file}:{row.most.line}",
            "held_bytes": row.bytes,
            "blocks": row.blocks,
        }
        for row in rows[:MOST_ROWS]
    ]
    most = f" Most is held as {category_label(rows[0].category)} ({format_bytes(rows[0].bytes)})." if rows else ""
    return Finding(
        subject="headroom of the device",
        title=f"planned: {headline}",
        detail=f"At its peak, on {target or 'the target'}, without what the allocator reserves beyond that.{most}",
        severity="high" if over > 0 else "medium",
        basis="modelled",
        cost_bytes=over if over > 0 else None,
        bytes_are="held",
        where=Where(file=step.file, line=step.line, op=step.op),
        evidence=tuple(shown),
        advice="Try what else fits: perfscope compile --sweep policy=..., --sweep batch=..., or --fit.",
    )


def _devices(trace: Trace) -> tuple[MemoryTimeline, ...]:
    timelines = judged_timelines(trace)
    devices = tuple(timeline for timeline in timelines if timeline.space == "device")
    if not devices:
        raise AbstainError(HOST_ONLY)
    return devices


def _held(trace: Trace, timeline: MemoryTimeline) -> int:
    """Return the most memory held; for XLA, which reserves its share at once, the most in use."""
    counters = trace.allocator_counters
    if counters is not None and counters.limit_bytes is not None:
        return max(counters.peak_bytes or 0, timeline.peak()[1])
    earlier = 0 if counters is None else counters.peak_reserved_bytes or 0
    return max(earlier, peak_held(timeline))


def _ran_out(trace: Trace, timeline: MemoryTimeline) -> Finding:
    position = timeline.out_of_memory[-1]
    fragmentation = fragmentation_of(trace, timeline)
    moment = None if fragmentation is None else fragmentation.failures[-1]
    holders = replace(_holders(trace, timeline, position), op=None, line=_failed_at(trace, timeline))
    failed = None if moment is None else moment.failed_bytes
    wanted = "an allocation" if failed is None else f"an allocation of {format_bytes(failed)}"
    reserved = "" if moment is None else f", {format_bytes(moment.reserved_bytes)} reserved"
    cached = None if moment is None else moment.unused_bytes
    times = f" ({len(timeline.out_of_memory)} times)" if len(timeline.out_of_memory) > 1 else ""
    fits = failed is not None and cached is not None and cached >= failed
    return _finding(
        trace,
        timeline,
        position,
        holders,
        title=f"{timeline.label} ran out of memory{times}: {wanted} failed",
        detail=f"{format_bytes(holders.bytes)} were in use{reserved}.",
        severity="high",
        cost=failed,
        advice=(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True first. "
            f"{format_bytes(cached or 0)} were reserved but unused, more than the request, but no free block was large "
            "enough. Then: "
            if fits
            else ""
        )
        + _next(holders),
    )


def _close(trace: Trace, timeline: MemoryTimeline, held_bytes: int, capacity: int | None, retries: int) -> Finding:
    position, _ = timeline.peak()
    holders = _holders(trace, timeline, position)
    counters = trace.allocator_counters
    titles, sentences = [], []
    if capacity is not None:
        left = max(0, capacity - held_bytes)
        titles.append(
            f"{timeline.label} has {format_bytes(left)} of {format_bytes(capacity)} left at the peak "
            f"({format_share(held_bytes, capacity)} used)"
        )
        sentences.append(
            f"{format_bytes(held_bytes)} are {'reserved' if timeline.reserved is not None else 'in use'}, "
            f"{format_bytes(holders.bytes)} of them by blocks in the recording."
        )
    severity: Severity = "medium" if capacity is not None and holders.bytes >= SCARCE_SHARE * capacity else "low"
    if retries:
        within = None if counters is None else counters.retries_in_window
        during = f", {within} of them within the recorded steps" if within else ""
        titles.append(f"{timeline.label} gave its cache back to the driver {retries:,} times")
        sentences.append(f"It gave its cache back to the driver {retries:,} times in order to continue{during}.")
        severity = "high" if within else "medium"
    return _finding(
        trace, timeline, position, holders, title=titles[0], detail=" ".join(sentences), severity=severity, cost=None,
        advice=_next(holders),
    )  # fmt: skip


def _failed_unseen(trace: Trace, findings: list[Finding]) -> Iterator[Finding]:
    """Yield failures that the allocator counted but that are not in a recording."""
    counters = trace.allocator_counters
    if counters is None or not counters.failures or any(finding.severity == "high" for finding in findings):
        return
    yield Finding(
        subject="device memory ran out",
        title=f"{counters.failures:,} allocations failed and the program continued",
        detail="The allocator counted them. A program that looks for its largest batch does this on purpose.",
        severity="medium",
        basis="measured",
        advice=f"Look at the snapshot of the failed allocation in the run's folder. {ADVICE}.",
    )


def _finding(
    trace: Trace,
    timeline: MemoryTimeline,
    position: int,
    holders: PeakHolders,
    *,
    title: str,
    detail: str,
    severity: Severity,
    cost: int | None,
    advice: str,
) -> Finding:
    return Finding(
        subject="headroom of the device",
        title=title,
        detail=detail,
        severity=severity,
        basis="measured",
        cost_bytes=cost,
        bytes_are="held",
        where=where_of(holders.line, op=holders.op),
        evidence=tuple(_rows(holders))[:MOST_ROWS],
        spans=spans_at(timeline, position),
        advice=advice,
    )


def _rows(holders: PeakHolders) -> Iterator[dict[str, Cell]]:
    """Yield the holders: lines if known, else categories."""
    known = [holder for holder in holders.by_line if holder.line is not None]
    by, rows = ("line", known) if known else ("category", list(holders.by_category))
    for holder in rows:
        name = short_line(holder.line) if by == "line" else holder.name
        yield {"held_by": name or "unknown", "held_bytes": holder.bytes, "blocks": holder.blocks or None}


def _next(holders: PeakHolders) -> str:
    """Return the advice, and memory that the first steps may add."""
    sums = {holder.name: holder.bytes for holder in holders.by_category}
    parameters = sums.get(MemoryCategory.PARAMETER.name.lower(), 0)
    more = ""
    if parameters and not sums.get(MemoryCategory.OPTIMIZER_STATE.name.lower()):
        more = (
            f" No optimizer state was held yet: Adam adds up to {format_bytes(2 * parameters)} in its first step "
            f"(twice the {format_bytes(parameters)} of the parameters), and gradients as much as the parameters."
        )
    largest = next(iter(holders.by_category), None)
    line = next((holder for holder in holders.by_line if holder.line is not None), None)
    most = ""
    if largest is not None and largest.name is not None and largest.blocks:
        most = f"Most is held as {largest.name.replace('_', ' ')} ({format_bytes(largest.bytes)}). "
    elif line is not None and line is holders.by_line[0]:
        most = f"Most is held by blocks of {short_line(line.line)} ({format_bytes(line.bytes)}). "
    return f"{most}{ADVICE}.{more}"


def _holders(trace: Trace, timeline: MemoryTimeline, position: int) -> PeakHolders:
    rows = timeline.alive_at(position)
    total = int(timeline.blocks["bytes"][rows].sum()) + timeline.unseen_bytes
    peak_holders = holders_at(trace, timeline, position, total)
    largest = (line_of(timeline, row) for row in rows[:MOST_ROWS].tolist())
    return replace(peak_holders, line=peak_holders.line or next((line for line in largest if line is not None), None))


def _failed_at(trace: Trace, timeline: MemoryTimeline) -> SourceLine | None:
    """Return the user's line of the last failed allocation, if stacks were recorded."""
    recorded = timeline.of(trace)
    events = recorded.rows["memory"]
    rows = memory_rows(recorded, "memory", memory_of(timeline))
    failed = rows[events["action"][rows] == MemoryAction.OUT_OF_MEMORY]
    if not len(failed):
        return None
    sites = block_sites(recorded, events["op"][failed[-1:]].astype(np.int64), events["frame"][failed[-1:]], Numbered())
    index = int(sites.lines[0])
    return None if index == MISSING else sites.places[index]
