"""Result tables of the ranks of a job, or of the devices of an XLA program: one module per table, named like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.ranks.devices import device_set
from perfscope.analyzers.ranks.sets import CollectiveTable, rank_sets, table_of
from perfscope.model.trace import Trace


def tables_of_jobs(traces: Sequence[Trace]) -> Iterator[tuple[int, str, CollectiveTable]]:
    """Number of the job, ``ranks`` or ``devices``, and its matched collectives."""
    tables = [("ranks", table_of(ranks)) for ranks in rank_sets(traces)]
    devices = [found for trace in traces if (found := trace.fact(device_set)) is not None]
    tables += [("devices", found.table) for found in devices]
    for job, (members, table) in enumerate(tables):
        yield job, members, table
