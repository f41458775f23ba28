"""Time in which the steps wait for storage, by sampled stacks and the system's counters of bytes.

A line that reads files has little processor time: the rest of its time it waits, for storage if the processes read
bytes meanwhile, and for a core, whose share is known and subtracted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.host_activity import main_thread
from perfscope.analyzers.time.samples import free_samples, outside_ops, sampled_lines, shown_kinds, stacks
from perfscope.analyzers.time.side_work import side_samples
from perfscope.analyzers.time.sites import CallSite
from perfscope.analyzers.time.whole_run.cores import core_wait_share
from perfscope.model.documents.causes import Cause
from perfscope.model.frames.kinds import WAITS as WAITING
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.intervals import Int64
from perfscope.model.severity import HIGH_SHARE
from perfscope.model.trace import MISSING, Trace

LEAST_SHARE = HIGH_SHARE
"""Smallest share of the step: teams schedule a task for a twentieth."""

LEAST_BYTES = 262_144
"""Minimum number of bytes read per step: a slow disk delivers fewer in 3 ms, and lines wait for something else then."""

MOST_CORE_WAIT = 0.5
"""Share of the steps without a core from which waits for storage and for a core look the same."""

LEAST_SAMPLES = 10
"""Minimum number of samples of waiting: fewer do not show which line has most of the time."""

WAITS = 0.5
"""Share of a line's time off the processor from which it waits, and of the making of batches from which storage, and
not the work on the data, is what the step waits for.
"""

_READS = frozenset({"fromfile", "pread", "read", "read_bytes", "readall", "readinto"})
"""Calls that only read: with bytes from storage all of their time is reading, also that of the system's copies."""

_MAY_READ = (FrameKind.UNKNOWN, FrameKind.USER, FrameKind.LIBRARY, FrameKind.LOADER, FrameKind.DISPATCH)
"""Kinds of frames that read files. Others wait for something else."""


class StorageBytes(Struct, frozen=True, kw_only=True):
    """Bytes per step of the program and its workers."""

    read: float
    """By calls that read, or from storage for mapped files."""
    fetched: float
    """From storage; the others were in the page cache, or a network's file system does not count them."""

    @property
    def cached(self) -> float:
        """Share that was in the page cache, 0 to 1."""
        return max(0.0, 1.0 - self.fetched / self.read) if self.read else 0.0


class StorageWait(Struct, frozen=True, kw_only=True):
    """Waiting of the steps for storage."""

    site: CallSite
    """The program's line that reads."""
    call: str
    """Function that it calls."""
    share: float
    """Share of the steps without a profiler, without waits for a core."""
    bytes: StorageBytes
    reading_share: float
    """Share of the making of batches in which the reader waits for storage."""
    workers: int
    """Worker processes whose stacks were sampled."""
    in_loader: bool
    """Whether a data loader reads; else a line of the loop."""
    rows: tuple[int, ...]
    """Rows of ``samples`` of the main thread that the waiting consists of."""


class _Reading(NamedTuple):
    rows: Int64
    """Rows of ``samples`` in lines that wait for storage."""
    waits_ns: float
    whole_ns: float
    """Time of all rows that make batches."""


def storage_bytes(trace: Trace) -> StorageBytes | None:
    """Return the bytes read per step, between the first and the last reading of the counters; ``None`` without any."""
    rows = trace.rows["storage"]
    if len(rows["step"]) < 2:
        return None
    steps = int(rows["step"][-1] - rows["step"][0])
    if steps <= 0:
        return None
    read, fetched = (float(rows[name][-1] - rows[name][0]) / steps for name in ("read_bytes", "fetched_bytes"))
    return StorageBytes(read=max(read, fetched), fetched=fetched)


def too_busy(trace: Trace) -> bool:
    """Whether the host waited too long for a core to judge other waiting."""
    return (trace.fact(core_wait_share) or 0.0) >= MOST_CORE_WAIT


TOO_BUSY = "the host waited for a core half of the steps or more: record again without other programs"


def storage_wait(trace: Trace) -> StorageWait | None:
    """Return the waiting for storage that is worth a finding; ``None`` without."""
    counted = trace.fact(storage_bytes)
    if counted is None or counted.read < LEAST_BYTES or too_busy(trace):
        return None
    samples, known, main = trace.rows["samples"], trace.fact(stacks), trace.fact(main_thread)
    free = free_samples(trace, main)
    whole = int(samples["lasts_ns"][free].sum())
    if not whole:
        return None
    loads = np.append(known.in_loader, False)
    steps = free[trace.fact(side_samples)[free] == 0]  # saves and evaluations belong to other rules
    in_loader = loads[samples["frame"][steps]] & ~np.isin(shown_kinds(trace, steps), (FrameKind.WORKER_START,))
    workers = np.flatnonzero(samples["worker"] & loads[samples["frame"]])
    workers = workers[~waits_otherwise(trace, workers)]
    own = steps[in_loader]
    made = _reading(trace, workers) if len(workers) >= LEAST_SAMPLES else _reading(trace, own)
    if len(made.rows) >= LEAST_SAMPLES and made.waits_ns >= WAITS * made.whole_ns:
        waiting, reading, loader = own, made, True
    else:
        others = steps[~in_loader]
        others = others[outside_ops(trace, others)]  # an op computes, and reads no file
        reading = _reading(trace, others)
        waiting, loader = reading.rows, False
        if len(reading.rows) < LEAST_SAMPLES:
            return None
    share = float(samples["lasts_ns"][waiting].sum()) / whole
    if not loader:
        share *= reading.waits_ns / max(1.0, float(samples["lasts_ns"][reading.rows].sum()))
    share = min(share, idle_share(trace))
    if share < LEAST_SHARE:
        return None
    line = sampled_lines(trace, reading.rows, inside=known.in_loader if loader else None)[0]
    process = trace.rows["threads"]["process"][samples["thread"][workers]]
    return StorageWait(
        site=line.site,
        call=line.innermost,
        share=share,
        bytes=counted,
        reading_share=reading.waits_ns / reading.whole_ns if reading.whole_ns else 0.0,
        workers=len(np.unique(process)),
        in_loader=loader,
        rows=tuple(waiting.tolist()),
    )


def waits_otherwise(trace: Trace, rows: Int64) -> npt.NDArray[np.bool_]:
    """Mask of ``rows`` of workers that wait for a request or a lock, and do not make a batch."""
    own = np.append(trace.fact(stacks).own, int(FrameKind.UNKNOWN))[trace.rows["samples"]["frame"][rows]]
    locked = np.isin(shown_kinds(trace, rows), (FrameKind.LOCK, FrameKind.QUEUE, FrameKind.SLEEP))
    waits: npt.NDArray[np.bool_] = locked | np.isin(own, list(WAITING))
    return waits


def _reading(trace: Trace, rows: Int64) -> _Reading:
    """Lines of ``rows`` (``samples``) that wait most of their time, and not by a call that waits for something else."""
    samples, known = trace.rows["samples"], trace.fact(stacks)
    busy = max(1e-3, 1.0 - (trace.fact(core_wait_share) or 0.0))
    kinds, otherwise = shown_kinds(trace, rows), waits_otherwise(trace, rows)
    may = (samples["frame"][rows] != MISSING) & (samples["cpu_ns"][rows] != MISSING) & ~otherwise
    may &= np.isin(kinds, _MAY_READ)
    counted = trace.fact(storage_bytes)
    from_storage = counted is not None and counted.fetched >= WAITS * counted.read
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in rows[may].tolist():
        frame = int(samples["frame"][row])
        groups[int(known.user[frame]), known.texts[frame]].append(row)
    reading, waits = list[int](), 0.0
    for (_, text), group in groups.items():
        time = float(samples["lasts_ns"][group].sum())
        ran = float(np.minimum(samples["cpu_ns"][group], samples["lasts_ns"][group]).sum())
        asleep = time - min(time, ran / busy)
        if from_storage and text.rpartition(".")[2] in _READS:
            asleep = time
        if asleep >= WAITS * time:
            reading += group
            waits += asleep
    return _Reading(np.array(sorted(reading), np.int64), waits, float(samples["lasts_ns"][rows].sum()))


def idle_share(trace: Trace) -> float:
    """Largest share of the step that waiting for storage can have: with a device only time in which it is idle."""
    if "device_work" not in trace.recorded:
        return 1.0
    causes: tuple[Cause, ...] = ("input", "sleeping", "other_host")
    accounts = [account for account in trace.fact(step_accounts) if account.whole_ns]
    return max(
        (sum(account.total_ns[cause] for cause in causes) / account.whole_ns for account in accounts), default=0.0
    )
