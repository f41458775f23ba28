"""Matched collectives one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from perfscope.analyzers.ranks.matching import Matched
from perfscope.analyzers.ranks.sets import CollectiveTable
from perfscope.analyzers.ranks.tables import tables_of_jobs
from perfscope.model.collectives import bus_factor
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


class SingleCollective(Struct, frozen=True, kw_only=True):
    """A matched collective with the waits of its members."""

    number: int
    """From 1, in the order of the first start."""
    matched: Matched
    wait_ns: int
    """Sum over the members."""
    has_bandwidth: bool
    """Whether its kind has a bus bandwidth: the members are known."""

    @property
    def worst(self) -> int:
        """Member that waited longest; the first one of equals."""
        return max(sorted(self.matched.sides), key=self.matched.wait_ns)

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bandwidth of the transfer, bytes/s; ``None`` if unknown."""
        matched, size = self.matched, self.matched.message_bytes
        factor = bus_factor(matched.operation, matched.size) if self.has_bandwidth else None
        return size * factor / matched.core_ns * 1e9 if size and factor and matched.core_ns else None


def single_collectives(table: CollectiveTable) -> list[SingleCollective]:
    """The collectives of a job, longest waits first."""
    known = {(kind.operation, kind.group) for kind in table.kinds if kind.bus_bandwidth is not None}
    rows = [
        SingleCollective(
            number=number,
            matched=matched,
            wait_ns=sum(side.duration_ns - matched.core_ns for side in matched.sides.values()),
            has_bandwidth=(matched.operation, matched.group) in known,
        )
        for number, matched in enumerate(table.matched, start=1)
    ]
    return sorted(rows, key=lambda row: -row.wait_ns)


def _rows(traces: Sequence[Trace]) -> Iterator[tuple[int, str, SingleCollective]]:
    for job, members, table in tables_of_jobs(traces):
        yield from ((job, members, row) for row in single_collectives(table))


RESULT: ResultTable[SingleCollective] = ResultTable(
    name="single_collectives",
    title="Single collectives",
    doc="Matched collectives of ranks, or of the devices of an XLA program, one by one, longest waits first.",
    columns=(
        Column("number", int, "count", "number in the order of the first start, from 1", "key"),
        Column("operation", str, "text", "operation, such as all_reduce", of=lambda row: row.matched.operation,
               title="collective"),
        Column("worst_wait_ns", int, "ns", "waiting time of the member that waited longest",
               of=lambda row: row.matched.wait_ns(row.worst), title="wait, worst"),
        Column("worst", int, "count", "member that waited longest", title="who"),
        Column("last", int, "count", "member that arrived last", of=lambda row: row.matched.last, title="came last"),
        Column("wait_ns", int, "ns", "waiting time of all members together", title="wait, all"),
        Column("core_ns", int, "ns", "time of the transfer, without waiting for the last member",
               of=lambda row: row.matched.core_ns, title="core"),
        Column("members", tuple[int, ...], "text", "members of the group", of=lambda row: row.matched.group,
               title="group"),
        Column("message_bytes", int | None, "bytes", "message of one member, as nccl-tests counts it",
               of=lambda row: row.matched.message_bytes, title="message"),
        Column("bus_bytes_per_s", float | None, "bytes_per_s", "bus bandwidth of the transfer, as nccl-tests counts it",
               title="bus bandwidth"),
    ),
    rows=_rows,
    scope="job",
)  # fmt: skip
