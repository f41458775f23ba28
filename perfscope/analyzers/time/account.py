"""Where the step went: every ns of every step of every device by cause; the causes sum to the step exactly.

The whole step counts: from its begin on the host to its end, also before the first and after the last device work.
Busy time is compute, else exposed communication, else exposed copy. For an idle interval of a device, up to the work
that ends it:

1. That work had been launched before the interval began (or work after it on its stream): *dependency*. The device
   waited for another stream, an event or its front end. If its launch was not recorded: *unexplained*.
2. Else the host was late. Up to the launch the time goes to what the host did then (``host_activity``), on the thread
   that launched, or on the main thread while the launching thread had nothing to do. From the launch to the first work:
   *launch*, or *compilation* while that call loads code. Work that begins ``STALL_NS`` or more after the call that
   launched it returned waits for something else: *dependency* from then on.
3. If a wait for the device emptied the queue just before the interval, the host could have worked ahead during that
   wait: as much of the interval as the wait was long is *sync*. The rest would have been there without it.
4. Time in long ops, or in no recorded activity, is *launch* in an interval below ``STALL_NS`` (Python between two ops
   is part of the price of launching), else *other_host*.
5. After the last work: what the main thread did; *unexplained* if no host thread is recorded.
6. Time of the host's causes, and of ops on the host, in which the thread waited for a core is *core_wait*.

Without an accelerator in the recording, instructions of XLA programs on any thread and ops on the main thread are the
compute. The rest of the main thread's time is divided alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.time.calls import blocking_calls
from perfscope.analyzers.time.device_time import device_busy, device_times, device_work
from perfscope.analyzers.time.host_activity import STALL_NS, HostActivity, divide, host_activities, main_thread
from perfscope.analyzers.time.idle_calls import draining_sync, launch_at, pick
from perfscope.analyzers.time.phases import Phase, phases_of
from perfscope.analyzers.time.steps import Windows, account_windows, device_doubts
from perfscope.analyzers.time.whole_run.cores import BUSY_SHARE, carve_waits, core_waits
from perfscope.model.documents.causes import BUSY, CAUSES, Cause
from perfscope.model.finding import AbstainError
from perfscope.model.intervals import (
    EMPTY,
    Int64,
    Intervals,
    by_largest_remainder,
    complement,
    covered,
    difference,
    intersection,
    merge,
    union,
)
from perfscope.model.trace import MISSING, CallKind, Trace
from perfscope.model.units import format_share

COLD_SHARE = 0.1
"""Share of a step from which compiling makes it cold, so that it does not represent a warm step."""
COLD_OF_SHORTEST = 0.5
"""The same relative to the shortest step, because every step looks up compiled code."""


ODD = 2.0
"""Ratio to the median step from which a recorded step is an outlier, as in ``slow_steps``."""
RARE = 0.1
"""Largest share of steps without a profiler that are that slow; more of them are part of the program's usual work."""
LEAST_FREE = 5
"""Minimum number of steps without a profiler: fewer do not show that a slow step is not usual."""


class StepAccount(Struct, frozen=True, kw_only=True):
    """Time of the steps by cause on one device, or on the host without an accelerator in the recording."""

    rank: int | None
    device: int
    """Row of ``devices``; ``MISSING`` for the host."""
    ordinal: int
    """Number of the device in its process; ``MISSING`` for the host."""
    name: str
    numbers: tuple[int, ...]
    """Numbers of the steps; empty if the account covers the whole capture."""
    causes_ns: Mapping[Cause, tuple[int, ...]]
    """Per cause, one value per step (one for the whole capture), ns. The causes of a step sum to its length."""
    phases_ns: Mapping[Phase, int] = field(default_factory=dict)
    """Busy time of all steps by phase, ns; the phases sum to ``busy_ns``."""
    cold: tuple[int, ...] = ()
    """Numbers of the steps that compiled; ``warm_accounts`` exclude them."""
    outliers: tuple[int, ...] = ()
    """Numbers of the steps that took far longer than the others, if such steps are rare in the run; also excluded."""

    @property
    def total_ns(self) -> dict[Cause, int]:
        """Sum over the steps, by cause."""
        return {cause: sum(values) for cause, values in self.causes_ns.items()}

    @property
    def whole_ns(self) -> int:
        """Length of all steps together."""
        return sum(self.total_ns.values())

    @property
    def lacked_core(self) -> bool:
        """Whether the host waited for a core long enough to doubt its times."""
        return self.total_ns["core_wait"] >= BUSY_SHARE * self.whole_ns

    @property
    def mean_ns(self) -> dict[Cause, int]:
        """Mean of the steps per cause, in integer ns that sum to the rounded mean step."""
        amounts = np.array([sum(self.causes_ns[cause]) for cause in CAUSES], np.int64)
        means = by_largest_remainder(amounts, max(1, len(self.numbers)))
        return dict(zip(CAUSES, means.tolist(), strict=True))

    def steady_ns(self, causes: Iterable[Cause]) -> int:
        """Return the time of some causes that every step has: the smallest step's times the number of steps."""
        steps = [sum(values) for values in zip(*(self.causes_ns[cause] for cause in causes), strict=True)]
        return len(steps) * min(steps, default=0)

    def shares(self, causes: Iterable[Cause]) -> list[float]:
        """Return the share of some causes per step, from 0 to 1."""
        of_steps = zip(*(self.causes_ns[cause] for cause in causes), strict=True)
        wholes = zip(*self.causes_ns.values(), strict=True)
        return [sum(part) / (sum(whole) or 1) for part, whole in zip(of_steps, wholes, strict=True)]

    @property
    def busy_ns(self) -> int:
        """Time in which the device worked."""
        return sum(sum(self.causes_ns[cause]) for cause in BUSY)


def least_computing(accounts: Iterable[StepAccount]) -> StepAccount | None:
    """The account of the device that computes the smallest share of its time; ``None`` if no account has time.

    Every report shows this account.
    """
    timed = (account for account in accounts if account.whole_ns)
    return min(timed, key=lambda account: account.total_ns["compute"] / account.whole_ns, default=None)


def cause_intervals(trace: Trace) -> dict[int, dict[Cause, Intervals]]:
    """Return disjoint intervals of each cause, per row of ``devices`` that worked (``MISSING``: the host if none did).

    They cover the time from the first window's begin to the last one's end without gaps. Empty if the device data are
    not plausible.
    """
    windows = trace.fact(account_windows)
    if not len(windows.starts) or windows.whole_ns <= 0 or trace.fact(device_doubts):
        return {}
    low, high = int(windows.starts.min()), int(windows.ends.max())
    devices = [device.device for device in trace.fact(device_times) if device.busy_ns]
    if not devices:
        return {MISSING: _without_waits(trace, parts)} if (parts := _on_host(trace, low, high)) else {}
    return {
        device: {**_busy(trace, device), **_without_waits(trace, _idle(trace, device), on_device=True)}
        for device in devices
    }


RUNS: tuple[Cause, ...] = (
    "compute", "input", "launch", "compilation", "memory", "collective_setup", "garbage_collection", "saving",
    "other_host",
)  # fmt: skip
"""Causes in which a thread of the host runs or could run. In the others it is blocked, or the host is not the cause."""


def _without_waits(trace: Trace, parts: dict[Cause, Intervals], *, on_device: bool = False) -> dict[Cause, Intervals]:
    """Separate the wait for a core from the parts of the host's time. For a device's idle time it is a share."""
    waits = trace.fact(core_waits)
    if waits is None:
        return parts
    computing: tuple[Cause, ...] = () if on_device else ("compute",)
    left, waiting = carve_waits(waits, parts, running=RUNS, computing=computing, whole=not on_device)
    return {**left, "core_wait": waiting}


def _busy(trace: Trace, device: int) -> dict[Cause, Intervals]:
    work = trace.fact(device_work)[device]
    return {cause: getattr(work, cause) for cause in BUSY}


def _cause_of(activity: HostActivity) -> Cause:
    """Return the cause with the name of the activity; only one activity has a different name."""
    return "other_host" if activity == HostActivity.OP else cast("Cause", activity.name.lower())


def step_accounts(trace: Trace) -> tuple[StepAccount, ...]:
    """Return one account per device that worked, by ``devices``, or one of the host; empty for an empty trace."""
    return _accounts(trace, trace.fact(account_windows))


class LeftOut(NamedTuple):
    """Numbers of the steps that averages exclude."""

    cold: tuple[int, ...]
    """Steps that compiled."""
    outliers: tuple[int, ...]
    """Steps that took far longer than the other recorded steps, if such steps are rare in the run."""


def left_out(trace: Trace) -> LeftOut:
    """Return the steps that compiled, unless all did, and outliers, if untraced steps show that they are rare."""
    windows = trace.fact(account_windows)
    lengths, count = windows.ends - windows.starts, len(windows.numbers)
    cold = odd = np.zeros(count, bool)
    if count >= 2:
        spans = trace.fact(host_activities).get(HostActivity.COMPILATION, {}).get(trace.fact(main_thread), EMPTY)
        compiling = covered(spans, windows.starts, windows.ends)
        cold = (compiling > COLD_SHARE * lengths) & (compiling > COLD_OF_SHORTEST * lengths.min())
        cold &= not cold.all()
    free = np.array(trace.step_times_ns, np.int64)
    rare = len(free) >= LEAST_FREE and (free > ODD * np.median(free)).mean() <= RARE
    if rare and (~cold).sum() >= 3:
        odd = ~cold & (lengths > ODD * np.median(lengths[~cold]))
        odd &= 2 * odd.sum() < (~cold).sum()
    numbers = np.array(windows.numbers, np.int64)
    return LeftOut(cold=tuple(numbers[cold].tolist()), outliers=tuple(numbers[odd].tolist()))


def warm_windows(trace: Trace) -> Windows:
    """Return the usual steps: without those that compiled, and without outliers."""
    windows, out = trace.fact(account_windows), {number for group in trace.fact(left_out) for number in group}
    if not out:
        return windows
    kept = np.array([number not in out for number in windows.numbers], bool)
    numbers = tuple(number for number in windows.numbers if number not in out)
    return Windows(starts=windows.starts[kept], ends=windows.ends[kept], numbers=numbers)


def warm_accounts(trace: Trace) -> tuple[StepAccount, ...]:
    """Return ``step_accounts`` of the usual steps, the basis of averages."""
    accounts, warm = trace.fact(step_accounts), trace.fact(warm_windows)
    return _accounts(trace, warm) if any(trace.fact(left_out)) else accounts


def _accounts(trace: Trace, windows: Windows) -> tuple[StepAccount, ...]:
    devices, out = trace.rows["devices"], trace.fact(left_out)
    return tuple(
        StepAccount(
            rank=trace.source.rank,
            device=device,
            ordinal=MISSING if device == MISSING else int(devices["ordinal"][device]),
            name="host" if device == MISSING else trace.text(int(devices["name"][device])),
            numbers=windows.numbers,
            causes_ns={
                cause: tuple(covered(parts.get(cause, EMPTY), windows.starts, windows.ends).tolist())
                for cause in CAUSES
            },
            phases_ns=phases_of(
                trace,
                device,
                {cause: parts.get(cause, EMPTY) for cause in BUSY},
                (windows.starts, windows.ends),
            ),
            cold=out.cold,
            outliers=out.outliers,
        )
        for device, parts in trace.fact(cause_intervals).items()
    )


def time_of_cause(trace: Trace, account: StepAccount, cause: Cause) -> Intervals:
    """Return the intervals of a cause within the steps of the account."""
    windows = trace.fact(account_windows)
    spans = trace.fact(cause_intervals)[account.device].get(cause, EMPTY)
    return intersection(spans, union(windows.starts, windows.ends))


def time_within(trace: Trace, cause: Cause, spans: Intervals) -> int:
    """Return the time of ``cause`` in the steps within ``spans``, for the device with most of the cause; ns."""
    accounts = trace.fact(step_accounts)
    if not accounts:
        return 0
    device = max(accounts, key=lambda account: account.total_ns[cause]).device
    windows = trace.fact(account_windows)
    part = intersection(trace.fact(cause_intervals)[device].get(cause, EMPTY), spans)
    return int(covered(part, windows.starts, windows.ends).sum())


UNRECORDED_SHARE = 0.5
"""Share of idle time after work without a recorded launch from which a clean outcome would be a guess."""


def abstain_if_unrecorded(accounts: Sequence[StepAccount], least_ns: float) -> None:
    """Raise ``AbstainError`` if most idle time of the devices, at least ``least_ns``, has no recorded cause."""
    unknown = sum(account.total_ns["unexplained"] for account in accounts)
    idle = sum(account.whole_ns - account.busy_ns for account in accounts)
    if unknown > UNRECORDED_SHARE * idle and unknown >= least_ns:
        raise AbstainError(
            f"{format_share(unknown, idle)} of the idle time follows work whose launch was not recorded; record "
            "runtime calls with correlation ids from before the window"
        )


def check_step_accounts(trace: Trace) -> None:
    """Raise ``ValueError`` unless the causes of every step of every device sum to the step exactly."""
    windows = trace.fact(account_windows)
    for account in trace.fact(step_accounts):
        sums = np.sum([account.causes_ns[cause] for cause in CAUSES], axis=0)
        if (sums != windows.ends - windows.starts).any():
            raise ValueError(f"device {account.ordinal}: the causes do not sum to the steps")


class IdleIntervals(Struct, frozen=True, kw_only=True):
    """Idle intervals of one device from the first window's begin to the last one's end, and the end of each."""

    spans: Intervals
    ended: np.ndarray
    """Whether work of the device ends the interval; else the windows end in it."""
    launch: Int64
    """Row of ``calls`` that launched that work; ``MISSING`` if not recorded."""
    begin: Int64
    """Begin of that call, ns; 0 if unknown."""
    late: np.ndarray
    """Whether the interval began before the call."""
    queued: np.ndarray
    """Whether the work was launched before the interval began."""
    thread: Int64
    """Row of ``threads`` that launched; the main thread if unknown."""
    wait: Int64
    """Row of ``calls`` of the wait for the device that emptied its queue before the interval; ``MISSING`` if none."""


def idle_intervals(trace: Trace) -> dict[int, IdleIntervals]:
    """Return the idle intervals in the account's time, per row of ``devices`` that worked."""
    windows = trace.fact(account_windows)
    if not len(windows.starts) or windows.whole_ns <= 0:
        return {}
    low, high = int(windows.starts.min()), int(windows.ends.max())
    devices = [device.device for device in trace.fact(device_times) if device.busy_ns]
    return {device: _idle_intervals(trace, device, low, high) for device in devices}


def _idle_intervals(trace: Trace, device: int, low: int, high: int) -> IdleIntervals:
    busy = trace.fact(device_busy)[device]
    idle = complement(busy, low, high)
    calls = trace.rows["calls"]
    at = np.searchsorted(busy.starts, idle.ends)
    ended = (at < len(busy.starts)) & (busy.starts[np.minimum(at, len(busy.starts) - 1)] == idle.ends)
    launch = np.full(len(idle.starts), MISSING, np.int64)
    queued_by = np.full(len(idle.starts), np.iinfo(np.int64).max)
    launch[ended], queued_by[ended] = launch_at(trace, device, idle.ends[ended])
    known = launch != MISSING
    begin = np.where(known, pick(calls["start_ns"], launch), 0)
    thread = np.where(known, pick(calls["thread"], launch), trace.fact(main_thread))
    late = known & (begin > idle.starts)
    wait = np.full(len(idle.starts), MISSING, np.int64)
    wait[late] = draining_sync(trace, idle.starts[late], begin[late], thread[late])
    queued = ended & np.where(known, ~late, queued_by <= idle.starts)
    return IdleIntervals(
        spans=idle, ended=ended, launch=launch, begin=begin, late=late, queued=queued, thread=thread, wait=wait
    )


def _idle(trace: Trace, device: int) -> dict[Cause, Intervals]:
    """Return the idle time of a device by cause."""
    intervals = trace.fact(idle_intervals)[device]
    idle, late, thread = intervals.spans, intervals.late, intervals.thread
    tail = ~intervals.ended & (thread != MISSING)
    until = np.where(late, np.minimum(intervals.begin, idle.ends), np.where(tail, idle.ends, idle.starts))
    started = pick(trace.rows["calls"]["start_ns"], intervals.wait)
    waited = np.where(intervals.wait != MISSING, np.maximum(idle.starts - started, 0), 0)
    calls = trace.rows["calls"]
    called = np.where(late, np.minimum(pick(calls["end_ns"], intervals.launch), idle.ends), idle.ends)
    returned = np.maximum(until, np.where(idle.ends - called >= STALL_NS, called, idle.ends))
    is_kernel = late & (pick(calls["kind"], intervals.launch) == CallKind.KERNEL)
    loads = is_kernel & (pick(calls["end_ns"], intervals.launch) - intervals.begin >= STALL_NS)
    loaded = np.where(loads, np.minimum(called, returned), until)
    result: dict[Cause, list[Intervals]] = {
        "dependency": [_chosen(idle, intervals.queued), union(returned[late], idle.ends[late])],
        "unexplained": [_chosen(idle, ~intervals.queued & ~late & ~tail)],
        "compilation": [union(until[loads], loaded[loads])],
        "launch": [union(loaded[late], returned[late])],
    }
    for number in np.unique(thread[late | tail]).tolist():
        mine = (late | tail) & (thread == number)
        spans = union(idle.starts[mine], until[mine])
        sync = union(idle.starts[mine], np.minimum(idle.starts[mine] + waited[mine], until[mine]))
        long = _chosen(idle, mine & (idle.ends - idle.starts >= STALL_NS))
        for cause, part in _by_host(trace, number, spans, sync, long):
            result.setdefault(cause, []).append(part)
    return {cause: merge(*parts) for cause, parts in result.items()}


class IdlePieces(Struct, frozen=True, kw_only=True):
    """Idle time of one cause within the windows, one entry per idle interval of a device with this cause."""

    device: Int64
    """Row of ``devices``."""
    start_ns: Int64
    """Begin of the idle interval."""
    end_ns: Int64
    cost_ns: Int64
    """Time of the cause in it, ns."""
    launch: Int64
    """Row of ``calls`` that ended the interval; ``MISSING`` if unknown."""
    wait: Int64
    """Row of ``calls``: the wait that emptied the queue before, else the last wait that began before the end."""

    def __len__(self) -> int:
        """Number of idle intervals."""
        return len(self.device)


def idle_pieces(trace: Trace, cause: Cause, windows: Windows | None = None, *, device: int | None = None) -> IdlePieces:
    """The idle intervals with time of ``cause`` in the windows; the costs sum to the accounts'.

    ``windows``: those of the account by default. ``device``: row of ``devices``; all devices by default.
    """
    windows, columns = windows or trace.fact(account_windows), []
    inside = union(windows.starts, windows.ends)
    for row, intervals in trace.fact(idle_intervals).items():
        part = intersection(trace.fact(cause_intervals)[row].get(cause, EMPTY), inside)
        starts, ends = intervals.spans.starts, intervals.spans.ends
        cost = covered(part, starts, ends)
        has = np.flatnonzero(cost)
        wait = intervals.wait[has]
        wait = np.where(wait == MISSING, _last_wait(trace, ends[has]), wait)
        columns.append((np.full(len(has), row), starts[has], ends[has], cost[has], intervals.launch[has], wait))
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)] or [np.empty(0, np.int64)] * 6
    pieces = IdlePieces(
        device=joined[0], start_ns=joined[1], end_ns=joined[2], cost_ns=joined[3], launch=joined[4], wait=joined[5]
    )
    return pieces if device is None else _of_device(pieces, device)


def _of_device(pieces: IdlePieces, device: int) -> IdlePieces:
    """Return the pieces of one device (row of ``devices``)."""
    here = pieces.device == device
    return IdlePieces(**{name: getattr(pieces, name)[here] for name in pieces.__struct_fields__})


def worst_device(pieces: IdlePieces) -> IdlePieces:
    """Return the pieces of the device with most of the time, because devices are idle in parallel."""
    if not len(pieces):
        return pieces
    return _of_device(pieces, int(np.argmax(np.bincount(pieces.device, weights=pieces.cost_ns))))


def _last_wait(trace: Trace, times: Int64) -> Int64:
    """Return the last wait for the device that began before each of ``times``: row of ``calls``, or ``MISSING``."""
    rows = trace.fact(_waits_by_start)
    index = np.searchsorted(trace.rows["calls"]["start_ns"][rows], times) - 1
    return np.where(index < 0, MISSING, pick(rows, index))


def _waits_by_start(trace: Trace) -> Int64:
    """Return the calls that wait for the device, by start."""
    rows = trace.fact(blocking_calls)
    return rows[np.argsort(trace.rows["calls"]["start_ns"][rows], kind="stable")]


def _by_host(
    trace: Trace, thread: int, spans: Intervals, sync: Intervals, long: Intervals
) -> Iterable[tuple[Cause, Intervals]]:
    """Yield ``spans`` of a late host by activity of the thread, or else of the main thread."""
    parts, rest = divide(trace, thread, spans, {HostActivity.SYNC: sync})
    divided = list(parts.items())
    main = trace.fact(main_thread)
    if main not in (thread, MISSING):
        parts, rest = divide(trace, main, rest)
        divided += parts.items()
    unspecific = [rest]
    for activity, part in divided:
        if activity == HostActivity.OP:
            unspecific.append(part)
        else:
            yield _cause_of(activity), part
    work = merge(*unspecific)
    yield "other_host", intersection(work, long)
    yield "launch", difference(work, long)


def _on_host(trace: Trace, low: int, high: int) -> dict[Cause, Intervals]:
    """Return the time of a program without an accelerator in ``[low, high)``.

    XLA's CPU client runs programs on its own threads, like a device: their time is compute, whatever the main thread
    does meanwhile. The rest of the time is the main thread's.
    """
    thread = trace.fact(main_thread)
    activities = trace.fact(host_activities)
    instructions = trace.rows["hlo_ops"]
    if thread == MISSING or not (activities.get(HostActivity.OP) or len(instructions)):
        return {}
    computing = union(instructions["start_ns"], instructions["end_ns"])
    window = union([low], [high])
    parts, rest = divide(trace, thread, difference(window, computing))
    others = merge(*(spans for number, spans in activities.get(HostActivity.OP, {}).items() if number != thread))
    result: dict[Cause, list[Intervals]] = {"compute": [intersection(window, computing), intersection(rest, others)]}
    for activity, part in parts.items():
        computes = activity in (HostActivity.OP, HostActivity.LAUNCH)
        result.setdefault("compute" if computes else _cause_of(activity), []).append(part)
    rest = difference(rest, others)
    stalled = rest.ends - rest.starts >= STALL_NS
    result.setdefault("other_host", []).append(_chosen(rest, stalled))
    result.setdefault("launch", []).append(_chosen(rest, ~stalled))
    return {cause: merge(*spans) for cause, spans in result.items()}


def _chosen(spans: Intervals, chosen: np.ndarray) -> Intervals:
    return Intervals(spans.starts[chosen], spans.ends[chosen])
