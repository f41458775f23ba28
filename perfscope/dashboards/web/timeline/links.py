"""Relations between events of a timeline: launches, forward and backward, collectives of other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfscope.analyzers.ranks import Local, peers
from perfscope.analyzers.time import forward_rows
from perfscope.dashboards.web.timeline.index import Index, load
from perfscope.dashboards.web.timeline.lanes import TABLES
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

PEERS = ("peer_at", "peer_trace", "peer_event")


def save(trace: Trace, index: Index, folder: Path) -> None:
    """Write, by event: its ``partner``, its ``forward`` op (or first backward op), its ``parent``."""
    np.save(folder / "partner.npy", _partners(trace, index))
    ops = _places(index, "slices", len(trace.rows["slices"]))
    np.save(folder / "forward.npy", _forward(trace, index, ops))
    np.save(folder / "parent.npy", _parents(trace, index, ops))


def save_peers(traces: Sequence[Trace], numbers: Mapping[int, int], folder: Path) -> None:
    """Write which events form one collective: ``peer_of`` of each trace is its number, `PEERS` its events (CSR).

    ``numbers``: position in ``traces`` -> number of the trace, the name of the folder of its index.
    """
    known = {id(traces[place]): number for place, number in numbers.items()}
    indexes = {number: load(folder / str(number)) for number in known.values()}
    events = {number: _Events(index) for number, index in indexes.items()}
    group_of = {number: np.full(len(index), MISSING, np.int32) for number, index in indexes.items()}
    at, members = [0], list[tuple[int, int]]()
    for sides in peers(traces):
        found = []
        for trace, side in sides:
            number = known.get(id(trace))
            event = MISSING if number is None else events[number].of(side)
            if number is not None and event != MISSING:
                found.append((number, event))
        if len(found) > 1:
            for number, event in found:
                group_of[number][event] = len(at) - 1
            members += found
            at.append(len(members))
    both = np.array(members, np.int32).reshape(-1, 2)
    arrays: tuple[np.ndarray, ...] = (np.array(at, np.int64), both[:, 0], both[:, 1])
    for key, values in zip(PEERS, arrays, strict=True):
        np.save(folder / f"{key}.npy", values)
    for number, group in group_of.items():
        np.save(folder / str(number) / "peer_of.npy", group)


class _Events:
    """Finds the event of a collective. For a rank without its tables only its own rows are kept, renumbered."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._by_time: dict[str, dict[tuple[int, int], int]] = {}
        self._by_row: dict[str, Int64] = {}

    def of(self, side: Local) -> int:
        """The event of a collective; ``MISSING`` without one."""
        table, row = ("kernels", side.kernel) if side.kernel != MISSING else ("slices", side.slice)
        if table not in self._by_row:
            mine = np.flatnonzero(self._index.table == TABLES.index(table))
            self._by_row[table] = _places(self._index, table, int(self._index.row[mine].max(initial=-1)) + 1)
            times = zip(self._index.start[mine].tolist(), self._index.end[mine].tolist(), strict=True)
            self._by_time[table] = dict(zip(times, mine.tolist(), strict=True))
        rows = self._by_row[table]
        event = int(rows[row]) if 0 <= row < len(rows) else MISSING
        if event != MISSING and self._index.start[event] == side.start_ns and self._index.end[event] == side.end_ns:
            return event
        return self._by_time[table].get((side.start_ns, side.end_ns), MISSING)


def _places(index: Index, table: str, size: int) -> Int64:
    """The event of each row of a table; ``MISSING`` without one."""
    result = np.full(size, MISSING, np.int64)
    mine = np.flatnonzero(index.table == TABLES.index(table))
    result[index.row[mine]] = mine
    return result


def _partners(trace: Trace, index: Index) -> np.ndarray:
    """The other end of an arrow: for device work its launch, for a call the first work it launched."""
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
        linked = np.flatnonzero((mine != MISSING) & (other != MISSING))[::-1]  # written last, the first one wins
        result[mine[linked]] = other[linked]
        result[other[linked]] = mine[linked]
    return result


def _forward(trace: Trace, index: Index, ops: Int64) -> np.ndarray:
    """For an op of the backward pass the event of its forward op; for that the first backward op."""
    result = np.full(len(index), MISSING, np.int32)
    forward = trace.fact(forward_rows)
    rows = np.flatnonzero(forward != MISSING)[::-1]  # written last, the first one wins
    behind, ahead = ops[rows], ops[forward[rows]]
    both = (behind != MISSING) & (ahead != MISSING)
    result[ahead[both]] = behind[both]
    result[behind[both]] = ahead[both]
    return result


def _parents(trace: Trace, index: Index, ops: Int64) -> np.ndarray:
    """The event of the host span around a span or call, and of the caller of a sampled call."""
    result = np.full(len(index), MISSING, np.int32)
    for table in ("slices", "calls"):
        mine = np.flatnonzero(index.table == TABLES.index(table))
        parent = trace.rows[table]["parent"][index.row[mine]]
        result[mine] = np.where(parent == MISSING, MISSING, ops[parent] if len(ops) else MISSING)
    sampled = index.table == TABLES.index("frames")
    for lane in np.unique(index.lane[sampled]).tolist():
        if index.lanes[lane].depth:
            calls, callers = index.of_lane(lane), index.of_lane(lane - 1)
            at = np.searchsorted(index.start[callers], index.start[calls], side="right") - 1
            result[calls] = np.where(at < 0, MISSING, callers.start + at)
    return result
