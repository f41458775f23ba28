"""Ranks of a job compared: a heat map of waits at collectives, device use by step, links, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analyzers.ranks import (
    SAME,
    CollectiveKind,
    CollectiveTable,
    DeviceSet,
    Matched,
    SingleCollective,
    device_set,
    has_ranks,
    link_use,
    process_sets,
    rank_sets,
    single_collectives,
    table_of,
)
from perfscope.analyzers.results import result_table
from perfscope.analyzers.sections import MOST_JOBS
from perfscope.analyzers.time import device_busy, step_windows
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.results import ranks_text, shown
from perfscope.dashboards.report.sections.collectives import collectives_sections
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._not_recorded import is_jax
from perfscope.dashboards.web.views._tables import table, table_of_ranks
from perfscope.model.intervals import covered
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns
from perfscope.model.untrusted_text import sanitize

# Heat maps of ranks as bounded arrays: waits at collectives, and device use.
#
# Rows are ranks, columns collectives in order. With more collectives than columns, neighbours share a column: it keeps
# the worst wait of each rank, and their sum, so that a row still sums to the rank's total wait.


MOST_HEAT_ROWS = 512
"""Most ranks drawn: more would be thinner than a pixel. Ranks that waited longest are kept."""
MOST_CELLS = 60_000
"""Most cells of a heat map: with times and names a megabyte of JSON, and narrower cells cannot be pointed at."""
LEAST_COLUMNS, MOST_COLUMNS = 100, 600

MOST_WINDOWS = 240
"""Most steps of a row: four pixels each on a wide screen. With more, neighbours share a window."""
PARTS = 100
"""Number of equal parts of a recording without steps."""

FEW_MEMBERS = 16
"""Most ranks with a separate column in the tables."""

OFTEN = 0.5
"""Share of the collectives at which a rank came last, above which it is named: it is late more often than not."""

MOST_BARS = 8
"""Most kinds drawn as bars, longest first: the table has all."""


def wait_map(
    matched: Sequence[Matched], members: Sequence[int], waits: Mapping[int, int], member: str
) -> dict[str, Any] | None:
    """The waits of ``members`` at ``matched`` (by start); ``None`` without waits.

    ``value``: the worst wait in ns, row by row, ``None`` if the rank took no part; ``sum``: all waits of the cell;
    ``of``: index of the worst in ``collectives``; ``at``: its start on the rank's clock, ns after ``base``.
    ``labels``: one per column.
    """
    if not matched or not members:
        return None
    kept = sorted(sorted(members, key=lambda value: -waits.get(value, 0))[:MOST_HEAT_ROWS])
    columns = min(len(matched), max(LEAST_COLUMNS, min(MOST_COLUMNS, MOST_CELLS // len(kept))))
    row_of = {value: index * columns for index, value in enumerate(kept)}
    size = len(kept) * columns
    value: list[int | None] = [None] * size
    total: list[int | None] = [None] * size
    which: list[int] = [-1] * size
    for number, item in enumerate(matched):
        column = number * columns // len(matched)
        core = item.core_ns
        for rank, side in item.sides.items():
            row = row_of.get(rank)
            if row is None:
                continue
            cell, wait = row + column, side.end_ns - side.start_ns - core
            before = value[cell]
            if before is None or wait > before:
                value[cell], which[cell] = wait, number
            total[cell] = wait + (total[cell] or 0)
    base = min(side.start_ns for item in matched for side in item.sides.values())
    starts = [
        None if number < 0 else matched[number].sides[kept[cell // columns]].start_ns - base
        for cell, number in enumerate(which)
    ]
    numbers = sorted({number for number in which if number >= 0})
    place_of = {number: index for index, number in enumerate(numbers)}
    return {
        "rows": [{"member": value, "label": f"{member} {value}"} for value in kept],
        "rows_left": len(members) - len(kept),
        "columns": columns,
        "labels": _labels(matched, columns),
        "count": len(matched),
        "value": value,
        "sum": total if columns < len(matched) else None,
        "of": [None if number < 0 else place_of[number] for number in which],
        "at": starts,
        "base": str(base),
        "collectives": [_matched(number, matched[number]) for number in numbers],
    }


def _labels(matched: Sequence[Matched], columns: int) -> list[str]:
    """Label of each column: a collective, or those that share it."""
    if columns == len(matched):
        return [f"collective {number + 1:,}: {_matched(number, item)[1]}" for number, item in enumerate(matched)]
    edges = [-(-column * len(matched) // columns) for column in range(columns + 1)]
    return [f"collectives {first + 1:,} to {last:,}" for first, last in pairwise(edges)]


def _matched(number: int, item: Matched) -> list[Any]:
    """``[number, words, core in ns, last rank]``."""
    # all sides have one size: reading each of 512 would dominate the time
    first = next(iter(item.sides.values()))
    size = first.message_bytes(item.size) if item.operation in SAME else item.message_bytes
    words = (
        f"{sanitize(item.operation)}{'' if size is None else ' ' + format_bytes(size)}, group {ranks_text(item.group)}"
    )
    return [number, words, item.core_ns, item.last]


def busy_map(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Device use by step: ``devices`` from `busy_of`; ``None`` without devices.

    ``value``: share of the window in which the device worked, row by row, ``None`` after a rank's last window.
    """
    if not devices:
        return None
    kept = sorted(devices, key=lambda item: sum(item["busy_ns"]) / max(1, sum(item["span_ns"])))[:MOST_HEAT_ROWS]
    kept.sort(key=lambda item: (item["rank"] is None, item["rank"] or 0, item["trace"], item["ordinal"]))
    columns = max(len(item["busy_ns"]) for item in kept)
    value: list[float | None] = []
    starts: list[str | None] = []
    spans: list[int | None] = []
    for item in kept:
        gap: list[None] = [None] * (columns - len(item["busy_ns"]))
        pairs = zip(item["busy_ns"], item["span_ns"], strict=True)
        value += [*(busy / span if span else None for busy, span in pairs), *gap]
        starts += [*item["starts"], *gap]
        spans += [*item["span_ns"], *gap]
    longest = max(kept, key=lambda item: len(item["labels"]))
    return {
        "rows": [{"member": item["rank"], "label": item["label"], "trace": item["trace"]} for item in kept],
        "rows_left": len(devices) - len(kept),
        "columns": columns,
        "labels": longest["labels"],
        "value": value,
        "starts": starts,
        "spans": spans,
        "of_steps": all(item["of_steps"] for item in kept),
    }


# Input of the page from one rank's tables while they are in memory: device use by step, link counters.


def busy_of(trace: Trace, number: int) -> list[dict[str, Any]]:
    """One entry per device that worked: windows, their length and the device's busy time in each, in ns."""
    starts, ends, labels, of_steps = _windows(trace)
    if not len(starts):
        return []
    rows = trace.rows["devices"]
    rank = trace.source.rank
    result = []
    worked = {device: busy for device, busy in trace.fact(device_busy).items() if len(busy.starts)}
    for device, busy in worked.items():
        ordinal = int(rows["ordinal"][device])
        whose = "" if rank is None else f"rank {rank}"
        name = f"device {ordinal}"
        result.append(
            {
                "rank": rank,
                "trace": number,
                "ordinal": ordinal,
                "label": whose if whose and len(worked) == 1 else " ".join(filter(None, (whose, name))),
                "busy_ns": covered(busy, starts, ends).tolist(),
                "span_ns": (ends - starts).tolist(),
                "starts": [str(start) for start in starts.tolist()],
                "labels": labels,
                "of_steps": of_steps,
            }
        )
    return result


def _windows(trace: Trace) -> tuple[np.ndarray, np.ndarray, list[str], bool]:
    steps = trace.fact(step_windows)
    if steps.count:
        edges = np.unique(np.linspace(0, steps.count, min(steps.count, MOST_WINDOWS) + 1).astype(np.int64))
        first, last = edges[:-1], edges[1:] - 1
        numbers = steps.numbers
        labels = [
            f"step {numbers[a]}" if a == b else f"steps {numbers[a]} to {numbers[b]}"
            for a, b in zip(first.tolist(), last.tolist(), strict=True)
        ]
        return steps.starts[first], np.maximum(steps.ends[last], steps.starts[first]), labels, True
    held = [busy for busy in trace.fact(device_busy).values() if len(busy.starts)]
    if not held:
        return np.empty(0, np.int64), np.empty(0, np.int64), [], False
    low, high = min(int(item.starts[0]) for item in held), max(int(item.ends[-1]) for item in held)
    parts = max(1, min(PARTS, high - low))
    edges = np.array([low + (high - low) * part // parts for part in range(parts + 1)], np.int64)
    return edges[:-1], edges[1:], [f"part {part + 1} of {parts}" for part in range(parts)], False


class _Set(Struct, frozen=True, kw_only=True):
    """One job: its members, and what was matched between them."""

    label: str
    member: str
    members: tuple[int, ...]
    table: CollectiveTable
    traces: Mapping[int, Trace]
    """Traces by member."""


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Device use by step of one rank, and its link counters."""
    return {"busy": busy_of(trace, place.number), "links": link_use(trace), "jax": is_jax(trace)}


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``jobs``: a heat map each with tables; ``busy``: the other heat map; ``tables``.

    ``jax``: it belongs to a JAX program.
    """
    numbers = {(item.source.path, item.source.rank): item.place.number for item in job.gathered}
    tables: dict[str, Any] = {}
    jobs = []
    for index, item in enumerate(list(_sets(job.traces))[:MOST_JOBS]):
        text = "" if index == 0 else f"-{index + 1}"
        tables |= {
            f"collectives{text}": _each(item),
            f"kinds{text}": _kinds(item),
            f"members{text}": table(shown(result_table("collective_members")), item.table.ranks),
        }
        heat = wait_map(
            item.table.matched, item.members, {row.rank: row.wait_ns for row in item.table.ranks}, item.member
        )
        for row in [] if heat is None else heat["rows"]:
            source = item.traces[row["member"]].source
            row["trace"] = numbers.get((source.path, source.rank))
        jobs.append(
            {
                "label": item.label, "member": item.member, "heat": heat, "bars": _bars(item), "behind": text,
                "lead": _lead(item),
            }
        )  # fmt: skip
    links = [(item.source.rank, row) for item in job.gathered for row in item.held["links"]]
    if links:
        tables["links"] = table_of_ranks(shown(result_table("links")), sorted(links, key=lambda row: -row[1].mean))
    return {
        "html": "".join(sections_html(collectives_sections(job.analysis.collectives))),
        "jobs": jobs,
        "busy": busy_map([device for item in job.gathered for device in item.held["busy"]]),
        "tables": tables,
        "jax": any(item.held["jax"] for item in job.gathered),
    }


def _lead(item: _Set) -> str:
    """Who came last and who waited, in a sentence; ``''`` without collectives."""
    totals, matched = item.table.ranks, item.table.matched
    if not totals or not matched:
        return ""
    late = max(totals, key=lambda total: total.last)
    most = max(totals, key=lambda total: total.wait_ns)
    waits = f"{item.member.capitalize()} {most.rank} waited longest, {format_ns(most.wait_ns)} in all"
    if late.last <= OFTEN * len(matched):
        return f"No {item.member} came last at more than half of the {len(matched):,} collectives. {waits}."
    return (
        f"{item.member.capitalize()} {late.rank} came last at {late.last:,} of {len(matched):,} collectives. "
        f"{waits}; {item.member} {late.rank} waited {format_ns(late.wait_ns)}."
    )


def _sets(traces: Sequence[Trace]) -> Iterator[_Set]:
    """As `collectives_section` finds them: ranks of torch, devices of several JAX processes, or devices of one."""
    if sum(map(has_ranks, traces)) > 1:
        for ranks in rank_sets(traces):
            if not ranks.matching.matched:
                continue
            traces_by_rank = {member.rank: member.trace for member in ranks.job.members}
            yield _Set(
                label=ranks.job.label(), member="rank", members=ranks.job.ranks, table=table_of(ranks),
                traces=traces_by_rank,
            )  # fmt: skip
    processes = process_sets(traces)
    joined = {id(member.trace) for process in processes for member in process.ranks.job.members}
    for process in processes:
        held = {member.rank: member.trace for member in process.ranks.job.members}
        yield _of_devices(process.devices, {index: held[rank] for index, rank in process.rank_at.items()})
    for trace in traces:
        alone = None if id(trace) in joined else trace.fact(device_set)
        if alone is not None:
            yield _of_devices(alone, dict.fromkeys(alone.devices, trace))


def _of_devices(device_set: DeviceSet, traces: Mapping[int, Trace]) -> _Set:
    return _Set(
        label=device_set.label(), member="device", members=device_set.devices, table=device_set.table, traces=traces
    )


def _kinds(item: _Set) -> dict[str, Any]:
    few = item.members if len(item.members) <= FEW_MEMBERS else ()
    waits = (_wait_of(rank) for rank in few)
    return table((*shown(result_table("collective_kinds")), *waits), item.table.kinds)


def _wait_of(rank: int) -> Column[CollectiveKind]:
    return Column(f"wait of {rank}", lambda kind: kind.wait_ns.get(rank), "ns", key=f"wait_{rank}_ns", width=106)


def _each(item: _Set) -> dict[str, Any]:
    """Single collectives, longest waits first; as many as a table holds."""
    few = item.members if len(item.members) <= FEW_MEMBERS else ()
    columns = (*shown(result_table("single_collectives")), *map(_each_wait, few))
    return table(columns, single_collectives(item.table))


def _each_wait(rank: int) -> Column[SingleCollective]:
    return Column(
        f"wait of {rank}",
        lambda row: row.matched.wait_ns(rank) if rank in row.matched.sides else None,
        "ns",
        key=f"wait_{rank}_ns",
        width=106,
    )


def _bars(item: _Set) -> list[dict[str, Any]]:
    """Core and waiting time by kind, mean over members: ``core_ns + wait_ns`` is a member's time in it."""
    rows = []
    for kind in item.table.kinds[:MOST_BARS]:
        members = max(1, len(kind.duration_ns))
        spent = sum(kind.duration_ns.values())
        wait = sum(kind.wait_ns.values())
        rows.append(
            {
                "label": f"{sanitize(kind.operation)}, {ranks_text(kind.group)}",
                "bytes": kind.message_bytes,
                "count": kind.count,
                "core_ns": (spent - wait) / members,
                "wait_ns": wait / members,
            }
        )
    return rows
