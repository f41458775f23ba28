"""Where the time goes by name: kernels and copies of devices, ops of the host, instructions of compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfscope.analyzers.ops.achieved import NOTHING, Achieved, Costs, copy_costs, host_costs, kernel_costs
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.programs import HotInstruction, HotSpots, hot_instructions
from perfscope.analyzers.time import call_site, op_times
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, Category, kernel_category, op_category
from perfscope.dashboards.web.timeline.names import NAME_CHARS, name_id
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import table, table_of_ranks
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize


@dataclass(slots=True)
class _Sum:
    """All calls of one name, over the ranks."""

    id: str
    """Of the whole name, as the timeline has it."""
    whole: str
    name: str
    """Short."""
    ns: int
    count: int
    least_ns: int
    most_ns: int
    what: str
    op: str
    line: str
    shapes: str = ""
    """Of the inputs of the longest call's op."""
    achieved: Achieved = NOTHING
    """Of the calls whose cost is known."""
    occupancy: float | None = None
    """Percent, of the calls that say it the mean by time."""

    def add(self, other: _Sum) -> None:
        """Take in another rank's; the place stays that of the first that knows one."""
        self.ns += other.ns
        self.count += other.count
        self.least_ns = min(self.least_ns, other.least_ns)
        self.most_ns = max(self.most_ns, other.most_ns)
        self.op, self.line = self.op or other.op, self.line or other.line
        self.shapes = self.shapes or other.shapes
        self.achieved += other.achieved
        if self.occupancy is None:
            self.occupancy = other.occupancy


@dataclass(frozen=True, slots=True)
class _Instruction:
    """An instruction, and the list whose time its share is of."""

    found: HotInstruction
    spots: HotSpots


INSTRUCTION_COLUMNS: tuple[Column[_Instruction], ...] = (
    Column("instruction", lambda row: row.found.instruction, "code", key="name"),
    Column("time", lambda row: row.found.time_ns, "ns", key="ns", width=96),
    Column("share", lambda row: row.found.time_ns / (row.spots.total_ns or 1), "share", key="share", width=80),
    Column("basis", lambda row: row.spots.basis, key="basis", width=104),
    Column("line", lambda row: _place(row), "code", key="line", width=240),
    Column("opcode", lambda row: row.found.opcode or "", key="opcode", width=110),
    Column("phase", lambda row: row.found.phase or "", key="phase", width=104),
    Column("scope", lambda row: row.found.scope or "", "code", key="scope", width=220),
    Column("calls", lambda row: row.found.calls, "count", key="count", width=80),
    Column(
        "least possible",
        lambda row: None if row.found.roof_ns is None else round(row.found.roof_ns),
        "ns",
        key="roof_ns",
        width=110,
    ),
    Column("beyond it", lambda row: row.found.headroom_ns, "ns", key="headroom_ns", width=100),
    Column("FLOPs a call", lambda row: row.found.flops, "quantity", key="flops", width=110),
    Column("bytes a call", lambda row: row.found.bytes, "bytes", key="bytes", width=110),
    Column("program", lambda row: row.found.program, "code", key="program", width=150),
)
COLUMNS: tuple[Column[tuple[_Sum, int]], ...] = (
    Column("name", lambda row: row[0].name, "code", key="name"),
    Column("time", lambda row: row[0].ns, "ns", key="ns", width=92),
    Column("share", lambda row: row[0].ns / row[1], "share", key="share", width=80),
    Column("calls", lambda row: row[0].count, "count", key="count", width=80),
    Column("mean", lambda row: row[0].ns // max(row[0].count, 1), "ns", key="mean_ns", width=88),
    Column("what", lambda row: row[0].what, key="class", width=140),
    Column("FLOP/s", lambda row: row[0].achieved.flops_per_s, "quantity", key="flops_per_s", width=86),
    Column("B/s", lambda row: row[0].achieved.bytes_per_s, "quantity", key="bytes_per_s", width=86),
    Column("of the roofline", lambda row: row[0].achieved.roofline_share, "share", key="roofline_share", width=96),
    Column("line", lambda row: row[0].line, "code", key="line", width=220),
    Column("launched by", lambda row: row[0].op, "code", key="op", width=190),
    Column("input shapes", lambda row: row[0].shapes, "code", key="shapes", width=210),
    Column("occupancy %", lambda row: row[0].occupancy, "count", key="occupancy", width=100),
    Column("least", lambda row: row[0].least_ns, "ns", key="least_ns", width=88),
    Column("most", lambda row: row[0].most_ns, "ns", key="most_ns", width=88),
    Column("", lambda row: row[0].whole, key="whole"),
    Column("", lambda row: row[0].id, key="id"),
)
"""What a reader begins with stands first: a phone shows two columns, a laptop the first ten."""
GROUPS: dict[str, Callable[[_Sum], str]] = {
    "what": lambda row: row.what,
    "op": lambda row: row.op,
    "line": lambda row: row.line,
}
"""By what rows can be put together besides their name."""
GROUP_COLUMNS: tuple[Column[tuple[_Sum, int]], ...] = (
    Column("group", lambda row: row[0].name, "code", key="name"),
    *(column for column in COLUMNS if column.key in (
        "ns", "share", "count", "mean_ns", "flops_per_s", "bytes_per_s", "roofline_share", "least_ns", "most_ns")),
)  # fmt: skip
UNKNOWN = "(not known)"


def gather(trace: Trace, place: Place) -> dict[str, list[Any]]:
    """Sums of one rank by kind."""
    return {"kernels": list(_device_work(trace)), "ops": list(_ops(trace)), "instructions": list(_instructions(trace))}


def view(job: Job) -> dict[str, Any]:
    """``tables``: one a kind, the longest first. Shares are of the kind's sum, so they add up to one."""
    tables = {}
    for kind in ("kernels", "ops"):
        merged: dict[str, _Sum] = {}
        for item in job.gathered:
            for row in item.held[kind]:
                _into(merged, row.id, row)
        tables[kind] = table(COLUMNS, _shares(merged.values())) | {"ns": sum(row.ns for row in merged.values())}
        for group, of in GROUPS.items():
            grouped: dict[str, _Sum] = {}
            for row in merged.values():
                name = of(row) or UNKNOWN
                _into(grouped, name, replace(row, name=name))
            known = grouped.keys() - {UNKNOWN}
            some = _shares(grouped.values()) if known else []
            tables[f"{kind}-{group}"] = table(GROUP_COLUMNS, some) | {"ns": tables[kind]["ns"]}
    rows = [(item.source.rank, row) for item in job.gathered for row in item.held["instructions"]]
    rows.sort(key=lambda row: -row[1].found.time_ns)
    several = len(job.gathered) > 1
    made = (
        table_of_ranks(INSTRUCTION_COLUMNS, rows) if several else table(INSTRUCTION_COLUMNS, [row for _, row in rows])
    )
    tables["instructions"] = made | {"ns": sum(row.found.time_ns for _, row in rows)}
    return {"tables": tables, "ranks": len(job.gathered)}


def _into(sums: dict[str, _Sum], key: str, row: _Sum) -> None:
    if key in sums:
        sums[key].add(row)
    else:
        sums[key] = replace(row)


def _shares(found: Iterable[_Sum]) -> list[tuple[_Sum, int]]:
    """Rows with the sum of all, the longest first."""
    rows = sorted(found, key=lambda row: (-row.ns, row.name))
    whole = sum(row.ns for row in rows) or 1
    return [(row, whole) for row in rows]


def _device_work(trace: Trace) -> Iterator[_Sum]:
    """Kernels and copies by name; the op and the line are those of the longest one."""
    for name, costs in (("kernels", kernel_costs), ("copies", copy_costs)):
        rows = trace.rows[name]
        if not len(rows):
            continue
        known = trace.fact(costs)
        lasts = rows["end_ns"] - rows["start_ns"]
        for code, mine in _by_name(rows["name"]):
            text = trace.text(code)
            longest = int(mine[np.argmax(lasts[mine])])
            what = Category.COPY if name == "copies" else kernel_category(text)
            if name == "kernels" and rows["communication"][mine].any():
                what = Category.COLLECTIVE
            made = _summed(trace, text, lasts[mine], what, int(rows["op"][longest]))
            made.name = sanitize(short_kernel_name(text) if name == "kernels" else text, NAME_CHARS)
            made.achieved = _achieved(known, mine, lasts[mine])
            made.occupancy = _occupancy(rows["occupancy"][mine], lasts[mine]) if name == "kernels" else None
            yield made


def _achieved(costs: Costs, rows: np.ndarray, lasts: np.ndarray) -> Achieved:
    """Of rows of a table of device work, those whose cost is known."""
    known = ~np.isnan(costs.bytes[rows]) & (lasts > 0)
    roofed = known & ~np.isnan(costs.roof_ns[rows])
    return Achieved(
        flops=float(np.nansum(costs.flops[rows][known])),
        bytes=float(costs.bytes[rows][known].sum()),
        time_ns=int(lasts[known].sum()),
        roof_ns=float(costs.roof_ns[rows][roofed].sum()),
        roofed_ns=int(lasts[roofed].sum()),
    )


def _occupancy(percent: np.ndarray, lasts: np.ndarray) -> float | None:
    known = ~np.isnan(percent) & (percent >= 0)
    weight = float(lasts[known].sum())
    return float((percent[known] * lasts[known]).sum()) / weight if weight else None


def _ops(trace: Trace) -> Iterator[_Sum]:
    """Ops by name, by the time spent in them and in nothing inside them; what they achieved, where they compute."""
    times = trace.fact(op_times)
    slices = trace.rows["slices"]
    on_host = not len(trace.rows["kernels"])
    costs = host_costs(trace, times.row.tolist()) if on_host else {}
    for code, mine in _by_name(slices["name"][times.row]):
        own = times.self_ns[mine]
        longest = int(times.row[mine[np.argmax(own)]])
        text = trace.text(code)
        what = op_category(text)
        made = _summed(trace, text, own, Category.OP if what is None else what, longest, own=True)
        pairs = zip(times.row[mine].tolist(), own.tolist(), strict=True)
        known = [(costs[row], length) for row, length in pairs if row in costs]
        if known:
            made.achieved = Achieved(
                flops=sum(cost.flops for cost, _ in known),
                bytes=sum(cost.bytes for cost, _ in known),
                time_ns=sum(length for _, length in known),
            )
        yield made


def _instructions(trace: Trace) -> Iterator[_Instruction]:
    """Instructions of all programs."""
    for spots in trace.fact(hot_instructions):
        yield from (_Instruction(found, spots) for found in spots.instructions)


def _place(row: _Instruction) -> str:
    file, line = row.found.file, row.found.line
    return (row.found.serves or "") if file is None else file if line is None else f"{file}:{line}"


def _summed(trace: Trace, text: str, lasts: np.ndarray, what: Category, op: int, *, own: bool = False) -> _Sum:
    """All calls of a name; ``op``: the row of ``slices`` that launched the longest, or (``own``) is it."""
    site, slices = call_site(trace, op), trace.rows["slices"]
    name = sanitize(text, NAME_CHARS) or "(no name)"
    return _Sum(
        id=name_id(text),
        whole=name,
        name=name,
        ns=int(lasts.sum()),
        count=len(lasts),
        least_ns=int(lasts.min()),
        most_ns=int(lasts.max()),
        what=CATEGORY_WORDS[what],
        op="" if own or op == MISSING else sanitize(trace.text(int(slices["name"][op]))),
        line="" if site.file is None else sanitize(site.where().label()),
        shapes="" if op == MISSING else sanitize(trace.text(int(slices["shapes"][op])), NAME_CHARS),
    )


def _by_name(names: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(code, rows) of each name."""
    if not len(names):
        return
    order = np.argsort(names, kind="stable")
    codes, first = np.unique(names[order], return_index=True)
    for code, rows in zip(codes.tolist(), np.split(order, first[1:]), strict=True):
        yield int(code), rows
