"""Ranks of a job on one clock, on request, aligned by the ends of their collectives.

Without alignment, times are as each rank recorded them. How offsets are computed, and their uncertainty:
``analyzers/ranks/matching.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.ranks import NOTED_OFFSET_NS, RankSet, rank_sets
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import MISSING, Rows
from perfscope.model.units import format_ns

_TIMES = ("start_ns", "end_ns", "time_ns", "launch_end_ns", "freed_ns")
"""Columns that hold points in time on the trace's clock."""


def apart(traces: Sequence[Trace]) -> list[str]:
    """A remark on the clocks of several ranks that are not aligned, if they differ noticeably."""
    return [
        f"the clocks of the ranks are up to {format_ns(ranks.clocks.largest_offset_ns)} apart and are not aligned; "
        f"--align-clocks aligns them to within {format_ns(ranks.clocks.worst_ns)}"
        for ranks in _judged(traces)
        if ranks.clocks.largest_offset_ns >= NOTED_OFFSET_NS
    ]


def aligned(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], list[str]]:
    """Return the traces with the times of each rank moved to the clock of its job's lowest rank, and remarks."""
    offsets: dict[int, int] = {}
    remarks = []
    for ranks in _judged(traces):
        for member in ranks.job.members:
            offsets[id(member.trace)] = ranks.clocks.offset_ns.get(member.rank, 0)
        text = f"clocks moved by up to {format_ns(ranks.clocks.largest_offset_ns)}; they agree to within "
        remarks.append(text + format_ns(ranks.clocks.worst_ns))
        if ranks.clocks.unreached:
            remarks.append(f"{len(ranks.clocks.unreached):,} ranks share no collective with the others: not moved")
    if not remarks:
        remarks.append("no collectives of several ranks to align clocks by: no clock was moved")
    return tuple(moved(trace, -offsets.get(id(trace), 0)) for trace in traces), remarks


def _judged(traces: Sequence[Trace]) -> list[RankSet]:
    return [ranks for ranks in rank_sets(traces) if len(ranks.job.members) > 1 and ranks.matching.matched]


def moved(trace: Trace, by_ns: int) -> Trace:
    """The trace with every point in time ``by_ns`` later; the trace itself for 0."""
    if not by_ns:
        return trace
    rows = {name: _moved(rows, by_ns) for name, rows in trace.rows.items()}
    return Trace(source=trace.source, strings=trace.strings, rows=rows, recorded=trace.recorded, hlo=trace.hlo)


def _moved(rows: Rows, by_ns: int) -> Rows:
    columns = dict(rows)
    for column in rows.table.columns:
        if column.name in _TIMES:
            values = columns[column.name].copy()
            values[slice(None) if not column.nullable else values != MISSING] += by_ns
            columns[column.name] = values
    return Rows(rows.table, columns)
