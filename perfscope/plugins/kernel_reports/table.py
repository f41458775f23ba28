"""The result table of reported kernels, for SQL, Parquet, JSON and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace
from perfscope.plugins.kernel_reports.join import joined
from perfscope.plugins.kernel_reports.record import reports_of
from perfscope.plugins.kernel_reports.summary import ReportedKernel, reported_kernel


def _rows(trace: Trace) -> Iterator[ReportedKernel]:
    if reports_of(trace):
        yield from (reported_kernel(trace, one) for one in trace.fact(joined))


_PERCENT = "percent of the sustained peak, mean by the tool's time"

KERNEL_REPORTS: ResultTable[ReportedKernel] = ResultTable(
    name="kernel_reports",
    title="Kernels that another tool reported on",
    doc="Kernels that another tool reported on (Nsight Compute, rocprofv3, tritonparse), one row per kernel and launch "
    "shape, with their time in the trace.",
    columns=(
        Column("tool", str, "text", "tool that reported", "key", of=lambda row: row.mean.tool),
        Column("name", str, "code", "name as the tool wrote it", "key", of=lambda row: row.mean.name),
        Column("blocks", int | None, "count", "thread blocks of the grid", "key", of=lambda row: row.mean.blocks),
        Column(
            "threads_per_block",
            int | None,
            "count",
            "threads of a block",
            "key",
            of=lambda row: row.mean.threads_per_block,
        ),
        Column("launches", int, "count", "launches that the tool reported on"),
        Column("calls", int, "count", "calls in the steps of the trace"),
        Column("time_ns", int, "ns", "time of these calls in the trace"),
        Column(
            "duration_ns", float | None, "ns", "mean time of a launch by the tool", of=lambda row: row.mean.duration_ns
        ),
        Column(
            "bound",
            str | None,
            "text",
            "compute, memory, or latency: neither is above 60 percent",
            of=lambda row: row.mean.bound,
        ),
        Column("compute", float | None, "count", f"throughput of the SMs, {_PERCENT}", of=lambda row: row.mean.compute),
        Column(
            "memory",
            float | None,
            "count",
            f"throughput of the busiest part of memory, {_PERCENT}",
            of=lambda row: row.mean.memory,
        ),
        Column("dram", float | None, "count", f"throughput of device memory, {_PERCENT}", of=lambda row: row.mean.dram),
        Column("occupancy", float | None, "count", "active warps, percent", of=lambda row: row.mean.occupancy),
        Column(
            "possible_occupancy",
            float | None,
            "count",
            "warps that the resources of a block allow, percent",
            of=lambda row: row.mean.possible_occupancy,
        ),
        Column("limit", str | None, "text", "resource that limits the blocks of an SM", of=lambda row: row.mean.limit),
        Column("registers", int | None, "count", "registers of a thread", of=lambda row: row.mean.registers),
        Column("shared_bytes", int | None, "bytes", "shared memory of a block", of=lambda row: row.mean.shared_bytes),
        Column(
            "spills",
            float | None,
            "quantity",
            "requests, instructions or registers that spill; rocprofv3: bytes of scratch memory per work-item",
            of=lambda row: row.mean.spills,
        ),
        Column("waves", float | None, "count", "waves of blocks over all SMs", of=lambda row: row.mean.waves),
        Column("config", str, "code", "constants and options of a Triton kernel", of=lambda row: row.mean.config),
        Column("tuned", str, "text", "result of autotuning", of=lambda row: row.mean.tuned),
        Column("line", str, "place", "source of the kernel", of=lambda row: row.mean.line),
        Column("op", str, "code", "op that launched it"),
    ),
    rows=_rows,
)
