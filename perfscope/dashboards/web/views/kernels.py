"""Where the time goes by name: kernels and copies of devices, ops of the host, instructions of compiled programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.ops import RESULT as WORK
from perfscope.analyzers.ops import (
    Costs,
    NamedWork,
    achieved_by,
    copy_costs,
    device_work_by_name,
    host_op_costs,
    kernel_costs,
    module_label,
    ops_by_name,
    rows_by_code,
    short_kernel_name,
)
from perfscope.analyzers.programs import RESULT as INSTRUCTIONS
from perfscope.analyzers.programs import instructions
from perfscope.analyzers.spans import op_times
from perfscope.analyzers.time import MOST_SITES, UNKNOWN_SITE, CallSite, call_site, launch_sites
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

_OF_KIND = {"copies": Category.COPY, "collectives": Category.COLLECTIVE}


INSTRUCTION_COLUMNS = shown(
    INSTRUCTIONS, "name", "time_ns", "share", "basis", "line", "opcode", "phase", "scope", "calls", "roof_ns",
    "headroom_ns", "flops", "bytes", "program",
)  # fmt: skip


def _columns(whole: int) -> tuple[Column[NamedWork], ...]:
    """Most important columns first: a phone shows two, a laptop the first ten. ``whole``: time of all rows, ns."""
    return (
        *shown(WORK, "name", "time_ns", name=_short),
        _share(whole),
        *shown(WORK, "calls", "mean_ns"),
        Column("what", lambda work: CATEGORY_WORDS[_category(work)], key="class", width=140),
        *shown(WORK, "flops_per_s", "bytes_per_s", "roofline_share", "line", "op", "shapes", "occupancy", "least_ns"),
        *shown(WORK, "most_ns"),
        Column("", _whole, key="whole"),
        Column("", lambda work: name_id(work.name), key="id"),
    )


def _group_columns(whole: int) -> tuple[Column[NamedWork], ...]:
    return (
        Column("group", lambda work: work.name, "code", key="name"),
        *shown(WORK, "time_ns"),
        _share(whole),
        *shown(WORK, "calls", "mean_ns", "flops_per_s", "bytes_per_s", "roofline_share", "least_ns", "most_ns"),
    )


def _share(whole: int) -> Column[NamedWork]:
    return Column("share", lambda work: work.total_ns / (whole or 1), "share", key="share", width=80)


def _whole(work: NamedWork) -> str:
    return sanitize(work.name, NAME_CHARS) or "(no name)"


def _short(work: NamedWork) -> str:
    of_kernel = work.kind in ("kernels", "collectives")
    return sanitize(short_kernel_name(work.name), NAME_CHARS) if of_kernel else _whole(work)


def _category(work: NamedWork) -> Category:
    if work.kind in _OF_KIND:
        return _OF_KIND[work.kind]
    return op_category(work.name, Category.OP) if work.kind == "ops" else kernel_category(work.name)


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Sums of one rank by kind; ``groups``: kind -> group -> sums."""
    return {
        "kernels": list(device_work_by_name(trace)),
        "ops": list(ops_by_name(trace)),
        "instructions": list(instructions(trace)),
        "groups": {"kernels": _device_groups(trace), "ops": _op_groups(trace)},
    }


def view(job: Job) -> dict[str, Any]:
    """``tables``: one per kind, longest first. Shares are of the kind's sum, so they add up to 1."""
    tables = {}
    for kind in ("kernels", "ops"):
        merged: dict[str, NamedWork] = {}
        for item in job.gathered:
            for row in item.held[kind]:
                _into(merged, row.name, row)
        whole = sum(row.total_ns for row in merged.values())
        tables[kind] = table(_columns(whole), _longest(merged)) | {"ns": whole}
        for group in GROUPS[kind]:
            grouped: dict[str, NamedWork] = {}
            for item in job.gathered:
                rank = UNKNOWN if item.source.rank is None else f"rank {item.source.rank}"
                found = item.held[kind] if group == "rank" else item.held["groups"][kind].get(group, ())
                for row in found:
                    name = rank if group == "rank" else row.name
                    _into(grouped, name, replace(row, name=name))
            known = _longest(grouped) if grouped.keys() - {UNKNOWN} else []
            shared = sum(row.total_ns for row in grouped.values())
            tables[f"{kind}-{group}"] = table(_group_columns(shared), known) | {"ns": whole}
    rows = [(item.source.rank, row) for item in job.gathered for row in item.held["instructions"]]
    rows.sort(key=lambda row: -row[1].found.time_ns)
    several = len(job.gathered) > 1
    made = (
        table_of_ranks(INSTRUCTION_COLUMNS, rows) if several else table(INSTRUCTION_COLUMNS, [row for _, row in rows])
    )
    tables["instructions"] = made | {"ns": sum(row.found.time_ns for _, row in rows)}
    return {"tables": tables, "ranks": len(job.gathered)}


def _into(sums: dict[str, NamedWork], key: str, row: NamedWork) -> None:
    sums[key] = sums[key] + row if key in sums else row


def _longest(found: dict[str, NamedWork]) -> list[NamedWork]:
    return sorted(found.values(), key=lambda row: (-row.total_ns, row.name))


def _device_groups(trace: Trace) -> dict[str, list[NamedWork]]:
    """Kernels and copies by category, op, module, line and stream: each call counts in its own group."""
    result: dict[str, list[NamedWork]] = {}
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
                result.setdefault(group, []).append(_group(label, lasts[mine], known, mine))
    return result


def _op_groups(trace: Trace) -> dict[str, list[NamedWork]]:
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
    costs = host_op_costs(trace)
    result: dict[str, list[NamedWork]] = defaultdict(list)
    for group, each in labels.items():
        for label, mine in _by_label(each):
            result[group].append(_group(label, times.self_ns[mine], costs, mine))
    return dict(result)


def _each(keys: np.ndarray, text: Callable[[int], str]) -> np.ndarray:
    """The text of each row, computed once per key: shape of ``keys``, dtype object."""
    distinct, at = np.unique(keys, return_inverse=True)
    return np.array([text(key) for key in distinct.tolist()], object)[at]


def _by_label(labels: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(label, rows) of each label."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    of_row = np.array([numbers[label] for label in labels.tolist()])
    for (number, mine), label in zip(rows_by_code(of_row), numbers, strict=True):
        assert numbers[label] == number
        yield label, mine


def _group(label: str, lasts: np.ndarray, costs: Costs, rows: np.ndarray) -> NamedWork:
    return NamedWork(
        kind="ops", name=label, total_ns=int(lasts.sum()), calls=len(lasts), least_ns=int(lasts.min()),
        most_ns=int(lasts.max()), achieved=achieved_by(costs, rows, lasts),
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
