"""Section of reported kernels, and the sentence in the head of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Section, notes, table

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.plugins.kernel_reports.summary import ReportedKernel, ReportedKernels

FEW = 8
NAME_LIMIT = 48

_TOOLS = {"ncu": "Nsight Compute"}
"""Name of a tool in reports, if it has another."""

_CLOCKS = (
    "Nsight Compute locks the clocks and flushes caches, so its times differ from those of a trace; "
    "`--clock-control none --cache-control none` leaves both as they are"
)


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield a section for each recording with reports."""
    found: tuple[ReportedKernels, ...] = analysis.results["kernel_reports"]
    for one in found:
        yield _section(one, several=len(found) > 1)


def facts(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence for the head of the report."""
    one: ReportedKernels = analysis.results["kernel_reports"][0]
    kernels = len({kernel.mean.name for kernel in one.kernels})
    more = " or more" if one.left else ""
    tools = " and ".join(_TOOLS.get(tool, tool) for tool in one.tools)
    fact = f"{tools}: {_counted(one)} {kernels:,}{more} kernel{'' if kernels == 1 else 's'}"
    yield fact + (f", {one.unmatched:,} not in the trace" if one.unmatched else "")


def _counted(one: ReportedKernels) -> str:
    """``'40 launches of'``; a log of compilations without launches has reports."""
    many = one.launches != 1
    if any(kernel.mean.blocks for kernel in one.kernels):
        return f"{one.launches:,} launch{'es' if many else ''} of"
    return f"{one.launches:,} report{'s' if many else ''} on"


def _section(one: ReportedKernels, *, several: bool) -> Section:
    whose = f", rank {one.rank}" if several and one.rank is not None else ""
    tools = " and ".join(_TOOLS.get(tool, tool) for tool in one.tools)
    return Section(
        title=f"Kernels by {tools}{whose}",
        summary=_summary(one),
        blocks=(
            table(tuple(_columns(one)), one.kernels, few=FEW, left=one.left, rest="kernels"),
            *notes(*_remarks(one)),
        ),
    )


def _summary(one: ReportedKernels) -> str:
    """``'bound by latency 71%, memory 29% of their time in the trace per step'``."""
    shares = ", ".join(f"{bound} {share:.0%}" for bound, share in one.bounds.items())
    whose = f"in the trace{' per step' if one.steps else ''}" if one.has_trace else "by the tool"
    return f"bound by {shares} of their time {whose}" if shares else f"time {whose}" if one.has_trace else ""


def _columns(one: ReportedKernels) -> Iterator[Column[ReportedKernel]]:
    steps = max(1, one.steps)
    several = len({kernel.short for kernel in one.kernels}) < len(one.kernels)
    yield Column("kernel", lambda row: row.short, "code", limit=NAME_LIMIT)
    yield Column("blocks", lambda row: row.mean.blocks, "count", drop=0 if several else 4)
    yield Column("threads", lambda row: row.mean.threads_per_block, "count", drop=3)
    if one.has_trace:
        yield Column("time", lambda row: row.time_ns // steps if row.calls else "not in the trace", "ns")
        yield Column("calls", lambda row: row.calls // steps, "count", drop=6)
    else:
        yield Column("time", lambda row: None if row.mean.duration_ns is None else round(row.mean.duration_ns), "ns")
        yield Column("launches", lambda row: row.launches, "count", drop=6)
    yield Column("bound by", lambda row: row.mean.bound)
    yield Column("compute %", lambda row: _percent(row.mean.compute), "count", drop=9)
    yield Column("memory %", lambda row: _percent(row.mean.memory), "count", drop=7)
    yield Column("DRAM %", lambda row: _percent(row.mean.dram), "count", drop=8)
    yield Column("occupancy %", lambda row: _percent(row.mean.occupancy), "count")
    yield Column("possible %", lambda row: _percent(row.mean.possible_occupancy), "count", drop=2)
    yield Column("limited by", lambda row: row.mean.limit, drop=5)
    yield Column("registers", lambda row: row.mean.registers, "count", drop=10)
    yield Column("shared memory", lambda row: row.mean.shared_bytes or None, "bytes", drop=1)
    yield Column("spills", lambda row: row.mean.spills or None, "quantity")
    yield Column("compiled with", lambda row: row.mean.config, "code", drop=12)
    yield Column("autotuning", lambda row: row.mean.tuned, drop=13)
    yield Column("line", lambda row: row.mean.line, "place", drop=14)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _remarks(one: ReportedKernels) -> Iterator[str]:
    if any(kernel.mean.bound for kernel in one.kernels):
        yield "bound by latency: neither arithmetic nor memory reaches 60% of its peak"
    if any(kernel.mean.limit for kernel in one.kernels):
        yield "limited by: the resource of a block that allows the fewest blocks per SM, and so the possible occupancy"
    if "ncu" in one.tools:
        yield _CLOCKS
    if "rocprofv3" in one.tools:
        yield "compute: VALUBusy or MfmaUtil; memory: MemUnitBusy; spills: bytes of scratch memory per work-item"
    if "tritonparse" in one.tools and not any(kernel.mean.registers for kernel in one.kernels):
        yield "the log has no assembly, so registers and spills are unknown: record with TRITONPARSE_DUMP_SASS=1"
    if any(kernel.all_shapes for kernel in one.kernels):
        yield "the trace does not tell apart some launches of a kernel by shape or configuration; their time is of all"
