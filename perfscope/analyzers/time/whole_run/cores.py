"""Time in which the host could have run but had no core.

`perfscope run` reads the system's counters of the steps' thread: its waiting time in the run queue. Between two
readings (5 ms in traced steps) the amount is measured but not its position, so it is subtracted in equal shares from
the host's activities: a function that takes 10 ms, 4 ms of them without a core, has 6 ms of work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from perfscope.model.finding import Finding
from perfscope.model.intervals import EMPTY, Int64, Intervals, merge
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.core_facts import OVERSUBSCRIBED, CoreFacts

Name = TypeVar("Name", bound=str)

BUSY_SHARE = 0.1
"""Share of the step without a core from which reports mention it first: a tenth exceeds any change of a program that a
single run can show.
"""


class CoreWaits(Struct, frozen=True, kw_only=True):
    """Readings of the steps' thread, disjoint and in order of time; ns."""

    starts: Int64
    ends: Int64
    waits: Int64
    """Wait of the thread for a core, per reading."""
    others: Int64
    """The same for the other thread of the process that waited longest."""


def core_waits(trace: Trace) -> CoreWaits | None:
    """Return the readings; ``None`` if none were recorded."""
    rows = trace.rows["cores"]
    if not len(rows):
        return None
    lengths = rows["until_ns"] - rows["from_ns"]
    return CoreWaits(
        starts=rows["from_ns"].astype(np.int64),
        ends=rows["until_ns"].astype(np.int64),
        waits=_back_dated(rows["wait_ns"], lengths),
        others=_back_dated(rows["others_wait_ns"], lengths),
    )


def _back_dated(waits: Int64, lengths: Int64) -> Int64:
    """Assign waiting to the readings in which it occurred.

    The system counts it at its end, so an excess began earlier.
    """
    result, over = np.zeros(len(waits), np.int64), 0
    for row in range(len(waits) - 1, -1, -1):
        over += int(waits[row])
        result[row] = min(over, int(lengths[row]))
        over -= int(result[row])
    return result


def carve_waits(
    waits: CoreWaits,
    parts: Mapping[Name, Intervals],
    *,
    running: Iterable[Name],
    computing: Iterable[Name] = (),
    whole: bool,
) -> tuple[dict[Name, Intervals], Intervals]:
    """Remove the waiting from ``parts``, and return the rest and the waiting itself.

    ``parts`` are disjoint, and with the waiting they cover the same time as before, exactly. ``running``: parts in
    which the thread runs or could run; ``computing``: parts in which other threads of the process may do the work.
    ``whole``: the parts are all of the thread's time, so that they contain all of the waiting; else they are the idle
    time of a device, and get a proportional share of the waiting.
    """
    of_thread = [name for name in running if name in parts]
    of_others = [name for name in computing if name in parts]
    names = list(dict.fromkeys((*of_thread, *of_others)))
    pieces = {name: _by_reading(waits, spans) for name, spans in parts.items()}
    length = np.maximum(waits.ends - waits.starts, 1)
    inside = length if not whole else _time(waits, *pieces.values())  # a reading may extend beyond the account
    time = length if not whole else _time(waits, *(pieces[name] for name in of_thread))
    share = np.where(time > 0, np.minimum(1.0, waits.waits * (inside / length) / np.maximum(time, 1)), 0.0)
    left, taken = dict(parts), list[Intervals]()
    for name in names:
        starts, ends, reading = pieces[name]
        part = share if name in of_thread else np.zeros(len(length))
        if name in of_others:
            part = np.maximum(part, waits.others / length)
        fraction = np.where(reading == MISSING, 0.0, part[reading])
        cut = ends - np.floor(fraction * (ends - starts)).astype(np.int64)
        left[name] = merge(_filled(starts, cut))
        taken.append(_filled(cut, ends))
    return left, merge(*taken)


def time_with_core(trace: Trace, spans: Intervals) -> int:
    """Return the time of host spans minus the waiting in them, of the steps' thread or of the one that waited longest.

    In ns; the whole time if the waiting was not recorded.
    """
    waits = trace.fact(core_waits)
    if waits is None:
        return spans.total()
    left, _ = carve_waits(waits, {"spans": spans}, running=("spans",), computing=("spans",), whole=False)
    return left["spans"].total()


def _filled(starts: Int64, ends: Int64) -> Intervals:
    some = ends > starts
    return Intervals(starts[some], ends[some])


def _time(waits: CoreWaits, *pieces: tuple[Int64, Int64, Int64]) -> Int64:
    """Return the time of the pieces in each reading, ns."""
    total = np.zeros(len(waits.starts), np.int64)
    for starts, ends, reading in pieces:
        known = reading != MISSING
        np.add.at(total, reading[known], (ends - starts)[known])
    return total


def _by_reading(waits: CoreWaits, spans: Intervals) -> tuple[Int64, Int64, Int64]:
    """Split ``spans`` at the edges of the readings: starts, ends, and the reading of each piece (``MISSING``: none)."""
    if not len(spans.starts):
        return EMPTY.starts, EMPTY.ends, EMPTY.starts
    edges = np.unique(np.concatenate((waits.starts, waits.ends)))
    first = np.searchsorted(edges, spans.starts, side="right")
    last = np.searchsorted(edges, spans.ends, side="left")
    inside = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(first)), inside + 1)
    at = np.arange(len(row)) - np.repeat(np.cumsum(inside + 1) - (inside + 1), inside + 1)
    begins = np.where(at == 0, spans.starts[row], edges[np.minimum(first[row] + at - 1, len(edges) - 1)])
    stops = np.where(at == inside[row], spans.ends[row], edges[np.minimum(first[row] + at, len(edges) - 1)])
    reading = np.searchsorted(waits.starts, begins, side="right") - 1
    known = (reading >= 0) & (begins < waits.ends[np.maximum(reading, 0)])
    return begins.astype(np.int64), stops.astype(np.int64), np.where(known, reading, MISSING)


# Summary of a run whose host had to wait.


class CoreSummary(CoreFacts, frozen=True, kw_only=True):
    """Cores of one process and its waiting for them. ``compute_threads`` are those of all local processes together."""

    rank: int | None
    share: float
    """Share of the steps without a profiler (of the traced steps, if all were traced) in which the host waited."""
    loader_workers: int
    """Worker processes of data loaders, in all local processes together."""

    @property
    def busy(self) -> bool:
        """Whether the waiting is large enough to be mentioned before anything else."""
        return max(self.share, self.throttled_share) >= BUSY_SHARE

    @property
    def available(self) -> float:
        """Number of cores that the process may use; 0 if unknown."""
        return min(self.cores, self.core_limit) if self.core_limit is not None and self.cores else float(self.cores)

    @property
    def fair_threads(self) -> int:
        """Compute threads per process that have a core each; at least 1."""
        return max(1, int(self.available // max(1, self.local_processes)))

    @property
    def needless_threads(self) -> bool:
        """Whether the program can free cores by fewer compute threads or loader workers, with as many processes."""
        fewer = self.compute_threads > self.fair_threads * max(1, self.local_processes)
        return self.oversubscribed and (fewer or self.loader_workers > 0)

    @property
    def oversubscribed(self) -> bool:
        """Whether the program's own compute threads and loader workers far exceed its cores."""
        threads = self.compute_threads + self.loader_workers
        return bool(self.available) and threads > OVERSUBSCRIBED * self.available


def core_summary(trace: Trace) -> CoreSummary | None:
    """Return the known facts about the cores of a process; ``None`` if they were not recorded."""
    facts = trace.core_facts
    if facts is None:
        return None
    return CoreSummary(
        **asdict(facts) | {"compute_threads": facts.compute_threads * facts.local_processes},
        rank=trace.source.rank,
        share=trace.fact(core_wait_share) or 0.0,
        loader_workers=facts.local_processes * max((loader.workers for loader in trace.loaders), default=0),
    )


def core_wait_share(trace: Trace) -> float | None:
    """Return the share of the steps' time that the steps' thread waited for a core; ``None`` if unknown."""
    rows = trace.rows["run_steps"]
    known = rows["wait_ns"] != MISSING
    chosen = known & rows["free"] if (known & rows["free"]).any() else known
    time = int((rows["until_ns"] - rows["from_ns"])[chosen].sum())
    return int(rows["wait_ns"][chosen].sum()) / time if time else None


def waits_of_steps(trace: Trace) -> dict[int, int]:
    """Return, by step number, the maximum time that it may have waited for a core, ns. Empty if not counted.

    It is the wait of the step's thread, or of the thread that waited longest, in all readings that overlap the step.
    """
    waits, rows = trace.fact(core_waits), trace.rows["run_steps"]
    if waits is None:
        return {}
    total = np.concatenate(([0], np.cumsum(np.maximum(waits.waits, waits.others))))
    first = np.searchsorted(waits.ends, rows["from_ns"], side="right")
    last = np.searchsorted(waits.starts, rows["until_ns"], side="left")
    longest = np.minimum(total[np.maximum(last, first)] - total[first], rows["until_ns"] - rows["from_ns"])
    return dict(zip(rows["number"].tolist(), longest.tolist(), strict=True))


HOST_RULES = frozenset(
    {
        "checkpoint_stall", "eval_stall", "graph_break", "host_bound", "input_stall", "launch_bound", "slow_steps",
        "step_growth", "storage_bound",
    }
)  # fmt: skip
"""Rules whose costs are host time."""

STARVED = 0.5
"""Own work of the host below this share of the time without a core, and of the rest of the step, may be a consequence
of the waiting (cold caches, a queue that ran empty), and is not reported.
"""


def doubtful_causes(total_ns: Mapping[Any, int], whole_ns: int) -> frozenset[str]:
    """Return the causes of an account that the time without a core may explain; empty on a free machine.

    A thread that sleeps needs no core, and garbage collection and saving are known by their functions, so waiting does
    not explain them.
    """
    waited = total_ns["core_wait"]
    if not waited or waited < BUSY_SHARE * whole_ns:
        return frozenset()
    least = STARVED * min(waited, whole_ns - waited)
    return frozenset(cause for cause in _OWN_WORK if 0 < total_ns[cause] < least)


_OWN_WORK = ("input", "launch", "memory", "collective_setup", "other_host")


def with_busy_note(trace: Trace, rule: str, finding: Finding) -> Finding:
    """Return the finding; for host time, with a note if the machine was busy."""
    summary = trace.fact(core_summary) if rule in HOST_RULES else None
    if summary is None or summary.share < BUSY_SHARE:
        return finding
    note = (
        f"Measured on a busy machine: the host waited for a core {summary.share:.0%} of the step, which is left out "
        "here; the rest is less exact than on a free machine."
    )
    return replace(finding, detail=f"{finding.detail} {note}".strip())
