"""The allocator holds memory that it cannot use.

Example:
    Before::

        import torch

    After::

        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"      # before torch is imported
        import torch

Why it costs: a caching allocator takes segments from the driver and divides them into blocks. If its free blocks are
too small for a request, it takes another segment although enough memory is free in total. The device fills up with
unused memory, and the program runs out of memory, or must use a smaller batch, before its tensors fill the device.

How it is found: at each new segment, the rule compares the allocator's free memory with the requested size. It reports
fragmentation if the free blocks together would have sufficed for most of these requests. Much reserved and little used
memory at the end of a step is not a sign of it: it is a cache that the next step uses. The cost is the difference
between the peaks of reserved and of used memory, at most the size of such segments. If a run contains the allocator's
own peaks since its start, those are compared. A failed allocation of less than the free memory is the clearest case.
If the recording begins with a full cache and nothing new was reserved, the cause is unknown and the finding includes
this caveat.

Fix: start with ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` in the environment, which lets segments grow in
place. Give tensors whose size changes from step to step a fixed size (pad to a few buckets, allocate the largest size
once), and allocate long-lived tensors before short-lived ones. ``max_split_size_mb`` keeps large blocks whole if
expandable segments are not available; ``torch.cuda.empty_cache()`` frees whole segments only, and belongs between
phases (before an evaluation), never into the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from perfscope.analyzers.memory.fragmentation import (
    Fragmentation,
    UnneededReserve,
    fragmentation_of,
    in_use,
    unneeded_reserves,
)
from perfscope.analyzers.memory.holders import (
    OF_XLA,
    judged_timelines,
    line_of,
    memory_records,
    severity_of_bytes,
    short_line,
    where_of,
    worst_of_devices,
)
from perfscope.analyzers.memory.phases import allocating_op
from perfscope.analyzers.ops import spans_at
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Cell, Finding
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

MINIMUM_SHARE = 0.1
"""Smallest saving as a share of the peak of reserved memory. PyTorch rounds segments of at least 10 MiB up to 2 MiB, so
that a program without fragmentation loses up to a tenth of them on average.
"""

MINIMUM_BYTES = 20 << 20
"""One segment of the size that PyTorch reserves for blocks between 1 and 10 MiB (``kLargeBuffer``)."""

MOST_UNMATCHED = 0.01
"""Largest share of events without a block. With more of them the history contradicts itself and has no reliable free
pieces; valid snapshots have none.
"""

MANY_SIZES = 4
"""Number of different sizes requested at one line from which its shapes count as changing."""


EXPANDABLE = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: segments then grow in place"


examined = memory_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per device whose allocator holds unusable memory."""
    timelines = judged_timelines(trace)
    if all(timeline.space == "host" for timeline in timelines):
        raise AbstainError("the program computes in the host's memory, whose allocator reserves nothing")
    judged = [
        fragmentation
        for fragmentation in (fragmentation_of(trace, timeline) for timeline in timelines)
        if fragmentation is not None
    ]
    if not judged:
        raise AbstainError("not recorded: the memory that the allocator reserves", ("memory_state",))
    findings, blind = [], []
    for fragmentation in judged:
        if fragmentation.timeline.known_from.startswith(OF_XLA):
            blind.append("XLA's allocator takes its share of the device at once: it reserves nothing later")
            continue
        if fragmentation.timeline.unmatched > MOST_UNMATCHED * len(fragmentation.timeline.blocks):
            blind.append(
                f"{fragmentation.timeline.unmatched:,} events of {fragmentation.timeline.label} have no block: "
                "the history contradicts itself"
            )
            continue
        finding = _failed(trace, fragmentation) or _grown(trace, fragmentation, blind)
        if finding is not None:
            findings.append(finding)
    if blind and not findings:
        raise AbstainError("; ".join(dict.fromkeys(blind)))
    return worst_of_devices(findings)


def _failed(trace: Trace, fragmentation: Fragmentation) -> Finding | None:
    """Return an allocation that failed although more than its size was free."""
    for moment in fragmentation.failures:
        failed, unused = moment.failed_bytes, moment.unused_bytes
        # before it fails, the allocator returns whole free segments: only pieces remain
        least = max(MINIMUM_BYTES, round(MINIMUM_SHARE * moment.reserved_bytes)) if failed is None else failed
        if unused < least:
            continue
        wanted = "" if failed is None else f" for {format_bytes(failed)}"
        label = fragmentation.timeline.label
        return Finding(
            subject="fragmented device memory",
            title=f"{label} ran out of memory{wanted}: memory is reserved but not in use",
            detail=f"It lies in pieces: {format_bytes(moment.reserved_bytes)} reserved, "
            f"{format_bytes(moment.allocated_bytes)} in use.",
            severity="high",
            basis="measured",
            cost_bytes=unused,
            bytes_are="freed",
            evidence=tuple(_pool_rows(fragmentation)),
            spans=spans_at(fragmentation.timeline, moment.position),
            advice=f"{EXPANDABLE}. {_by_pools(fragmentation)}",
        )
    return None


def _grown(trace: Trace, fragmentation: Fragmentation, blind: list[str]) -> Finding | None:
    """Return the segments that were reserved although free memory would have sufficed."""
    timeline = fragmentation.timeline
    reserved = timeline.reserved
    assert reserved is not None
    live = in_use(timeline, as_requested=fragmentation.as_requested)
    most, used = fragmentation.peak_reserved_bytes, int(live.bytes.max(initial=0))
    counters = trace.allocator_counters
    ever_reserved = None if counters is None else counters.peak_reserved_bytes
    ever_used = None if counters is None else counters.peak_bytes
    least = max(MINIMUM_BYTES, round(MINIMUM_SHARE * most))
    if most - used < least and (ever_reserved is None or ever_used is None):
        return None
    if timeline.first == timeline.last:
        blind.append(
            "a single moment without a history: the next step may use the free memory between blocks; record "
            "with torch.cuda.memory._record_memory_history()"
        )
        return None
    unneeded = unneeded_reserves(timeline, reserved, live)
    if ever_reserved is not None and ever_used is not None:
        most, used = max(ever_reserved, most), max(ever_used, used)
        cost = most - used
        least = max(MINIMUM_BYTES, round(MINIMUM_SHARE * most))
    else:
        first = int(reserved.bytes[0])
        if first - used >= least and most - max(first, used) < least:
            blind.append(
                f"{format_bytes(first)} were reserved when the recording began, of which it uses {format_bytes(used)}, "
                "and nothing was added: record from the first step on to see why"
            )
            return None
        cost = min(most - max(first, used), sum(reserve.unneeded_bytes for reserve in unneeded))
    if cost < least:
        return None
    return _finding(trace, fragmentation, unneeded, most, used, cost)


def _finding(
    trace: Trace, fragmentation: Fragmentation, unneeded: Sequence[UnneededReserve], most: int, used: int, cost: int
) -> Finding:
    timeline = fragmentation.timeline
    segments = "A segment was" if len(unneeded) == 1 else f"{len(unneeded)} segments were"
    times = f" {segments} reserved although free pieces would have sufficed." if unneeded else ""
    where = NOWHERE
    if unneeded:
        first = unneeded[0].block
        op = allocating_op(timeline.of(trace), int(timeline.blocks["op"][first]))
        where = where_of(line_of(timeline, first), op=op)
    return Finding(
        subject="fragmented device memory",
        title=f"{timeline.label} reserves more than its blocks need",
        detail=f"{format_bytes(most)} are reserved for at most {format_bytes(used)} in use.{times}",
        severity=severity_of_bytes(cost, most, timeline),
        basis="measured",
        cost_bytes=cost,
        bytes_are="freed",
        memory_bytes=most,
        where=where,
        evidence=tuple(
            {
                "asked_by": short_line(line_of(timeline, reserve.block)) or "unknown",
                "asked_bytes": reserve.block_bytes,
                "reserved_bytes": reserve.reserved_bytes,
                "free_bytes": reserve.cached_bytes,
            }
            for reserve in unneeded[:MOST_ROWS]
        )
        or tuple(_pool_rows(fragmentation)),
        spans=tuple(span for reserve in unneeded[:MOST_ROWS] for span in spans_at(timeline, reserve.position)),
        advice=". ".join([EXPANDABLE, *_causes(timeline, unneeded), _by_pools(fragmentation)]).rstrip(". ") + ".",
    )


def _causes(timeline: MemoryTimeline, unneeded: Sequence[UnneededReserve]) -> list[str]:
    """Return the recorded reasons why the pieces are apart."""
    causes = []
    lines = Counter(line for reserve in unneeded if (line := line_of(timeline, reserve.block)) is not None)
    if lines:
        line, _ = lines.most_common(1)[0]
        sizes = {reserve.block_bytes for reserve in unneeded if line_of(timeline, reserve.block) == line}
        if len(sizes) >= MANY_SIZES:
            causes.append(
                f"{short_line(line)} allocates {len(sizes)} different sizes: allocate the largest once, or pad to a few"
            )
    return causes


def _by_pools(fragmentation: Fragmentation) -> str:
    """Return the private pools at a snapshot."""
    private = sum(pool.free_bytes for pool in fragmentation.pools if pool.pool is not None)
    if private < MINIMUM_BYTES:
        return ""
    return (
        f"At the snapshot {format_bytes(private)} were free in private pools (CUDA graphs, torch.cuda.MemPool), which "
        "cannot serve other allocations: let graphs share a pool"
    )


def _pool_rows(fragmentation: Fragmentation) -> Iterable[dict[str, Cell]]:
    """Yield the pools at the snapshot, most reserved first."""
    for pool in fragmentation.pools[:MOST_ROWS]:
        yield {
            "pool": pool.pool or "default",
            "stream": pool.stream,
            "blocks": pool.kind,
            "reserved_bytes": pool.reserved_bytes,
            "active_bytes": pool.active_bytes,
            "largest_free_bytes": pool.largest_free_bytes,
        }
