"""Sampled stacks: the function and line of the program that the host was in, and its activity.

Samples are on the clock of the trace. Samples of traced steps fill the recording: an interval without any recorded op
is divided among the samples in it, each getting the time closest to it. Most samples are of steps without a profiler;
only their shares are used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Set

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite
from perfscope.model.documents.stacks import COLLECTING, SWITCH_NS
from perfscope.model.frames import Owner, is_profilers, owner_of
from perfscope.model.frames.kinds import COMPUTES, WAITS, FrameKind, frame_kind, kind_below
from perfscope.model.intervals import Int64, Intervals
from perfscope.model.trace import MISSING, Trace

WAITING_CPU_SHARE = 0.3
"""Share of a line's time on a processor below which the thread slept or waited there. It includes time in which the
system ran other programs, so a limit of one half would classify a busy machine as a sleeping program.
"""
HOLDER_CPU_SHARE = 0.1
"""Share of a sample's time that another thread of the program must have worked for the first one to have waited for it.
"""

LOCK_DELAY_NS = 2_000_000
"""Smallest median delay. A thread with the lock releases it after 5 ms on request; a sampler that does not wait is late
by 0.1 ms.
"""

_COMPREHENSION = re.compile(r"(\.<locals>)?\.<(listcomp|dictcomp|setcomp|genexpr)>")
"""A separate function up to Python 3.11: its lines count for the enclosing function."""

HOT = 0.8
"""Share of a call's time from which its callee is followed; with less, the callees are listed."""


class Stacks(Struct, frozen=True, kw_only=True):
    """Properties of a stack per row of ``frames``, its innermost frame."""

    user: Int64
    """Row of the user's innermost frame; else of a library's; else of the frame itself."""
    texts: tuple[str, ...]
    """Text of the frame: ``file(line): function``, or a callee."""
    in_framework: npt.NDArray[np.bool_]
    """Whether the innermost Python frame is of PyTorch or JAX, or calls it."""
    in_loader: npt.NDArray[np.bool_]
    """Whether a frame of a data loader is on the stack."""
    kinds: Int64
    """`FrameKind` of the stack (``kind_below`` of all its frames)."""
    own: Int64
    """`FrameKind` of the frame alone."""


def stacks(trace: Trace) -> Stacks:
    """Return the properties of every stack of samples. Callers come before their callees."""
    frames = trace.rows["frames"]
    count = len(frames)
    user, loader = np.full(count, MISSING, np.int64), np.zeros(count, bool)
    best, framework = np.full(count, int(Owner.FRAMEWORK), np.int64), np.zeros(count, bool)
    kinds: list[FrameKind] = []
    alone: list[FrameKind] = []
    texts, jitted = [], trace.fact(jitted_functions)
    columns = (frames[name].tolist() for name in ("file", "line", "name", "parent"))
    for row, (file, line, name, parent) in enumerate(zip(*columns, strict=True)):
        path, function = trace.text(file), trace.text(name)
        texts.append(f"{path}({line}): {function.rpartition('.')[2]}" if path else function)
        above = parent if parent != MISSING and parent < row else MISSING
        own, outer = frame_kind(texts[-1]), kinds[above] if above != MISSING else FrameKind.UNKNOWN
        if not path and function.rpartition(".")[2] in jitted:
            own = FrameKind.COMPILED_CALL
        alone.append(own)
        kinds.append(kind_below(outer, own, is_python=bool(path)))
        loader[row] = (above != MISSING and loader[above]) or own is FrameKind.LOADER
        owner = owner_of(path) if path else Owner.FRAMEWORK
        user[row], best[row] = row, int(owner)
        if above != MISSING and best[above] < owner:
            user[row], best[row] = user[above], best[above]
        if path:
            framework[row] = own in COMPUTES
        else:
            framework[row] = (above != MISSING and framework[above]) or own in COMPUTES
    return Stacks(
        user=user, texts=tuple(texts), in_framework=framework, in_loader=loader, kinds=np.array(kinds, np.int64),
        own=np.array(alone, np.int64),
    )  # fmt: skip


def jitted_functions(trace: Trace) -> frozenset[str]:
    """Return the names of functions that JAX compiled and that ran in the recording."""
    modules = {trace.text(code) for code in np.unique(trace.rows["hlo_ops"]["module"]).tolist() if code != MISSING}
    return frozenset(name.removeprefix("jit_") for name in modules if name.startswith("jit_"))


class ThreadLines(Struct, frozen=True, kw_only=True):
    """Pieces of time, and the user's line and kind of frame of each."""

    spans: Intervals
    line: Int64
    """Index in ``lines``."""
    lines: tuple[tuple[CallSite, FrameKind], ...]


def thread_lines(trace: Trace, thread: int, spans: Intervals) -> ThreadLines:
    """Return the lines of a thread in ``spans`` by its samples."""
    pieces = nearest_samples(trace, thread, spans)
    frames, line = np.unique(trace.rows["samples"]["frame"][pieces.samples], return_inverse=True)
    kinds = trace.fact(stacks).kinds
    lines = tuple(
        (sampled_site(trace, frame), FrameKind.UNKNOWN if frame == MISSING else FrameKind(int(kinds[frame])))
        for frame in frames.tolist()
    )
    return ThreadLines(spans=Intervals(pieces.starts, pieces.ends), line=line.astype(np.int64), lines=lines)


def sampled_site(trace: Trace, frame: int, inside: npt.NDArray[np.bool_] | None = None) -> CallSite:
    """Return the user's function and line of a stack; ``frame``: row of its innermost frame.

    ``inside``: mask of the rows of ``frames`` that the line must be in; if no line of the user is, it is the innermost
    line.
    """
    if frame == MISSING:
        return UNKNOWN_SITE
    frames, row = trace.rows["frames"], int(trace.fact(stacks).user[frame])
    if inside is not None and not inside[row]:
        row = frame if frames["file"][frame] != MISSING else max(int(frames["parent"][frame]), 0)
    return _site_of(trace, row)


def _site_of(trace: Trace, row: int) -> CallSite:
    """Return the function and line of a row of ``frames``."""
    frames = trace.rows["frames"]
    file, line = trace.text(int(frames["file"][row])), int(frames["line"][row])
    return CallSite(
        file=file or None,
        line=line if file and line != MISSING else None,
        function=_COMPREHENSION.sub("", trace.text(int(frames["name"][row]))).replace("<locals>.", ""),
        exact=True,
    )


def is_direct(trace: Trace, frame: int) -> bool:
    """Whether the user's line of a stack is its innermost frame, or calls it; ``frame``: row of that."""
    if frame == MISSING:
        return True
    user = int(trace.fact(stacks).user[frame])
    return user in (frame, int(trace.rows["frames"]["parent"][frame]))


class SampledPieces(Struct, frozen=True, kw_only=True):
    """Disjoint intervals of time, each with the sample that represents it."""

    starts: Int64
    ends: Int64
    samples: Int64
    """Rows of ``samples``."""


def nearest_samples(trace: Trace, thread: int, spans: Intervals) -> SampledPieces:
    """Divide ``spans`` among the samples of a thread in them; spans without samples are omitted.

    A sample that was taken late shows what kept the sampler waiting: it gets its delay, and half of the time before. A
    native sample gets at most the time that it represents on either side.
    """
    samples = trace.rows["samples"]
    rows: Int64 = np.flatnonzero((samples["thread"] == thread) & ~samples["worker"])
    times = samples["time_ns"][rows]
    span = np.searchsorted(spans.starts, times, side="right") - 1
    inside = (span >= 0) & (times < spans.ends[np.maximum(span, 0)]) if len(spans.starts) else np.zeros(len(rows), bool)
    rows, times, span = rows[inside], times[inside], span[inside]
    if not len(rows):
        nothing = np.empty(0, np.int64)
        return SampledPieces(starts=nothing, ends=nothing, samples=nothing)
    same = span[1:] == span[:-1]
    due = np.maximum(times[1:] - np.maximum(samples["delay_ns"][rows[1:]], 0), times[:-1])
    middle = (due + times[:-1]) // 2
    starts = np.concatenate((spans.starts[span[:1]], np.where(same, middle, spans.starts[span[1:]])))
    ends = np.concatenate((np.where(same, middle, spans.ends[span[:-1]]), spans.ends[span[-1:]]))
    if "native_samples" in trace.recorded:  # only running threads are sampled, so a pause belongs to no sample
        reach = samples["lasts_ns"][rows]
        starts, ends = np.maximum(starts, times - reach), np.minimum(ends, times + reach)
    filled = ends > starts
    return SampledPieces(starts=starts[filled], ends=ends[filled], samples=rows[filled])


def waiting_samples(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``samples`` in which the thread slept or waited, by callee or processor time of the line.

    The processor time is that of all samples with the line and callee, because the system may run other programs during
    a single one. On a busy machine that may be all of them, but then the sampler waited for a thread that ran Python.
    """
    samples, known = trace.rows["samples"], trace.fact(stacks)
    rows = np.flatnonzero((samples["cpu_ns"] != MISSING) & (samples["frame"] != MISSING))
    texts = {text: number for number, text in enumerate(dict.fromkeys(known.texts))}
    by_line: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, frame in zip(rows.tolist(), samples["frame"][rows].tolist(), strict=True):
        by_line[int(known.user[frame]), texts[known.texts[frame]]].append(row)
    idle = _sleeps(trace)
    for group in by_line.values():
        text = known.texts[samples["frame"][group[0]]]
        asleep = samples["cpu_ns"][group].sum() < WAITING_CPU_SHARE * samples["lasts_ns"][group].sum()
        at_once = np.quantile(samples["delay_ns"][group], 0.25) < SWITCH_NS
        if asleep and at_once and text != COLLECTING and not text.startswith("gc."):
            idle[group] = True
    return idle


def _sleeps(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``samples`` whose callee always waits."""
    return _calls(trace, WAITS)


class LockWait(Struct, frozen=True, kw_only=True):
    """Waiting of the steps' thread for the interpreter's lock, while another thread of the program held it."""

    share: float
    """Share of the samples' time in steps."""
    holder: int
    """Row of ``samples`` of the thread that worked meanwhile, at its line with most time."""
    lines: tuple[tuple[int, float], ...]
    """(Row of ``samples``, share) of the holder's lines, most time first."""


def device_waits(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``samples`` that call a function which waits for a device, by the callee's name."""
    return _calls(trace, {FrameKind.DEVICE_WAIT, FrameKind.DEVICE_READ})


def _calls(trace: Trace, kinds: Set[FrameKind]) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``samples`` whose innermost frame is a callee of one of ``kinds``."""
    files = trace.rows["frames"]["file"].tolist()
    texts = trace.fact(stacks).texts
    calls = [file == MISSING and frame_kind(text) in kinds for file, text in zip(files, texts, strict=True)]
    return np.array([*calls, False], bool)[trace.rows["samples"]["frame"]]  # MISSING is the last entry


def shown_kinds(trace: Trace, rows: Int64) -> Int64:
    """Return the `FrameKind` of the stack of each of ``rows`` of ``samples``."""
    return np.append(trace.fact(stacks).kinds, int(FrameKind.UNKNOWN))[trace.rows["samples"]["frame"][rows]]


def lock_wait(trace: Trace, thread: int) -> LockWait | None:
    """Return the waiting of ``thread`` for the interpreter's lock; ``None`` if no sample shows any.

    A thread that works in Python has the lock. A sample counts for the time in which another thread of the program
    worked, at most the rest of its time, if the waiting thread was in no call that waits for something else. The delay
    of the sampler itself shows that it is the lock, and not C code that releases it.
    """
    samples, known = trace.rows["samples"], trace.fact(stacks)
    ours = ~samples["worker"] & (samples["cpu_ns"] != MISSING)
    mine = ours & (samples["thread"] == thread) & (samples["step"] != MISSING)
    whole = int(samples["lasts_ns"][mine].sum())
    works = ours & (samples["thread"] != thread) & (samples["cpu_ns"] > HOLDER_CPU_SHARE * samples["lasts_ns"])
    order = np.flatnonzero(works)[
        np.argsort(samples["cpu_ns"][works], kind="stable")
    ]  # the busiest comes last, and is kept
    holder_at = dict(zip(samples["time_ns"][order].tolist(), order.tolist(), strict=True))
    otherwise = _sleeps(trace) | device_waits(trace)
    waits = [row for row in np.flatnonzero(mine & ~otherwise).tolist() if _time(trace, row) in holder_at]
    if not waits or np.median(samples["delay_ns"][waits]) < LOCK_DELAY_NS:
        return None
    by_line: dict[int, int] = defaultdict(int)
    stands: dict[int, int] = {}
    for row in waits:
        holder = holder_at[_time(trace, row)]
        line = int(known.user[samples["frame"][holder]]) if samples["frame"][holder] != MISSING else MISSING
        left = int(samples["lasts_ns"][row] - samples["cpu_ns"][row])
        by_line[line] += max(0, min(left, int(samples["cpu_ns"][holder])))
        stands[line] = holder
    total = sum(by_line.values())
    if not total or not whole:
        return None
    lines = sorted(((stands[line], ns / total) for line, ns in by_line.items()), key=lambda item: -item[1])
    return LockWait(share=total / whole, holder=lines[0][0], lines=tuple(lines))


def _time(trace: Trace, row: int) -> int:
    return int(trace.rows["samples"]["time_ns"][row])


def free_samples(trace: Trace, thread: int) -> Int64:
    """Return the rows of ``samples`` of a thread in steps that no profiler recorded."""
    samples = trace.rows["samples"]
    traced = np.isin(samples["step"], trace.rows["steps"]["number"])
    chosen = (samples["thread"] == thread) & ~samples["worker"] & (samples["step"] != MISSING) & ~traced
    return np.flatnonzero(chosen)


def in_calls(trace: Trace, rows: Int64) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``samples`` whose innermost line is a framework's, or calls a function that JAX compiled."""
    known, frame = trace.fact(stacks), trace.rows["samples"]["frame"][rows]
    return np.asarray((frame != MISSING) & known.in_framework[frame], bool)


def outside_ops(trace: Trace, rows: Int64) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``samples`` whose innermost line is outside frameworks and loaders and calls no known op.

    Known are ops of the op graph, functions that JAX compiled, and waits for a device. A line that calls an op missing
    in the op graph counts as the program's own work.
    """
    samples, known = trace.rows["samples"], trace.fact(stacks)
    frame = samples["frame"][rows]
    calls_ops = {(op.file, op.line) for op in (trace.op_graph.ops if trace.op_graph is not None else ())}
    sites = {row: sampled_site(trace, row) for row in np.unique(frame).tolist()}
    of_ops = np.array([(sites[row].file, sites[row].line) in calls_ops for row in frame.tolist()], bool)
    outside = (frame != MISSING) & ~of_ops & ~known.in_loader[frame] & ~in_calls(trace, rows)
    return np.asarray(outside & ~trace.fact(device_waits)[rows], bool)


def first_below(trace: Trace, rows: Int64) -> str:
    """Return the callee of the user's line with most of the time of ``rows`` of ``samples``; ``''`` if unknown."""
    time: dict[str, int] = defaultdict(int)
    known = trace.fact(stacks)
    for row in rows.tolist():
        below = _below_user(trace, row)
        text = known.texts[below[0]] if below else ""
        text = "" if is_profilers(text) else text
        time[text.rpartition("): ")[2]] += int(trace.rows["samples"]["lasts_ns"][row])
    return max(time, key=lambda name: time[name], default="")


class SampledLine(Struct, frozen=True, kw_only=True):
    """A line of the program by its share of some samples."""

    site: CallSite
    innermost: str
    """Text of the innermost frame that most of them have."""
    direct: bool
    """Whether that frame is the user's line, or called by it."""
    share: float
    """Share of the samples' time."""
    rows: tuple[int, ...]
    """Rows of ``samples``."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.rows)


def sampled_lines(trace: Trace, rows: Int64, inside: npt.NDArray[np.bool_] | None = None) -> tuple[SampledLine, ...]:
    """Group rows of ``samples`` by the user's line, most time first. ``inside``: as in ``sampled_site``."""
    samples, known = trace.rows["samples"], trace.fact(stacks)
    weight = samples["lasts_ns"][rows]
    whole = int(weight.sum())
    if not whole:
        return ()
    time: dict[CallSite, int] = defaultdict(int)
    members: dict[CallSite, list[int]] = defaultdict(list)
    inner: dict[CallSite, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    frames: dict[tuple[CallSite, str], int] = {}
    for row, ns in zip(rows.tolist(), weight.tolist(), strict=True):
        frame = int(samples["frame"][row])
        site = sampled_site(trace, frame, inside)
        time[site] += ns
        members[site].append(row)
        text = known.texts[frame] if frame != MISSING else ""
        inner[site][text] += ns
        frames.setdefault((site, text), frame)
    lines = []
    for site, ns in time.items():
        text = max(inner[site], key=lambda text: inner[site][text])
        direct = is_direct(trace, frames[site, text])
        lines.append(SampledLine(site=site, innermost=text, direct=direct, share=ns / whole, rows=tuple(members[site])))
    return tuple(sorted(lines, key=lambda line: -line.share))


def inner_calls(trace: Trace, line: SampledLine) -> tuple[SampledLine, ...]:
    """Return the callees of a line, at the first depth at which its time divides, most time first.

    Empty without callees.

    The callee with ``HOT`` of the time is followed from the line down, until no callee has as much.
    """
    lasts = trace.rows["samples"]["lasts_ns"]
    below = {row: _below_user(trace, row) for row in line.rows}
    members, calls, depth = list(line.rows), list[list[int]](), 0
    while True:
        by_function: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in members:
            if depth < len(below[row]):
                by_function[_function(trace, below[row][depth])].append(row)
        if not by_function:
            break
        calls, depth = list(by_function.values()), depth + 1
        hottest = max(calls, key=lambda call: int(lasts[call].sum()))
        if lasts[hottest].sum() < HOT * lasts[members].sum():
            break
        members = hottest
    scale = line.share / (int(lasts[list(line.rows)].sum()) or 1)
    found = []
    for call in calls:
        times: dict[int, int] = defaultdict(int)
        for row in call:
            times[below[row][depth - 1]] += int(lasts[row])
        site = _site_of(trace, max(times, key=lambda frame: times[frame]))
        share = scale * sum(times.values())
        found.append(SampledLine(site=site, innermost=site.function or "", direct=True, share=share, rows=tuple(call)))
    return tuple(sorted(found, key=lambda call: -call.share))


def _below_user(trace: Trace, row: int) -> list[int]:
    """Return the rows of ``frames`` of a sample below the user's line, outermost first."""
    parents, users = trace.rows["frames"]["parent"], trace.fact(stacks).user
    frame, chain = int(trace.rows["samples"]["frame"][row]), list[int]()
    while frame != MISSING and frame != users[frame]:
        chain.append(frame)
        frame = int(parents[frame])
    return chain[::-1]


def _function(trace: Trace, frame: int) -> tuple[int, int]:
    frames = trace.rows["frames"]
    return int(frames["file"][frame]), int(frames["name"][frame])
