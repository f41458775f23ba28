"""Where the steps went on the thread that drives the program; the parts sum to the steps exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import is_compiled, named_slices, spans_by_thread
from perfscope.analyzers.time.account import warm_windows
from perfscope.analyzers.time.host_activity import HostActivity, divide, host_activities, main_thread
from perfscope.analyzers.time.steps import Windows, step_windows, steps_work
from perfscope.analyzers.time.whole_run.cores import carve_waits, core_waits
from perfscope.model.documents.causes import HostPurpose
from perfscope.model.intervals import EMPTY, Intervals, covered, difference, intersection, merge, union
from perfscope.model.trace import MISSING, SliceKind, Trace

HostPart = Literal[
    "ops",
    "compiled_regions",
    "launch",
    "sync",
    "input",
    HostPurpose,
    "other_threads",
    "python",
    "core_wait",
]
HOST_PARTS: tuple[HostPart, ...] = get_args(HostPart)
"""``launch``: calls that launch device work, and short ops around them; ``other_threads``: nothing here, while another
thread ran ops (autograd's); ``python``: nothing recorded on any thread."""


class HostAccount(Struct, frozen=True, kw_only=True):
    """Where the steps went on the thread that drives the program."""

    rank: int | None
    thread: str
    """Its name."""
    numbers: tuple[int, ...]
    """Numbers of the steps; empty where the account is of the whole capture."""
    parts_ns: Mapping[HostPart, tuple[int, ...]]
    """Per part one value a step (one for the whole capture), ns. Per step the parts sum to it."""

    @property
    def total_ns(self) -> dict[HostPart, int]:
        """Per part the sum over the steps."""
        return {part: sum(values) for part, values in self.parts_ns.items()}

    @property
    def whole_ns(self) -> int:
        """Length of all steps together."""
        return sum(self.total_ns.values())


def marks_of(trace: Trace, windows: Windows) -> Windows:
    """The same steps by their marks on the host, where launches tell that a step's work runs after its mark."""
    work = trace.fact(steps_work)
    if work is None or not work.late or not windows.numbers or len(trace.rows["hlo_ops"]):
        return windows
    steps, order = trace.fact(step_windows), np.argsort(trace.fact(step_windows).starts, kind="stable")
    chosen = order[np.isin(steps.numbers[order], windows.numbers)]
    return Windows(starts=steps.starts[chosen], ends=steps.ends[chosen], numbers=tuple(steps.numbers[chosen].tolist()))


def host_account(trace: Trace) -> HostAccount | None:
    """The account of the main thread; ``None`` where no op or call of the host was recorded in the steps."""
    thread, windows = trace.fact(main_thread), marks_of(trace, trace.fact(warm_windows))
    if thread == MISSING or not len(windows.starts) or windows.whole_ns <= 0:
        return None
    steps = union(windows.starts, windows.ends)
    parts, rest = divide(trace, thread, steps)
    if not parts:
        return None
    others = merge(
        *(spans for number, spans in trace.fact(host_activities).get(HostActivity.OP, {}).items() if number != thread)
    )
    slices = trace.rows["slices"]
    rows = np.flatnonzero(named_slices(trace, is_compiled) & (slices["kind"] != SliceKind.PYTHON))
    compiled = spans_by_thread(trace, "slices", rows).get(thread, EMPTY)
    result: dict[HostPart, Intervals] = {
        "other_threads": intersection(rest, others),
        "python": difference(rest, others),
    }
    inside = []
    for activity, spans in parts.items():
        if activity in (HostActivity.OP, HostActivity.LAUNCH):
            inside.append(intersection(spans, compiled))
            spans = difference(spans, compiled)
        result["ops" if activity == HostActivity.OP else cast("HostPart", activity.name.lower())] = spans
    result["compiled_regions"] = merge(*inside)
    waits = trace.fact(core_waits)
    if waits is not None:
        blocked: tuple[HostPart, ...] = ("sync", "other_ranks", "sleeping", "other_threads")
        running = [part for part in result if part not in blocked]
        result, result["core_wait"] = carve_waits(waits, result, running=running, whole=True)
    return HostAccount(
        rank=trace.source.rank,
        thread=trace.text(int(trace.rows["threads"]["thread"][thread])),
        numbers=windows.numbers,
        parts_ns={
            part: tuple(covered(result.get(part, EMPTY), windows.starts, windows.ends).tolist()) for part in HOST_PARTS
        },
    )
