"""Kernels that other tools reported on: what limits each, with its time in the trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ops import short_kernel_name
from perfscope.analyzers.time import warm_windows
from perfscope.model.trace import MISSING, Trace
from perfscope.plugins.kernel_reports.join import Joined, joined
from perfscope.plugins.kernel_reports.record import KernelReport, reports_of

MOST_ROWS = 50
"""Maximum number of kernels kept for a report."""

LITTLE = 50.0
"""Percent of occupancy below which its limit is named: with half of the warps, most kernels hide their latency (Volkov,
"Better performance at lower occupancy", GTC 2010)."""


class ReportedKernel(Struct, frozen=True, kw_only=True):
    """One kernel and shape."""

    short: str
    mean: KernelReport
    """Mean of its launches: shares weighted by the tool's durations."""
    launches: int
    """That the tool reported on."""
    calls: int
    """In the steps of the trace."""
    time_ns: int
    """Time of the calls in the trace."""
    all_shapes: bool
    op: str
    """Op that launched most of the calls."""

    @property
    def sentence(self) -> str:
        """Limit of the kernel in a few words for a table of kernels; empty if unknown."""
        return ", ".join(filter(None, (self._bound(), self._occupancy(), self._spills())))

    def _spills(self) -> str:
        if not self.mean.spills:
            return ""
        # Scratch memory also holds arrays that a kernel indexes.
        return "scratch memory" if self.mean.tool == "rocprofv3" else "spills registers"

    def _bound(self) -> str:
        mean = self.mean
        memory = max(mean.memory or 0.0, mean.dram or 0.0)
        level = "memory" if mean.dram is None else "DRAM" if mean.dram >= memory else "cache"
        unit = "SM" if mean.tool == "ncu" else "ALU"
        shares = {"compute": f"{unit} {mean.compute or 0:.0f}%", "memory": f"{level} {memory:.0f}%"}
        if mean.bound is None:
            return ""
        return f"{mean.bound}: {shares[mean.bound] if mean.bound in shares else ', '.join(shares.values())}"

    def _occupancy(self) -> str:
        mean = self.mean
        if mean.occupancy is None and (mean.possible_occupancy or 100) < LITTLE and mean.limit is not None:
            return f"occupancy at most {mean.possible_occupancy:.0f}% ({mean.limit})"
        if mean.occupancy is None or mean.occupancy >= LITTLE:
            return ""
        why = mean.limit if (mean.possible_occupancy or 100) < LITTLE else "few blocks" if (mean.waves or 9) < 1 else ""
        return f"occupancy {mean.occupancy:.0f}%{f' ({why})' if why else ''}"


class ReportedKernels(Struct, frozen=True, kw_only=True):
    """Kernels of one recording that other tools reported on."""

    rank: int | None
    tools: tuple[str, ...]
    launches: int
    steps: int
    """Steps of the times; 0: the whole capture, or no trace."""
    kernels: tuple[ReportedKernel, ...]
    left: int
    """Kernels that are not kept."""
    unmatched: int
    """Kernels of the reports that the trace lacks; 0 without a trace."""
    has_trace: bool
    bounds: dict[str, float]
    """Share of the time of kernels with a known bound, by bound, largest first: of the trace, else of the tool."""


def kernel_summary(trace: Trace) -> ReportedKernels | None:
    """Return the reported kernels of a trace, or of reports alone; ``None`` without reports."""
    reports = reports_of(trace)
    if not reports:
        return None
    found = trace.fact(joined)
    has_trace = bool(len(trace.rows["kernels"]))
    return ReportedKernels(
        rank=trace.source.rank,
        tools=tuple(dict.fromkeys(report.tool for report in reports)),
        launches=len(reports),
        steps=len(trace.fact(warm_windows).numbers) if has_trace else 0,
        kernels=tuple(reported_kernel(trace, one) for one in found[:MOST_ROWS]),
        left=max(0, len(found) - MOST_ROWS),
        unmatched=sum(not len(one.rows) for one in found) if has_trace else 0,
        has_trace=has_trace,
        bounds=_bounds([reported_kernel(trace, one) for one in found], has_trace=has_trace),
    )


def _bounds(kernels: Sequence[ReportedKernel], *, has_trace: bool) -> dict[str, float]:
    times: dict[str, float] = {}
    for one in kernels:
        time, bound = one.time_ns if has_trace else (one.mean.duration_ns or 0.0) * one.launches, one.mean.bound
        if bound is not None and time:
            times[bound] = times.get(bound, 0.0) + time
    return {name: times[name] / sum(times.values()) for name in sorted(times, key=times.__getitem__, reverse=True)}


def reported_kernel(trace: Trace, found: Joined) -> ReportedKernel:
    """Return the row of one kernel and shape."""
    reports, first = found.reports, found.reports[0]
    shares = ("compute", "memory", "dram", "occupancy", "possible_occupancy")
    mean = replace(
        first,
        **{name: _mean(reports, name) for name in shares},
        **{
            name: _plain_mean(getattr(report, name) for report in reports)
            for name in ("duration_ns", "spills", "waves")
        },
    )
    return ReportedKernel(
        short=short_kernel_name(first.name), mean=mean, launches=len(reports), calls=len(found.rows),
        time_ns=found.time_ns, all_shapes=found.all_shapes, op=_op(trace, found),
    )  # fmt: skip


def kernel_notes(trace: Trace) -> dict[str, str]:
    """Return what limits a kernel by its name in the trace; of several shapes, the one with most time."""
    notes: dict[str, str] = {}
    for one in trace.fact(joined):
        sentence = reported_kernel(trace, one).sentence if len(one.rows) else ""
        if sentence:
            for code in dict.fromkeys(trace.rows["kernels"]["name"][one.rows].tolist()):
                notes.setdefault(trace.text(code), sentence)
    return notes


def _op(trace: Trace, found: Joined) -> str:
    ops = trace.rows["kernels"]["op"][found.rows]
    first = ops[ops != MISSING][:1].tolist()
    return trace.text(int(trace.rows["slices"]["name"][first[0]])) if first else ""


def _mean(reports: Sequence[KernelReport], name: str) -> float | None:
    """Mean of a share, weighted by duration."""
    known = [(getattr(one, name), one.duration_ns or 1.0) for one in reports if getattr(one, name) is not None]
    weight = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weight if weight else None


def _plain_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
