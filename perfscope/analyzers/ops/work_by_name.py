"""Time by name: kernels and copies of devices, and ops of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.ops.achieved import Achieved, Costs, copy_costs, kernel_costs
from perfscope.analyzers.ops.host_costs import host_costs
from perfscope.analyzers.ops.top_work import WorkRow
from perfscope.analyzers.spans import op_times
from perfscope.analyzers.time import call_site
from perfscope.model.trace import MISSING, Trace


class NamedWork(WorkRow, frozen=True, kw_only=True):
    """All calls of one name in the whole trace. ``line`` and ``op`` are those of the longest call.

    Times of ops are their own, without the ops inside.
    """

    kind: Literal["kernels", "collectives", "copies", "ops"]
    least_ns: int
    most_ns: int
    shapes: str = ""
    """Shapes of the inputs of the longest call's op."""
    occupancy: float | None = None
    """Percent: mean, weighted by time, of the calls that have a value."""

    @property
    def mean_ns(self) -> int:
        """Mean time of a call."""
        return self.total_ns // max(self.calls, 1)

    def __add__(self, other: NamedWork) -> NamedWork:
        """Return both together, with the first known place; the occupancy is the first one."""
        return replace(
            self,
            total_ns=self.total_ns + other.total_ns,
            calls=self.calls + other.calls,
            least_ns=min(self.least_ns, other.least_ns),
            most_ns=max(self.most_ns, other.most_ns),
            op=self.op or other.op,
            line=self.line or other.line,
            shapes=self.shapes or other.shapes,
            achieved=self.achieved + other.achieved,
            occupancy=other.occupancy if self.occupancy is None else self.occupancy,
        )


def device_work_by_name(trace: Trace) -> Iterator[NamedWork]:
    """Yield kernels and copies by name, with the op and line of the longest one."""
    for table, costs in (("kernels", kernel_costs), ("copies", copy_costs)):
        rows = trace.rows[table]
        if not len(rows):
            continue
        known = trace.fact(costs)
        lasts = rows["end_ns"] - rows["start_ns"]
        for code, mine in rows_by_code(rows["name"]):
            kernels = table == "kernels"
            communicates = kernels and bool(rows["communication"][mine].any())
            longest = int(rows["op"][mine[np.argmax(lasts[mine])]])
            site = call_site(trace, longest)
            slices = trace.rows["slices"]
            yield NamedWork(
                kind="collectives" if communicates else "kernels" if kernels else "copies",
                name=trace.text(code),
                total_ns=int(lasts[mine].sum()),
                calls=len(mine),
                least_ns=int(lasts[mine].min()),
                most_ns=int(lasts[mine].max()),
                op="" if longest == MISSING else trace.text(int(slices["name"][longest])),
                line="" if site.file is None else site.where().label(),
                shapes="" if longest == MISSING else trace.text(int(slices["shapes"][longest])),
                achieved=achieved_by(known, mine, lasts[mine]),
                occupancy=_occupancy(rows["occupancy"][mine], lasts[mine]) if kernels else None,
            )


def ops_by_name(trace: Trace) -> Iterator[NamedWork]:
    """Yield ops of the host by name, by the time in them alone; with rates for ops that compute."""
    times = trace.fact(op_times)
    slices = trace.rows["slices"]
    costs = host_op_costs(trace)
    for code, mine in rows_by_code(slices["name"][times.row]):
        own = times.self_ns[mine]
        longest = int(times.row[mine[np.argmax(own)]])
        site = call_site(trace, longest)
        yield NamedWork(
            kind="ops",
            name=trace.text(code),
            total_ns=int(own.sum()),
            calls=len(own),
            least_ns=int(own.min()),
            most_ns=int(own.max()),
            line="" if site.file is None else site.where().label(),
            shapes=trace.text(int(slices["shapes"][longest])),
            achieved=achieved_by(costs, mine, own),
        )


def rows_by_code(codes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (code, rows) of each code, in order of the codes."""
    if not len(codes):
        return
    order = np.argsort(codes, kind="stable")
    distinct, first = np.unique(codes[order], return_index=True)
    for code, rows in zip(distinct.tolist(), np.split(order, first[1:]), strict=True):
        yield int(code), rows


def achieved_by(costs: Costs, rows: np.ndarray, lasts: np.ndarray) -> Achieved:
    """Return the rates of those rows of ``costs`` whose cost is known; ``lasts``: their times, ns."""
    known = ~np.isnan(costs.bytes[rows]) & (lasts > 0)
    roofed = known & ~np.isnan(costs.roof_ns[rows])
    return Achieved(
        flops=float(np.nansum(costs.flops[rows][known])),
        bytes=float(costs.bytes[rows][known].sum()),
        time_ns=int(lasts[known].sum()),
        roof_ns=float(costs.roof_ns[rows][roofed].sum()),
        roofed_ns=int(lasts[roofed].sum()),
    )


def host_op_costs(trace: Trace) -> Costs:
    """Return costs by row of `op_times`, for ops that ran on the host; ops that launched device work have none."""
    rows = trace.fact(op_times).row
    known = {} if len(trace.rows["kernels"]) else host_costs(trace, rows.tolist())
    found = [known.get(row) for row in rows.tolist()]
    return Costs(
        flops=np.array([np.nan if cost is None else cost.flops for cost in found]),
        bytes=np.array([np.nan if cost is None else cost.bytes for cost in found]),
        roof_ns=np.full(len(rows), np.nan),
        repeats=np.zeros(len(rows), bool),
    )


def _occupancy(percent: np.ndarray, lasts: np.ndarray) -> float | None:
    known = ~np.isnan(percent) & (percent >= 0)
    weight = float(lasts[known].sum())
    return float((percent[known] * lasts[known]).sum()) / weight if weight else None
