"""Matched collectives by operation, group, size and algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.ranks.sets import CollectiveKind
from perfscope.analyzers.ranks.tables import tables_of_jobs
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


def _rows(traces: Sequence[Trace]) -> Iterator[tuple[int, str, CollectiveKind]]:
    for job, members, table in tables_of_jobs(traces):
        yield from ((job, members, kind) for kind in table.kinds)


def _worst(kind: CollectiveKind) -> int:
    return max(sorted(kind.wait_ns), key=lambda rank: kind.wait_ns[rank])


def _waiting(kind: CollectiveKind) -> float | None:
    whole = sum(kind.duration_ns.values())
    return sum(kind.wait_ns.values()) / whole if whole else None


RESULT: ResultTable[CollectiveKind] = ResultTable(
    name="collective_kinds",
    title="Collectives",
    doc="Matched collectives of ranks, or of the devices of an XLA program, by operation, group and size. "
    "The shortest duration of the members is the transfer, and bandwidths are of it.",
    columns=(
        Column("operation", str, "text", "operation, such as all_reduce", "key", title="collective"),
        Column("mean_wait_ns", int, "ns", "mean waiting time of a member", title="wait, mean"),
        Column(
            "worst_wait_ns",
            int,
            "ns",
            "waiting time of the member that waited longest",
            of=lambda kind: kind.wait_ns[_worst(kind)],
            title="wait, worst",
        ),
        Column("worst", int, "count", "member that waited longest", of=_worst, title="who"),
        Column("waiting", float | None, "share", "share of the collectives' time in which members waited", of=_waiting),
        Column("count", int, "count", "collectives", title="calls"),
        Column("median_core_ns", int, "ns", "median time of the transfer", title="each takes"),
        Column("core_ns", int, "ns", "summed time of the transfers, without waiting for the last member",
               title="core, all"),
        Column("members", tuple[int, ...], "text", "members of the group", "key", lambda kind: kind.group, "group"),
        Column("axis", str | None, "text", "mesh axis that the group resembles: a guess", title="axis (guess)"),
        Column("message_bytes", int | None, "bytes", "message of one member, as nccl-tests counts it", "key",
               title="message"),
        Column("dtype", str | None, "text", "element type", "key", title="type"),
        Column("algorithm", str | None, "text", "NCCL's algorithm, from the kernel's name", "key"),
        Column("protocol", str | None, "text", "NCCL's protocol, from the kernel's name", "key"),
        Column("algorithm_bytes_per_s", float | None, "bytes_per_s", "bandwidth by the median transfer",
               of=lambda kind: kind.algorithm_bandwidth, title="algorithm bandwidth"),
        Column("bus_bytes_per_s", float | None, "bytes_per_s", "the same times the factor of nccl-tests",
               of=lambda kind: kind.bus_bandwidth, title="bus bandwidth"),
        Column("caveats", tuple[str, ...], "text", "limits of a comparison with a link's peak", title="notes"),
    ),
    rows=_rows,
    scope="job",
)  # fmt: skip
