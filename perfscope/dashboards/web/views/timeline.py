"""The timeline of every rank: its index on disk (`dashboards.timeline.index`), and its table of contents here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.analyzers.ops import module_label
from perfscope.analyzers.source_code import excerpts
from perfscope.analyzers.time import MOST_SITES, call_site, launch_sites
from perfscope.dashboards.web.timeline import arguments, links
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
from perfscope.dashboards.web.timeline.marks import marks, numbers
from perfscope.dashboards.web.timeline.names import NAME_CHARS, name_id
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._not_recorded import schedules
from perfscope.model.finding import Where
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.untrusted_text import sanitize

MOST_NAMES = 20_000
"""Most names sent to a page, longest time first; other names are sent with their events on request."""
MOST_STEPS = 5_000
"""Most steps of a trace, first ones: another timeline can be aligned with them."""


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Write the index of one rank, with partner, source place and a number for each event."""
    index = build(events_of(trace))
    save(index, place.folder)
    links.save(trace, index, place.folder)
    places = _sites(trace, index)
    np.save(place.folder / "site.npy", places.site)
    (place.folder / "sites.json").write_bytes(
        msgspec.json.encode([{"label": sanitize(label, NAME_CHARS)} for label in places.labels])
    )
    np.save(place.folder / "module.npy", places.module)
    (place.folder / "modules.json").write_bytes(msgspec.json.encode(places.modules))
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
        "lines": places.labels,
    }


def view(job: Job) -> dict[str, Any]:
    """``traces``: one per rank with its lanes; ``categories`` and ``colors`` by number; ``findings``: from `marks`.

    ``kinds``: categories that occur, main ones first, each group by time. ``origin``: the event at 0. Ranks whose times
    overlap share it (``together``); others begin at their own start.
    """
    held = [item for item in job.gathered if item.held["events"]]
    lows, highs = ([int(item.held[key]) for item in held] for key in ("low", "high"))
    together = bool(held) and max(lows) < min(highs)
    _save_code(job)
    links.save_peers(job.traces, numbers([trace.source for trace in job.traces], job.gathered), job.folder)
    traces = []
    for item in job.gathered:
        rank = "" if item.source.rank is None else f"rank {item.source.rank}"
        traces.append(
            {
                **{key: value for key, value in item.held.items() if key != "lines"},
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


def _save_code(job: Job) -> None:
    """The code at the lines of the events, if it can be shown."""
    lines = {line for item in job.gathered for line in item.held["lines"]}
    found = excerpts(lines, [source.path for source in job.analysis.sources])
    code = {sanitize(line, NAME_CHARS): excerpt for line, excerpt in found.items()}
    (job.folder / "code.json").write_bytes(msgspec.json.encode(code))


def _steps(trace: Trace) -> list[list[Any]]:
    """(number, begin, ns) of the steps in time order, for aligning two timelines."""
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


class _Places(Struct, frozen=True):
    """By event: index of its line in ``labels``, and of its module in ``modules``; ``MISSING``: unknown."""

    site: np.ndarray
    labels: list[str]
    module: np.ndarray
    modules: list[str]


def _sites(trace: Trace, index: Index) -> _Places:
    """Source places of device work, ops and sampled calls, if known and not too many."""
    op = np.full(len(index), MISSING, np.int64)
    for table in ("kernels", "copies"):
        mine = np.flatnonzero(index.table == TABLES.index(table))
        op[mine] = trace.rows[table]["op"][index.row[mine]]
    slices = np.flatnonzero(index.table == TABLES.index("slices"))
    own = slices[np.isin(trace.rows["slices"]["kind"][index.row[slices]], (SliceKind.OP, SliceKind.OTHER))]
    op[own] = index.row[own]
    known = dict(trace.fact(launch_sites))
    for row in index.row[own].tolist():
        if len(known) >= MOST_SITES:
            break
        if row not in known:
            known[row] = call_site(trace, row)
    labels: dict[str, int] = {}
    modules: dict[str, int] = {}
    # the last entry: no op
    line, module = (np.full(len(trace.rows["slices"]) + 1, MISSING, np.int32) for _ in range(2))
    for row, site in known.items():
        if site.file is not None:
            line[row] = labels.setdefault(site.where().label(), len(labels))
        if site.module:
            module[row] = modules.setdefault(sanitize(module_label(site), NAME_CHARS), len(modules))
    places = line[op]
    sampled = np.flatnonzero(index.table == TABLES.index("frames"))
    frames = trace.rows["frames"]
    for frame in np.unique(index.row[sampled]).tolist():
        number = int(frames["line"][frame])
        if (file := trace.text(int(frames["file"][frame]))) and number != MISSING:
            mine = sampled[index.row[sampled] == frame]
            places[mine] = labels.setdefault(Where(file=file, line=number).label(), len(labels))
    return _Places(places, list(labels), module[op], list(modules))


def _numbers(trace: Trace, index: Index) -> np.ndarray:
    """Bytes of copies, thread blocks of kernels, numbers of steps; ``MISSING`` for others."""
    result = np.full(len(index), MISSING, np.int64)
    for table, column in (("copies", "bytes"), ("kernels", "blocks"), ("steps", "number")):
        mine = np.flatnonzero(index.table == TABLES.index(table))
        result[mine] = trace.rows[table][column][index.row[mine]]
    return result
