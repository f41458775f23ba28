"""Heat maps of ranks as bounded arrays: who waited how long at each collective, and how busy devices were.

Rows are ranks, columns collectives in order. Of more collectives than columns, neighbours share one: it keeps the worst
wait of each rank, and their sum, so that a row still sums to what the rank waited in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscope.analyzers.ranks.matching import SAME, Matched
from perfscope.dashboards.report.sections.collectives import ranks_text
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize

MOST_ROWS = 512
"""Ranks that are drawn: more are thinner than a pixel. Those that waited longest are kept."""
MOST_CELLS = 60_000
"""Of a heat map: with times and names a megabyte of JSON, and narrower cells cannot be pointed at."""
LEAST_COLUMNS, MOST_COLUMNS = 100, 600


def wait_map(
    matched: Sequence[Matched], members: Sequence[int], waits: Mapping[int, int], member: str
) -> dict[str, Any] | None:
    """The waits of ``members`` at ``matched`` (by start); ``None`` where there are none.

    ``value``: the worst wait in ns, row by row, ``None`` where the rank took no part; ``sum``: all waits of the cell;
    ``of``: which of ``collectives`` the worst is; ``at``: its start on the clock of that rank, ns behind ``base``.
    """
    if not matched or not members:
        return None
    kept = sorted(sorted(members, key=lambda one: -waits.get(one, 0))[:MOST_ROWS])
    columns = min(len(matched), max(LEAST_COLUMNS, min(MOST_COLUMNS, MOST_CELLS // len(kept))))
    row_of = {one: place * columns for place, one in enumerate(kept)}
    size = len(kept) * columns
    value: list[int | None] = [None] * size
    total: list[int | None] = [None] * size
    which: list[int] = [-1] * size
    for number, one in enumerate(matched):
        column = number * columns // len(matched)
        core = one.core_ns
        for rank, side in one.sides.items():
            row = row_of.get(rank)
            if row is None:
                continue
            cell, wait = row + column, side.end_ns - side.start_ns - core
            before = value[cell]
            if before is None or wait > before:
                value[cell], which[cell] = wait, number
            total[cell] = wait + (total[cell] or 0)
    base = min(side.start_ns for one in matched for side in one.sides.values())
    starts = [
        None if number < 0 else matched[number].sides[kept[cell // columns]].start_ns - base
        for cell, number in enumerate(which)
    ]
    told = sorted({number for number in which if number >= 0})
    place_of = {number: place for place, number in enumerate(told)}
    return {
        "rows": [{"member": one, "label": f"{member} {one}"} for one in kept],
        "rows_left": len(members) - len(kept),
        "columns": columns,
        "first": [-(-column * len(matched) // columns) for column in range(columns)],
        "count": len(matched),
        "value": value,
        "sum": total if columns < len(matched) else None,
        "of": [None if number < 0 else place_of[number] for number in which],
        "at": starts,
        "base": str(base),
        "collectives": [_told(number, matched[number]) for number in told],
    }


def _told(number: int, one: Matched) -> list[Any]:
    """``[number, words, core in ns, who came last]``."""
    # all sides of these have one size: asking each of 512 would take longer than all else here
    first = next(iter(one.sides.values()))
    size = first.message_bytes(one.size) if one.operation in SAME else one.message_bytes
    words = (
        f"{sanitize(one.operation)}{'' if size is None else ' ' + format_bytes(size)}, group {ranks_text(one.group)}"
    )
    return [number, words, one.core_ns, one.last]


def busy_map(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How busy each device was in each step: ``devices`` as of `ranks_parts.busy_of`; ``None`` where there are none.

    ``value``: share of the window in which the device worked, row by row, ``None`` behind a rank's last one.
    """
    if not devices:
        return None
    kept = sorted(devices, key=lambda one: sum(one["busy_ns"]) / max(1, sum(one["span_ns"])))[:MOST_ROWS]
    kept.sort(key=lambda one: (one["rank"] is None, one["rank"] or 0, one["trace"], one["ordinal"]))
    columns = max(len(one["busy_ns"]) for one in kept)
    value: list[float | None] = []
    starts: list[str | None] = []
    spans: list[int | None] = []
    for one in kept:
        gap: list[None] = [None] * (columns - len(one["busy_ns"]))
        pairs = zip(one["busy_ns"], one["span_ns"], strict=True)
        value += [*(busy / span if span else None for busy, span in pairs), *gap]
        starts += [*one["starts"], *gap]
        spans += [*one["span_ns"], *gap]
    longest = max(kept, key=lambda one: len(one["labels"]))
    return {
        "rows": [{"member": one["rank"], "label": one["label"], "trace": one["trace"]} for one in kept],
        "rows_left": len(devices) - len(kept),
        "columns": columns,
        "labels": longest["labels"],
        "value": value,
        "starts": starts,
        "spans": spans,
        "of_steps": all(one["of_steps"] for one in kept),
    }
