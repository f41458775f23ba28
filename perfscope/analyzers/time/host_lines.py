"""Lines of some host time, and the kind of each.

The lines are those recorded or sampled in the time itself, else those of stacks sampled in other steps, else the
functions of the detail pass. Each has the kind of its frame (``frame_kinds``), and whether its function contains the
step: a loop or the step itself is never work that a program could move elsewhere.
"""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import lineage
from perfscope.analyzers.time.account import StepAccount, step_accounts, time_of_cause
from perfscope.analyzers.time.calls import framework
from perfscope.analyzers.time.host_activity import (
    NOT_RECORDED,
    HostActivity,
    HostWork,
    host_work,
    main_thread,
    sample_activities,
)
from perfscope.analyzers.time.samples import (
    SampledLine,
    device_waits,
    first_below,
    free_samples,
    in_calls,
    inner_calls,
    outside_ops,
    sampled_lines,
    sampled_site,
    shown_kinds,
    stacks,
)
from perfscope.analyzers.time.sites import CallSite, call_site
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.documents.causes import Cause
from perfscope.model.frames import Owner, owner_of
from perfscope.model.frames.kinds import ENGINES, FrameKind, frame_kind, kind_below, package_of
from perfscope.model.intervals import Int64, Intervals, merge
from perfscope.model.trace import MISSING, SliceKind, Trace

LEAST_SAMPLES = 10
"""Minimum number of samples in steps without a profiler: fewer do not show which line has most of the time."""

UNANIMOUS = 4
"""Number of samples that suffice if all of them are of one line."""

HALF = 0.5
KNOWN_SHARE = 0.2
"""Share of the time that the known lines must have; with less they say too little about the rest."""

ACTIVITIES: dict[Cause, HostActivity] = {
    "saving": HostActivity.SAVING,
    "garbage_collection": HostActivity.GARBAGE_COLLECTION,
    "sleeping": HostActivity.SLEEPING,
}
"""Causes that stacks identify by themselves; all other stacks are other work."""


class HostLine(Struct, frozen=True, kw_only=True):
    """A part of some host time."""

    name: str
    """Text of the innermost frame or span."""
    site: CallSite
    """The user's line; without one, a library's."""
    share: float
    """Share of all of the time."""
    pieces: int
    start_ns: int | None
    kind: FrameKind
    holds_step: bool = False
    """Whether its function contains the step or the loop."""
    direct: bool = True
    """Whether ``name`` is the site's own function, or called by its line, without a library's function between."""
    calls: str = ""
    """Function that the line calls in most of the time, if known."""
    inner: tuple[HostLine, ...] = ()
    """Callees of the line, if it has most of the time but does nothing itself."""

    @property
    def is_users(self) -> bool:
        """Whether the site is a line of the program, not of a library."""
        return self.site.file is not None and owner_of(self.site.file) is Owner.USER


class HostLines(Struct, frozen=True, kw_only=True):
    """The lines of some host time, most time first."""

    lines: tuple[HostLine, ...]
    source: str
    """``recorded`` or ``nothing`` (for most of it) in the time itself; ``few``: too few samples in it; ``free``: from
    steps without a profiler; ``detail``: from that pass.
    """

    def kind(self) -> FrameKind:
        """Kind of frame with most of the time; ``UNKNOWN`` if no kind has half of it."""
        shares: dict[FrameKind, float] = defaultdict(float)
        for line in self.lines:
            shares[line.kind] += line.share
        most = max(shares, key=lambda kind: shares[kind], default=FrameKind.UNKNOWN)
        return most if shares.get(most, 0.0) > HALF else FrameKind.UNKNOWN

    def best(self) -> tuple[HostLine, float]:
        """The line that represents the time, and the share of its function.

        For a line that contains the step, of the line.

        A line with a file comes first. A line at which a function was when recording began is where the loop was by
        chance: others come before it, if they have ``KNOWN_SHARE`` of the time.
        """
        known = [line for line in self.lines if not line.site.running and line.site.file is not None]
        chosen = known if sum(line.share for line in known) >= KNOWN_SHARE else self.lines
        functions: dict[tuple[str | None, str | None], float] = defaultdict(float)
        for line in chosen:
            functions[line.site.file, line.site.function] += line.share
        most = max(functions, key=lambda key: (key[0] is not None, functions[key]))
        best = next(line for line in chosen if (line.site.file, line.site.function) == most)
        own = best.share if best.holds_step or most[1] == "<module>" else functions[most]
        return best, own

    def package(self) -> str:
        """Installed package with most of the time of the first line's callees; ``""`` without one."""
        inner = self.lines[0].inner if self.lines else ()
        shares: dict[str, float] = defaultdict(float)
        for line in inner:
            if line.site.file is not None and owner_of(line.site.file) is Owner.LIBRARY:
                shares[package_of(line.site.file)] += line.share
        most = max(shares, key=lambda name: shares[name], default="")
        return most if most and shares[most] > HALF else ""


def host_lines(trace: Trace, cause: Cause, spans: Intervals, account: StepAccount) -> HostLines:
    """Return the lines of ``spans``, the time of ``cause`` in ``account``."""
    work = host_work(trace, spans)
    whole = sum(item.total_ns for item in work)
    explained = sum(item.total_ns for item in work if item.name != NOT_RECORDED)
    sampled = [item for item in work if item.frame != MISSING]
    few = (
        2 * sum(item.total_ns for item in sampled) > explained and sum(item.pieces for item in sampled) < LEAST_SAMPLES
    )
    if 2 * explained < whole or few:
        free = _free_lines(trace, cause, whole / (account.whole_ns or 1))
        if free:
            return HostLines(lines=free, source="free")
        detailed = _detailed(trace.detail, cause) if trace.detail is not None and 2 * explained < whole else ()
        if detailed and trace.detail is not None:
            lines = tuple(_recorded_line(trace.detail, item, detailed, timed=False) for item in detailed)
            return HostLines(lines=lines, source="detail")
    lines = tuple(_recorded_line(trace, item, work, timed=True) for item in work)
    return HostLines(lines=lines, source="few" if few else "recorded" if 2 * explained >= whole else "nothing")


# From stacks sampled in steps without a profiler.


def _free_lines(trace: Trace, cause: Cause, share_of_step: float) -> tuple[HostLine, ...]:
    """Return the lines from free steps; empty with too few samples.

    Their shares are limited by those of these steps.
    """
    every = free_samples(trace, trace.fact(main_thread))
    rows = _free_rows(trace, cause, every)
    lasts = trace.rows["samples"]["lasts_ns"]
    whole = int(lasts[every].sum())
    explained = min(1.0, int(lasts[rows].sum()) / whole / share_of_step) if whole and share_of_step else 0.0
    free = sampled_lines(trace, rows)
    lines = []
    for number, line in enumerate(free):
        # a line that only starts the work, as `trainer.train()` does
        inner = inner_calls(trace, line) if not number and not line.direct and line.share > HALF else ()
        parts = tuple(_free_line(trace, part, explained) for part in inner)
        lines.append(_free_line(trace, line, explained, inner=parts))
    if cause == "other_host" and explained < 1 and framework(trace) != "jax":
        rest = every[in_calls(trace, every) & ~np.isin(every, rows) & ~trace.fact(device_waits)[every]]
        lines += [_free_line(trace, line, 1 - explained) for line in sampled_lines(trace, rest)]
        rows = np.concatenate((rows, rest))
    if len(rows) < LEAST_SAMPLES and not (len(rows) >= UNANIMOUS and len(lines) == 1):
        return ()
    return tuple(sorted(lines, key=lambda line: -line.share))


def _free_rows(trace: Trace, cause: Cause, rows: Int64) -> Int64:
    """Return the samples of the main thread in steps without a profiler that show the cause."""
    activity = trace.fact(sample_activities)[rows]
    shown = activity == ACTIVITIES.get(cause, MISSING)
    if cause == "other_host":  # a long interval without a sample may have been any work
        jax = framework(trace) == "jax"  # JAX's calls are not recorded as ops
        outside = ~trace.fact(device_waits)[rows] if jax else outside_ops(trace, rows)
        shown &= outside
        if shown.sum() < LEAST_SAMPLES:
            shown = outside & np.isin(activity, [MISSING, *ACTIVITIES.values()])
    return np.asarray(rows[shown], np.int64)


def _free_line(trace: Trace, line: SampledLine, scale: float, *, inner: tuple[HostLine, ...] = ()) -> HostLine:
    site = line.site
    return HostLine(
        name=line.innermost,
        site=site,
        share=line.share * scale,
        pieces=line.samples,
        start_ns=None,
        kind=_kind_of_samples(trace, np.array(line.rows, np.int64)),
        holds_step=(site.file, site.function) in trace.fact(step_functions),
        direct=line.direct,
        calls=first_below(trace, np.array(line.rows, np.int64)),
        inner=inner,
    )


_KNOWN_MODULES = frozenset(
    ("np", "numpy", "os", "json", "re", "random", "math", "time", "pd", "pandas", "cv2", "Image", "itertools", "copy",
     "pickle", "shutil", "io", "csv", "hashlib", "zlib", "gzip", "base64", "struct", "heapq", "string", "str", "list",
     "dict")
)  # fmt: skip


def _kind_of_samples(trace: Trace, rows: Int64) -> FrameKind:
    """Return the kind of most of the time of some samples.

    A callee of a JAX program without a frame may be a jitted function: it is unknown, unless the name is that of a
    Python function.
    """
    samples, known = trace.rows["samples"], trace.fact(stacks)
    time: dict[FrameKind, int] = defaultdict(int)
    kinds = shown_kinds(trace, rows).tolist()
    jax = framework(trace) == "jax"
    files, lasts = trace.rows["frames"]["file"], samples["lasts_ns"][rows].tolist()
    for frame, number, ns in zip(samples["frame"][rows].tolist(), kinds, lasts, strict=True):
        kind = FrameKind(number)
        if jax and kind is FrameKind.USER and frame != MISSING and files[frame] == MISSING:
            text = known.texts[frame]
            if text.partition(".")[0] not in _KNOWN_MODULES and not hasattr(builtins, text):
                kind = FrameKind.UNKNOWN
        time[kind] += ns
    return max(time, key=lambda kind: time[kind], default=FrameKind.UNKNOWN)


_OF_STEPS = [FrameKind.AUTOGRAD, FrameKind.OPTIMIZER, FrameKind.COMPILED_CALL, FrameKind.DEVICE_WAIT]
"""Kinds of frames that a step has and its helper functions seldom have."""

LEAST_OF_STEPS = 3
"""Minimum number of samples; with fewer, all of the framework's frames are used to find the step."""


def step_functions(trace: Trace) -> frozenset[tuple[str | None, str | None]]:
    """Return (file, function) of the program's functions that contain the step or the loop: a fact of the trace.

    They call most of the framework's work in the steps. Known only from sampled stacks.
    """
    samples, known = trace.rows["samples"], trace.fact(stacks)
    rows = free_samples(trace, trace.fact(main_thread))
    kinds = shown_kinds(trace, rows)
    works = np.isin(kinds, _OF_STEPS)
    if works.sum() < LEAST_OF_STEPS:
        works = in_calls(trace, rows) | trace.fact(device_waits)[rows] | np.isin(kinds, list(ENGINES))
        works &= ~np.isin(kinds, [FrameKind.CHECKPOINT, FrameKind.LOGGING])
    parents, files = trace.rows["frames"]["parent"].tolist(), trace.rows["frames"]["file"].tolist()
    time: dict[tuple[str | None, str | None], int] = defaultdict(int)
    sites: dict[int, CallSite] = {}
    lasts = samples["lasts_ns"][rows[works]]
    by_frame: dict[int, int] = defaultdict(int)
    for frame, ns in zip(samples["frame"][rows[works]].tolist(), lasts.tolist(), strict=True):
        by_frame[frame] += ns
    for leaf, ns in by_frame.items():
        seen, frame = set(), leaf
        while frame != MISSING:
            if files[frame] != MISSING and known.user[frame] == frame:
                site = sites.get(frame) or sites.setdefault(frame, sampled_site(trace, frame))
                seen.add((site.file, site.function))
            frame = parents[frame] if parents[frame] < frame else MISSING
        for function in seen:
            time[function] += ns
    whole = int(lasts.sum())
    return frozenset(function for function, ns in time.items() if 2 * ns >= whole)


# From spans recorded in the time itself, or in the detail pass.


def _recorded_line(trace: Trace, work: HostWork, of: Sequence[HostWork], *, timed: bool) -> HostLine:
    if work.frame == MISSING:
        site, kind = call_site(trace, work.slice), kind_of_slice(trace, work.slice)
        holds_step = _holds_step(trace, work.slice)
    else:
        site = sampled_site(trace, work.frame)
        kind = FrameKind(int(trace.fact(stacks).kinds[work.frame]))
        holds_step = (site.file, site.function) in trace.fact(step_functions)
    return HostLine(
        name=work.name,
        site=site,
        share=work.total_ns / sum(item.total_ns for item in of),
        pieces=work.pieces,
        start_ns=work.start_ns if timed else None,
        kind=kind,
        holds_step=holds_step,
    )


def kind_of_slice(trace: Trace, row: int) -> FrameKind:
    """Return the kind of a row of ``slices`` and its enclosing spans; ``MISSING``: ``UNKNOWN``."""
    if row == MISSING:
        return FrameKind.UNKNOWN
    slices, kind = trace.rows["slices"], FrameKind.UNKNOWN
    if np.isin(slices["name"][row], trace.rows["steps"]["name"]):
        return kind  # a step's own span has no kind
    for ancestor in reversed(list(lineage(trace, row))):
        text = trace.text(int(slices["name"][ancestor]))
        own, is_python = frame_kind(text), slices["kind"][ancestor] == SliceKind.PYTHON
        if not is_python and own in (FrameKind.UNKNOWN, FrameKind.USER):
            own = FrameKind.OP if slices["kind"][ancestor] == SliceKind.OP else FrameKind.RANGE
        if own in (FrameKind.OP, FrameKind.RANGE):  # inside a function both say less than the function
            kind = own if ancestor == row and kind in (FrameKind.UNKNOWN, FrameKind.USER) else kind
        else:
            kind = kind_below(kind, own, is_python=is_python and "): " in text)
    return kind


def _holds_step(trace: Trace, row: int) -> bool:
    """Whether the function of a span extends beyond a step, or has half of the step's ops and launches."""
    if row == MISSING:
        return False
    slices, calls, windows = trace.rows["slices"], trace.rows["calls"], trace.fact(step_windows)
    python = slices["kind"] == SliceKind.PYTHON
    function = next((ancestor for ancestor in lineage(trace, row) if python[ancestor]), MISSING)
    if function == MISSING or not windows.count:
        return False
    begin, end = int(slices["start_ns"][function]), int(slices["end_ns"][function])
    step = int(np.searchsorted(windows.starts, begin, side="right")) - 1
    if step < 0 or end > windows.ends[step]:
        return True
    times = np.concatenate((slices["start_ns"][slices["kind"] == SliceKind.OP], calls["start_ns"]))
    in_step = int(((times >= windows.starts[step]) & (times < windows.ends[step])).sum())
    return bool(in_step) and 2 * int(((times >= begin) & (times < end)).sum()) >= in_step


def _detailed(detail: Trace, cause: Cause) -> tuple[HostWork, ...]:
    """Return the same work in a second recording of the program, if that one has Python functions."""
    accounts = detail.fact(step_accounts)
    if not accounts or "python_stack" not in detail.recorded:
        return ()
    host: tuple[Cause, ...] = ("other_host", *ACTIVITIES)
    account = max(accounts, key=lambda one: sum(one.total_ns[item] for item in host))
    causes = host if cause == "other_host" else (cause,)  # without Python functions all work is ``other_host``
    work = host_work(detail, merge(*(time_of_cause(detail, account, item) for item in causes)))
    return work if work and work[0].name != NOT_RECORDED else ()
