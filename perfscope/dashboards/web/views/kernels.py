"""Where the time goes by name: kernels and copies of devices, ops of the host, instructions of compiled programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ops import module_label
from perfscope.analyzers.ops.achieved import NOTHING, Achieved, Costs, copy_costs, host_costs, kernel_costs
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.programs.tables.instructions import RESULT as INSTRUCTIONS
from perfscope.analyzers.programs.tables.instructions import instructions
from perfscope.analyzers.time import MOST_SITES, UNKNOWN_SITE, CallSite, call_site, launch_sites, op_times
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.results import shown
from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, Category, kernel_category, op_category, stream_names
from perfscope.dashboards.web.timeline.names import NAME_CHARS, name_id
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import table, table_of_ranks
from perfscope.model.trace import MISSING, Trace
from perfscope.model.untrusted_text import sanitize

GROUPS = {
    "kernels": ("what", "op", "module", "line", "stream", "rank"),
    "ops": ("what", "module", "line", "rank"),
}
"""Ways to group work besides by name, by kind."""

UNKNOWN = "(not known)"


class _Sum(Struct):
    """All calls of one name, over the ranks."""

    id: str
    """Id of the whole name, as in the timeline."""
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
    """Shapes of the inputs of the longest call's op."""
    achieved: Achieved = NOTHING
    """Rates of calls whose cost is known."""
    occupancy: float | None = None
    """Percent: mean, weighted by time, of the calls that have a value."""

    def add(self, other: _Sum) -> None:
        """Merge another rank's totals; keep the first known place."""
        self.ns += other.ns
        self.count += other.count
        self.least_ns = min(self.least_ns, other.least_ns)
        self.most_ns = max(self.most_ns, other.most_ns)
        self.op, self.line = self.op or other.op, self.line or other.line
        self.shapes = self.shapes or other.shapes
        self.achieved += other.achieved
        if self.occupancy is None:
            self.occupancy = other.occupancy


INSTRUCTION_COLUMNS = shown(
    INSTRUCTIONS, "name", "time_ns", "share", "basis", "line", "opcode", "phase", "scope", "calls", "roof_ns",
    "headroom_ns", "flops", "bytes", "program",
)  # fmt: skip
COLUMNS: tuple[Column[tuple[_Sum, int]], ...] = (
    Column("name", lambda row: row[0].name, "code", key="name"),
    Column("time", lambda row: row[0].ns, "ns", key="ns", width=92),
    Column("share", lambda row: row[0].ns / row[1], "share", key="share", width=80),
    Column("calls", lambda row: row[0].count, "count", key="count", width=80),
    Column("mean", lambda row: row[0].ns // max(row[0].count, 1), "ns", key="mean_ns", width=88),
    Column("what", lambda row: row[0].what, key="class", width=140),
    Column("FLOP/s", lambda row: row[0].achieved.flops_per_s, "quantity", key="flops_per_s", width=86),
    Column("B/s", lambda row: row[0].achieved.bytes_per_s, "quantity", key="bytes_per_s", width=86),
    Column("of roofline", lambda row: row[0].achieved.roofline_share, "share", key="roofline_share", width=96),
    Column("line", lambda row: row[0].line, "code", key="line", width=220),
    Column("launched by", lambda row: row[0].op, "code", key="op", width=190),
    Column("input shapes", lambda row: row[0].shapes, "code", key="shapes", width=210),
    Column("occupancy %", lambda row: row[0].occupancy, "count", key="occupancy", width=100),
    Column("least", lambda row: row[0].least_ns, "ns", key="least_ns", width=88),
    Column("most", lambda row: row[0].most_ns, "ns", key="most_ns", width=88),
    Column("", lambda row: row[0].whole, key="whole"),
    Column("", lambda row: row[0].id, key="id"),
)
"""Most important columns first: a phone shows two, a laptop the first ten."""
GROUP_COLUMNS: tuple[Column[tuple[_Sum, int]], ...] = (
    Column("group", lambda row: row[0].name, "code", key="name"),
    *(column for column in COLUMNS if column.key in (
        "ns", "share", "count", "mean_ns", "flops_per_s", "bytes_per_s", "roofline_share", "least_ns", "most_ns")),
)  # fmt: skip


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Sums of one rank by kind; ``groups``: kind -> group -> sums."""
    return {
        "kernels": list(_device_work(trace)),
        "ops": list(_ops(trace)),
        "instructions": list(instructions(trace)),
        "groups": {"kernels": _device_groups(trace), "ops": _op_groups(trace)},
    }


def view(job: Job) -> dict[str, Any]:
    """``tables``: one per kind, longest first. Shares are of the kind's sum, so they add up to 1."""
    tables = {}
    for kind in ("kernels", "ops"):
        merged: dict[str, _Sum] = {}
        for item in job.gathered:
            for row in item.held[kind]:
                _into(merged, row.id, row)
        tables[kind] = table(COLUMNS, _shares(merged.values())) | {"ns": sum(row.ns for row in merged.values())}
        for group in GROUPS[kind]:
            grouped: dict[str, _Sum] = {}
            for item in job.gathered:
                rank = UNKNOWN if item.source.rank is None else f"rank {item.source.rank}"
                found = item.held[kind] if group == "rank" else item.held["groups"][kind].get(group, ())
                for row in found:
                    name = rank if group == "rank" else row.name
                    _into(grouped, name, replace(row, name=name))
            some = _shares(grouped.values()) if grouped.keys() - {UNKNOWN} else []
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
    """Rows with the total, longest first."""
    rows = sorted(found, key=lambda row: (-row.ns, row.name))
    whole = sum(row.ns for row in rows) or 1
    return [(row, whole) for row in rows]


def _device_work(trace: Trace) -> Iterator[_Sum]:
    """Kernels and copies by name, with the op and line of the longest one."""
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


def _device_groups(trace: Trace) -> dict[str, list[_Sum]]:
    """Kernels and copies by category, op, module, line and stream: each call counts in its own group."""
    result: dict[str, list[_Sum]] = {}
    sites, streams = trace.fact(launch_sites), stream_names(trace)
    for name, costs in (("kernels", kernel_costs), ("copies", copy_costs)):
        rows = trace.rows[name]
        if not len(rows):
            continue
        known, lasts = trace.fact(costs), rows["end_ns"] - rows["start_ns"]
        device = rows["device"]
        labels = {
            "what": _each(rows["name"], lambda code: _word(trace, code, kernel=True))
            if name == "kernels"
            else np.full(len(rows), CATEGORY_WORDS[Category.COPY], object),
            "op": _each(rows["op"], lambda op: UNKNOWN if op == MISSING else _op_name(trace, op)),
            "module": _each(rows["op"], lambda op: _module(sites.get(op, UNKNOWN_SITE))),
            "line": _each(rows["op"], lambda op: _line(sites.get(op, UNKNOWN_SITE))),
            "stream": np.array([streams[line] for line in zip(device.tolist(), rows["stream"].tolist(), strict=True)]),
        }
        if name == "kernels":
            labels["what"][rows["communication"]] = CATEGORY_WORDS[Category.COLLECTIVE]
        for group, each in labels.items():
            for label, mine in _by_label(each):
                row = _group(label, lasts[mine])
                row.achieved = _achieved(known, mine, lasts[mine])
                result.setdefault(group, []).append(row)
    return result


def _op_groups(trace: Trace) -> dict[str, list[_Sum]]:
    """Ops by category, module and line, by self time."""
    times = trace.fact(op_times)
    if not len(times.row):
        return {}
    longest = times.row[np.argsort(-times.self_ns, kind="stable")][:MOST_SITES].tolist()
    sites = {row: call_site(trace, row) for row in longest}
    names = trace.rows["slices"]["name"][times.row]
    labels = {
        "what": _each(names, lambda code: _word(trace, code, kernel=False)),
        "module": _each(times.row, lambda row: _module(sites.get(row, UNKNOWN_SITE))),
        "line": _each(times.row, lambda row: _line(sites.get(row, UNKNOWN_SITE))),
    }
    costs = _host_costs(trace)
    result: dict[str, list[_Sum]] = defaultdict(list)
    for group, each in labels.items():
        for label, mine in _by_label(each):
            row = _group(label, times.self_ns[mine])
            row.achieved = _achieved(costs, mine, times.self_ns[mine])
            result[group].append(row)
    return dict(result)


def _each(keys: np.ndarray, text: Callable[[int], str]) -> np.ndarray:
    """The text of each row, computed once per key: shape of ``keys``, dtype object."""
    distinct, at = np.unique(keys, return_inverse=True)
    return np.array([text(key) for key in distinct.tolist()], object)[at]


def _by_label(labels: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(label, rows) of each label."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    of_row = np.array([numbers[label] for label in labels.tolist()])
    for (number, mine), label in zip(_by_name(of_row), numbers, strict=True):
        assert numbers[label] == number
        yield label, mine


def _group(label: str, lasts: np.ndarray) -> _Sum:
    return _Sum(
        id="", whole=label, name=label, ns=int(lasts.sum()), count=len(lasts), least_ns=int(lasts.min()),
        most_ns=int(lasts.max()), what="", op="", line="",
    )  # fmt: skip


def _word(trace: Trace, code: int, *, kernel: bool) -> str:
    text = trace.text(code)
    return CATEGORY_WORDS[kernel_category(text) if kernel else op_category(text, Category.OP)]


def _op_name(trace: Trace, op: int) -> str:
    return sanitize(trace.text(int(trace.rows["slices"]["name"][op])), NAME_CHARS)


def _module(site: CallSite) -> str:
    return sanitize(module_label(site)) if site.module else UNKNOWN


def _line(site: CallSite) -> str:
    return UNKNOWN if site.file is None else sanitize(site.where().label())


def _achieved(costs: Costs, rows: np.ndarray, lasts: np.ndarray) -> Achieved:
    """Rates of rows of a device-work table whose cost is known."""
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
    """Ops by name, by self time; with rates for ops that compute."""
    times = trace.fact(op_times)
    slices = trace.rows["slices"]
    costs = _host_costs(trace)
    for code, mine in _by_name(slices["name"][times.row]):
        own = times.self_ns[mine]
        longest = int(times.row[mine[np.argmax(own)]])
        text = trace.text(code)
        made = _summed(trace, text, own, op_category(text, Category.OP), longest, own=True)
        made.achieved = _achieved(costs, mine, own)
        yield made


def _host_costs(trace: Trace) -> Costs:
    """By row of `op_times`, for ops that ran on the host; ops that launched device work have no cost."""
    rows = trace.fact(op_times).row
    known = {} if len(trace.rows["kernels"]) else host_costs(trace, rows.tolist())
    found = [known.get(row) for row in rows.tolist()]
    return Costs(
        flops=np.array([np.nan if cost is None else cost.flops for cost in found]),
        bytes=np.array([np.nan if cost is None else cost.bytes for cost in found]),
        roof_ns=np.full(len(rows), np.nan),
        repeats=np.zeros(len(rows), bool),
    )


def _summed(trace: Trace, text: str, lasts: np.ndarray, what: Category, op: int, *, own: bool = False) -> _Sum:
    """All calls of a name; ``op``: the row of ``slices`` that launched the longest, or (``own``) the call itself."""
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
