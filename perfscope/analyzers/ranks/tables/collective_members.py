"""Time that each rank or device spent in matched collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.ranks.sets import RankTotal
from perfscope.analyzers.ranks.tables import tables_of_jobs
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


def _rows(traces: Sequence[Trace]) -> Iterator[tuple[int, str, RankTotal]]:
    for job, members, table in tables_of_jobs(traces):
        yield from ((job, members, total) for total in table.ranks)


RESULT: ResultTable[RankTotal] = ResultTable(
    name="collective_members",
    title="Members of collectives",
    doc="Time that each rank, or device of an XLA program, spent in matched collectives.",
    columns=(
        Column("member", int, "count", "number of the rank or device", "key", lambda total: total.rank),
        Column("collectives", int, "count", "collectives in which it took part"),
        Column("wait_ns", int, "ns", "time it waited for the last member", title="waited"),
        Column("core_ns", int, "ns", "time of the transfers", title="in collectives"),
        Column("exposed_ns", int | None, "ns", "part of both in which its device computed nothing", title="exposed"),
        Column("last", int, "count", "collectives at which it arrived last", title="came last"),
    ),
    rows=_rows,
    scope="job",
)
