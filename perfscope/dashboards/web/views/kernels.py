"""Where the time goes by name: kernels and copies of devices, ops of the host, instructions of compiled programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.analyzers.compare.runs.keys import work_class
from perfscope.analyzers.programs import HotInstruction, HotSpots, hot_instructions
from perfscope.analyzers.time import call_site, op_times
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import NAME_CHARS, table, table_of_ranks
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize


@dataclass(slots=True)
class _Sum:
    """All calls of one name, over the ranks."""

    name: str
    ns: int
    count: int
    least_ns: int
    most_ns: int
    what: str
    op: str
    line: str

    def add(self, other: _Sum) -> None:
        """Take in another rank's; the place stays that of the first that knows one."""
        self.ns += other.ns
        self.count += other.count
        self.least_ns = min(self.least_ns, other.least_ns)
        self.most_ns = max(self.most_ns, other.most_ns)
        self.op, self.line = self.op or other.op, self.line or other.line


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
    Column("time", lambda row: row[0].ns, "ns", key="ns", width=100),
    Column("share", lambda row: row[0].ns / row[1], "share", key="share", width=84),
    Column("calls", lambda row: row[0].count, "count", key="count", width=90),
    Column("mean", lambda row: row[0].ns // max(row[0].count, 1), "ns", key="mean_ns", width=96),
    Column("line", lambda row: row[0].line, "code", key="line", width=240),
    Column("what", lambda row: row[0].what, key="class", width=130),
    Column("launched by", lambda row: row[0].op, "code", key="op", width=190),
    Column("least", lambda row: row[0].least_ns, "ns", key="least_ns", width=96),
    Column("most", lambda row: row[0].most_ns, "ns", key="most_ns", width=96),
)
"""What a reader begins with stands first: a phone shows two columns, a laptop the first seven."""


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
                if row.name in merged:
                    merged[row.name].add(row)
                else:
                    merged[row.name] = row
        tables[kind] = table(COLUMNS, _shares(merged.values())) | {"ns": sum(row.ns for row in merged.values())}
    rows = [(item.source.rank, row) for item in job.gathered for row in item.held["instructions"]]
    rows.sort(key=lambda row: -row[1].found.time_ns)
    several = len(job.gathered) > 1
    made = (
        table_of_ranks(INSTRUCTION_COLUMNS, rows) if several else table(INSTRUCTION_COLUMNS, [row for _, row in rows])
    )
    tables["instructions"] = made | {"ns": sum(row.found.time_ns for _, row in rows)}
    return {"tables": tables, "ranks": len(job.gathered)}


def _shares(found: Iterable[_Sum]) -> list[tuple[_Sum, int]]:
    """Rows with the sum of all, the longest first."""
    rows = sorted(found, key=lambda row: (-row.ns, row.name))
    whole = sum(row.ns for row in rows) or 1
    return [(row, whole) for row in rows]


def _device_work(trace: Trace) -> Iterator[_Sum]:
    """Kernels and copies by name; the op and the line are those of the longest one."""
    for name in ("kernels", "copies"):
        rows = trace.rows[name]
        if not len(rows):
            continue
        lasts = rows["end_ns"] - rows["start_ns"]
        for code, mine in _by_name(rows["name"]):
            longest = int(mine[np.argmax(lasts[mine])])
            op = int(rows["op"][longest])
            text = sanitize(trace.text(code), NAME_CHARS)
            what = "copy" if name == "copies" else work_class(trace.text(code))
            yield _summed(text, lasts[mine], what, trace, op)


def _ops(trace: Trace) -> Iterator[_Sum]:
    """Ops by name, by the time spent in them and in nothing inside them."""
    times = trace.fact(op_times)
    names = trace.rows["slices"]["name"][times.row]
    for code, mine in _by_name(names):
        longest = int(times.row[mine[np.argmax(times.self_ns[mine])]])
        text = trace.text(code)
        yield _summed(sanitize(text, NAME_CHARS), times.self_ns[mine], work_class(text), trace, longest, own=True)


def _instructions(trace: Trace) -> Iterator[_Instruction]:
    """Instructions of all programs."""
    for spots in trace.fact(hot_instructions):
        yield from (_Instruction(found, spots) for found in spots.instructions)


def _place(row: _Instruction) -> str:
    file, line = row.found.file, row.found.line
    return (row.found.serves or "") if file is None else file if line is None else f"{file}:{line}"


def _summed(name: str, lasts: np.ndarray, what: str, trace: Trace, op: int, *, own: bool = False) -> _Sum:
    site = call_site(trace, op)
    return _Sum(
        name=name or "(no name)",
        ns=int(lasts.sum()),
        count=len(lasts),
        least_ns=int(lasts.min()),
        most_ns=int(lasts.max()),
        what=what,
        op="" if own or op == MISSING else sanitize(trace.text(int(trace.rows["slices"]["name"][op]))),
        line="" if site.file is None else sanitize(site.where().label()),
    )


def _by_name(names: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(code, rows) of each name."""
    if not len(names):
        return
    order = np.argsort(names, kind="stable")
    codes, first = np.unique(names[order], return_index=True)
    for code, rows in zip(codes.tolist(), np.split(order, first[1:]), strict=True):
        yield int(code), rows
