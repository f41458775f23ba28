"""What a rank did while the others waited for it: computed, communicated, loaded data, or nothing the trace shows.

First it is held against the others: from the collective before to this one, on each rank's own clock, how much more
than the median of them it computed, was in collectives, loaded data or ran ops. What makes up for most of its lateness
is what it did. Where nothing does (others may have been busy waiting), the window right before its arrival is
looked at, as long as it was late: on the device up to where the collective began, on the host up to where it was
launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.host_spans import input_slices
from perfscope.analyzers.ranks.local import Local
from perfscope.model.frames import Frame, Owner, parse_frame
from perfscope.model.intervals import EMPTY, Intervals, covered, merge, union
from perfscope.model.trace import MISSING, SliceKind, Trace

MOST = 0.5
"""Of the window: what fills more than half of it is what the rank did."""

MOST_OTHERS = 32
"""Of the others that a late rank is held against, evenly chosen: their median needs no more."""

OWN_NAMES = ("c10d::", "record_param_comms")
"""How spans begin that are a collective's own side on the host."""

COMPUTE, EARLIER, LOADER, HOST, NOTHING = (
    "longer compute",
    "an earlier collective",
    "data loader",
    "host work",
    "host gap",
)
"""``NOTHING``: no work on the device and no op on the host; Python code, a sleep, or waiting for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The window before a late rank's collective, in ns that each covers; they may overlap."""

    window_ns: int
    compute_ns: int
    collectives_ns: int
    loader_ns: int
    ops_ns: int
    """Host ops that are no loader and no collective, on the thread that launched it."""
    more: Mapping[str, int]
    """By kind: ns more than the median of the others spent in it since the collective before; empty for the first."""
    frame: Frame | None
    """The innermost Python function of the user's that covers most of it, where stacks were recorded."""

    @property
    def what(self) -> str:
        """What it did more than the others, else what fills most of the window."""
        need = MOST * self.window_ns
        most = max(self.more, key=lambda kind: self.more[kind], default=NOTHING)
        if self.more.get(most, 0) >= need:
            return most
        for covers, name in (
            (self.collectives_ns, EARLIER),
            (self.loader_ns, LOADER),
            (self.compute_ns, COMPUTE),
            (self.ops_ns, HOST),
        ):
            if covers >= need:
                return name
        return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A rank's way from one collective, or from the beginning of a step, to the next collective."""

    trace: Trace
    device_ns: int
    """Since when its device was on it."""
    host_ns: int
    """Since when its host was on it."""
    until: Local


def way(trace: Trace, since: Local | None, until: Local) -> Stretch | None:
    """From the collective before to ``until``; for the first one from the beginning of its step, where it is known."""
    if since is not None:
        return Stretch(trace=trace, device_ns=since.end_ns, host_ns=_launch(trace, since), until=until)
    starts = trace.rows["steps"]["start_ns"]
    before_it = starts[starts <= _launch(trace, until)]
    if not len(before_it):
        return None
    return Stretch(trace=trace, device_ns=int(before_it.max()), host_ns=int(before_it.max()), until=until)


def before(trace: Trace, late: Local, lateness_ns: int, own: Stretch | None, others: Sequence[Stretch]) -> Before:
    """What the rank of ``trace`` did before it came ``lateness_ns`` late to ``late``.

    ``own``: its way from the collective before; ``others``: the ways of the ranks that it kept waiting.
    """
    device_window = (late.start_ns - lateness_ns, late.start_ns)
    launch = _launch(trace, late)
    host_window = (launch - lateness_ns, launch)
    threads = _threads(trace, late)
    loader = trace.fact(_loader_spans)
    ops = trace.fact(OpsOf(threads))
    hosted = late.kernel == MISSING
    return Before(
        window_ns=lateness_ns,
        compute_ns=_inside(trace.fact(compute_intervals), device_window),
        collectives_ns=_inside(trace.fact(_collective_intervals), host_window if hosted else device_window),
        loader_ns=_inside(loader, host_window),
        ops_ns=_inside(ops, host_window),
        more=_more(own, others) if own is not None and others else {},
        frame=_frame(trace, threads, host_window),
    )


def _more(own: Stretch, others: Sequence[Stretch]) -> dict[str, int]:
    """By kind: what the rank spent in it on its way, less the median of the others."""
    mine, theirs = _spent(own), [_spent(other) for other in others[:: -(-len(others) // MOST_OTHERS)]]
    return {kind: ns - int(np.median([one[kind] for one in theirs])) for kind, ns in mine.items()}


def _spent(stretch: Stretch) -> dict[str, int]:
    """ns of a stretch by kind: of the device between the two collectives, of the host between their launches."""
    trace = stretch.trace
    device = (min(stretch.device_ns, stretch.until.start_ns), stretch.until.start_ns)
    hosted = stretch.until.kernel == MISSING
    launched = _launch(trace, stretch.until)
    launches = device if hosted else (min(stretch.host_ns, launched), launched)
    threads = _threads(trace, stretch.until)
    loading = trace.fact(_loader_spans)
    loader = _inside(loading, launches)
    return {
        EARLIER: _inside(trace.fact(_collective_intervals), device),
        LOADER: loader,
        COMPUTE: _inside(trace.fact(compute_intervals), device),
        HOST: _inside(merge(trace.fact(OpsOf(threads)), loading), launches) - loader,
    }


def compute_intervals(trace: Trace) -> Intervals:
    """When a device of the trace ran a kernel that is no communication."""
    kernels = trace.rows["kernels"]
    chosen = ~kernels["communication"]
    return union(kernels["start_ns"][chosen], kernels["end_ns"][chosen])


def _collective_intervals(trace: Trace) -> Intervals:
    rows = trace.rows["collectives"]
    return union(rows["start_ns"], rows["end_ns"])


def _loader_spans(trace: Trace) -> Intervals:
    slices = trace.rows["slices"]
    chosen = input_slices(trace)
    return union(slices["start_ns"][chosen], slices["end_ns"][chosen])


def _launch(trace: Trace, late: Local) -> int:
    """When the host asked for it; its own start where that is not recorded."""
    if late.kernel == MISSING:
        rows, row = trace.rows["slices"], late.slice
    else:
        rows, row = trace.rows["calls"], int(trace.rows["kernels"]["call"][late.kernel])
    return late.start_ns if row == MISSING else int(rows["start_ns"][row])


def _threads(trace: Trace, late: Local) -> tuple[int, ...]:
    """Threads whose work makes the rank late: the one that launched it; all others for a worker's (gloo)."""
    slices = trace.rows["slices"]
    if late.kernel != MISSING:
        call = int(trace.rows["kernels"]["call"][late.kernel])
        return () if call == MISSING else (int(trace.rows["calls"]["thread"][call]),)
    hosted = trace.rows["collectives"]["slice"]
    workers = set(slices["thread"][hosted[hosted != MISSING]].tolist())  # those on the device have no span
    return tuple(thread for thread in range(len(trace.rows["threads"])) if thread not in workers)


@dataclass(frozen=True, slots=True)
class OpsOf:
    """When ops ran on the threads, without the collectives' own: a fact of a trace."""

    threads: tuple[int, ...]

    def __call__(self, trace: Trace) -> Intervals:
        """The spans of ops on the threads; empty where no thread is told."""
        slices = trace.rows["slices"]
        if not self.threads:
            return EMPTY
        own = [code for code, text in enumerate(trace.strings) if text.startswith(OWN_NAMES)]
        chosen = (slices["kind"] == int(SliceKind.OP)) & np.isin(slices["thread"], self.threads)
        chosen &= ~np.isin(slices["name"], own)
        return union(slices["start_ns"][chosen], slices["end_ns"][chosen])


def _frame(trace: Trace, threads: tuple[int, ...], window: tuple[int, int]) -> Frame | None:
    """The innermost Python function that covers most of the window and is the user's; None without stacks."""
    slices = trace.rows["slices"]
    chosen = np.flatnonzero((slices["kind"] == int(SliceKind.PYTHON)) & np.isin(slices["thread"], threads))
    inside = np.minimum(slices["end_ns"][chosen], window[1]) - np.maximum(slices["start_ns"][chosen], window[0])
    covering = chosen[inside >= MOST * (window[1] - window[0])]
    for row in covering[np.argsort(slices["end_ns"][covering] - slices["start_ns"][covering])].tolist():
        found = parse_frame(trace.text(int(slices["name"][row])))
        if found is not None and found.owner is Owner.USER:
            return found
    return None


def _inside(intervals: Intervals, window: tuple[int, int]) -> int:
    return int(covered(intervals, [window[0]], [window[1]])[0])
