"""Where the time of a trace's steps went, part by part: the parts sum to the whole, exactly, in integer ns.

On a device a moment belongs to compute, else to communication, else to a copy, else to the gap it lies in; of several
kernels at once to the one that began first. Without a device it belongs to the compiled instruction or the op that
runs; else to the innermost Python function or range of the thread that runs the steps; else to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.compare.runs.keys import Key, Naming, instruction_keys, span_key
from perfscope.analyzers.compare.runs.window import Window, compared_window, inside, without, work_in_window
from perfscope.analyzers.time import GapCause, covering_slices, device_busy, gaps, nearest_ancestor, rows_by_device
from perfscope.model.intervals import Int64, Intervals, covered, union
from perfscope.model.trace import MISSING, SliceKind, Trace

# Who a moment belongs to where several things happen at once: each moment goes to exactly one row, in integer ns.
#
# Layers claim time one after another: what a layer does not take is left for the next. So the rows of all layers and
# what is left at the end sum to the whole, exactly.


def claim_first(free: Intervals, starts: Int64, ends: Int64) -> tuple[Int64, Intervals]:
    """ns of ``free`` that each row gets, and what is left; where rows overlap, the one that began first has it.

    ``starts`` and ``ends``: shape (n,), half open, in any order; of two that begin together the earlier row has it.
    """
    own = np.zeros(len(starts), np.int64)
    if not len(starts) or not len(free.starts):
        return own, free
    order = np.argsort(starts, kind="stable")
    begin, finish = starts[order], ends[order]
    reach = np.maximum.accumulate(finish)
    begin = np.maximum(begin, np.concatenate(([begin[0]], reach[:-1])))
    own[order] = covered(free, begin, np.maximum(begin, finish))
    return own, without(free, union(starts, ends))


def claim_innermost(
    trace: Trace, free: Intervals, thread: int, wanted: npt.NDArray[np.bool_]
) -> tuple[Int64, Int64, Intervals]:
    """(rows of ``slices``, ns each gets, what is left): a moment goes to the innermost wanted span of a thread.

    ``wanted``: mask over ``slices``. Spans that are not wanted are looked through.
    """
    slices = trace.rows["slices"]
    mine = np.flatnonzero((slices["thread"] == thread) & wanted)
    nothing = np.empty(0, np.int64)
    if not len(mine) or not len(free.starts):
        return nothing, nothing, free
    edges = np.unique(np.concatenate((slices["start_ns"][mine], slices["end_ns"][mine])))
    begin, finish = edges[:-1], edges[1:]
    inner = nearest_ancestor(trace, covering_slices(trace, np.full(len(begin), thread), begin), wanted)
    known = inner != MISSING
    rows, index = np.unique(inner[known], return_inverse=True)
    own = np.zeros(len(rows), np.int64)
    np.add.at(own, index, covered(free, begin[known], finish[known]))
    return rows, own, without(free, union(begin[known], finish[known]))


def by_largest_remainder(amounts: Int64, divisor: int) -> Int64:
    """Each amount divided by ``divisor`` in integers so that the sum is that of all, divided and rounded.

    The ns that rounding down leaves over go to the largest remainders, of equal ones to the first.
    """
    share, rest = amounts // divisor, amounts % divisor
    whole = int(amounts.sum())
    missing = (2 * whole + divisor) // (2 * divisor) - int(share.sum())
    order = np.argsort(-rest, kind="stable")[: max(missing, 0)]
    share[order] += 1
    return np.asarray(share, np.int64)


# One part of the time of a trace's steps.


class Part(Struct, frozen=True, kw_only=True):
    """All work of one key in the window, over all its steps."""

    key: Key
    own_ns: int
    """Time that is this part's alone: no moment is in two parts."""
    calls: int
    """How often it ran, counted by when it was asked for; 0 where counting makes no sense (idle time)."""
    busy_ns: int
    """Summed durations of the counted ones: more than ``own_ns`` where other work ran beside it or inside it."""
    typical_ns: float = 0.0
    """What it takes where no call of it was disturbed: the median time of a call, times the calls."""
    example: int = MISSING
    """Row of ``slices`` that asked for one of them."""

    @property
    def countable(self) -> bool:
        """Whether ``calls`` follows from the program: of ops and device work, not of gaps and runtime internals."""
        return self.key.kind in ("compute", "communication", "copy") or (self.key.kind == "host" and bool(self.key.op))


def summed(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of one call each as one for each key, those that take most time first.

    What is not called (idle time, work that began before the window) counts as it is.
    """
    by_key: dict[Key, list[Part]] = {}
    for part in parts:
        by_key.setdefault(part.key, []).append(part)
    rows = [
        Part(
            key=key,
            own_ns=sum(part.own_ns for part in same),
            calls=sum(part.calls for part in same),
            busy_ns=sum(part.busy_ns for part in same),
            typical_ns=float(median(each)) * len(each)
            if (each := [part.own_ns for part in same if part.calls])
            else float(sum(part.own_ns for part in same)),
            example=same[0].example,
        )
        for key, same in by_key.items()
    ]
    return tuple(sorted(rows, key=lambda part: (-part.own_ns, -part.calls, part.key.name())))


# Idle time of a device in the compared window by cause; what no gap explains lies before or behind its work.


EDGE = "idle: before the first or behind the last work"
INPUT = "idle: waits for input"
LOOKUP = "idle: lookup of compiled code"
ALLOCATOR = "idle: device memory calls"
CAUSES: dict[GapCause, str] = {
    GapCause.UNKNOWN: "idle: cause not recorded",
    GapCause.DEPENDENCY: "idle: work was queued, waited for other work",
    GapCause.HOST_SYNC: "idle: the host waited for the device",
    GapCause.LAUNCH: "idle: the host launched late",
}


def idle_parts(trace: Trace, window: Window, naming: Naming, device: int, free: Intervals) -> list[Part]:
    """Parts of ``free``, the time in which the device did nothing; they sum to it. ``device``: row of ``devices``.

    A gap that the window cuts keeps each of its causes in proportion, rounded down; its main one has the rest.
    """
    trace_gaps = trace.fact(gaps)
    rows = np.flatnonzero(trace_gaps.device == device)
    inside = covered(free, trace_gaps.start_ns[rows], trace_gaps.end_ns[rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    parts: list[Part] = []
    keys = naming.of_gaps(trace_gaps, rows, CAUSES)
    amounts = zip(
        rows.tolist(), inside.tolist(), (trace_gaps.end_ns - trace_gaps.start_ns)[rows].tolist(), keys, strict=True
    )
    for row, ns, length, (key, example) in amounts:
        left = ns
        for why, minor in (
            (INPUT, trace_gaps.input_ns),
            (LOOKUP, trace_gaps.compile_lookup_ns),
            (ALLOCATOR, trace_gaps.allocator_ns),
        ):
            share = int(minor[row]) * ns // length
            if share:
                parts.append(Part(key=Key(kind="idle", work=why), own_ns=share, calls=0, busy_ns=0, example=example))
                left -= share
        if left:
            calls = int(trace_gaps.cause[row] == GapCause.HOST_SYNC)
            parts.append(Part(key=key, own_ns=left, calls=calls, busy_ns=left, example=example))
    edge = free.total() - int(inside.sum())
    if edge:
        parts.append(Part(key=Key(kind="idle", work=EDGE), own_ns=edge, calls=0, busy_ns=0, example=MISSING))
    return parts


NOTHING_RECORDED = Key(kind="host", work="outside every recorded span")


class Account(Struct, frozen=True, kw_only=True):
    """The time of one device (or of the host) in the compared window of one trace."""

    rank: int | None
    device: str
    """Name of the device; ``host`` where the trace has none."""
    ordinal: int | None
    total_ns: int
    steps: int
    per: str
    """``step`` or ``trace``: what ``steps`` counts."""
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    def check(self) -> None:
        """``ValueError`` unless the parts sum to the whole."""
        total = sum(part.own_ns for part in self.parts)
        if total != self.total_ns:
            raise ValueError(f"parts sum to {total} ns, not to {self.total_ns}")


def accounts(trace: Trace) -> tuple[Account, ...]:
    """One for each device that worked in the window, else one for the host; empty where the trace has no time."""
    window = trace.fact(compared_window)
    if not window.total_ns or trace.source.events_only:
        return ()
    naming = Naming(trace, window)
    worked = [row for row, busy in sorted(trace.fact(device_busy).items()) if len(busy.starts)]
    result = [_of_device(trace, window, naming, row) for row in worked] or [_of_host(trace, window, naming)]
    for account in result:
        account.check()
    return tuple(result)


def _of_device(trace: Trace, window: Window, naming: Naming, device: int) -> Account:
    kernels, devices = trace.rows["kernels"], trace.rows["devices"]
    here = trace.fact(rows_by_device)
    work_rows = here["kernels"][device]
    talks = kernels["communication"][work_rows]
    free = window.spans
    parts: list[Part] = []
    for table, rows in (
        ("kernels", work_rows[~talks]),
        ("kernels", work_rows[talks]),
        ("copies", here["copies"][device]),
    ):
        work = trace.rows[table]
        own, free = claim_first(free, work["start_ns"][rows], work["end_ns"][rows])
        parts += _work_parts(trace, naming, table, rows, own)
    parts += idle_parts(trace, window, naming, device, free)
    return Account(
        rank=trace.source.rank,
        device=trace.text(int(devices["name"][device])) or "device",
        ordinal=int(devices["ordinal"][device]),
        total_ns=window.total_ns,
        steps=window.steps,
        per=window.per,
        parts=summed(parts),
        notes=naming.notes,
    )


def _work_parts(trace: Trace, naming: Naming, table: str, rows: Int64, own: Int64) -> Iterable[Part]:
    """A part for each key of device work; work outside the window that is none of its steps' is left out."""
    work = trace.rows[table]
    counted = work_in_window(trace, table)[rows]
    kept = counted | (own > 0)
    rows, own, counted = rows[kept], own[kept], counted[kept]
    durations = work["end_ns"][rows] - work["start_ns"][rows]
    return _parts(naming.of_work(table, rows), own, counted, durations, work["op"][rows])


def _parts(
    keys: Sequence[Key], own: Int64, counted: npt.NDArray[np.bool_], durations: Int64, examples: Int64
) -> Iterable[Part]:
    for key, ns, count, duration, row in zip(
        keys, own.tolist(), counted.tolist(), durations.tolist(), examples.tolist(), strict=True
    ):
        yield Part(key=key, own_ns=ns, calls=int(count), busy_ns=duration if count else 0, example=row)


def _of_host(trace: Trace, window: Window, naming: Naming) -> Account:
    slices, ops = trace.rows["slices"], trace.rows["hlo_ops"]
    free = window.spans
    parts: list[Part] = []
    if len(ops):
        rows = np.flatnonzero(~ops["encloses"])
        own, free = claim_first(free, ops["start_ns"][rows], ops["end_ns"][rows])
        counted = inside(window.spans, ops["start_ns"][rows])
        kept = counted | (own > 0)
        keys = instruction_keys(trace, rows[kept])
        durations = (ops["end_ns"] - ops["start_ns"])[rows[kept]]
        parts += _parts(keys, own[kept], counted[kept], durations, np.full(int(kept.sum()), MISSING))
    xla = np.zeros(len(slices), bool)
    linked = ops["slice"][ops["slice"] != MISSING] if len(ops) else np.empty(0, np.int64)
    xla[linked] = True
    is_op = (slices["kind"] == SliceKind.OP) & ~xla
    threads = _threads(trace, window, xla)
    for thread in threads:
        span_parts, free = _spans(trace, window, naming, free, thread, is_op)
        parts += span_parts
    if threads:
        span_parts, free = _spans(trace, window, naming, free, threads[0], ~is_op & ~xla)
        parts += span_parts
    parts.append(Part(key=NOTHING_RECORDED, own_ns=free.total(), calls=0, busy_ns=0))
    return Account(
        rank=trace.source.rank,
        device="host",
        ordinal=None,
        total_ns=window.total_ns,
        steps=window.steps,
        per=window.per,
        parts=summed(parts),
        notes=naming.notes,
    )


def _threads(trace: Trace, window: Window, left_out: npt.NDArray[np.bool_]) -> list[int]:
    """Threads with spans in the window, the one whose spans cover most of it first: it runs the steps."""
    slices = trace.rows["slices"]
    amounts = []
    for thread in np.unique(slices["thread"]).tolist():
        mine = (slices["thread"] == thread) & ~left_out
        _, left = claim_first(window.spans, slices["start_ns"][mine], slices["end_ns"][mine])
        amounts.append((left.total(), -int(mine.sum()), thread))
    return [thread for left, _, thread in sorted(amounts) if left < window.total_ns]


def _spans(
    trace: Trace, window: Window, naming: Naming, free: Intervals, thread: int, wanted: npt.NDArray[np.bool_]
) -> tuple[list[Part], Intervals]:
    """Parts of one thread's spans by their self time. An op counts as called where it began in the steps."""
    slices = trace.rows["slices"]
    rows, own, left = claim_innermost(trace, free, thread, wanted)
    began = np.flatnonzero((slices["thread"] == thread) & wanted)
    began = began[window.began_inside(slices["start_ns"][began])]
    self_ns = dict(zip(rows.tolist(), own.tolist(), strict=True))
    counted = set(began.tolist())
    every = np.array(sorted(counted | self_ns.keys()), np.int64)
    keys = [span_key(naming, row) for row in every.tolist()]
    durations = slices["end_ns"][every] - slices["start_ns"][every]
    mine = np.array([self_ns.get(row, 0) for row in every.tolist()], np.int64)
    called = np.array([row in counted for row in every.tolist()], bool)
    return list(_parts(keys, mine, called, durations, every)), left
