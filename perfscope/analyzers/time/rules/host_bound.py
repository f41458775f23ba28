"""The device is idle while the host does work of its own.

Why it costs: the host prepares the next work too late because it computes something itself: tokenizing, building
batches, Python loops over data, logging, writing checkpoints, sleeping, collecting garbage. The device has nothing to
do meanwhile, and a faster device changes nothing.

How it is found: of the account of the step the idle time in which the host was late, for 1 ms or more without
launching anything, and neither waited for the device, nor for input, nor compiled (`host_sync`, `input_stall` and
`warmup_compile` judge those). If a wait for the device came just before, the host could have worked ahead as long as
it waited; only what goes beyond that counts here. The time is given to the innermost recorded Python function or op;
where the timed recording has none, to those of the detail pass. Without an accelerator in the recording the main
thread's time outside every op and data loader is judged, if every step has it: on an accelerator it would be idle time
unless the device is still busy then. All of it is measured; the saving is an upper bound.

Fix: move the work out of the loop (do it once, before), to another process (`DataLoader(num_workers=...)`), or to a
thread that runs while the device computes. Write logs and metrics every N steps, save checkpoints asynchronously
(`torch.distributed.checkpoint.async_save`), and freeze the garbage collector after the warm-up (`gc.freeze()`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from perfscope.analyzers.time.account import Cause, StepAccount, account_windows, cause_intervals, step_accounts
from perfscope.analyzers.time.host_activity import NOT_RECORDED, HostWork, host_work
from perfscope.analyzers.time.sites import CallSite, call_site
from perfscope.analyzers.time.spans import worst_spans
from perfscope.analyzers.time.steps import timed_cost
from perfscope.model.finding import HIGH_SHARE, MEDIUM_SHARE, AbstainError, Cell, Finding
from perfscope.model.intervals import EMPTY, Intervals, intersection, merge, union
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns, format_share

NEEDS = ()

LEAST_SHARE = HIGH_SHARE
"""Of the step, all of the host's work together: a twentieth is what teams schedule a task for."""

LEAST_SHARE_ON_HOST = 0.1
"""Of every step, where no accelerator is in the recording: below it other processes of the machine may be the cause."""

PART_SHARE = MEDIUM_SHARE
"""Of the step: a kind of work with less gets no finding of its own."""

ROWS = 20

_WORK: dict[Cause, tuple[str, str, str]] = {
    "other_host": (
        "host work",
        "does work of its own",
        "Do it once before the loop, in another process, or in a thread while the device computes.",
    ),
    "saving": (
        "saving and logging",
        "writes checkpoints or logs",
        "Log every N steps, and save asynchronously (`torch.distributed.checkpoint.async_save`).",
    ),
    "garbage_collection": (
        "garbage collection",
        "collects garbage",
        "Freeze what the warm-up made (`gc.collect(); gc.freeze()`) and collect every N steps at most.",
    ),
    "sleeping": (
        "sleeping",
        "sleeps or waits for a lock or thread",
        "Find out what it waits for: a lock that another thread holds (the interpreter's included), a queue, a sleep.",
    ),
}


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding a kind of host work, for the device that it keeps idle longest."""
    accounts = trace.fact(step_accounts)
    if not accounts:
        raise AbstainError("neither device work nor ops of the host were recorded")
    account = max(accounts, key=_host_ns)
    if not account.whole_ns or not keeps_idle(account):
        return
    total = account.total_ns
    for cause in _WORK:
        if total[cause] and total[cause] >= PART_SHARE * account.whole_ns:
            yield _finding(trace, account, cause, total[cause])


def keeps_idle(account: StepAccount) -> bool:
    """Whether the host's own work is enough of the step to be named."""
    if account.device == MISSING:
        return sum(account.steady_ns[cause] for cause in _WORK) >= LEAST_SHARE_ON_HOST * account.whole_ns
    return _host_ns(account) >= LEAST_SHARE * account.whole_ns


def _host_ns(account: StepAccount) -> int:
    return sum(account.total_ns[cause] for cause in _WORK)


def _finding(trace: Trace, account: StepAccount, cause: Cause, cost: int) -> Finding:
    subject, verb, advice = _WORK[cause]
    spans = _in_steps(trace, account, cause)
    work, recording = host_work(trace, spans), trace
    if work[0].name == NOT_RECORDED and trace.detail is not None and (detailed := _detailed(trace.detail, cause)):
        work, recording = detailed, trace.detail
        advice += " The functions are those of the detail pass, by their shares of the time there."
    in_recording = sum(item.total_ns for item in work)
    sites = [call_site(recording, item.slice) for item in work[:ROWS]]
    whose = "its ops do not run" if account.device == MISSING else f"{account.name or 'the device'} is idle"
    in_functions: dict[CallSite, int] = defaultdict(int)
    for item, site in zip(work, sites, strict=False):
        in_functions[site] += item.total_ns
    best = max(in_functions, key=lambda site: (site.file is not None, in_functions[site]))
    names = [item.name for item, site in zip(work, sites, strict=False) if site == best]
    function = names[0] if best.function in (None, "<module>") else best.function
    most = f", most of it in {function}" if 2 * in_functions[best] > in_recording else ""
    most = "" if names[0] == NOT_RECORDED else most
    if work[0].name == NOT_RECORDED:
        advice += " The recording has no Python functions there: record with Python stacks to see which they are."
    return Finding(
        subject=subject,
        title=f"the host {verb} for {format_ns(cost)} ({format_share(cost, account.whole_ns)}) while {whose}{most}",
        **timed_cost(trace, cost, account.whole_ns),
        advice=advice,
        where=best.where(),
        evidence=tuple(
            _row(item, site, cost / in_recording, timed=recording is trace)
            for item, site in zip(work, sites, strict=False)
        ),
        spans=worst_spans(spans.starts, spans.ends, spans.ends - spans.starts),
    )


def _detailed(detail: Trace, cause: Cause) -> tuple[HostWork, ...]:
    """The same work in a second recording of the program, if that one has Python functions."""
    accounts = detail.fact(step_accounts)
    if not accounts or "python_stack" not in detail.recorded:
        return ()
    account = max(accounts, key=_host_ns)
    causes = _WORK if cause == "other_host" else (cause,)  # without Python functions all work is ``other_host``
    work = host_work(detail, merge(*(_in_steps(detail, account, item) for item in causes)))
    return work if work and work[0].name != NOT_RECORDED else ()


def _row(work: HostWork, site: CallSite, scale: float, *, timed: bool) -> dict[str, Cell]:
    return {
        "host_was_in": work.name,
        "site": site.where().label(),
        "line_is": site.line_is(),
        "idle_ns": round(work.total_ns * scale),
        "pieces": work.pieces,
        "start_ns": work.start_ns if timed else None,
    }


def _in_steps(trace: Trace, account: StepAccount, cause: Cause) -> Intervals:
    """The intervals of a cause that lie in the steps."""
    windows = trace.fact(account_windows)
    spans = trace.fact(cause_intervals)[account.device].get(cause, EMPTY)
    return intersection(spans, union(windows.starts, windows.ends))
