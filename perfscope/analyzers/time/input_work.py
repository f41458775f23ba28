"""What a data loader does while it makes a batch: by function and line, per worker, and how busy the workers are.

From sampled stacks. Without workers they are those of the program's own thread in the fetch; with workers those of the
worker processes, of which the program itself shows nothing but that it waits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.samples import (
    SampledLine,
    free_samples,
    sampled_lines,
    sampled_site,
    stacks,
    waiting_samples,
)
from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import MISSING, Trace

LEAST_SAMPLES = 5
"""Fewer do not tell a function that takes most of the time from one that takes half of it."""

_MAKES_BATCH = re.compile(r"(site-packages/)?torch/utils/data/_utils/fetch\.py\(\d+\): fetch")
"""Where PyTorch's loaders call the data set and the collate function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker process while the program's steps ran."""

    name: str
    busy_share: float
    """Of its time in which it made batches."""
    lines: tuple[SampledLine, ...]
    """What it did then; empty if it never made one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWork:
    """How batches are made."""

    lines: tuple[SampledLine, ...]
    """By share of the time in which batches are made, most first."""
    batch_ns: int
    """Time that one batch takes to be made, by one process."""
    batch_size: int | None
    """Samples of a batch, where one kind of loader was seen."""
    workers: tuple[WorkerLoad, ...]
    """Empty where the program makes its batches itself."""
    per_step_ns: int
    """Of all processes together in one step."""

    def function(self) -> tuple[str, float, SampledLine]:
        """The function with most of the time, its share, and its line with most."""
        shares: dict[tuple[str | None, str | None], float] = {}
        for line in self.lines:
            key = (line.site.file, line.site.function)
            shares[key] = shares.get(key, 0.0) + line.share
        most = max(shares, key=lambda key: shares[key])
        best = next(line for line in self.lines if (line.site.file, line.site.function) == most)
        return most[1] or best.innermost, shares[most], best


def input_work(trace: Trace, fetches: Int64) -> InputWork | None:
    """``fetches``: rows of ``slices`` in which the program waits for a batch; ``None`` where too few samples tell."""
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
        rows = rows[~trace.fact(waiting_samples)[rows]]
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
    """The line of the program's loop: the innermost one outside the loader of the stacks sampled in the fetches."""
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
    """Samples of the program's own thread while it makes a batch: in the traced fetches, and in free steps."""
    samples, slices, thread = trace.rows["samples"], trace.rows["slices"], trace.fact(main_thread)
    spans = union(slices["start_ns"][fetches], slices["end_ns"][fetches])
    mine = (samples["thread"] == thread) & ~samples["worker"]
    at = np.searchsorted(spans.starts, samples["time_ns"], side="right") - 1
    traced = mine & (at >= 0) & (samples["time_ns"] < spans.ends[np.maximum(at, 0)])
    free = free_samples(trace, thread)
    frames = samples["frame"][free]
    return np.concatenate(
        [np.flatnonzero(traced), free[(frames != MISSING) & trace.fact(stacks).in_loader[frames]]]
    ).astype(np.int64)


def _workers(trace: Trace) -> list[tuple[str, Int64, float]]:
    """Per worker process with samples while the steps ran: its name, rows in which it made batches, and their share."""
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
    """Per row of ``samples``: it is in the fetch of a loader of PyTorch's; of another worker, that it does not wait."""
    samples, parents = trace.rows["samples"], trace.rows["frames"]["parent"].tolist()
    fetches, loads = np.zeros(len(parents) + 1, bool), trace.fact(stacks).in_loader
    for row, text in enumerate(trace.fact(stacks).texts):
        above = MISSING < parents[row] < row and bool(fetches[parents[row]])
        fetches[row] = above or _MAKES_BATCH.fullmatch(text) is not None
    of_loader = np.array([*loads, False], bool)[samples["frame"]]
    return np.where(of_loader, fetches[samples["frame"]], ~trace.fact(waiting_samples))
