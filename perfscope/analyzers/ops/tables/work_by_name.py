"""Kernels, copies and ops by name."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.ops.work_by_name import NamedWork, device_work_by_name, ops_by_name
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterator[NamedWork]:
    for found in (device_work_by_name(trace), ops_by_name(trace)):
        yield from sorted(found, key=lambda work: (-work.total_ns, work.name))


RESULT: ResultTable[NamedWork] = ResultTable(
    name="work_by_name",
    doc="Kernels, collectives and copies of devices, and ops of the host by the time in them alone: all calls of one "
    "name. Rates and the roofline are those of calls whose cost is known.",
    columns=(
        Column("kind", str, "text", "kernels, collectives, copies or ops", "key"),
        Column("name", str, "code", "as recorded", "key"),
        Column("time_ns", int, "ns", "time of all calls", of=lambda work: work.total_ns),
        Column("calls", int, "count", "calls"),
        Column("mean_ns", int, "ns", "mean time of a call"),
        Column("flops_per_s", float | None, "quantity", "FLOPs per second", of=lambda work: work.achieved.flops_per_s,
               title="FLOP/s"),
        Column("bytes_per_s", float | None, "bytes_per_s", "bytes per second",
               of=lambda work: work.achieved.bytes_per_s, title="B/s"),
        Column("roofline_share", float | None, "share", "least time at the peaks of the device, of the measured one",
               of=lambda work: work.achieved.roofline_share, title="of roofline"),
        Column("line", str, "code", "line of the longest call"),
        Column("op", str, "code", "op that launched the longest call", title="launched by"),
        Column("shapes", str, "code", "input shapes of the longest call", title="input shapes"),
        Column("occupancy", float | None, "count", "mean occupancy by time, percent", title="occupancy %"),
        Column("least_ns", int, "ns", "shortest call", title="least"),
        Column("most_ns", int, "ns", "longest call", title="most"),
    ),
    rows=_rows,
)  # fmt: skip
