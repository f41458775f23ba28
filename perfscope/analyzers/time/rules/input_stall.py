"""The program waits for its next batch.

Why it costs: while the loop waits in the data loader nothing new is launched, and the device runs dry.

How it is found: with device work, the idle time of the device during which the thread that launches was
inside a data loader (`enumerate(DataLoader)#...`, or a region of the program's own named `input`). Waiting
while the device still has work costs nothing and is not counted. Without device work, the time the
program's own thread spends in the loader: nothing else of the program runs meanwhile. Worker threads and
processes that load ahead are not counted. A loader of another kind, without such a region, cannot be seen:
then the rule abstains, unless the device was busy throughout.

Where stacks were sampled (`perfscope run`) the functions that make the batch are named, with the time of one sample of
the data set, in the program itself or in its worker processes, and how many workers would hide it: the time that all
workers spend on batches in a step, over the step without the waiting. Workers that are idle while the program waits
are not what it waits for.

Fix: load ahead: `DataLoader(..., num_workers=N, persistent_workers=True, prefetch_factor=4, pin_memory=True)`;
do the decoding and augmentation once and store the result, or move it to the device; copy with
`non_blocking=True` and fetch the next batch before the step, not after it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from perfscope.analyzers.time.account import account_windows, cause_intervals, idle_intervals, step_accounts
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.input_work import InputWork, input_work, loop_site
from perfscope.analyzers.time.records import device_records
from perfscope.analyzers.time.sites import CallSite, call_site
from perfscope.analyzers.time.spans import INPUT_REGION, input_slices, nearest_ancestor, worst_spans
from perfscope.analyzers.time.steps import cost_text, step_windows, timed_cost, whole_ns
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Where
from perfscope.model.intervals import EMPTY, Int64, covered, intersection, union
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.units import format_ns

NEEDS = ("host_ops",)

STALL_SHARE = 0.05
"""Of the step. Fetching a finished batch from a queue costs some tens of microseconds; a twentieth is waiting."""

ROWS = 20

BUSY_SHARE = 0.6
"""Of a worker's time: one that makes batches for less is not what the program waits for."""

_ADVICE = (
    "Load ahead: `DataLoader(..., num_workers=N, persistent_workers=True, prefetch_factor=4, pin_memory=True)`. "
    "Decode and augment once, or on the device; fetch the next batch before the step ends."
)


def examined(trace: Trace) -> Scope:
    """Fetches of a data loader; without one, the work that keeps the device busy."""
    fetches = len(trace.fact(input_slices))
    return Scope(fetches, "fetches of a data loader") if fetches else device_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding a loader (name and line of the loop) that stalls the program."""
    whole = whole_ns(trace)
    rows = _outermost(trace)
    on_device = "device_work" in trace.recorded
    if not len(rows):
        if on_device and _late_ns(trace) < STALL_SHARE * whole:
            return []
        raise AbstainError(
            "no data loader in the recording; put a loader of your own in "
            f'`with perfscope.region("{INPUT_REGION}"):` to have it judged'
        )
    stalled = _device_idle_in(trace, rows) if on_device else _own_time(trace, rows)
    return _findings(trace, rows, stalled, whole, on_device=on_device)


def _outermost(trace: Trace) -> Int64:
    """Loader spans that no other loader span encloses."""
    slices = trace.rows["slices"]
    rows = trace.fact(input_slices)
    inside = np.zeros(len(slices), bool)
    inside[rows] = True
    outermost = nearest_ancestor(trace, slices["parent"][rows], inside) == MISSING
    return np.asarray(rows[outermost], np.int64)


def _late_ns(trace: Trace) -> int:
    """Idle time of the device that idles most in which the host was late or is unknown."""
    idle = [
        account.whole_ns - account.busy_ns - account.total_ns["dependency"] for account in trace.fact(step_accounts)
    ]
    return max(idle, default=0)


def _device_idle_in(trace: Trace, rows: Int64) -> Int64:
    """Per loader span: the time of it that the account gives to input; of the device with most of it."""
    slices, windows = trace.rows["slices"], trace.fact(account_windows)
    inside, worst = union(windows.starts, windows.ends), np.zeros(len(rows), np.int64)
    for device, intervals in trace.fact(idle_intervals).items():
        waiting = intersection(trace.fact(cause_intervals)[device].get("input", EMPTY), inside)
        stalled = covered(waiting, slices["start_ns"][rows], slices["end_ns"][rows])
        for thread in np.unique([*intervals.thread, trace.fact(main_thread)]):  # two that fetch at once wait once
            of_thread = np.where(slices["thread"][rows] == thread, stalled, 0)
            if of_thread.sum() > worst.sum():
                worst = of_thread
    return worst


def _own_time(trace: Trace, rows: Int64) -> Int64:
    """Per loader span: its duration within the steps, on the thread that runs the program; 0 elsewhere."""
    slices, windows = trace.rows["slices"], trace.fact(step_windows)
    starts, ends = slices["start_ns"][rows], slices["end_ns"][rows]
    time = covered(union(windows.starts, windows.ends), starts, ends) if windows.count else ends - starts
    return np.where(slices["thread"][rows] == _program_thread(trace), time, 0)


def _program_thread(trace: Trace) -> int:
    """The thread of the steps' annotation or of the optimizer, else the one with most time in ops."""
    slices = trace.rows["slices"]
    marks = [code for code, text in enumerate(trace.strings) if text.startswith(("ProfilerStep#", "Optimizer.step#"))]
    steps = trace.rows["steps"]  # whatever the program calls them: JAX's are ``train`` or any other word
    is_step = np.isin(slices["start_ns"], steps["start_ns"]) & np.isin(slices["end_ns"], steps["end_ns"])
    is_mark = is_step | np.isin(slices["name"], marks)
    marked = slices["thread"][is_mark & (slices["kind"] == SliceKind.ANNOTATION)]
    if len(marked):
        return int(np.bincount(marked).argmax())
    top = (slices["kind"] == SliceKind.OP) & (slices["parent"] == MISSING)
    time = np.zeros(len(trace.rows["threads"]), np.int64)
    np.add.at(time, slices["thread"][top], (slices["end_ns"] - slices["start_ns"])[top])
    return int(time.argmax())


def _findings(trace: Trace, rows: Int64, stalled: Int64, whole: int, *, on_device: bool) -> list[Finding]:
    if stalled.sum() < STALL_SHARE * whole or not stalled.any():
        return []
    slices = trace.rows["slices"]
    loops: dict[tuple[str, Where], list[int]] = defaultdict(list)
    sites: dict[tuple[str, Where], CallSite] = {}
    sampled = loop_site(trace, rows)
    for index in np.flatnonzero(stalled).tolist():
        site = call_site(trace, int(rows[index]))
        site = sampled if site.file is None else site
        key = (
            trace.text(int(slices["name"][rows[index]])),
            site.where(op=trace.text(int(slices["name"][rows[index]]))),
        )
        loops[key].append(index)
        sites[key] = site
    work = input_work(trace, rows)
    return [
        _finding(trace, key[0], sites[key], rows[members], stalled[members], whole, work, on_device=on_device)
        for key, members in loops.items()
    ]


def _finding(
    trace: Trace,
    name: str,
    site: CallSite,
    rows: Int64,
    stalled: Int64,
    whole: int,
    work: InputWork | None,
    *,
    on_device: bool,
) -> Finding:
    slices = trace.rows["slices"]
    cost = int(stalled.sum())
    duration = slices["end_ns"][rows] - slices["start_ns"][rows]
    who = "device" if on_device else "program"
    fetches: list[Mapping[str, Cell]] = [
        {
            "stall_ns": int(stalled[i]),
            "fetch_ns": int(duration[i]),
            "start_ns": int(slices["start_ns"][rows[i]]),
            "line_is": site.line_is(),
        }
        for i in np.argsort(-stalled, kind="stable")[:ROWS].tolist()
    ]
    return Finding(
        subject=name,
        title=f"{who} waits for the next batch: {cost_text(trace, cost, whole)}, "
        f"{len(rows):,} fetch{'es' if len(rows) > 1 else ''}",
        detail="" if work is None else f"{_slowest(work)}. {_workers_needed(work, cost, whole)}".strip(),
        **timed_cost(trace, cost, whole),
        covers_ns={"input": cost},
        advice=_ADVICE,
        where=site.where(op=name),
        evidence=(*(() if work is None else _input_rows(work)), *fetches),
        spans=worst_spans(slices["start_ns"][rows], slices["end_ns"][rows], stalled),
    )


# What makes the batch, and whether more workers would hide it: from sampled stacks.


def _slowest(work: InputWork) -> str:
    """The function that takes most of the time of a batch, per sample where the batch size is known."""
    function, share, line = work.function()
    count, unit = (work.batch_size, "sample") if work.batch_size else (1, "batch")
    of = work.batch_ns / count
    where = "" if line.site.line is None else f" line {line.site.line}"
    return f"{function}{where} takes {format_ns(round(share * of))} of {format_ns(round(of))} per {unit}"


def _workers_needed(work: InputWork, cost: int, whole: int) -> str:
    """Whether more workers would hide the waiting."""
    share = cost / whole
    if work.workers and max(load.busy_share for load in work.workers) < BUSY_SHARE:
        busy = max(load.busy_share for load in work.workers)
        return (
            f"More workers would not hide it: the busiest of {len(work.workers)} makes batches for {busy:.0%} of its "
            "time. The program waits for batches to be sent, or asks for them too late (`prefetch_factor`)."
        )
    if share >= 1:
        return ""
    # What is made in a step must be made within the rest of the step.
    step_ns = work.per_step_ns / share if not work.workers else _step_ns(work)
    needed = max(1, math.ceil(round(work.per_step_ns / max(step_ns * (1 - share), 1), 3)))
    made = f"batches of a step take {format_ns(work.per_step_ns)} to make, the rest of the step takes "
    rest = format_ns(round(step_ns * (1 - share)))
    have = f" instead of {len(work.workers)}" if work.workers else ""
    return f"About {needed} workers{have} would hide it, given as many free cores: {made}{rest}."


def _step_ns(work: InputWork) -> float:
    """The step in which the workers were watched."""
    return work.per_step_ns / max(sum(load.busy_share for load in work.workers), 1e-9)


def _input_rows(work: InputWork) -> Iterable[Mapping[str, Cell]]:
    """Lines of all processes together, then each worker's busy share and its own first line."""
    for line in work.lines[:ROWS]:
        yield {
            "makes_batch": line.site.function or line.innermost,
            "site": line.site.where().label(),
            "innermost": line.innermost,
            "batch_ns": round(line.share * work.batch_ns),
            "share": round(line.share, 4),
            "samples": line.samples,
        }
    for load in work.workers[:ROWS]:
        yield {
            "worker": load.name,
            "busy_share": round(load.busy_share, 4),
            "makes_batch": load.lines[0].site.function if load.lines else None,
            "site": load.lines[0].site.where().label() if load.lines else None,
        }
