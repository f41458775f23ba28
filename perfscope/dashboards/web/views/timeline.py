"""The timeline of every rank: an index beside it on disk (`dashboards.timeline.index`), and here what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.time import call_site
from perfscope.dashboards.web.timeline import arguments
from perfscope.dashboards.web.timeline.index import Index, build, names_by_time, save
from perfscope.dashboards.web.timeline.lanes import (
    CATEGORY_WORDS,
    COLORS,
    MAIN,
    MOST_SERIES,
    TABLES,
    events_of,
    series_of,
)
from perfscope.dashboards.web.timeline.lanes import save as save_series
from perfscope.dashboards.web.timeline.marks import marks
from perfscope.dashboards.web.timeline.names import NAME_CHARS, name_id
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._not_recorded import schedules
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.untrusted_text import sanitize

MOST_NAMES = 20_000
"""Names that a page knows, those with most time first: an event of another has its name when it is asked for."""
MOST_SITES = 20_000
"""Ops whose line is looked up: each takes tens of microseconds."""
MOST_STEPS = 5_000
"""Of a trace, the first ones: another timeline can be laid beside them."""


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Write the index of one rank, with the partner, the place in the code and a number for each event."""
    index = build(events_of(trace))
    save(index, place.folder)
    np.save(place.folder / "partner.npy", _partners(trace, index))
    site, sites = _sites(trace, index)
    np.save(place.folder / "site.npy", site)
    (place.folder / "sites.json").write_bytes(msgspec.json.encode(sites))
    np.save(place.folder / "number.npy", _numbers(trace, index))
    arguments.save(trace, place.folder)
    counters = []
    ends: list[int] = []
    for number, series in enumerate(islice(series_of(trace), MOST_SERIES)):
        save_series(series, place.folder, number)
        ends += (int(series.times[0]), int(series.times[-1]))
        low_value, high_value = float(np.nanmin(series.values)), float(np.nanmax(series.values))
        counters.append(
            {
                "label": sanitize(series.label),
                "unit": series.unit,
                "least": low_value,
                "most": high_value,
                "number": number,
            }
        )
    low, high = index.span()
    if ends and len(index):
        low, high = min(low, *ends), max(high, *ends)
    names = [
        [code, sanitize(trace.text(code), NAME_CHARS), count, ns, name_id(trace.text(code))]
        for code, count, ns in names_by_time(index)
    ]
    (place.folder / "names.json").write_bytes(msgspec.json.encode(names[:MOST_NAMES]))
    (place.folder / "texts.json").write_bytes(msgspec.json.encode({code: text for code, text, *_ in names}))
    kinds = np.bincount(index.category, weights=(index.end - index.start), minlength=len(CATEGORY_WORDS))
    events = np.bincount(index.category, minlength=len(CATEGORY_WORDS))
    return {
        "low": str(low),
        "high": str(high),
        "events": len(index),
        "lanes": _lanes(index),
        "counters": counters,
        "steps": _steps(trace),
        "kinds": [[index, int(kinds[index])] for index in np.flatnonzero(events).tolist()],
    }


def view(job: Job) -> dict[str, Any]:
    """``traces``: a rank each with its lanes; ``categories`` and ``colors`` by number; ``findings``: as of `marks`.

    ``kinds``: the categories that there are, the main ones first, of those that with most time.
    ``origin``: what stands at 0. Ranks whose times overlap share one (``together``); others begin at their own start.
    """
    held = [item for item in job.gathered if item.held["events"]]
    lows, highs = ([int(item.held[key]) for item in held] for key in ("low", "high"))
    together = bool(held) and max(lows) < min(highs)
    traces = []
    for item in job.gathered:
        rank = "" if item.source.rank is None else f"rank {item.source.rank}"
        traces.append(
            {
                **item.held,
                "trace": item.place.number,
                "label": rank or sanitize(item.source.path, 60),
                "rank": item.source.rank,
                "origin": str(min(lows)) if together else item.held["low"],
            }
        )
    return {
        "traces": traces,
        "categories": list(CATEGORY_WORDS),
        "colors": {ground: list(held) for ground, held in COLORS.items()},
        "kinds": _kinds(held),
        "together": together,
        "modelled": "" if held else schedules(job.analysis),
        "findings": marks(job),
    }


def _steps(trace: Trace) -> list[list[Any]]:
    """(number, begin, ns) of the steps in the order of time: where two timelines are laid side by side."""
    steps = trace.rows["steps"]
    order = np.argsort(steps["start_ns"], kind="stable")[:MOST_STEPS].tolist()
    return [
        [int(steps["number"][at]), str(int(steps["start_ns"][at])), int(steps["end_ns"][at] - steps["start_ns"][at])]
        for at in order
    ]


def _kinds(gathered: Sequence[Gathered]) -> list[int]:
    total: Counter[int] = Counter()
    for item in gathered:
        for category, ns in item.held["kinds"]:
            total[category] += ns
    return sorted(total, key=lambda category: (category not in MAIN, -total[category]))


def _lanes(index: Index) -> list[dict[str, Any]]:
    return [
        {
            "group": sanitize(lane.group),
            "label": sanitize(lane.label),
            "depth": lane.depth,
            "events": int(index.lane_at[position + 1] - index.lane_at[position]),
        }
        for position, lane in enumerate(index.lanes)
    ]


def _places(index: Index, table: str, size: int) -> np.ndarray:
    """The event of each row of a table; ``MISSING`` where it has none."""
    result = np.full(size, MISSING, np.int64)
    mine = np.flatnonzero(index.table == TABLES.index(table))
    result[index.row[mine]] = mine
    return result


def _partners(trace: Trace, index: Index) -> np.ndarray:
    """For device work the call that launched it, for a call the first work it launched: an arrow's other end."""
    result = np.full(len(index), MISSING, np.int32)
    calls = _places(index, "calls", len(trace.rows["calls"]))
    ops = _places(index, "slices", len(trace.rows["slices"]))
    for table in ("copies", "kernels"):
        rows = trace.rows[table]
        mine = _places(index, table, len(rows))
        call, op = rows["call"], rows["op"]
        by_call = np.where(call == MISSING, MISSING, calls[call]) if len(calls) else np.full(len(rows), MISSING)
        by_op = np.where(op == MISSING, MISSING, ops[op]) if len(ops) else np.full(len(rows), MISSING)
        other = np.where(by_call != MISSING, by_call, by_op)
        linked = np.flatnonzero((mine != MISSING) & (other != MISSING))[::-1]  # the first one is written last
        result[mine[linked]] = other[linked]
        result[other[linked]] = mine[linked]
    return result


def _sites(trace: Trace, index: Index) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The place in the code of device work and of ops, as far as it is known and there are not too many."""
    op = np.full(len(index), MISSING, np.int64)
    for table in ("kernels", "copies"):
        mine = np.flatnonzero(index.table == TABLES.index(table))
        op[mine] = trace.rows[table]["op"][index.row[mine]]
    asked = np.unique(op[op != MISSING])[:MOST_SITES]
    slices = np.flatnonzero(index.table == TABLES.index("slices"))
    own = slices[np.isin(trace.rows["slices"]["kind"][index.row[slices]], (SliceKind.OP, SliceKind.OTHER))]
    op[own] = index.row[own]
    asked = np.union1d(asked, index.row[own[: max(0, MOST_SITES - len(asked))]]).astype(np.int64)
    if not len(asked):
        return np.full(len(index), MISSING, np.int32), []
    labels: dict[str, int] = {}
    known = np.full(len(asked), MISSING, np.int32)
    for position, row in enumerate(asked.tolist()):
        site = call_site(trace, row)
        if site.file is not None:
            known[position] = labels.setdefault(sanitize(site.where().label(), NAME_CHARS), len(labels))
    positions = np.minimum(np.searchsorted(asked, op), len(asked) - 1)
    results = np.where(asked[positions] == op, known[positions], MISSING).astype(np.int32)
    return results, [{"label": label} for label in labels]


def _numbers(trace: Trace, index: Index) -> np.ndarray:
    """Bytes of copies, thread blocks of kernels, numbers of steps; ``MISSING`` for others."""
    result = np.full(len(index), MISSING, np.int64)
    for table, column in (("copies", "bytes"), ("kernels", "blocks"), ("steps", "number")):
        mine = np.flatnonzero(index.table == TABLES.index(table))
        result[mine] = trace.rows[table][column][index.row[mine]]
    return result
