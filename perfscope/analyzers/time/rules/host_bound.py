"""The device is idle while the host does work of its own.

Why it costs: the host prepares the next work too late because it computes something itself: tokenizing, building
batches, Python loops over data, logging, writing checkpoints, sleeping, collecting garbage. The device has nothing to
do meanwhile, and a faster device changes nothing.

How it is found: of the account of the step the idle time in which the host was late, for 1 ms or more without launching
anything, and neither waited for the device, nor for input, nor compiled (`host_sync`, `input_stall` and
`warmup_compile` judge those). If a wait for the device came just before, the host could have worked ahead as long as it
waited; only what goes beyond that counts here. The time is given to the innermost recorded Python function or op, or to
the line of the sampled stacks in it (`perfscope run`); where the timed steps have neither, to the lines of the stacks
sampled in other steps, or to the functions of the detail pass. Of a JAX program most of it may be the framework's own
work for each call of a compiled function, which is named as that. A thread that sleeps or waits shows by its processor
time; one that waits for the interpreter's lock shows where another thread of the program works in Python meanwhile, and
is a finding of its own that names that thread and its line. What only some steps do is judged by `slow_steps`. Without
an accelerator in the recording the main thread's time outside every op and data loader is judged, if every step has it:
on an accelerator it would be idle time unless the device is still busy then. All of it is measured; the saving is an
upper bound.

Fix: move the work out of the loop (do it once, before), to another process (`DataLoader(num_workers=...)`), or to a
thread that runs while the device computes. Write logs and metrics every N steps, save checkpoints asynchronously
(`torch.distributed.checkpoint.async_save`), and freeze the garbage collector after the warm-up (`gc.freeze()`). Where
calls of compiled functions take the time, give each more work: several steps in one `jax.lax.scan`, larger batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from perfscope.analyzers.time.account import Cause, StepAccount, step_accounts, time_of_cause
from perfscope.analyzers.time.calls import framework
from perfscope.analyzers.time.host_activity import (
    NOT_RECORDED,
    HostActivity,
    HostWork,
    host_work,
    main_thread,
    sample_activities,
)
from perfscope.analyzers.time.records import host_records
from perfscope.analyzers.time.samples import (
    SampledLine,
    device_waits,
    free_samples,
    in_calls,
    inner_calls,
    lock_wait,
    outside_ops,
    sampled_lines,
    sampled_site,
)
from perfscope.analyzers.time.sites import CallSite, call_site
from perfscope.analyzers.time.spans import removed_time, worst_spans
from perfscope.analyzers.time.steps import timed_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, fit_title
from perfscope.model.frames import Owner, owner_of
from perfscope.model.intervals import Int64, Intervals, merge
from perfscope.model.severity import HIGH_SHARE, MEDIUM_SHARE
from perfscope.model.trace import MISSING, Trace

LEAST_SHARE = HIGH_SHARE
"""Of the step, all of the host's work together: a twentieth is what teams schedule a task for."""

LEAST_SHARE_ON_HOST = 0.1
"""Of every step, where no accelerator is in the recording: below it other processes of the machine may be the cause."""

PART_SHARE = MEDIUM_SHARE
"""Of the step, and of half of the steps where no accelerator is in the recording: a kind of work with less gets no
finding of its own."""

LEAST_SAMPLES = 10
"""Of steps without a profiler: fewer do not tell which line has most of the time."""

HALF = 0.5
KNOWN_SHARE = 0.2
"""Of the time: with less, lines that ran say too little of the rest."""


_WORK: dict[Cause, tuple[str, str, str]] = {
    "other_host": (
        "host work",
        "does other work",
        "Move it out of the step: do it once before the loop, in another process, or in a thread.",
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
        "sleeps or waits for a thread",
        "Take the wait out of the loop: a lock that another thread holds (also the interpreter's), a queue, a sleep.",
    ),
}

_CALLS = (
    "calls",
    "calls compiled functions",
    "Give each call more work: several steps in one call (`jax.lax.scan`), or larger batches. Pass fewer, larger "
    "arrays: each one costs time in every call. A Flax NNX module is taken apart in every call unless "
    "`nnx.cached_partial` keeps it.",
)
"""Of ``other_host`` that is the framework's own work for calls of compiled functions."""

_ACTIVITY = {
    "saving": HostActivity.SAVING,
    "garbage_collection": HostActivity.GARBAGE_COLLECTION,
    "sleeping": HostActivity.SLEEPING,
}


examined = host_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding a kind of host work, for the device that it keeps idle longest."""
    accounts = trace.fact(step_accounts)
    if not accounts:
        raise AbstainError("neither device work nor ops of the host were recorded", ("host_ops",))
    account = max(accounts, key=_host_ns)
    if not account.whole_ns:
        return
    yield from _waits_for_lock(trace, account)
    total = account.total_ns if keeps_idle(account) else {}
    for cause in _WORK:
        rare = account.device == MISSING and median(account.shares([cause])) < PART_SHARE
        if total.get(cause, 0) >= max(1, PART_SHARE * account.whole_ns) and not rare:
            yield _finding(trace, account, cause, total[cause])


def keeps_idle(account: StepAccount) -> bool:
    """Whether the host's own work is enough of the step to be named."""
    if account.device == MISSING:
        return min(account.shares(_WORK), default=0.0) >= LEAST_SHARE_ON_HOST
    return _host_ns(account) >= LEAST_SHARE * account.whole_ns


def _host_ns(account: StepAccount) -> int:
    return sum(account.total_ns[cause] for cause in _WORK)


def _finding(trace: Trace, account: StepAccount, cause: Cause, cost: int) -> Finding:
    spans = time_of_cause(trace, account, cause)
    lines, source = _lines(trace, cause, spans)
    subject, verb, advice = _CALLS if source == "calls" else _WORK[cause]
    whose = "its ops do not run" if account.device == MISSING else f"{account.name or 'the device'} is idle"
    function, best = _most(lines)
    inner = lines[0].inner if lines else ()
    package = _package(inner)
    function = None if package else function
    most = f": mostly in {package or function}" if package or function else ""
    advice = advice.replace(" it out", f" `{function}` out", 1) if function and best.file is not None else advice
    return Finding(
        subject=subject,
        title=fit_title(f"the host {verb}{most}", function or package or ""),
        detail=f"Meanwhile {whose}." + (f" Most of the time is in {function}." if function is not None else ""),
        **timed_cost(trace, cost, account.whole_ns),
        advice=f"{advice}{_SOURCES[source]}",
        where=best.where(),
        covers_ns={cause: cost},
        evidence=tuple(
            {
                "host_was_in": line.name,
                "site": line.site.where().label(),
                "line_is": line.site.line_is(),
                "idle_ns": round(line.share * cost),
                "pieces": line.pieces,
                "start_ns": line.start_ns,
            }
            for line in (*inner, *lines[1 if inner else 0 :])[:MOST_ROWS]
        ),
        spans=worst_spans(spans.starts, spans.ends, spans.ends - spans.starts),
        removes=(removed_time(spans),),
    )


# Which functions and lines: from what was recorded or sampled in the time itself, else from other steps.


_SOURCES = {
    "recorded": "",
    "nothing": " The recording has no Python functions there: record with `perfscope run`, or with Python stacks, to "
    "see which they are.",
    **dict.fromkeys(
        ("free", "calls"), " The lines are those of sampled stacks of steps without a profiler, by their shares there."
    ),
    "detail": " The functions are those of the detail pass, by their shares of the time there.",
}
"""Where the lines are from -> what the advice adds."""


class _Line(Struct, frozen=True, kw_only=True):
    """A part of the cause's time."""

    name: str
    site: CallSite
    share: float
    """Of all of it."""
    pieces: int
    start_ns: int | None
    direct: bool = True
    """``name`` is the site's own function, or called by its line: no library's function stands between."""
    inner: tuple[_Line, ...] = ()
    """What the line starts, where it has most of the time and does nothing itself."""


def _lines(trace: Trace, cause: Cause, spans: Intervals) -> tuple[list[_Line], str]:
    """The lines that took ``spans``, most time first, and a key of ``_SOURCES``."""
    work = host_work(trace, spans)
    whole = sum(item.total_ns for item in work)
    told = sum(item.total_ns for item in work if item.name != NOT_RECORDED)
    sampled = [item for item in work if item.frame != MISSING]
    few = 2 * sum(item.total_ns for item in sampled) > told and sum(item.pieces for item in sampled) < LEAST_SAMPLES
    if 2 * told < whole or few:
        rows = _free_rows(trace, cause)
        free = sampled_lines(trace, rows)
        if sum(line.samples for line in free) >= LEAST_SAMPLES:
            first = free[0]
            # a line that only starts the work, as `trainer.train()` does
            inner = inner_calls(trace, first) if not first.direct and first.share > HALF else ()
            lines = [_free_line(first, tuple(map(_free_line, inner))), *map(_free_line, free[1:])]
            return lines, "calls" if _mostly_calls(trace, rows) else "free"
        detailed = _detailed(trace.detail, cause) if trace.detail is not None and 2 * told < whole else ()
        if detailed and trace.detail is not None:
            return [_recorded_line(trace.detail, item, detailed, timed=False) for item in detailed], "detail"
    return [_recorded_line(trace, item, work, timed=True) for item in work], "recorded" if told else "nothing"


def _free_rows(trace: Trace, cause: Cause) -> Int64:
    """Samples of the main thread in steps without a profiler that show the cause."""
    rows = free_samples(trace, trace.fact(main_thread))
    activity = trace.fact(sample_activities)[rows]
    shown = activity == _ACTIVITY.get(cause, MISSING)
    if cause == "other_host":  # a long stretch without a sample may have been work of any kind
        jax = framework(trace) == "jax"  # of which calls are not recorded as ops
        outside = ~trace.fact(device_waits)[rows] if jax else outside_ops(trace, rows)
        shown &= outside
        if shown.sum() < LEAST_SAMPLES:
            shown = outside & np.isin(activity, [MISSING, *_ACTIVITY.values()])
    return np.asarray(rows[shown], np.int64)


def _free_line(line: SampledLine, inner: tuple[_Line, ...] = ()) -> _Line:
    return _Line(
        name=line.innermost, site=line.site, share=line.share, pieces=line.samples, start_ns=None, direct=line.direct,
        inner=inner,
    )  # fmt: skip


def _mostly_calls(trace: Trace, rows: Int64) -> bool:
    lasts = trace.rows["samples"]["lasts_ns"][rows]
    return bool(2 * lasts[in_calls(trace, rows)].sum() > lasts.sum())


def _recorded_line(trace: Trace, work: HostWork, of: Sequence[HostWork], *, timed: bool) -> _Line:
    site = call_site(trace, work.slice) if work.frame == MISSING else sampled_site(trace, work.frame)
    return _Line(
        name=work.name,
        site=site,
        share=work.total_ns / sum(item.total_ns for item in of),
        pieces=work.pieces,
        start_ns=work.start_ns if timed else None,
    )


def _detailed(detail: Trace, cause: Cause) -> tuple[HostWork, ...]:
    """The same work in a second recording of the program, if that one has Python functions."""
    accounts = detail.fact(step_accounts)
    if not accounts or "python_stack" not in detail.recorded:
        return ()
    account = max(accounts, key=_host_ns)
    causes = _WORK if cause == "other_host" else (cause,)  # without Python functions all work is ``other_host``
    work = host_work(detail, merge(*(time_of_cause(detail, account, item) for item in causes)))
    return work if work and work[0].name != NOT_RECORDED else ()


def _package(lines: Sequence[_Line]) -> str | None:
    """The installed package that has most of the time of some lines."""
    shares: dict[str, float] = defaultdict(float)
    for line in lines:
        if line.site.file is not None and owner_of(line.site.file) is Owner.LIBRARY:
            shares[line.site.file.rpartition("-packages/")[2].partition("/")[0]] += line.share
    most = max(shares, key=lambda name: shares[name], default=None)
    return most if most is not None and shares[most] > HALF else None


def _most(lines: Sequence[_Line]) -> tuple[str | None, CallSite]:
    """The function with most of the time, if it has half of it, and its line with most; one with a file goes first.

    A line at which a function stood when recording began is where the loop was by chance: others go before it, if they
    have ``KNOWN_SHARE`` of the time.
    """
    functions: dict[tuple[str | None, str | None], float] = defaultdict(float)
    known = [line for line in lines if not line.site.running and line.site.file is not None]
    chosen = known if sum(line.share for line in known) >= KNOWN_SHARE else lines
    for line in chosen:
        functions[line.site.file, line.site.function] += line.share
    most = max(functions, key=lambda key: (key[0] is not None, functions[key]))
    best = next(line for line in chosen if (line.site.file, line.site.function) == most)
    unnamed = not best.direct and most[1] == "<module>"
    if functions[most] <= HALF or unnamed or (best.name == NOT_RECORDED and best.site.file is None):
        return None, best.site
    return best.name if most[1] in (None, "<module>") else most[1], best.site


def _waits_for_lock(trace: Trace, account: StepAccount) -> Iterable[Finding]:
    """What sampled stacks show of a thread that keeps the interpreter's lock from the one of the steps."""
    waited = lock_wait(trace, trace.fact(main_thread))
    if waited is None or waited.share < LEAST_SHARE_ON_HOST:
        return
    samples, threads = trace.rows["samples"], trace.rows["threads"]
    name = trace.text(int(threads["thread"][samples["thread"][waited.holder]]))
    site = sampled_site(trace, int(samples["frame"][waited.holder]))
    cost = round(waited.share * account.whole_ns)
    yield Finding(
        subject="waiting for the interpreter's lock",
        title=fit_title(f"the host waits for the GIL: held by thread {name}", name),
        detail=f"Meanwhile thread {name} runs {site.function or 'Python'}. Only one thread of a process runs Python at "
        "a time. Waiting inside an op is shown as the op's in the account.",
        **timed_cost(trace, cost, account.whole_ns),
        advice="Move the work of that thread to a process (`multiprocessing`, `DataLoader(num_workers=...)`), or to a "
        "library that releases the lock while it works.",
        where=site.where(),
        evidence=tuple(
            {
                "lock_held_by": name,
                "site": sampled_site(trace, int(samples["frame"][row])).where().label(),
                "waited_ns": round(share * cost),
            }
            for row, share in waited.lines[:MOST_ROWS]
        ),
    )
