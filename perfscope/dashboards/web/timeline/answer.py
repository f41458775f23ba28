"""Answers to the timeline's canvas, from the folder of a prepared item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.ops import short_kernel_name
from perfscope.dashboards.web.server.shelf import read_view
from perfscope.dashboards.web.timeline import arguments
from perfscope.dashboards.web.timeline.index import MOST_COLUMNS, MOST_LANES, Index, edges_of, load, tile
from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, TABLES, piece
from perfscope.dashboards.web.timeline.links import PEERS
from perfscope.model.errors import DataError, UsageError
from perfscope.model.intervals import Int64

MOST_NAMES = 2_000
"""Most rows of a selection's table."""
BY = ("name", "category", "module")
"""Ways to sum up a selection."""
MOST_PEERS = 32
"""Most other ranks on which a collective is shown."""
MOST_SPAN = 1 << 62

_OPEN = 16
"""Most indexes that stay mapped: the runs of a few users."""


def tile_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """A tile (`timeline.tile`): ``trace``, ``t0``, ``t1`` (ns), ``w`` (pixels), ``lanes`` (``0-7,12``)."""
    index = _index(folder, query)
    low, high = _number(query, "t0", -MOST_SPAN, MOST_SPAN), _number(query, "t1", -MOST_SPAN, MOST_SPAN)
    if high <= low:
        raise UsageError("t1 must be after t0")
    return tile(index, low, high, _number(query, "w", 1, MOST_COLUMNS), _lanes(query, index))


def selection_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """Events of a section: ``trace``, ``t0``, ``t1``, ``lanes``, ``by`` (``name``, ``category`` or ``module``).

    Times are cut at the ends of the section. ``own_ns`` excludes spans inside that are shown in the chosen lanes, so
    that nested time counts once.
    """
    index, place = _index(folder, query), _place(folder, query)
    low, high = _number(query, "t0", -MOST_SPAN, MOST_SPAN), _number(query, "t1", -MOST_SPAN, MOST_SPAN)
    chosen = _within(index, sorted(set(_lanes(query, index))), low, high)
    inside = np.minimum(index.end[chosen], high) - np.maximum(index.start[chosen], low)
    own = inside.copy()
    parent = _mapped(place / "parent.npy")[chosen]
    at = np.minimum(np.searchsorted(chosen, parent), max(len(chosen) - 1, 0))
    nested = np.flatnonzero(chosen[at] == parent)
    np.subtract.at(own, at[nested], inside[nested])
    by = query.get("by", "name")
    if by not in BY:
        raise UsageError("by: must be name, category or module")
    kind = index.category[chosen].astype(np.int64)
    name = index.name[chosen].astype(np.int64) * len(CATEGORY_WORDS) + kind
    module: Int64 = _mapped(place / "module.npy")[chosen].astype(np.int64)
    keys, group = np.unique({"name": name, "category": kind, "module": module}[by], return_inverse=True)
    ns, own_ns = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    np.add.at(ns, group, inside)
    np.add.at(own_ns, group, own)
    count = np.bincount(group, minlength=len(keys)) if len(keys) else np.empty(0, np.int64)
    order = np.argsort(-(ns if by == "name" else own_ns), kind="stable")[:MOST_NAMES].tolist()
    words = {"category": list(CATEGORY_WORDS), "module": [*_strings(place / "modules.json"), ""]}.get(by, [])
    results = [
        {
            **_named(int(keys[row]), words),
            "count": int(count[row]),
            "ns": int(ns[row]),
            "own_ns": int(own_ns[row]),
        }
        for row in order
    ]
    return msgspec.json.encode({"rows": results, "names": len(keys), "events": len(chosen), "ns": int(ns.sum())})


def _named(key: int, words: Sequence[str]) -> dict[str, Any]:
    """Text of a selection's row (the last of ``words``: unknown), or the number of its name."""
    if words:
        return {"text": words[key]}
    return {"name": key // len(CATEGORY_WORDS), "category": key % len(CATEGORY_WORDS)}


def _within(index: Index, lanes: Sequence[int], low: int, high: int) -> Int64:
    """Sorted rows of events in lanes that touch a section."""
    rows = [np.empty(0, np.int64)]
    for lane in lanes:
        held = index.of_lane(lane)
        first = held.start + int(np.searchsorted(index.end[held], low, side="right"))
        last = held.start + int(np.searchsorted(index.start[held], high, side="left"))
        rows.append(np.arange(first, max(first, last)))
    return np.concatenate(rows)


def event_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """One event: ``trace``, ``event``. Its times, lane, enclosing events, partner and source place."""
    index = _index(folder, query)
    event, texts = _event(query, index), _texts(_place(folder, query) / "texts.json")
    lane = int(index.lane[event])
    return msgspec.json.encode(
        {
            **_row(index, event, texts),
            "short": _short(index, event, texts),
            "lane_label": index.lanes[lane].label,
            "group": index.lanes[lane].group,
            "enclosing": [_row(index, value, texts) for value in _enclosing(index, event)],
            **_details(folder, query, event, index),
        }
    )


def next_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """The neighbour of an event (``trace``, ``event``, ``by``: 1 or -1) in its lane; with ``name`` of the same name."""
    index = _index(folder, query)
    event, by = _event(query, index), _number(query, "by", -1, 1)
    result = event + by
    if query.get("name"):
        alike = np.flatnonzero(index.name == index.name[event])
        alike = alike[np.argsort(index.start[alike], kind="stable")]
        result = int(alike[(int(np.flatnonzero(alike == event)[0]) + by) % len(alike)])
    elif not 0 <= result < len(index) or index.lane[result] != index.lane[event]:
        result = event
    return msgspec.json.encode(_row(index, result, _texts(_place(folder, query) / "texts.json")))


def near_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """The event of a lane (``trace``, ``lane``) at time ``t``, else the nearest in time."""
    index, moment = _index(folder, query), _number(query, "t", -MOST_SPAN, MOST_SPAN)
    held = index.of_lane(_number(query, "lane", 0, len(index.lanes) - 1))
    if held.start == held.stop:
        raise UsageError("lane: it is empty")
    at = held.start + int(np.searchsorted(index.start[held], moment, side="right")) - 1
    nearest = [item for item in (at, at + 1) if held.start <= item < held.stop]
    result = min(nearest, key=lambda item: max(int(index.start[item]) - moment, moment - int(index.end[item]), 0))
    return msgspec.json.encode(_row(index, result, _texts(_place(folder, query) / "texts.json")))


def largest_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """The longest event of a lane (``trace``, ``lane``) in a section (``t0``, ``t1``), for a pixel of many events.

    ``null`` if the section is empty.
    """
    index = _index(folder, query)
    low, high = _number(query, "t0", -MOST_SPAN, MOST_SPAN), _number(query, "t1", -MOST_SPAN, MOST_SPAN)
    held = index.of_lane(_number(query, "lane", 0, len(index.lanes) - 1))
    first = held.start + int(np.searchsorted(index.end[held], low, side="right"))
    last = held.start + int(np.searchsorted(index.start[held], high, side="left"))
    if first >= last:
        return msgspec.json.encode(None)
    event = first + int(np.argmax(index.end[first:last] - index.start[first:last]))
    return msgspec.json.encode(
        {**_row(index, event, _texts(_place(folder, query) / "texts.json")), "events": last - first}
    )


def matches_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """Events with given names (``names=3,17``, found by the page): count, total time, and the next one from ``t0``.

    ``by=-1``: the one before ``t0``. ``wrapped``: the search restarted at the first (last) event. ``at``: number of
    events that begin before the result.
    """
    index = _index(folder, query)
    codes = [_whole(word) for word in query.get("names", "").split(",")[:MOST_NAMES] if word]
    rows = np.flatnonzero(np.isin(index.name, codes))
    rows = rows[np.argsort(index.start[rows], kind="stable")]
    back = query.get("by") == "-1"
    before = int(np.searchsorted(index.start[rows], _number(query, "t0", -MOST_SPAN, MOST_SPAN), side="left"))
    wrapped = before == 0 if back else before == len(rows)
    at = (before - 1 if back else before) % max(len(rows), 1)
    texts = _texts(_place(folder, query) / "texts.json")
    total = int((index.end[rows] - index.start[rows]).sum())
    first = _row(index, int(rows[at]), texts) if len(rows) else None
    return msgspec.json.encode({"events": len(rows), "ns": total, "first": first, "at": at, "wrapped": wrapped})


def counter_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """A counter: ``trace``, ``counter``, ``t0``, ``t1``, ``w``. Lowest and highest value per pixel; null: no sample."""
    path, number = _place(folder, query), _number(query, "counter", 0, 1 << 10)
    low, high = _number(query, "t0", -MOST_SPAN, MOST_SPAN), _number(query, "t1", -MOST_SPAN, MOST_SPAN)
    columns = _number(query, "w", 1, MOST_COLUMNS)
    if high <= low:
        raise UsageError("t1 must be after t0")
    times, values = (_mapped(path / f"counter_{number}_{kind}.npy") for kind in ("times", "values"))
    results = piece(times, values, edges_of(low, high, columns))
    return msgspec.json.encode(
        {"low": [_plain(item) for item in results[0].tolist()], "high": [_plain(item) for item in results[1].tolist()]}
    )


def _plain(value: float) -> float | None:
    return None if value != value else value  # NaN


def about_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """The ranks, their lanes and the names of categories, as in the page's view."""
    held = read_view(folder, "timeline")
    if held is None or "view" not in held:
        raise DataError(f"{folder}: no timeline is kept here")
    return msgspec.json.encode(held["view"])


def names_of(folder: Path, query: Mapping[str, str]) -> bytes:
    """``[[name, text, events, ns, id], ...]`` of ``trace`` (id: as of `names.name_id`), those with most time first."""
    return (_place(folder, query) / "names.json").read_bytes()


LOOKS: dict[str, Callable[[Path, Mapping[str, str]], bytes]] = {
    "about": about_of,
    "counter": counter_of,
    "event": event_of,
    "largest": largest_of,
    "matches": matches_of,
    "names": names_of,
    "near": near_of,
    "next": next_of,
    "selection": selection_of,
}
"""Requests by name besides tiles; all answer in JSON."""


def _short(index: Index, event: int, texts: Mapping[int, str]) -> str:
    """The name as the page of kernels shows it."""
    text = texts.get(int(index.name[event]), "")
    return short_kernel_name(text) if TABLES[int(index.table[event])] == "kernels" else text


def _row(index: Index, event: int, texts: Mapping[int, str]) -> dict[str, Any]:
    return {
        "event": event,
        "text": texts.get(int(index.name[event]), ""),
        "name": int(index.name[event]),
        "category": int(index.category[event]),
        "lane": int(index.lane[event]),
        "start": str(int(index.start[event])),
        "ns": int(index.end[event] - index.start[event]),
        "table": TABLES[int(index.table[event])],
    }


def _enclosing(index: Index, event: int) -> list[int]:
    """Enclosing events of the same line of the picture, innermost first."""
    result = []
    lane = int(index.lane[event])
    mine = index.lanes[lane]
    while lane > 0 and (index.lanes[lane - 1].group, index.lanes[lane - 1].label) == (mine.group, mine.label):
        lane -= 1
        held = index.of_lane(lane)
        at = held.start + int(np.searchsorted(index.start[held], index.start[event], side="right")) - 1
        if at >= held.start and index.end[at] >= index.end[event]:
            result.append(int(at))
    return result


def _details(folder: Path, query: Mapping[str, str], event: int, index: Index) -> dict[str, Any]:
    """Partner and source place, as written by the child."""
    path = _place(folder, query)
    partner = int(_mapped(path / "partner.npy")[event])
    site = int(_mapped(path / "site.npy")[event])
    number = int(_mapped(path / "number.npy")[event])
    sites = _sites(path / "sites.json")
    known = arguments.of_row(path, TABLES[int(index.table[event])], int(index.row[event]))
    op = known.pop("op")
    op_event = None if op is None else _event_of_row(index, "slices", op)
    forward = int(_mapped(path / "forward.npy")[event])
    label = None if site < 0 else sites[site]["label"]
    return {
        **known,
        "forward": None if forward < 0 else _row(index, forward, _texts(path / "texts.json")),
        "peers": _peers(folder, path, event),
        "code": None if label is None else _code(folder / "timeline" / "code.json").get(label),
        "op": None if op_event is None else _row(index, op_event, _texts(path / "texts.json")),
        "partner": None if partner < 0 else _row(index, partner, _texts(path / "texts.json")),
        "site": None if site < 0 else sites[site],
        "number": None if number < 0 else number,
    }


def _peers(folder: Path, path: Path, event: int) -> list[dict[str, Any]]:
    """The same collective on other ranks and devices, each with ``trace``."""
    group = int(_mapped(path / "peer_of.npy")[event])
    if group < 0:
        return []
    at, traces, events = (_mapped(folder / "timeline" / f"{key}.npy") for key in PEERS)
    result: list[dict[str, Any]] = []
    for trace, other in zip(*(part[at[group] : at[group + 1]].tolist() for part in (traces, events)), strict=True):
        place = folder / "timeline" / str(trace)
        if (place, other) != (path, event) and len(result) < MOST_PEERS:
            result.append({**_row(_loaded(place), other, _texts(place / "texts.json")), "trace": trace})
    return result


def _event_of_row(index: Index, table: str, row: int) -> int | None:
    found = np.flatnonzero((index.row == row) & (index.table == TABLES.index(table)))
    return int(found[0]) if len(found) else None


def _index(folder: Path, query: Mapping[str, str]) -> Index:
    return _loaded(_place(folder, query))


def _place(folder: Path, query: Mapping[str, str]) -> Path:
    return folder / "timeline" / str(_number(query, "trace", 0, 1 << 20))


@lru_cache(maxsize=_OPEN)
def _loaded(folder: Path) -> Index:
    return load(folder)


@lru_cache(maxsize=4 * _OPEN)
def _mapped(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r" if path.stat().st_size > 128 else None)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error


@lru_cache(maxsize=_OPEN)
def _sites(path: Path) -> list[Any]:
    return msgspec.json.decode(path.read_bytes(), type=list[Any])


@lru_cache(maxsize=_OPEN)
def _strings(path: Path) -> list[str]:
    return msgspec.json.decode(path.read_bytes(), type=list[str])


@lru_cache(maxsize=_OPEN)
def _code(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


@lru_cache(maxsize=_OPEN)
def _texts(path: Path) -> dict[int, str]:
    return msgspec.json.decode(path.read_bytes(), type=dict[int, str])


def _event(query: Mapping[str, str], index: Index) -> int:
    return _number(query, "event", 0, len(index) - 1)


def _lanes(query: Mapping[str, str], index: Index) -> Sequence[int]:
    result: list[int] = []
    for word in query.get("lanes", "").split(","):
        low, _, high = word.partition("-")
        first = _whole(low) if word else 0
        last = _whole(high) if high else first
        if word and 0 <= first <= last < len(index.lanes) and len(result) + last - first < MOST_LANES:
            result += range(first, last + 1)
        elif word:
            raise UsageError("lanes: unknown number, or too many")
    return result


def _number(query: Mapping[str, str], key: str, low: int, high: int) -> int:
    result = _whole(query.get(key, ""))
    if not low <= result <= high:
        raise UsageError(f"{key}: out of range")
    return result


def _whole(word: str) -> int:
    digits = word.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise UsageError("a number was expected")
    return int(word)
