"""Reads of arrays by the host in a JAX run, as findings: what would drain an accelerator's queue, by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from perfscope.analyzers.ops.finding_spans import spans_within
from perfscope.model.finding import Cell, Finding, Where
from perfscope.model.intervals import union
from perfscope.model.jax_log import HostRead
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

EVERY = 0.5
"""Of the steps that read anything: a line that reads in fewer of them is an occasional log, not a habit."""

ROWS = 20

_ADVICE = (
    "Keep the value on the device: return it from the jitted step, sum it there, and read it every N steps, "
    "after the next step has been dispatched."
)


def read_findings(trace: Trace) -> Iterable[Finding]:
    """One structural finding a line that reads an array in at least half of the steps with reads.

    How long the host waited is measured; what an accelerator would have stood still is not known, so
    there is no cost. Reads between steps, before the first one and on other threads are left out.
    """
    lines: dict[tuple[str | None, int | None], list[HostRead]] = defaultdict(list)
    steps: set[int] = set()
    for read in trace.host_reads:
        if read.main_thread and read.step is not None:
            lines[(read.file, read.line)].append(read)
            steps.add(read.step)
    for (file, line), reads in lines.items():
        seen = {read.step for read in reads}
        if len(seen) < EVERY * len(steps):
            continue
        yield _finding(trace, Where(file=file, line=line), reads, len(seen))


def _finding(trace: Trace, where: Where, reads: list[HostRead], steps: int) -> Finding:
    calls = sorted({read.call for read in reads})
    named = " / ".join(f"`{call}`" for call in calls)
    stalls = [read for read in reads if read.ready is False]
    waited = sum(read.duration_ns for read in reads) // steps
    begins = np.array([read.begin_ns for read in reads], np.int64)
    rows: list[dict[str, Cell]] = []
    for call in calls:
        of_call = [read for read in reads if read.call == call]
        rows.append(
            {
                "call": call,
                "reads": len(of_call),
                "not_ready": sum(read.ready is False for read in of_call),
                "wait_ns": sum(read.duration_ns for read in of_call),
                "bytes": sum(read.bytes or 0 for read in of_call),
            }
        )
    rows.sort(key=lambda row: -int(row["wait_ns"] or 0))
    return Finding(
        subject=f"{named} reads an array",
        title=f"{named} reads an array on the host in {steps} of the steps: {len(stalls)} of {len(reads)} reads had to "
        f"wait for it, {format_ns(waited)} a step; an accelerator would run dry there",
        severity="medium" if stalls else "low",
        basis="structural",
        advice=_ADVICE,
        where=where,
        evidence=tuple(rows[:ROWS]),
        spans=spans_within(trace, union(begins, begins + [max(1, read.duration_ns) for read in reads])),
    )
