"""Activity of each host thread, as disjoint intervals by purpose.

A moment with several purposes counts for the first of them in the order of ``HostActivity``: the data loader's copy to
the device is input, the compiler's allocation is compilation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.spans import (
    allocator_spans,
    input_spans,
    named_slices,
    nearest_ancestor,
    outermost_ancestor,
    spans_by_thread,
)
from perfscope.analyzers.time.calls import base_name, blocking_calls
from perfscope.analyzers.time.rank_waits import waits_between_ops, waits_in_calls
from perfscope.analyzers.time.samples import device_waits, nearest_samples, shown_kinds, stacks, waiting_samples
from perfscope.model.frames.kinds import ENGINES, FrameKind, frame_kind
from perfscope.model.intervals import (
    EMPTY,
    Int64,
    Intervals,
    complement,
    covered,
    difference,
    distinct,
    intersection,
    merge,
    numbered,
    union,
)
from perfscope.model.trace import MISSING, CallKind, SliceKind, Trace

_LOADS_CODE = re.compile(
    r"cu(Module|Library)(Load|GetFunction|LoadData|LoadDataEx|LoadFatBinary)\w*|(cuda|hip)ModuleLoad\w*|cuInit|nvrtc\w*"
    r"|cuDevicePrimaryCtxRetain|cuCtxCreate\w*|cuLink(Create|Complete|AddData)\w*"
)

_LAUNCHING = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)

STALL_NS = 1_000_000
"""Duration from which host time is not launch overhead: launching one op from Python costs 5 to 50 us."""

ByThread = dict[int, Intervals]
"""Row of ``threads`` -> disjoint intervals in ns."""

NOT_RECORDED = "(outside every recorded op)"


class HostActivity(IntEnum):
    """Purposes of host time, in order of precedence."""

    INPUT = 0
    COMPILATION = 1
    """Tracing and compiling (Dynamo, Inductor, Triton, XLA), autotuning, loading of modules, driver initialisation.

    A call that launches on an idle device takes microseconds; a call of at least ``STALL_NS`` loads its code first.
    """
    COLLECTIVE_SETUP = 2
    """Creating communicators and process groups."""
    GARBAGE_COLLECTION = 3
    SAVING = 4
    """Writing checkpoints and logs."""
    OTHER_RANKS = 5
    """Waiting for other ranks, or for their data, in a host collective or message."""
    SLEEPING = 6
    """``sleep``, or waiting for a lock or another thread."""
    MEMORY = 7
    """Device memory calls of the driver."""
    SYNC = 8
    """In a call that waits for the device."""
    LAUNCH = 9
    """In a call that launches device work, or in a short op around one."""
    OP = 10
    """In any other framework op."""


_ACTIVITY_OF: Mapping[FrameKind, HostActivity] = {
    FrameKind.COMPILER: HostActivity.COMPILATION,
    FrameKind.COLLECTIVE_SETUP: HostActivity.COLLECTIVE_SETUP,
    FrameKind.GARBAGE_COLLECTION: HostActivity.GARBAGE_COLLECTION,
    FrameKind.LOGGING: HostActivity.SAVING,
    FrameKind.CHECKPOINT: HostActivity.SAVING,
    FrameKind.SLEEP: HostActivity.SLEEPING,
    FrameKind.LOCK: HostActivity.SLEEPING,
    FrameKind.QUEUE: HostActivity.SLEEPING,
    FrameKind.DEVICE_WAIT: HostActivity.SYNC,
}
_OF_STACKS: Mapping[FrameKind, HostActivity] = {
    **_ACTIVITY_OF,
    FrameKind.LOADER: HostActivity.INPUT,
    FrameKind.WORKER_START: HostActivity.INPUT,
}
"""Activity by the kind of a sampled frame. In recorded spans, a loader's own regions mark its fetches
(``input_spans``).
"""


def compiles(name: str) -> bool:
    """Whether a host span with this name is work of a compiler."""
    return frame_kind(name) is FrameKind.COMPILER


def loads_code(name: str) -> bool:
    """Whether a runtime call with this name loads code or makes a context."""
    return _LOADS_CODE.fullmatch(base_name(name)) is not None


def host_activities(trace: Trace) -> dict[HostActivity, ByThread]:
    """Return when each thread had each purpose, before precedence; purposes without time are omitted."""
    calls = trace.rows["calls"]
    named = {
        activity: spans_by_thread(trace, "slices", np.flatnonzero(named_slices(trace, partial(_does, activity))))
        for activity in sorted(set(_ACTIVITY_OF.values()))
    }
    codes = [code for code in np.unique(calls["name"]) if loads_code(trace.text(int(code)))]
    launching = np.flatnonzero(np.isin(calls["kind"], _LAUNCHING))
    loads = np.isin(calls["name"], codes)
    if len(trace.rows["kernels"]):
        loads |= (calls["kind"] == CallKind.KERNEL) & (calls["end_ns"] - calls["start_ns"] >= STALL_NS)
    loading = spans_by_thread(trace, "calls", np.flatnonzero(loads))
    ops = np.flatnonzero(trace.rows["slices"]["kind"] == SliceKind.OP)
    spans = {
        **named,
        HostActivity.INPUT: input_spans(trace),
        HostActivity.COMPILATION: _together(named[HostActivity.COMPILATION], loading),
        HostActivity.MEMORY: allocator_spans(trace),
        HostActivity.SYNC: _together(
            named[HostActivity.SYNC], spans_by_thread(trace, "calls", trace.fact(blocking_calls))
        ),
        HostActivity.LAUNCH: _together(
            spans_by_thread(trace, "calls", launching),
            spans_by_thread(trace, "slices", _ops_that_launch(trace, launching)),
        ),
        HostActivity.OP: spans_by_thread(trace, "slices", ops),
    }
    for activity, part in _between_ops(trace, spans).items():
        spans[activity] = _together(spans.get(activity, {}), part)
    return {activity: spans[activity] for activity in HostActivity if spans.get(activity)}


def _does(activity: HostActivity, name: str) -> bool:
    return _ACTIVITY_OF.get(frame_kind(name)) is activity


def _between_ops(trace: Trace, recorded: Mapping[HostActivity, ByThread]) -> dict[HostActivity, ByThread]:
    """Return the main thread's activity from collectives in flight and sampled stacks, in unrecorded time."""
    thread = trace.fact(main_thread)
    begin, end = trace.span_ns()
    sampled = len(trace.rows["samples"]) and len(trace.rows["steps"])
    if thread == MISSING or not (sampled or (trace.rows["collectives"]["slice"] != MISSING).any()):
        return {}
    if sampled:
        begin, end = int(trace.rows["steps"]["start_ns"].min()), int(trace.rows["steps"]["end_ns"].max())
    instructions = trace.rows["hlo_ops"]
    known = merge(
        *(by_thread.get(thread, EMPTY) for by_thread in recorded.values()),
        *recorded[HostActivity.OP].values(),  # the main thread waits for ops of other threads
        union(instructions["start_ns"], instructions["end_ns"]),
    )
    free = complement(known, begin, end)
    pieces = nearest_samples(trace, thread, free) if sampled else None
    waits = merge(waits_in_calls(trace, thread), waits_between_ops(trace, free, pieces))
    result = {HostActivity.OTHER_RANKS: {thread: waits}} if len(waits.starts) else {}
    if pieces is None:
        return result
    activity = trace.fact(sample_activities)[pieces.samples]
    return result | {
        HostActivity(number): {thread: union(pieces.starts[activity == number], pieces.ends[activity == number])}
        for number in np.unique(activity[activity != MISSING]).tolist()
    }


def sample_activities(trace: Trace) -> Int64:
    """Return the purpose of each row of ``samples`` by its stack.

    Without one: ``SYNC`` if the thread waited for a device, ``SLEEPING`` if it slept or waited otherwise, but not
    inside a framework, whose other threads may work. ``MISSING``: other work in Python.
    """
    samples, none = trace.rows["samples"], len(HostActivity)
    of_kind = np.array([_OF_STACKS.get(kind, none) for kind in FrameKind], np.int64)
    kinds = shown_kinds(trace, np.arange(len(samples)))
    activity = of_kind[kinds]
    waits = np.where(device_waits(trace), int(HostActivity.SYNC), int(HostActivity.SLEEPING))
    waits[np.isin(kinds, list(ENGINES)) & (waits == HostActivity.SLEEPING)] = none
    activity = np.where(trace.fact(waiting_samples), np.minimum(activity, waits), activity)
    return np.where(activity == none, MISSING, activity)


def main_thread(trace: Trace) -> int:
    """Return the row of ``threads`` of the thread that drives the program; ``MISSING`` if no host thread is recorded.

    The thread of the steps' own spans, else the one that launches most device work, else the one with most time in its
    outermost spans.
    """
    slices, calls, steps = trace.rows["slices"], trace.rows["calls"], trace.rows["steps"]
    threads = np.concatenate([slices["thread"], calls["thread"]])
    if not len(threads):
        return MISSING
    if len(steps) and len(slices):
        named = np.flatnonzero(np.isin(slices["name"], np.unique(steps["name"])))
        of_steps = named[np.isin(slices["start_ns"][named], steps["start_ns"])]
        if len(of_steps):
            return int(np.bincount(slices["thread"][of_steps]).argmax())
    launching = np.isin(calls["kind"], _LAUNCHING)
    if launching.any():
        return int(np.bincount(calls["thread"][launching]).argmax())
    if not len(slices):
        return int(np.bincount(calls["thread"]).argmax())
    outermost = slices["parent"] == MISSING
    lengths = (slices["end_ns"] - slices["start_ns"])[outermost]
    return int(np.bincount(slices["thread"][outermost], weights=lengths).argmax())


def divide(
    trace: Trace, thread: int, spans: Intervals, first: Mapping[HostActivity, Intervals] | None = None
) -> tuple[dict[HostActivity, Intervals], Intervals]:
    """Divide ``spans`` by activity of the thread, and return the rest without recorded activity.

    ``first``: further intervals of an activity, for example the part of a gap that a wait explains. The parts are
    disjoint, and with the rest they equal ``spans`` exactly.
    """
    parts: dict[HostActivity, Intervals] = {}
    rest = spans
    activities = trace.fact(host_activities)
    for activity in sorted({*activities, *(first or {})}):
        busy = merge(activities.get(activity, {}).get(thread, EMPTY), (first or {}).get(activity, EMPTY))
        hit = intersection(rest, busy)
        if len(hit.starts):
            parts[activity] = hit
            rest = difference(rest, hit)
    return parts, rest


class InnermostSpans(NamedTuple):
    """The innermost slice at each moment of a thread: disjoint pieces in order."""

    starts: Int64
    ends: Int64
    slices: Int64
    """Row of ``slices``; ``MISSING`` without one."""


def innermost_spans(trace: Trace, thread: int) -> InnermostSpans:
    """The innermost slice of a thread over time, from the begin of its first slice to the end of its last."""
    slices = trace.rows["slices"]
    first, last = np.searchsorted(slices["thread"], [thread, thread + 1])
    rows = np.arange(first, last)
    rows = rows[slices["end_ns"][rows] > slices["start_ns"][rows]]
    if not len(rows):
        nothing = np.empty(0, np.int64)
        return InnermostSpans(nothing, nothing, nothing)
    ending = np.lexsort((-rows, slices["end_ns"][rows]))  # of slices with equal ends, the innermost first
    times = np.concatenate((slices["start_ns"][rows], slices["end_ns"][rows][ending]))
    after = np.concatenate((rows, slices["parent"][rows][ending].astype(np.int64)))
    begins = np.repeat([1, 0], [len(rows), len(rows)])
    order = np.lexsort((np.arange(len(times)), begins, times))  # at equal times, ends come before begins
    moments, inside = times[order].astype(np.int64), after[order]
    filled = moments[1:] > moments[:-1]
    return InnermostSpans(moments[:-1][filled], moments[1:][filled], inside[:-1][filled])


def _ops_that_launch(trace: Trace, launching: Int64) -> Int64:
    """Return the outermost ops around launching calls that take less than ``STALL_NS``: rows of ``slices``."""
    slices, calls = trace.rows["slices"], trace.rows["calls"]
    is_op = slices["kind"] == SliceKind.OP
    ops = distinct(outermost_ancestor(trace, calls["parent"][launching], is_op))
    ops = ops[ops != MISSING]
    return np.asarray(ops[slices["end_ns"][ops] - slices["start_ns"][ops] < STALL_NS], np.int64)


def _together(first: ByThread, second: ByThread) -> ByThread:
    return {thread: merge(first.get(thread, EMPTY), second.get(thread, EMPTY)) for thread in {*first, *second}}


# Functions and ops by host time.


class HostWork(Struct, frozen=True, kw_only=True):
    """Time of the host in one function or op, ns."""

    name: str
    """The innermost recorded span, or ``NOT_RECORDED``."""
    slice: int
    """Row of ``slices`` of the span with most of the time; ``MISSING`` if none is recorded."""
    total_ns: int
    pieces: int
    start_ns: int
    """Begin of the longest piece."""
    frame: int = MISSING
    """Row of ``frames``: the innermost frame of a sampled stack, if there are only samples."""


def host_work(trace: Trace, spans: Intervals) -> tuple[HostWork, ...]:
    """Return the host's work in ``spans`` by the name of the innermost span, most time first.

    The sum is that of ``spans``.

    The main thread comes first: its Python functions and ops, followed by its sampled stacks by the user's line. Where
    it has no recording, the other threads are used, those with most spans first.
    """
    slices = trace.rows["slices"]
    main = trace.fact(main_thread)
    others = [int(thread) for thread in np.unique(slices["thread"]).tolist() if thread != main]
    work: list[tuple[HostWork, int]] = []
    rest = spans
    for thread in (main, *others):
        pieces = innermost_spans(trace, thread)
        has_slice = pieces.slices != MISSING
        if thread == main:
            sampled, taken = _sampled_work(trace, difference(rest, _explained_spans(trace, pieces)))
            work += [(item, item.total_ns) for item in sampled]
            rest = difference(rest, taken)
        work += _recorded_work(trace, rest, pieces, has_slice)
        rest = difference(rest, union(pieces.starts[has_slice], pieces.ends[has_slice]))
        if not len(rest.starts):
            break
    if len(rest.starts):
        longest = int(np.argmax(rest.ends - rest.starts))
        start, total = int(rest.starts[longest]), rest.total()
        nothing = HostWork(name=NOT_RECORDED, slice=MISSING, total_ns=total, pieces=len(rest.starts), start_ns=start)
        work.append((nothing, total))
    return tuple(sorted(_grouped(work), key=lambda item: -item.total_ns))


def _explained_spans(trace: Trace, pieces: InnermostSpans) -> Intervals:
    """Return where the innermost span is more than a mark of the program."""
    kinds = trace.rows["slices"]["kind"]
    explained = pieces.slices != MISSING
    explained[explained] = kinds[pieces.slices[explained]] != SliceKind.ANNOTATION
    return union(pieces.starts[explained], pieces.ends[explained])


def _recorded_work(
    trace: Trace, spans: Intervals, pieces: InnermostSpans, has_slice: np.ndarray
) -> Iterator[tuple[HostWork, int]]:
    """Yield (work by name of the innermost span, its longest piece in ns), without steps' own spans."""
    slices = trace.rows["slices"]
    starts, rows = pieces.starts[has_slice], pieces.slices[has_slice]
    inside = covered(spans, starts, pieces.ends[has_slice])
    chosen = np.flatnonzero(inside)
    starts, rows, inside = starts[chosen], rows[chosen], inside[chosen]
    if not len(rows):
        return
    codes = slices["name"][rows].astype(np.int64)
    codes[np.isin(codes, trace.rows["steps"]["name"])] = MISSING
    other = np.where(slices["kind"][rows] == SliceKind.OTHER, rows, MISSING)
    callers = nearest_ancestor(trace, other, slices["kind"] == SliceKind.OP)
    callers[callers != MISSING] = slices["name"][callers[callers != MISSING]]
    keys = codes * (len(trace.strings) + 1) + callers  # both are at least -1
    different, group = numbered(keys)
    totals, counts, most = np.zeros(len(different), np.int64), np.bincount(group), np.zeros(len(different), np.int64)
    np.add.at(totals, group, inside)
    np.maximum.at(most, group, inside)
    first, longest = np.empty_like(totals), np.empty_like(totals)
    first[group[::-1]] = np.arange(len(group))[::-1]  # of equal ones the first stays
    hits = np.flatnonzero(inside == most[group])[::-1]
    longest[group[hits]] = hits
    for item in np.argsort(first).tolist():
        piece = int(longest[item])
        code, caller = int(codes[piece]), trace.text(int(callers[piece]))
        yield (
            HostWork(
                name=f"{caller}: {trace.text(code)}" if caller else trace.text(code) or NOT_RECORDED,
                slice=int(rows[piece]),
                total_ns=int(totals[item]),
                pieces=int(counts[item]),
                start_ns=int(starts[piece]),
            ),
            int(inside[piece]),
        )


def _sampled_work(trace: Trace, spans: Intervals) -> tuple[list[HostWork], Intervals]:
    """Return the work by the user's line of the main thread's samples in ``spans``, and the time they represent."""
    samples, known = trace.rows["samples"], trace.fact(stacks)
    pieces = nearest_samples(trace, trace.fact(main_thread), spans)
    work = []
    for start, end, sample in zip(pieces.starts.tolist(), pieces.ends.tolist(), pieces.samples.tolist(), strict=True):
        frame = int(samples["frame"][sample])
        if frame == MISSING:
            continue
        text = known.texts[int(known.user[frame])]
        work.append(HostWork(name=text, slice=MISSING, total_ns=end - start, pieces=1, start_ns=start, frame=frame))
    return work, union([item.start_ns for item in work], [item.start_ns + item.total_ns for item in work])


def _grouped(work: Iterable[tuple[HostWork, int]]) -> list[HostWork]:
    """Return one entry per name, represented by the entry with the longest piece."""
    longest: dict[str, tuple[HostWork, int]] = {}
    total: dict[str, int] = {}
    pieces: dict[str, int] = {}
    for item, length in work:
        if item.name not in longest or length > longest[item.name][1]:
            longest[item.name] = item, length
        total[item.name] = total.get(item.name, 0) + item.total_ns
        pieces[item.name] = pieces.get(item.name, 0) + item.pieces
    return [replace(item, total_ns=total[name], pieces=pieces[name]) for name, (item, _) in longest.items()]
