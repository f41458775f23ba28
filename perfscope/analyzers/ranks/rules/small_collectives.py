"""Many small collectives run one after the other instead of a few large ones.

Example:
    Before::

        for tensor in tensors:
            dist.all_reduce(tensor)

    After::

        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)

Why it costs:
    A collective takes its latency, some microseconds to tens of them, whatever its size, because every rank has to
    signal its arrival. A hundred small ones cost a hundred latencies; in one buffer they cost one.

How it is found:
    The latency is measured: the shortest duration of the smallest collectives in the trace (a longer one may include
    waiting for another rank). A collective is small if, at the best bandwidth of its operation in the trace (at least
    1 GB/s), its bytes take less than that latency. Counted are consecutive small ones of one operation, type and group
    on a stream, either back to back or of flat tensors; activations of tensor parallelism, which depend on each other,
    are usually neither. The cost is modelled, and an upper bound: one latency for each that fits into a common buffer
    of 25 MiB (the default of DistributedDataParallel), at most the time in which the device did nothing else. The rule
    abstains if sizes are not recorded. One rank is enough.

Fix:
    Reduce many tensors as one: DistributedDataParallel does it (`bucket_cap_mb=25`, check that gradients are not also
    reduced by hand), FSDP per wrapped block (wrap larger blocks). For your own collectives::

        with torch.distributed._coalescing_manager(device=device):     # one launch for all of them
            for tensor in tensors: torch.distributed.all_reduce(tensor)

        flat = torch.cat([t.flatten() for t in tensors]); dist.all_reduce(flat)

    Metrics: stack the scalars and reduce them once, every N steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ranks.job import Local, has_ranks, locals_of
from perfscope.analyzers.spans import worst_spans
from perfscope.analyzers.time import call_site, exposed_communication, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, NOWHERE, AbstainError, Cell, Finding, Removed, Scope, Where
from perfscope.model.trace import MISSING, RECORDED, Trace
from perfscope.model.units import format_bytes, format_ns

BUCKET_BYTES = 25 << 20
"""``bucket_cap_mb`` of DistributedDataParallel: large enough to use the links, small enough to start early."""

MIN_ROW = 8
"""Minimum number of small collectives in a row. A step has a few single ones: a gradient norm, a loss, a flag."""

COST_SHARE = 0.02
"""Smallest saving as a share of the steps. It is modelled, so it must exceed the usual 1 % variation between launches.
"""

SLOWEST = 1.0
"""Lowest bandwidth assumed, in bytes/ns (1 GB/s), if a trace has only small collectives; every usual link is faster."""

BUCKETED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast"})
"""Operations that one buffer can hold for many tensors."""


class _Row(Struct, frozen=True, kw_only=True):
    """Small collectives that could be merged into a few."""

    members: tuple[Local, ...]
    bytes: int
    latency_ns: int
    exposed_ns: int

    @property
    def buckets(self) -> int:
        return max(1, -(-self.bytes // BUCKET_BYTES))

    @property
    def cost_ns(self) -> int:
        return min((len(self.members) - self.buckets) * self.latency_ns, self.exposed_ns)


def examined(trace: Trace) -> Scope:
    """Count the collectives on a device whose size is recorded."""
    sized = [local for local in trace.fact(locals_of) if local.message_bytes() is not None]
    return Scope(sum(local.kernel != MISSING for local in sized), "collectives of known size on a device")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding for all rows of small collectives of a trace."""
    if not has_ranks(trace):
        raise AbstainError(f"not recorded: {RECORDED['collectives']}", ("collectives",))
    on_device = [local for local in trace.fact(locals_of) if local.kernel != MISSING]
    if not on_device:
        raise AbstainError("the collectives ran on the host (gloo): their cost for the program is not recorded")
    sized = [local for local in on_device if local.operation in BUCKETED and local.message_bytes() is not None]
    if not sized and any(local.operation in BUCKETED for local in on_device):
        raise AbstainError("the sizes of the collectives are not recorded: record shapes (record_shapes=True)")
    rows = [row for row in _rows(trace, sized) if row.cost_ns > 0]
    cost = sum(row.cost_ns for row in rows)
    if rows and cost >= COST_SHARE * whole_ns(trace) > 0:
        yield _finding(trace, sorted(rows, key=lambda row: -row.cost_ns), cost)


def _rows(trace: Trace, sized: Sequence[Local]) -> Iterator[_Row]:
    """Yield the rows of each operation, type, group and stream."""
    exposed = trace.fact(exposed_communication)
    for operation in sorted({local.operation for local in sized}):
        alike = [local for local in sized if local.operation == operation]
        latency = _latency_ns(alike)
        best = max([SLOWEST, *((local.message_bytes() or 0) / max(1, local.duration_ns) for local in alike)])
        lanes: dict[tuple[object, ...], list[Local]] = {}
        for local in alike:
            lanes.setdefault((local.lane, local.group, local.ranks, local.dtype), []).append(local)
        for lane in lanes.values():
            for members in _runs(lane, latency, best):
                yield _Row(
                    members=tuple(members),
                    bytes=sum(member.message_bytes() or 0 for member in members),
                    latency_ns=latency,
                    exposed_ns=int(sum(exposed[member.kernel] for member in members)),
                )


def _latency_ns(alike: Sequence[Local]) -> int:
    """Return the shortest duration among the collectives of the smallest size."""
    smallest = min(local.message_bytes() or 0 for local in alike)
    return min(local.duration_ns for local in alike if local.message_bytes() == smallest)


def _runs(lane: Sequence[Local], latency_ns: int, best: float) -> Iterator[list[Local]]:
    """Yield rows of small collectives, each back to back with the previous one, or both flat."""
    small = [(local.message_bytes() or 0) < best * latency_ns for local in lane]
    run = [lane[0]] if small[0] else []
    for (before, local), is_small in zip(pairwise(lane), small[1:], strict=True):
        joined = local.start_ns - before.end_ns <= latency_ns or before.dims == local.dims == 1
        if run and not (is_small and joined):
            if len(run) >= MIN_ROW:
                yield run
            run = []
        if is_small:
            run.append(local)
    if len(run) >= MIN_ROW:
        yield run


def _finding(trace: Trace, rows: Sequence[_Row], cost: int) -> Finding:
    worst = rows[0]
    count = sum(len(row.members) for row in rows)
    whole = whole_ns(trace)
    operation = worst.members[0].operation
    return Finding(
        subject="small collectives that could be bucketed",
        title=f"{count:,} small collectives could be {sum(row.buckets for row in rows):,}",
        detail=f"They come in {len(rows):,} row{'s' if len(rows) > 1 else ''}; in the first {len(worst.members):,} "
        f"{operation} of {format_bytes(worst.bytes / len(worst.members))} on average take "
        f"{format_ns(worst.latency_ns)} each, whatever their size.",
        **timed_cost(trace, cost, whole, "modelled"),
        covers_ns={"exposed_communication": cost},
        where=_where(trace, worst.members[0]),
        evidence=tuple(_evidence(row) for row in rows[:MOST_ROWS]),
        spans=worst_spans(
            [row.members[0].start_ns for row in rows],
            [row.members[-1].end_ns for row in rows],
            [row.cost_ns for row in rows],
        ),
        removes=(Removed(table="kernels", rows=np.array([one.kernel for row in rows for one in row.members])),),
        advice="Reduce them as one buffer: DistributedDataParallel(bucket_cap_mb=25) for gradients. Larger blocks for "
        "fully_shard, torch.distributed._coalescing_manager() or torch.cat() around collectives of your own, and "
        "one stacked tensor for metrics do the same.",
    )


def _where(trace: Trace, local: Local) -> Where:
    if local.slice == MISSING:
        return NOWHERE
    return call_site(trace, local.slice).where(op=local.operation)


def _evidence(row: _Row) -> dict[str, Cell]:
    first, last = row.members[0], row.members[-1]
    return {
        "operation": first.operation,
        "collectives": len(row.members),
        "buckets": row.buckets,
        "message_bytes": row.bytes,
        "latency_ns": row.latency_ns,
        "row_ns": last.end_ns - first.start_ns,
        "kernels_ns": sum(member.duration_ns for member in row.members),
        "exposed_ns": row.exposed_ns,
        "saves_ns": row.cost_ns,
        "dtype": first.dtype,
        "group": first.group,
    }
