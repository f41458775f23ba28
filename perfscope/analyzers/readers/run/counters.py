"""Step counters of a run, added to the trace of its timing pass, on its clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfscope.analyzers.readers.run.stacks import clock_offset_ns
from perfscope.model.documents.counters import StepCounters
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, TraceBuilder
from perfscope.model.trace.core_facts import OVERSUBSCRIBED, CoreFacts

_SLACK_NS = 1_000_000
"""Time between a reading and the edge of its step: the session's own work between two steps."""


def attach_counters(builder: TraceBuilder, counters: StepCounters) -> None:
    """Add ``cores``, ``run_steps``, ``run_memory``, ``held_names``, ``side_work`` and ``storage`` to a trace.

    Without a common step, the times stay on the counters' own clock, and ``cores`` is left out.
    """
    counters = _without_own_waits(counters)
    steps = list(zip(counters.step_number, counters.step_begin_ns, counters.step_end_ns, strict=True))
    offset = clock_offset_ns(builder.rows["steps"], steps)
    if steps:
        _steps(builder, counters, offset or 0)
        _side_work(builder, counters, offset or 0)
        _storage(builder, counters, offset or 0)
    if counters.memory_step:
        builder.table(
            "run_memory",
            {"step": counters.memory_step, "rss_bytes": counters.rss_bytes, "device_bytes": counters.device_bytes},
        )
        builder.record("run_memory")
    _held(builder, counters)
    if counters.supported is None and len(counters.read_ns) >= 2 and offset is not None:
        _cores(builder, counters, offset)
        builder.record("core_waits")
    builder.attached["core_facts"] = _facts(counters)


def _without_own_waits(counters: StepCounters) -> StepCounters:
    """Return counters with only those waits that other processes can have caused.

    Between two readings, other processes had at most the processor time that they used on the whole machine, and at
    most the time that this process left of its cores. Any longer wait was for the process's own threads, which did its
    work. A framework with more compute threads than cores is the exception: its threads disturb each other, and all of
    their waits count.
    """
    cores = min(counters.cores, counters.core_limit or counters.cores)
    threads = counters.compute_threads * counters.local_processes
    if not counters.process_cpu_ns or not cores or threads > OVERSUBSCRIBED * cores:
        return counters
    used = np.diff(np.array(counters.process_cpu_ns, np.int64))
    read = np.array(counters.read_ns, np.int64)
    free = np.maximum(np.floor(cores * np.diff(read)).astype(np.int64) - used, 0)
    looks = _machine_looks(counters)
    if len(looks) >= 2:
        others = np.interp(read, looks[:, 0], np.maximum.accumulate(looks[:, 1] - looks[:, 2]))
        free = np.minimum(free, np.floor(np.diff(others)).astype(np.int64))
    return replace(
        counters, wait_ns=_bounded(counters.wait_ns, free), others_wait_ns=_bounded(counters.others_wait_ns, free)
    )


def _bounded(total: tuple[int, ...], most: Int64) -> tuple[int, ...]:
    """Limit the growth of a cumulative counter between two readings to ``most``."""
    values = np.array(total, np.int64)
    grown = np.minimum(np.diff(values), most)
    return tuple((values[0] + np.concatenate(([0], np.cumsum(grown)))).tolist())


def _machine_looks(counters: StepCounters) -> Int64:
    """Return (time, processor time of the machine, of the process) of each valid sample; n x 3, ns."""
    looks = zip(counters.machine_ns, counters.busy_ns, counters.own_busy_ns, strict=True)
    return np.array([look for look in looks if look[1] >= 0], np.int64).reshape(-1, 3)


def _cores(builder: TraceBuilder, counters: StepCounters, offset: int) -> None:
    read = np.array(counters.read_ns, np.int64)
    changes = {
        name: np.maximum(np.diff(np.array(getattr(counters, name), np.int64)), 0)
        for name in ("cpu_ns", "wait_ns", "others_wait_ns", "switches")
    }
    chosen = np.diff(read) > 0
    columns = {"from_ns": read[:-1] + offset, "until_ns": read[1:] + offset, **changes}
    builder.table("cores", {name: values[chosen] for name, values in columns.items()})


def _steps(builder: TraceBuilder, counters: StepCounters, offset: int) -> None:
    order = np.argsort(np.array(counters.step_begin_ns, np.int64), kind="stable")
    begin, end = (np.array(column, np.int64)[order] for column in (counters.step_begin_ns, counters.step_end_ns))
    builder.table(
        "run_steps",
        {
            "number": np.array(counters.step_number, np.int64)[order],
            "from_ns": begin + offset,
            "until_ns": np.maximum(end, begin) + offset,
            "free": np.array(counters.step_free, bool)[order],
            "wait_ns": _within(counters, counters.wait_ns, begin, end),
            "others_wait_ns": _within(counters, counters.others_wait_ns, begin, end),
        },
    )
    builder.record("run_steps")


def _within(counters: StepCounters, total: tuple[int, ...], begin: Int64, end: Int64) -> Int64:
    """Return the growth of a cumulative counter in each step; ``MISSING`` if it was not read around the step."""
    if counters.supported is not None or len(counters.read_ns) < 2:
        return np.full(len(begin), MISSING, np.int64)
    read = np.array(counters.read_ns, np.float64)
    values = np.array(total, np.float64)
    grown = np.interp(end, read, values) - np.interp(begin, read, values)
    inside = (begin >= read[0] - _SLACK_NS) & (end <= read[-1] + _SLACK_NS)
    return np.where(inside, np.clip(np.round(grown), 0, end - begin), MISSING).astype(np.int64)


def _side_work(builder: TraceBuilder, counters: StepCounters, offset: int) -> None:
    if counters.side_work is None:
        return
    events = sorted(counters.side_work, key=lambda event: event.begin_ns)
    builder.table(
        "side_work",
        {
            "from_ns": [event.begin_ns + offset for event in events],
            "until_ns": [max(event.end_ns, event.begin_ns) + offset for event in events],
            "kind": builder.codes([event.activity for event in events]),
            "call": builder.codes([event.call for event in events]),
            "file": builder.codes([event.file or None for event in events]),
            "line": [MISSING if event.line is None else event.line for event in events],
            "function": builder.codes([event.function or None for event in events]),
            "stored_ns": [event.stored_ns + offset if event.stored_ns >= 0 else MISSING for event in events],
            "bytes": [max(event.bytes, MISSING) for event in events],
            "of_steps": [event.of_steps for event in events],
        },
    )
    builder.record("side_work")
    if counters.side_work_dropped > 0:
        builder.note(
            f"only the first {len(events):,} saves, waits for saves and evaluations were recorded; "
            f"{counters.side_work_dropped:,} later ones are missing, and so is their time"
        )


def _storage(builder: TraceBuilder, counters: StepCounters, offset: int) -> None:
    if not counters.storage_step:
        return
    columns = (counters.storage_read_bytes, counters.storage_fetched_bytes)
    read, fetched = (np.maximum.accumulate(np.array(column, np.int64)) for column in columns)
    builder.table(
        "storage",
        {
            "step": counters.storage_step,
            "at_ns": np.array(counters.storage_ns, np.int64) + offset,
            "read_bytes": read,
            "fetched_bytes": fetched,
        },
    )
    builder.record("storage")


def _held(builder: TraceBuilder, counters: StepCounters) -> None:
    rows = [(held, index) for held in counters.held for index in range(len(held.step))]
    if not rows:
        return
    builder.table(
        "held_names",
        {
            "name": builder.codes([held.name for held, _ in rows]),
            "kind": builder.codes([held.kind for held, _ in rows]),
            "file": builder.codes([held.file for held, _ in rows]),
            "line": [MISSING if held.line is None else held.line for held, _ in rows],
            "function": builder.codes([held.function for held, _ in rows]),
            "step": [held.step[index] for held, index in rows],
            "size": [held.size[index] for held, index in rows],
            "bytes": [held.bytes[index] if held.bytes else 0 for held, index in rows],
            "graphs": [held.graphs for held, _ in rows],
        },
    )


def _facts(counters: StepCounters) -> CoreFacts:
    looks = _machine_looks(counters)
    other_cores = None
    if len(looks) >= 2 and looks[-1, 0] > looks[0, 0]:
        time, busy, own = (int(part) for part in looks[-1] - looks[0])
        other_cores = max(0.0, (busy - own) / time)
    throttled = [(at, ns) for at, ns in zip(counters.machine_ns, counters.throttled_ns, strict=True) if ns >= 0]
    share = 0.0
    if len(throttled) >= 2 and throttled[-1][0] > throttled[0][0]:
        share = max(0.0, (throttled[-1][1] - throttled[0][1]) / (throttled[-1][0] - throttled[0][0]))
    return CoreFacts(
        unsupported=counters.supported,
        cores=counters.cores,
        core_limit=counters.core_limit,
        compute_threads=counters.compute_threads,
        local_processes=counters.local_processes,
        other_cores=other_cores,
        throttled_share=share,
    )
