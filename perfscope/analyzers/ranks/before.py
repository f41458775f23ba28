"""What a rank did while the others waited for it: computed, communicated, loaded data, or nothing the trace shows.

Looked at on the rank's own clock, so no alignment is in it: the window ends where its collective began, and is as
long as the others waited. If its device was idle there, the host was late: the host is looked at in a window of the
same length that ends where the collective was launched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.frames import Frame, Owner, parse_frame
from perfscope.analyzers.facts.host_spans import input_slices
from perfscope.analyzers.facts.intervals import EMPTY, Intervals, covered, union
from perfscope.analyzers.ranks.local import Local
from perfscope.analyzers.trace import MISSING, SliceKind, Trace

MOST = 0.5
"""Of the window: what fills more than half of it is what the rank did."""

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
    frame: Frame | None
    """The innermost Python function of the user's that covers most of it, where stacks were recorded."""

    @property
    def what(self) -> str:
        """What fills most of the window."""
        need = MOST * self.window_ns
        for covers, name in (
            (self.collectives_ns, EARLIER),
            (self.loader_ns, LOADER),
            (self.compute_ns, COMPUTE),
            (self.ops_ns, HOST),
        ):
            if covers >= need:
                return name
        return NOTHING


def before(trace: Trace, late: Local, lateness_ns: int) -> Before:
    """What the rank of ``trace`` did in the ``lateness_ns`` before it came to ``late``."""
    device_window = (late.start_ns - lateness_ns, late.start_ns)
    launch = _launch(trace, late)
    host_window = (launch - lateness_ns, launch)
    threads = _threads(trace, late)
    loader = trace.fact(_loader_spans)
    ops = _of_threads(trace, threads)
    hosted = late.kernel == MISSING
    return Before(
        window_ns=lateness_ns,
        compute_ns=_inside(trace.fact(compute_intervals), device_window),
        collectives_ns=_inside(trace.fact(_collective_intervals), host_window if hosted else device_window),
        loader_ns=_inside(loader, host_window),
        ops_ns=_inside(ops, host_window),
        frame=_frame(trace, threads, host_window),
    )


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
    workers = set(slices["thread"][trace.rows["collectives"]["slice"]].tolist())
    return tuple(thread for thread in range(len(trace.rows["threads"])) if thread not in workers)


def _of_threads(trace: Trace, threads: tuple[int, ...]) -> Intervals:
    """Ops on the threads, without the collectives' own."""
    slices = trace.rows["slices"]
    if not threads:
        return EMPTY
    own = [code for code, text in enumerate(trace.strings) if text.startswith(("c10d::", "record_param_comms"))]
    chosen = (slices["kind"] == int(SliceKind.OP)) & np.isin(slices["thread"], threads) & ~np.isin(slices["name"], own)
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
