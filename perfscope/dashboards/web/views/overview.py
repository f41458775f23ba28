"""The first page: step time, where it goes, first findings, and what was not recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analyzers.critical_path import path_summary
from perfscope.analyzers.devices import Device, flops_ns
from perfscope.analyzers.hlo import recorded_device
from perfscope.analyzers.ops import short_kernel_name
from perfscope.analyzers.programs import programs
from perfscope.analyzers.savings import step_time
from perfscope.analyzers.time import account_windows, step_accounts, trace_step_time
from perfscope.dashboards.report.blocks import Tile
from perfscope.dashboards.report.html_report import nothing_found, overview_parts
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.sections.critical_path import part_words
from perfscope.dashboards.report.summary import summarize
from perfscope.dashboards.web.timeline.names import name_id
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._not_recorded import facts_of, missing, plan_banner, tiles
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize

# Share of the device's peak that a step uses, if known, and the interval of the median step.
#
# FLOPs are modelled (from programs, or from the op graph of one step), times are measured.


CONFIDENCE = 0.95
"""Confidence of the interval of a median."""

MOST_STEPS = 1_000
MOST_ACCOUNTS = 256
MOST_PARTS = 4
MOST_MEMBERS = 11
MOST_IDS = 20
NAME_CHARS = 120
MOST_FIRST = 5
"""Most findings on the first page; their own page has all."""


class Used(Struct, frozen=True, kw_only=True):
    """A share of the peak: MFU as PaLM defines it (Chowdhery et al. 2022, appendix B)."""

    mfu: float
    exact: bool
    """False: a lower bound, because some arithmetic has no formula, or a type no peak."""
    over: str
    """The whole of the share: a program's run, or the step."""
    device: str


def utilization_of(trace: Trace) -> Used | None:
    """MFU of one rank, by its program with most time, else by the op graph; ``None`` if neither allows it."""
    if trace.hlo:
        ran = [
            program
            for program in trace.fact(programs)
            if program.execution is not None and program.utilization is not None
        ]
        if ran:
            first = max(ran, key=lambda program: 0 if program.execution is None else program.execution.instructions_ns)
            used, least = first.utilization, first.least
            if used is not None:
                device = "" if least is None else least.device
                return Used(mfu=used.mfu, exact=used.exact, over=f"a run of {first.name}", device=device)
    return _of_graph(trace)


def _of_graph(trace: Trace) -> Used | None:
    graph, device = trace.op_graph, recorded_device(trace)
    timed = trace_step_time(trace)
    if graph is None or graph.device == "cpu" or device is None or timed is None:
        return None
    wanted = [op for op in graph.ops if op.flops and not op.recompute]
    least = [_least_ns(graph, op, device) for op in wanted]
    known = [item for item in least if item is not None]
    if not known:
        return None
    how = f"the {timed.statistic} step {'while profiled' if timed.of == 'profiled' else 'without a profiler'}"
    return Used(mfu=sum(known) / timed.ns, exact=len(known) == len(least), over=how, device=device.name)


def _least_ns(graph: OpGraph, op: GraphOp, device: Device) -> float | None:
    """Time of an op's arithmetic at the peak of its operands' type; float32 products may run in TF32."""
    first = next((graph.tensors[index] for index in (*op.inputs, *op.outputs)), None)
    dtype = "" if first is None else first.dtype.removeprefix("torch.")
    return None if op.flops is None else flops_ns(device, op.flops, dtype)


def median_interval(values: Sequence[int], confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Interval of the median of the values' distribution, from their order only (sign test).

    ``None`` for too few values (below six for 95%). Assumes independent values.
    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2 (interval of a quantile).
    """
    many = len(values)
    outside, below = (1 - confidence) / 2, 0.0
    rank = 0
    for index in range(many // 2):
        below += comb(many, index) / 2**many
        if below > outside:
            break
        rank = index + 1
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[many - rank]


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """One rank's share of the peak, and what it recorded."""
    used = utilization_of(trace)
    utilization = (
        None if used is None else {"mfu": used.mfu, "exact": used.exact, "over": used.over, "device": used.device}
    )
    return {**facts_of(trace), "used": utilization, "accounts": list(_accounts(trace)), "ids": _path_ids(trace)}


def _accounts(trace: Trace) -> Iterator[dict[str, Any]]:
    """Fields of `StepAccount`, with begin and end of each step for a link into the timeline."""
    windows = trace.fact(account_windows)
    spans = list(zip(windows.starts.tolist(), windows.ends.tolist(), strict=True))[:MOST_STEPS]
    for account in trace.fact(step_accounts):
        if account.whole_ns:
            yield {
                "rank": trace.source.rank,
                "device": account.device,
                "ordinal": account.ordinal,
                "name": sanitize(account.name, 60),
                "numbers": account.numbers[:MOST_STEPS],
                "causes_ns": {cause: values[:MOST_STEPS] for cause, values in account.causes_ns.items()},
                "spans": [f"{start}-{end}" for start, end in spans],
            }


def view(job: Job) -> dict[str, Any]:
    """``parts``: HTML by name; ``first``: findings, one per row; ``missing``: what was not recorded, with the command.

    ``nothing``: sentence shown without findings. ``planned``: sentence that it never ran; ``""`` if it ran.
    ``accounts``:
    fields of `StepAccount`, with ``spans``: ``trace:start-end`` of each step.
    """
    summary = summarize(job.analysis)
    return {
        "parts": overview_parts(summary, job.analysis, _mfu(job.gathered), first=tiles(job.analysis)),
        "nothing": "" if summary.findings else nothing_found(summary),
        "large": "".join(sections_html(summary.large)),
        "planned": plan_banner(job.analysis),
        "interval": _interval(job),
        "missing": missing(job.analysis, (item.held for item in job.gathered)),
        "first": [
            {
                "rule": words.rule,
                "title": words.title + words.on_ranks,
                "detail": words.detail,
                "fix": f"{words.lead}: {words.fix}".replace("`", "") if words.fix else "",
                "gain": words.gain,
                "share": words.share,
                "where": words.where or "-",
                "basis": words.basis,
                "severity": words.severity,
            }
            for words in map(finding_words, summary.findings[:MOST_FIRST])
        ],
        "findings": len(summary.findings),
        "path": _path(job),
        "accounts": [
            {**account, "spans": [f"{item.place.number}:{span}" for span in account["spans"]]}
            for item in job.gathered
            for account in item.held["accounts"]
        ][:MOST_ACCOUNTS],
    }


def _path(job: Job) -> dict[str, Any] | None:
    """The critical path of a single recording: ``parts`` in words, ``rows``: the largest members; else ``None``."""
    known = [path for path in job.analysis.of("critical_paths") if path.whole_ns]
    if len(known) != 1:
        return None
    (path,) = known
    parts = sorted(path.parts_ns, key=lambda part: -path.parts_ns[part])[:MOST_PARTS]
    ids = {short: known for item in job.gathered for short, known in item.held["ids"].items()}
    return {
        "parts": ", ".join(f"{part_words(part)} {format_share(path.parts_ns[part], path.whole_ns)}" for part in parts),
        "rows": [
            {
                "name": sanitize(row.name, NAME_CHARS),
                "id": ids.get(row.name, ""),
                "title": sanitize(" · ".join(filter(None, (row.name, row.where, row.op, row.line))), NAME_CHARS),
                "time": format_ns(row.total_ns // max(path.steps, 1)),
                "share": format_share(row.total_ns, path.whole_ns),
            }
            for row in path.rows[:MOST_MEMBERS]
        ],
    }


def _path_ids(trace: Trace) -> dict[str, str]:
    """Name of a member of the critical path -> ids of the timeline's names that it abbreviates."""
    path = path_summary(trace)
    wanted = set() if path is None else {row.name for row in path.rows[:MOST_MEMBERS]}
    result: dict[str, list[str]] = {}
    for table in ("kernels", "copies", "slices"):
        for code in np.unique(trace.rows[table]["name"]).tolist() if wanted else ():
            text = trace.text(code)
            if (short := short_kernel_name(text)) in wanted:
                result.setdefault(short, []).append(name_id(text))
    return {short: ",".join(known[:MOST_IDS]) for short, known in result.items()}


def _mfu(gathered: Any) -> list[Tile]:
    """The tile; ``None`` if no rank has an MFU. For several ranks their mean, and the lowest."""
    held: list[Gathered] = [item for item in gathered if item.held["used"] is not None]
    if not held:
        return []
    used = [item.held["used"] for item in held]
    mean = sum(item["mfu"] for item in used) / len(used)
    least = min(held, key=lambda item: item.held["used"]["mfu"])
    at_least = "" if all(item["exact"] for item in used) else ">= "
    over = sanitize(used[0]["over"], 60) if len({item["over"] for item in used}) == 1 else "the programs with most time"
    note = f"of {sanitize(used[0]['device'], 60)} over {over}: FLOPs modelled, time measured"
    if len(held) > 1:
        rank = "" if least.source.rank is None else f" (rank {least.source.rank})"
        note += f"; mean of {len(held)}, lowest {100 * least.held['used']['mfu']:.1f}%{rank}"
    return [Tile("MFU", f"{at_least}{100 * mean:.1f}%", note)]


def _interval(job: Job) -> str:
    """The interval of the step time in words; ``''`` if it is not a median, or there are too few steps."""
    timed = step_time(job.analysis)
    if timed is None or timed.statistic != "median":
        return ""
    times = [step.duration_ns for step in job.analysis.steps if step.rank == timed.rank and not step.traced]
    results = median_interval(times)
    if results is None:
        return ""
    whose = "" if timed.rank is None or len(job.analysis.sources) == 1 else f" of rank {timed.rank}"
    return (
        f"Step time {format_ns(timed.ns)}, {100 * CONFIDENCE:.0f}% interval of the median {format_ns(results[0])} to "
        f"{format_ns(results[1])} ({len(times):,} steps{whose} without a profiler, by their order, taken as "
        "independent)."
    )
