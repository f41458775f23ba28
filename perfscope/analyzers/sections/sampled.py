"""Python calls as sampled stacks show them: spans on the clock of a trace, and the frames of host time without ops.

A sampled stack is shown from the program's outermost frame on: launchers, perfscope's own frames and the frame between
a module and its ``forward`` are left out. Frames are one call if they have the same callers, file and function, and no
sample between them shows another function. Native stacks (Nsight Systems) are read in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time import innermost_spans, main_thread, nearest_samples
from perfscope.model.frames import Owner, is_profilers, owner_of
from perfscope.model.intervals import Int64, Intervals
from perfscope.model.trace import MISSING, SliceKind, Trace

MODULE_CALL = re.compile(r"(.*/)?torch/nn/modules/module\.py\(\d+\): (Module\.)?_(wrapped_)?call_impl")
"""The frames between every module and its ``forward``."""


class SampledCalls(Struct, frozen=True, kw_only=True):
    """Calls by thread, depth and start; arrays of one length. Times in ns on the clock of the trace."""

    thread: Int64
    """Row of ``threads``."""
    start: Int64
    end: Int64
    depth: Int64
    """0: the outermost frame of the program."""
    frame: Int64
    """Row of ``frames``: of the call's lines the one with most time."""

    def __len__(self) -> int:
        return len(self.start)


class StackPaths(Struct, frozen=True, kw_only=True):
    """Shown frames of the stacks of samples."""

    at: dict[int, int]
    """Innermost frame of a stack (row of ``frames``) -> row of ``frames_of``."""
    frames_of: npt.NDArray[np.int32]
    """Rows of ``frames``, outermost first, filled with ``MISSING``; shape (stacks, depth)."""
    function: Int64
    """By row of ``frames``: number of its file and function."""

    def of(self, frame: int) -> list[int]:
        """The shown frames of a stack by its innermost frame, outermost first; empty if unknown."""
        if frame == MISSING:
            return []
        path = self.frames_of[self.at[frame]]
        return [row for row in path.tolist() if row != MISSING]


def stack_paths(trace: Trace) -> StackPaths:
    """The shown frames of every sampled stack and of its callers."""
    frames = trace.rows["frames"]
    wanted, left = set[int](), set(np.unique(trace.rows["samples"]["frame"]).tolist()) - {MISSING}
    parents = frames["parent"]
    while left:
        wanted |= left
        left = {int(parents[row]) for row in left} - wanted - {MISSING}
    paths: dict[int, list[int]] = {}
    of_user: dict[int, bool] = {}
    for row in sorted(wanted):  # callers come before their callees
        file, function = trace.text(int(frames["file"][row])), trace.text(int(frames["name"][row]))
        above = int(parents[row])
        inside = of_user.get(above, False)
        of_user[row] = inside or bool(file and owner_of(file) is Owner.USER)
        path = [] if of_user[row] and not inside else paths.get(above, [])
        hidden = is_profilers(file) or MODULE_CALL.fullmatch(f"{file}({int(frames['line'][row])}): {function}")
        paths[row] = path if hidden else [*path, row]
    held = np.full((len(paths), max(map(len, paths.values()), default=0)), MISSING, np.int32)
    for index, path in enumerate(paths.values()):
        held[index, : len(path)] = path
    function_of = frames["file"].astype(np.int64) * (len(trace.strings) + 1) + frames["name"]
    return StackPaths(at={row: index for index, row in enumerate(paths)}, frames_of=held, function=function_of)


def sampled_calls(trace: Trace) -> SampledCalls:
    """Calls of all threads with samples, from the first recorded step to the last; of all work without steps.

    The time between two samples of the steps' thread is divided in the middle; any other thread is only sampled after
    it worked, and a sample represents the time since the previous sampling.
    """
    samples, steps = trace.rows["samples"], trace.rows["steps"]
    low, high = trace.span_ns()
    if len(steps):
        low, high = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    within = np.flatnonzero((samples["time_ns"] >= low) & (samples["time_ns"] - samples["lasts_ns"] < high))
    parts = []
    for thread in np.unique(samples["thread"][within]).tolist():
        pieces = _pieces(trace, thread, within[samples["thread"][within] == thread], low, high)
        parts.append(_calls(trace, thread, *pieces))
    names = SampledCalls.__struct_fields__
    empty = np.empty(0, np.int64)
    return SampledCalls(
        **{name: np.concatenate([getattr(part, name) for part in parts]) if parts else empty for name in names}
    )


def _pieces(trace: Trace, thread: int, rows: Int64, low: int, high: int) -> tuple[Int64, Int64, Int64]:
    """Start, end and row of ``samples`` of the time that each sample of a thread represents; disjoint, by start."""
    samples = trace.rows["samples"]
    if thread == trace.fact(main_thread) or "native_samples" in trace.recorded:
        pieces = nearest_samples(trace, thread, Intervals(np.array([low]), np.array([high])))
        return pieces.starts, pieces.ends, pieces.samples
    ends = np.minimum(samples["time_ns"][rows], high)
    starts = np.maximum(ends - samples["lasts_ns"][rows], low)
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    filled = ends > starts
    return starts[filled], ends[filled], rows[filled]


def _calls(trace: Trace, thread: int, starts: Int64, ends: Int64, rows: Int64) -> SampledCalls:
    """Calls of one thread, level by level: a call goes on while its function and all its callers do."""
    paths, frames = trace.fact(stack_paths), trace.rows["samples"]["frame"][rows]
    known = frames != MISSING
    starts, ends = starts[known], ends[known]
    stack = np.array([paths.at[frame] for frame in frames[known].tolist()], np.int64)
    fresh = np.ones(len(starts), bool)  # a call of the level above begins, or time without a sample ends
    fresh[1:] = starts[1:] > ends[:-1]
    found: list[tuple[Int64, ...]] = []
    for depth in range(paths.frames_of.shape[1]):
        frame = paths.frames_of[stack, depth].astype(np.int64)
        inside = frame != MISSING
        if not inside.any():
            break
        function = np.where(inside, paths.function[frame], MISSING)
        fresh[1:] |= function[1:] != function[:-1]
        call = np.cumsum(fresh & inside) - 1
        number = call[inside]
        first = np.flatnonzero(fresh & inside)
        last = first + np.bincount(number, minlength=len(first)) - 1
        longest = _longest(number, frame[inside], (ends - starts)[inside], len(first))
        found.append((np.full(len(first), thread), starts[first], ends[last], np.full(len(first), depth), longest))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)] if found else [np.empty(0, np.int64)] * 5
    return SampledCalls(**dict(zip(SampledCalls.__struct_fields__, columns, strict=True)))


def _longest(call: Int64, frame: Int64, lasts: Int64, calls: int) -> Int64:
    """By call, the row of ``frames`` with most of its time."""
    width = int(frame.max()) + 1
    keys, at = np.unique(call * width + frame, return_inverse=True)
    time = np.bincount(at, weights=lasts)
    order = np.argsort(time, kind="stable")  # the longest is written last
    result = np.full(calls, MISSING, np.int64)
    result[keys[order] // width] = keys[order] % width
    return result


class SampledFrame(Struct, frozen=True, kw_only=True):
    """Samples with one stack in one span of the host."""

    slice: int
    """Row of ``slices`` of the span around them; ``MISSING``: outside of all spans."""
    path: list[int]
    """Rows of ``frames``, outermost first."""
    total_ns: int
    samples: int
    first_ns: int
    """Begin of the first piece."""


def unrecorded_calls(trace: Trace) -> Iterator[SampledFrame]:
    """Sampled stacks in time of the steps' thread in which no op, function or other work is recorded.

    Annotations, such as a step, are not work: their time is divided among the samples in it.
    """
    thread = trace.fact(main_thread)
    if thread == MISSING or not len(trace.rows["samples"]):
        return
    inner, slices = innermost_spans(trace, thread), trace.rows["slices"]
    plain = slices["kind"] == SliceKind.ANNOTATION
    free = np.flatnonzero((inner.slices == MISSING) | np.append(plain, False)[inner.slices])
    starts = inner.starts[free]
    pieces = nearest_samples(trace, thread, Intervals(starts, inner.ends[free]))
    owner = inner.slices[free][np.searchsorted(starts, pieces.starts, side="right") - 1]
    yield from _grouped(trace, owner, pieces.samples, pieces.ends - pieces.starts, pieces.starts)


def sampled_stacks(trace: Trace) -> Iterator[SampledFrame]:
    """Sampled stacks of the steps' thread in all steps, also in those that no profiler recorded."""
    samples = trace.rows["samples"]
    mine = (samples["thread"] == trace.fact(main_thread)) & ~samples["worker"] & (samples["step"] != MISSING)
    rows = np.flatnonzero(mine)
    lasts = samples["lasts_ns"][rows]
    yield from _grouped(trace, np.full(len(rows), MISSING), rows, lasts, samples["time_ns"][rows] - lasts)


def _grouped(trace: Trace, owner: Int64, rows: Int64, lasts: Int64, starts: Int64) -> Iterator[SampledFrame]:
    """Sums of samples by owner and innermost frame."""
    paths, frames = trace.fact(stack_paths), trace.rows["samples"]["frame"][rows].astype(np.int64)
    known = np.flatnonzero(frames != MISSING)
    keys, at = np.unique(np.stack((owner[known], frames[known]), axis=1), axis=0, return_inverse=True)
    total, first = np.zeros(len(keys), np.int64), np.full(len(keys), np.iinfo(np.int64).max)
    np.add.at(total, at.ravel(), lasts[known])
    np.minimum.at(first, at.ravel(), starts[known])
    count = np.bincount(at.ravel(), minlength=len(keys))
    for index, (around, frame) in enumerate(keys.tolist()):
        if path := paths.of(frame):
            yield SampledFrame(
                slice=around, path=path, total_ns=int(total[index]), samples=int(count[index]),
                first_ns=int(first[index]),
            )  # fmt: skip
