"""The program waits for its next batch.

Example:
    Before::

        loader = DataLoader(data, batch_size=32)

    After::

        loader = DataLoader(data, batch_size=32, num_workers=4, persistent_workers=True, pin_memory=True)

Why it costs: while the loop waits in the data loader nothing new is launched, and the device runs dry.

How it is found: with device work, the idle time of the device during which the thread that launches was
inside a data loader (`enumerate(DataLoader)#...`, or a region of the program's own named `input`). Waiting
while the device still has work costs nothing and is not counted. Without device work, the time the program's
own thread spends in the loader: nothing else of the program runs meanwhile. Worker threads and processes that
load ahead are not counted. A loader without a span in the recording (Keras' `fit`, Grain or WebDataset in a
JAX program) is judged by the sampled stacks of steps without a profiler, of the loader's threads too if the
main thread waits for them; with a device, at most its idle time counts. Without these the rule abstains,
unless the device was busy throughout.

If most of the making of batches is waiting for storage, `storage_bound` reports it instead.

Workers do not shorten short fetches: taking a ready batch from a worker process costs about 0.2 ms, too. The fix of
short fetches in the program's own process is one operation per batch; they are reported from a fifth of the step.

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
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePath

import numpy as np
from msgspec import Struct

from perfscope.analyzers.examined import device_records
from perfscope.analyzers.spans import INPUT_REGION, input_slices, outermost, union_of, worst_spans
from perfscope.analyzers.time.account import cause_intervals, idle_intervals, step_accounts
from perfscope.analyzers.time.fixes import LOADERS, worker_starts
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.sampled_input import SampledInput, sampled_input
from perfscope.analyzers.time.samples import (
    SampledLine,
    free_samples,
    sampled_lines,
    sampled_site,
    stacks,
    waiting_samples,
)
from perfscope.analyzers.time.side_work import side_work
from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite, call_site
from perfscope.analyzers.time.steps import account_windows, step_windows, timed_cost, whole_ns
from perfscope.analyzers.time.storage import storage_wait, too_busy
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Removed, Scope, Where, fit_title
from perfscope.model.frames import Owner, owner_of
from perfscope.model.frames.kinds import FrameKind, frame_kind
from perfscope.model.intervals import EMPTY, Int64, covered, intersection, union
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.units import format_ns

STALL_SHARE = 0.05
"""Smallest share of the step. Fetching a finished batch from a queue takes some tens of microseconds; a twentieth is
waiting.
"""


HANDOVER_NS = 200_000
"""Mean time of a fetch from which workers can help: a shorter one takes no longer than taking a ready batch from a
worker (torch 2.13: 0.5 ms at best for 8 rows on two busy cores).
"""

SHORT_SHARE = 0.2
"""Smallest share of the step for shorter fetches: less is not worth another way to make batches."""

BUSY_SHARE = 0.6
"""Share of a worker's time from which it is busy: the program does not wait for workers with less."""

_ADVICE = (
    "Load ahead: `DataLoader(..., num_workers=N, persistent_workers=True, prefetch_factor=4, pin_memory=True)`. "
    "Decode and augment once, or on the device; fetch the next batch before the step ends."
)

_SHORT_ADVICE = (
    "Make each batch with one operation: index the data set's tensors with the indices of the whole batch "
    "(`x[indices]`), on the device where they fit. Workers would not be faster: a batch that is ready takes as long to "
    "hand over."
)

LEAST_SAMPLES = 5
"""Minimum number of samples: fewer do not separate a function with most of the time from one with half of it."""

_MAKES_BATCH = re.compile(r"(site-packages/)?torch/utils/data/_utils/fetch\.py\(\d+\): fetch")
"""Call of the data set and the collate function in PyTorch's loaders."""


def examined(trace: Trace) -> Scope:
    """Count the fetches of a data loader; without one, the work that keeps the device busy."""
    fetches = len(trace.fact(input_slices))
    return Scope(fetches, "fetches of a data loader") if fetches else device_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per loader (name and line of the loop) that stalls the program."""
    whole = whole_ns(trace)
    loads = np.zeros(len(trace.rows["slices"]), bool)
    loads[trace.fact(input_slices)] = True
    rows = outermost(trace, loads)
    on_device = "device_work" in trace.recorded
    if not len(rows):
        sampled_wait = trace.fact(sampled_input)
        if sampled_wait is not None:
            return _sampled(trace, sampled_wait)
        if on_device and _late_ns(trace) < STALL_SHARE * whole:
            return []
        raise AbstainError(
            "no data loader in the recording; wrap your own loader in "
            f'`with perfscope.region("{INPUT_REGION}"):` to include it'
        )
    stalled = _device_idle_in(trace, rows) if on_device else _own_time(trace, rows)
    if stalled.sum() < STALL_SHARE * whole or not stalled.any():
        return []
    storage = trace.fact(storage_wait)
    if storage is not None and storage.in_loader:
        return []  # `storage_bound` has it
    slices = trace.rows["slices"]
    loops: dict[tuple[str, Where], list[int]] = defaultdict(list)
    sites: dict[tuple[str, Where], CallSite] = {}
    sampled = loop_site(trace, rows)
    for index in np.flatnonzero(stalled).tolist():
        site = call_site(trace, int(rows[index]))
        of_loop = not site.exact and (site.file, site.function) == (sampled.file, sampled.function)
        in_package = sampled.file is not None and not _is_of_user(site)
        site = sampled if of_loop or in_package else site  # the samples have the line of the fetch
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
        if not _is_short(trace, rows[members])
        or (stalled[members].sum() >= SHORT_SHARE * whole and not _has_workers(trace, key[0]))
    ]


def _sampled(trace: Trace, found: SampledInput) -> list[Finding]:
    """The finding on a loader that only sampled stacks show, if it takes enough of the step."""
    run, storage = trace.fact(side_work), trace.fact(storage_wait)
    if found.share < STALL_SHARE or run is None or too_busy(trace) or (storage is not None and storage.in_loader):
        return []
    line = found.lines[0]
    function = line.site.function or line.innermost
    cost = round(found.share * run.whole_ns / run.steps)
    accounts = trace.fact(step_accounts)
    return [
        Finding(
            subject="data loader",
            title=fit_title(f"the step waits for the next batch: {line.share:.0%} of it in {function}", function),
            detail="The main thread waits for the loader's threads: they share the interpreter's lock with the step."
            if found.in_threads
            else "By the stacks of the main thread: the loader makes batches in the step.",
            severity=severity_of(found.share, 1.0),
            basis="measured",
            advice=LOADERS.get(found.package, "Load ahead in other processes or threads."),
            cost_ns=round(found.share * run.whole_ns),
            cost_ns_per_step=cost,
            untraced_ns_per_step=cost,
            where=(line.site if _is_of_user(line.site) else found.loop).where(),
            covers_ns={"input": max((account.total_ns["input"] for account in accounts), default=0)},
            evidence=tuple(
                {"makes_batch": one.site.function or one.innermost, "site": one.site.where().label(),
                 "innermost": one.innermost, "share": round(one.share, 4), "samples": one.samples}
                for one in found.lines[:MOST_ROWS]
            ),
        )
    ]  # fmt: skip


def _is_of_user(site: CallSite) -> bool:
    """Whether it is a place in the program, not in a package that fetches for it."""
    return site.file is not None and frame_kind(f"{site.file}(1): f") in (FrameKind.USER, FrameKind.UNKNOWN)


def _is_short(trace: Trace, rows: Int64) -> bool:
    """Whether fetches are as short as those of a ready batch from a worker."""
    slices = trace.rows["slices"]
    return bool((slices["end_ns"][rows] - slices["start_ns"][rows]).mean() < HANDOVER_NS)


def _has_workers(trace: Trace, loader: str) -> bool:
    """Whether worker processes make the batches of a loader's fetches."""
    return "_MultiProcessingDataLoaderIter" in loader or any(known.workers for known in trace.loaders)


def _late_ns(trace: Trace) -> int:
    """Return the idle time in which the host was late or is unknown, of the device that idles most."""
    idle = [
        account.whole_ns - account.busy_ns - account.total_ns["dependency"] for account in trace.fact(step_accounts)
    ]
    return max(idle, default=0)


def _device_idle_in(trace: Trace, rows: Int64) -> Int64:
    """Return, per loader span, its time in the account's input; for the device with most of it."""
    slices, windows = trace.rows["slices"], trace.fact(account_windows)
    inside, worst = union(windows.starts, windows.ends), np.zeros(len(rows), np.int64)
    for device, intervals in trace.fact(idle_intervals).items():
        waiting = intersection(trace.fact(cause_intervals)[device].get("input", EMPTY), inside)
        stalled = covered(waiting, slices["start_ns"][rows], slices["end_ns"][rows])
        for thread in np.unique([*intervals.thread, trace.fact(main_thread)]):  # two simultaneous fetches wait once
            of_thread = np.where(slices["thread"][rows] == thread, stalled, 0)
            if of_thread.sum() > worst.sum():
                worst = of_thread
    return worst


def _own_time(trace: Trace, rows: Int64) -> Int64:
    """Return, per loader span, its duration within the steps on the program's thread; 0 for other threads."""
    slices, windows = trace.rows["slices"], trace.fact(step_windows)
    starts, ends = slices["start_ns"][rows], slices["end_ns"][rows]
    time = covered(union(windows.starts, windows.ends), starts, ends) if windows.count else ends - starts
    return np.where(slices["thread"][rows] == _program_thread(trace), time, 0)


def _program_thread(trace: Trace) -> int:
    """Return the thread of the steps' annotation or of the optimizer, else the one with most time in ops."""
    slices = trace.rows["slices"]
    marks = [code for code, text in enumerate(trace.strings) if text.startswith(("ProfilerStep#", "Optimizer.step#"))]
    steps = trace.rows["steps"]  # any name: JAX programs use ``train`` or other words
    is_step = np.isin(slices["start_ns"], steps["start_ns"]) & np.isin(slices["end_ns"], steps["end_ns"])
    is_mark = is_step | np.isin(slices["name"], marks)
    marked = slices["thread"][is_mark & (slices["kind"] == SliceKind.ANNOTATION)]
    if len(marked):
        return int(np.bincount(marked).argmax())
    top = (slices["kind"] == SliceKind.OP) & (slices["parent"] == MISSING)
    time = np.zeros(len(trace.rows["threads"]), np.int64)
    np.add.at(time, slices["thread"][top], (slices["end_ns"] - slices["start_ns"])[top])
    return int(time.argmax())


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
    started, keep = worker_starts(trace)
    duration = slices["end_ns"][rows] - slices["start_ns"][rows]
    who = "device" if on_device else "program"
    short = _is_short(trace, rows)
    needed = "" if work is None or short else _workers_needed(trace, work, cost, whole)
    fetches: list[Mapping[str, Cell]] = [
        {
            "stall_ns": int(stalled[i]),
            "fetch_ns": int(duration[i]),
            "start_ns": int(slices["start_ns"][rows[i]]),
            "line_is": site.line_is(),
        }
        for i in np.argsort(-stalled, kind="stable")[:MOST_ROWS].tolist()
    ]
    return Finding(
        subject=name,
        title=_title(who, len(rows), work),
        detail=" ".join(
            text
            for text in (
                started,
                "" if work is None else f"{_slowest(work)}. {needed}",
            )
            if text
        ).strip(),
        **timed_cost(trace, cost, whole),
        covers_ns={"input": cost},
        advice=f"{keep} {_SHORT_ADVICE if short else _advice(trace)}".lstrip(),
        where=site.where(op=name),
        evidence=(*(() if work is None else _input_rows(work)), *fetches),
        spans=worst_spans(slices["start_ns"][rows], slices["end_ns"][rows], stalled),
        removes=(Removed(table="slices", rows=rows),),
    )


def _advice(trace: Trace) -> str:
    """What to do, by the number of workers that the program's loader has already."""
    workers = max((loader.workers for loader in trace.loaders), default=0)
    cores = 0 if trace.core_facts is None else trace.core_facts.cores
    if not workers:
        return _ADVICE if "device_work" in trace.recorded else _ADVICE.replace(", pin_memory=True", "")
    if cores and workers >= cores:
        return (
            f"Start fewer workers than cores: {workers} workers and the step share {cores} cores. A data set in memory "
            "with small samples needs none (`num_workers=0`)."
        )
    return (
        f"Make a batch cheaper (decode and augment once, or on the device). Or start more workers than {workers}, with "
        "`persistent_workers=True, prefetch_factor=4, pin_memory=True`."
    )


def _title(who: str, fetches: int, work: InputWork | None) -> str:
    """Return the title, with the function that takes most of the time of a batch, if it is the program's."""
    if work is not None:
        function, share, line = work.function()
        if line.site.file is not None and owner_of(line.site.file) is Owner.USER:
            place = Where(file=PurePath(line.site.file).name, line=line.site.line).label()
            return fit_title(f"{who} waits for the next batch: {function}, {place}, takes {share:.0%} of it", function)
    return f"{who} waits for the next batch: {fetches:,} fetch{'es' if fetches > 1 else ''}"


# The functions that make the batch, and whether more workers would hide the waiting: from sampled stacks.


def _slowest(work: InputWork) -> str:
    """Return the function that takes most of the time of a batch, per sample if the batch size is known."""
    function, share, line = work.function()
    count, unit = (work.batch_size, "sample") if work.batch_size else (1, "batch")
    of = work.batch_ns / count
    where = "" if line.site.line is None else f" line {line.site.line}"
    return f"{function}{where} takes {format_ns(round(share * of))} of {format_ns(round(of))} per {unit}"


def _workers_needed(trace: Trace, work: InputWork, cost: int, whole: int) -> str:
    """Whether more workers would hide the waiting."""
    share = cost / whole
    if not work.workers and any(loader.workers for loader in trace.loaders):
        return "Workers make the batches; no stacks of them were sampled."
    if work.workers and max(load.busy_share for load in work.workers) < BUSY_SHARE:
        busy = max(load.busy_share for load in work.workers)
        return (
            f"More workers would not hide it: the busiest of {len(work.workers)} makes batches for {busy:.0%} of its "
            "time. The program waits for the transfer of batches, or requests them too late (`prefetch_factor`)."
        )
    if share >= 1:
        return ""
    # The batches of a step must be made within the rest of the step.
    step_ns = (
        work.per_step_ns / share
        if not work.workers
        else (work.per_step_ns / max(sum(load.busy_share for load in work.workers), 1e-9))
    )
    needed = max(1, math.ceil(round(work.per_step_ns / max(step_ns * (1 - share), 1), 3)))
    made = f"batches of a step take {format_ns(work.per_step_ns)} to make, the rest of the step takes "
    rest = format_ns(round(step_ns * (1 - share)))
    have = f" instead of {len(work.workers)}" if work.workers else ""
    return f"About {needed} workers{have} would hide it, given as many free cores: {made}{rest}."


def _input_rows(work: InputWork) -> Iterable[Mapping[str, Cell]]:
    """Yield lines of all processes, followed by each worker's busy share and first line."""
    for line in work.lines[:MOST_ROWS]:
        yield {
            "makes_batch": line.site.function or line.innermost,
            "site": line.site.where().label(),
            "innermost": line.innermost,
            "batch_ns": round(line.share * work.batch_ns),
            "share": round(line.share, 4),
            "samples": line.samples,
        }
    for load in work.workers[:MOST_ROWS]:
        yield {
            "worker": load.name,
            "busy_share": round(load.busy_share, 4),
            "makes_batch": load.lines[0].site.function if load.lines else None,
            "site": load.lines[0].site.where().label() if load.lines else None,
        }


# Work of a data loader while it makes a batch: by function and line, per worker, and the workers' busy shares.
#
# From sampled stacks. Without workers they are those of the program's own thread in the fetch; with workers, those of
# the worker processes, because the program itself only waits.


class WorkerLoad(Struct, frozen=True, kw_only=True):
    """A worker process while the program's steps ran."""

    name: str
    busy_share: float
    """Share of its time in which it made batches."""
    lines: tuple[SampledLine, ...]
    """Lines while it made batches; empty if it never made one."""


class InputWork(Struct, frozen=True, kw_only=True):
    """Making of the batches."""

    lines: tuple[SampledLine, ...]
    """By share of the time in which batches are made, most first."""
    batch_ns: int
    """Time in which one process makes one batch."""
    batch_size: int | None
    """Samples per batch, if there is one kind of loader."""
    workers: tuple[WorkerLoad, ...]
    """Empty if the program makes its batches itself."""
    per_step_ns: int
    """Time of all processes per step."""

    def function(self) -> tuple[str, float, SampledLine]:
        """Function with most of the time, its share, and its line with most."""
        shares: dict[tuple[str | None, str | None], float] = {}
        for line in self.lines:
            key = (line.site.file, line.site.function)
            shares[key] = shares.get(key, 0.0) + line.share
        most = max(shares, key=lambda key: shares[key])
        best = next(line for line in self.lines if (line.site.file, line.site.function) == most)
        return most[1] or best.innermost, shares[most], best


def input_work(trace: Trace, fetches: Int64) -> InputWork | None:
    """Return how batches are made; ``None`` with too few samples.

    ``fetches``: rows of ``slices`` that wait for a batch.
    """
    windows = trace.fact(step_windows)
    if not len(trace.rows["samples"]) or not len(fetches) or not windows.count:
        return None
    step_ns = float(np.median(trace.step_times_ns or windows.ends - windows.starts))
    sizes = {loader.batch_size for loader in trace.loaders}
    size = sizes.pop() if len(sizes) == 1 else None
    workers = _workers(trace)
    rows = np.concatenate([rows for _, rows, _ in workers]) if workers else np.empty(0, np.int64)
    if len(rows) >= LEAST_SAMPLES:
        loads = tuple(
            WorkerLoad(name=name, busy_share=share, lines=_lines(trace, busy)) for name, busy, share in workers
        )
        per_step = sum(load.busy_share for load in loads) * step_ns
        batch = per_step * windows.count / len(fetches)
    else:
        rows, loads = _own(trace, fetches), ()
        known, frames = trace.fact(stacks), trace.rows["samples"]["frame"][rows]
        # waiting in it is part of making the batch
        in_data_set = (frames != MISSING) & known.in_loader[known.user[frames]]
        rows = rows[in_data_set | ~trace.fact(waiting_samples)[rows]]
        if len(rows) < LEAST_SAMPLES:
            return None
        slices = trace.rows["slices"]
        lengths = slices["end_ns"][fetches] - slices["start_ns"][fetches]
        batch, per_step = float(lengths.mean()), lengths.sum() / windows.count
    return InputWork(
        lines=_lines(trace, rows),
        batch_ns=round(batch),
        batch_size=size,
        workers=loads,
        per_step_ns=round(per_step),
    )


def loop_site(trace: Trace, fetches: Int64) -> CallSite:
    """Return the line of the program's loop: the innermost one outside the loader, in stacks sampled in the fetches."""
    known, parents = trace.fact(stacks), trace.rows["frames"]["parent"]
    outside: dict[CallSite, int] = {}
    for frame in trace.rows["samples"]["frame"][_own(trace, fetches)].tolist():
        while frame != MISSING and known.in_loader[frame]:
            frame = int(parents[frame])
        site = sampled_site(trace, frame)
        outside[site] = outside.get(site, 0) + 1
    return max(outside, key=lambda site: outside[site], default=UNKNOWN_SITE)


def _lines(trace: Trace, rows: Int64) -> tuple[SampledLine, ...]:
    return sampled_lines(trace, rows, inside=trace.fact(stacks).in_loader)


def _own(trace: Trace, fetches: Int64) -> Int64:
    """Return the samples of the program's own thread while it makes a batch: in traced fetches and in free steps."""
    samples, slices, thread = trace.rows["samples"], trace.rows["slices"], trace.fact(main_thread)
    spans = union_of(slices, fetches)
    mine = (samples["thread"] == thread) & ~samples["worker"]
    at = np.searchsorted(spans.starts, samples["time_ns"], side="right") - 1
    traced = mine & (at >= 0) & (samples["time_ns"] < spans.ends[np.maximum(at, 0)])
    free = free_samples(trace, thread)
    frames = samples["frame"][free]
    return np.concatenate(
        [np.flatnonzero(traced), free[(frames != MISSING) & trace.fact(stacks).in_loader[frames]]]
    ).astype(np.int64)


def _workers(trace: Trace) -> list[tuple[str, Int64, float]]:
    """Return, per worker process sampled during the steps: name, rows in which it made batches, and their share."""
    samples, threads = trace.rows["samples"], trace.rows["threads"]
    in_steps = samples["time_ns"][~samples["worker"] & (samples["step"] != MISSING)]
    if not len(in_steps):
        return []
    makes = _makes_batches(trace)
    during = samples["worker"] & (samples["time_ns"] >= in_steps.min()) & (samples["time_ns"] <= in_steps.max())
    process = threads["process"][samples["thread"]]
    result = []
    for code in np.unique(process[during]).tolist():
        rows = np.flatnonzero(during & (process == code))
        busy = rows[makes[rows]]
        whole = int(samples["lasts_ns"][rows].sum())
        share = int(samples["lasts_ns"][busy].sum()) / whole if whole else 0.0
        result.append((trace.text(int(code)), np.asarray(busy, np.int64), share))
    return result


def _makes_batches(trace: Trace) -> np.ndarray:
    """Mask of the rows of ``samples`` in the fetch of a PyTorch loader; for other workers, of rows that do not wait."""
    samples, parents = trace.rows["samples"], trace.rows["frames"]["parent"].tolist()
    fetches, loads = np.zeros(len(parents) + 1, bool), trace.fact(stacks).in_loader
    for row, text in enumerate(trace.fact(stacks).texts):
        above = MISSING < parents[row] < row and bool(fetches[parents[row]])
        fetches[row] = above or _MAKES_BATCH.fullmatch(text) is not None
    of_loader = np.array([*loads, False], bool)[samples["frame"]]
    return np.where(of_loader, fetches[samples["frame"]], ~trace.fact(waiting_samples))
