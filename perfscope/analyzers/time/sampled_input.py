"""Waiting for a data loader without spans in the recording (Keras, Grain, WebDataset in JAX), by sampled stacks."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from perfscope.analyzers.time.fixes import LOADERS
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.samples import SampledLine, free_samples, sampled_lines, stacks
from perfscope.analyzers.time.side_work import side_samples
from perfscope.analyzers.time.sites import CallSite
from perfscope.analyzers.time.storage import WAITS, idle_share, waits_otherwise
from perfscope.model.frames.kinds import FrameKind, frame_kind
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

LEAST_SAMPLES = 10
"""Minimum number of samples in a loader: the share of fewer is too uncertain."""


class SampledInput(Struct, frozen=True, kw_only=True):
    """Time of the main thread in a data loader."""

    share: float
    """Share of the steps without a profiler; of a device at most the time in which it is idle."""
    loop: CallSite
    """The line that fetches the batch."""
    lines: tuple[SampledLine, ...]
    """Lines inside of the loader that make the batch, in its threads or in the main thread; most time first."""
    in_threads: bool
    """Whether threads of the loader make the batch while the main thread waits."""
    package: str
    """Package of the loader, a key of `LOADERS`; empty for others."""


def sampled_input(trace: Trace) -> SampledInput | None:
    """Return the main thread's time in a data loader; ``None`` without stacks or without a loader on them."""
    if "python_samples" not in trace.recorded:
        return None
    samples, known, free = trace.rows["samples"], trace.fact(stacks), free_samples(trace, trace.fact(main_thread))
    steps = free[trace.fact(side_samples)[free] == 0]
    rows = steps[np.append(known.in_loader, False)[samples["frame"][steps]]]
    whole = int(samples["lasts_ns"][free].sum())
    if len(rows) < LEAST_SAMPLES or not whole:
        return None
    share = min(float(samples["lasts_ns"][rows].sum()) / whole, idle_share(trace))
    lines, threads = sampled_lines(trace, rows, inside=known.in_loader), _in_threads(trace)
    in_threads = len(threads) >= LEAST_SAMPLES and bool(waits_otherwise(trace, rows).mean() >= WAITS)
    made = sampled_lines(trace, threads, inside=known.in_loader) if in_threads else lines
    loop = sampled_lines(trace, rows)[0].site
    return SampledInput(share=share, loop=loop, lines=made, in_threads=in_threads, package=_package(trace, rows))


def _in_threads(trace: Trace) -> Int64:
    """Rows of ``samples`` of other threads of the process that work in a loader."""
    samples, known = trace.rows["samples"], trace.fact(stacks)
    others = ~samples["worker"] & (samples["thread"] != trace.fact(main_thread))
    rows = np.flatnonzero(others & np.append(known.in_loader, False)[samples["frame"]])
    return rows[~waits_otherwise(trace, rows)]


def _package(trace: Trace, rows: Int64) -> str:
    """The package of `LOADERS` whose frames are on most of the stacks."""
    texts, parents = trace.fact(stacks).texts, trace.rows["frames"]["parent"]
    found: Counter[str] = Counter()
    for leaf in trace.rows["samples"]["frame"][rows].tolist():
        names = set()
        frame = leaf
        while frame != MISSING:
            if frame_kind(texts[frame]) is FrameKind.LOADER:
                names |= LOADERS.keys() & set(texts[frame].partition("(")[0].split("/"))
            frame = int(parents[frame])
        found.update(names)
    return found.most_common(1)[0][0] if found else ""
