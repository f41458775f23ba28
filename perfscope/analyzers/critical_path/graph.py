"""The dependency graph of a step: host time and device work as nodes, with what each node waits for.

The host nodes are as long as possible: a node ends where something else depends on it, at a wait, where the lane
changes threads, and at the bounds of steps. It consists of pieces of the host lane, each with its span and call.

A node begins when the last of its dependencies has ended, plus a lag. A node has up to three dependencies:

- *order*: the previous node of the host lane, or the previous work on the stream,
- *launch*: the host node that ended when the call that launched the work began,
- *dependency*: for device work, other device work whose end explains its begin (an event between streams, or a launch
  within a CUDA graph); for a wait of the host, the work that it waited for.

The dependency that ended last *binds*: its lag is the one in the recording. The lag of the other dependencies is the
shortest that is usual for their kind. The begin of each node therefore follows exactly from the ends of other nodes,
and replaying the graph without a change reproduces the recording. Every dependency begins before its node does, so
there are no cycles.

A wait for the device is two nodes: the call itself, which takes ``WAIT_CALL_NS``, and its return, which depends on the
work. It has one more node for each further stream that it waits for. If the stream of a wait is unknown, the wait is
assumed to be for the work that ended last before it returned.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.critical_path.lane import Lane, host_lane
from perfscope.analyzers.time import (
    SYNC_SLACK_NS,
    Windows,
    account_windows,
    device_doubts,
    device_waits,
)
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

WAIT_CALL_NS = 2_000
"""Shortest time of a call that waits for the device when there is nothing to wait for."""
DEPENDENCY_NS = 25_000
"""Work that begins within this time of the end of other work, but of another launch and stream, depends on that
work. An event takes 2 to 5 us from one stream to another with CUDA, and 10 to 20 us between queues with ROCm.
"""
ORDER_LAG_NS = 1_000
"""Delay between two kernels of a stream that are both queued."""
LAUNCH_LAG_NS = 5_000
"""Delay from a launch call to the start of its work on an idle device, if the trace shows no such launch."""
POLLED_NS = 100_000
"""Host pieces of at least this length may poll the device."""
MOST_CANDIDATES = 8
"""Maximum number of works considered when searching for one that had been launched when a wait began."""

RECORDING_WORK = frozenset({"device_work", "host_ops", "python_stack"})
"""Keys of ``Trace.recorded`` for recordings that contain work; a memory snapshot has none of them."""

_NO_END = np.iinfo(np.int64).min


class NodeKind(IntEnum):
    """Kind of a node."""

    HOST = 0
    RETURN = 1
    """End of a call that waited for the device, after the work had ended."""
    KERNEL = 2
    COMMUNICATION = 3
    COPY = 4


class Via(IntEnum):
    """Kind of a dependency: its index in ``Graph.before`` and ``Graph.lag``."""

    ORDER = 0
    LAUNCH = 1
    DEPENDENCY = 2


class Graph(Struct, frozen=True, kw_only=True):
    """Nodes in order of their begin, as arrays of equal length; times in ns on the trace's clock.

    Each node is after its dependencies.
    """

    windows: Windows
    lane: Lane
    """The host, of whose pieces the host nodes consist."""
    starts: Int64
    ends: Int64
    kind: np.ndarray
    """``NodeKind``."""
    row: Int64
    """Row of ``kernels`` or ``copies``; for host nodes the first piece of ``lane``."""
    call: Int64
    """Row of ``calls`` that launched the work, or that returned (``NodeKind.RETURN``); ``MISSING`` if unknown."""
    thread: Int64
    """Row of ``threads`` for host nodes, of ``devices`` for device nodes; ``MISSING`` if unknown."""
    before: Int64
    """(3, nodes): the dependencies of each node, by ``Via``; ``MISSING`` without one."""
    lag: Int64
    """(3, nodes): ns from the end of each dependency to the node's earliest begin."""
    binds: Int64
    """The ``Via`` that bound the node in the recording; ``MISSING`` if no dependency is known."""
    long: LongPieces
    """Pieces of host nodes that may have polled a device."""
    finish: Int64
    """Last node of each window."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.starts)

    @property
    def on_host(self) -> np.ndarray:
        """Mask of the host nodes."""
        return self.kind <= NodeKind.RETURN

    def host_pieces(self, starts: Int64, ends: Int64) -> HostPieces:
        """Return the pieces of the lane in each of the intervals, which are within host nodes; empty ones have none."""
        first = self.lane.at(starts)
        counts = np.where(starts < ends, self.lane.at(ends - 1) - first + 1, 0)
        interval = np.repeat(np.arange(len(starts)), counts)
        piece = np.arange(len(interval)) + (first - np.cumsum(counts) + counts)[interval]
        return HostPieces(
            interval=interval,
            piece=piece,
            starts=np.maximum(self.lane.starts[piece], starts[interval]),
            ends=np.minimum(self.lane.ends[piece], ends[interval]),
        )


class LongPieces(NamedTuple):
    """Pieces of the lane, cut at nodes, of at least ``POLLED_NS``, as arrays of equal length; times in ns."""

    node: Int64
    starts: Int64
    ends: Int64


class HostPieces(NamedTuple):
    """Parts of pieces of the lane, as arrays of equal length; times in ns."""

    interval: Int64
    """Index of the interval that contains the part."""
    piece: Int64
    """Index in ``Graph.lane``."""
    starts: Int64
    ends: Int64


class _Work(Struct, frozen=True, kw_only=True):
    """Kernels and copies in order of begin."""

    starts: Int64
    ends: Int64
    kind: Int64
    row: Int64
    device: Int64
    stream: Int64
    call: Int64

    def __len__(self) -> int:
        return len(self.starts)


def dependency_graph(trace: Trace) -> Graph | None:
    """Return the graph of all steps (of the whole capture without steps).

    ``None`` if no host thread or device worked.
    """
    windows = trace.fact(account_windows)
    if not len(windows.starts) or windows.whole_ns <= 0 or not trace.recorded & RECORDING_WORK:
        return None
    if trace.fact(device_doubts):
        return None
    low, high = int(windows.starts.min()), int(windows.ends.max())
    lane = host_lane(trace, low, high, np.unique(np.concatenate((windows.starts, windows.ends))))
    work = _work(trace, low, high)
    if not len(work) and not (lane.slice != MISSING).any():
        return None
    awaited = _awaited(trace, lane, work)
    launching = _launching(trace, lane, work)
    host = _host_nodes(lane, work, awaited, launching, windows)
    return _assembled(trace, windows, lane, work, host, launching)


def _work(trace: Trace, low: int, high: int) -> _Work:
    kernels, copies = trace.rows["kernels"], trace.rows["copies"]
    kinds = (
        np.where(kernels["communication"], int(NodeKind.COMMUNICATION), int(NodeKind.KERNEL)),
        np.full(len(copies), int(NodeKind.COPY)),
    )
    columns = {
        column: np.concatenate([kernels[column], copies[column]]).astype(np.int64)
        for column in ("start_ns", "end_ns", "device", "stream", "call")
    }
    row = np.concatenate([np.arange(len(kernels)), np.arange(len(copies))])
    inside = (columns["end_ns"] > columns["start_ns"]) & (columns["end_ns"] > low) & (columns["start_ns"] < high)
    order = np.flatnonzero(inside)
    order = order[np.lexsort((columns["end_ns"][order], columns["start_ns"][order]))]
    return _Work(
        starts=columns["start_ns"][order],
        ends=columns["end_ns"][order],
        kind=np.concatenate(kinds)[order],
        row=row[order],
        device=columns["device"][order],
        stream=columns["stream"][order],
        call=columns["call"][order],
    )


def _awaited(trace: Trace, lane: Lane, work: _Work) -> dict[int, list[int]]:
    """Return, per lane piece that ends a wait for the device, the works that it waited for (indices of ``work``).

    A wait for the whole device has one work per stream, in order of their end.
    """
    calls = trace.rows["calls"]
    waits, wide = device_waits(trace)
    if not len(waits) or not len(work):
        return {}
    begins, returns = calls["start_ns"][waits].astype(np.int64), calls["end_ns"][waits].astype(np.int64)
    piece = lane.at(returns - 1)
    here = (
        (lane.thread[piece] == calls["thread"][waits]) & (lane.ends[piece] == returns) & (lane.call[piece] != MISSING)
    )
    waits, wide, piece = waits[here], wide[here], piece[here]
    begins = np.maximum(begins[here], lane.starts[piece])
    streams = _streams_of_waits(trace)
    stream = np.array([streams.get(int(wait), MISSING) for wait in waits], np.int64)
    groups = [(work.stream == number, stream == number) for number in np.unique(stream[stream != MISSING]).tolist()]
    groups.append((np.ones(len(work), bool), (stream == MISSING) & ~wide))
    pairs = sorted(set(zip(work.device.tolist(), work.stream.tolist(), strict=True))) if wide.any() else []
    groups += [((work.device == device) & (work.stream == number), wide) for device, number in pairs]
    result: dict[int, list[int]] = {}
    for candidates, mine in groups:
        chosen = np.flatnonzero(mine)
        last = _last_launched(trace, work, np.flatnonzero(candidates), waits[chosen], begins[chosen])
        done = np.minimum(work.ends[np.maximum(last, 0)], lane.ends[piece[chosen]])
        waited = (last != MISSING) & (work.starts[np.maximum(last, 0)] < done) & (done - begins[chosen] > WAIT_CALL_NS)
        for number, awaited in zip(piece[chosen[waited]].tolist(), last[waited].tolist(), strict=True):
            result.setdefault(number, []).append(awaited)
    return {number: sorted(works, key=lambda index: int(work.ends[index])) for number, works in result.items()}


def _last_launched(trace: Trace, work: _Work, candidates: Int64, waits: Int64, begins: Int64) -> Int64:
    """Return, per wait, the candidate that ended last before it returned and was launched before it began."""
    calls = trace.rows["calls"]
    result = np.full(len(waits), MISSING, np.int64)
    if not len(candidates):
        return result
    candidates = candidates[np.argsort(work.ends[candidates], kind="stable")]
    index = np.searchsorted(work.ends[candidates], calls["end_ns"][waits] + SYNC_SLACK_NS, side="right") - 1
    for _ in range(MOST_CANDIDATES):
        safe = candidates[np.maximum(index, 0)]
        launched = np.where(work.call[safe] == MISSING, _NO_END, calls["start_ns"][np.maximum(work.call[safe], 0)])
        fits = (index >= 0) & ((launched <= begins) | (work.call[safe] == waits)) & (result == MISSING)
        result[fits] = safe[fits]
        index = index - 1
    return result


def _streams_of_waits(trace: Trace) -> dict[int, int]:
    """Return the stream of each call that waits for one stream, if the driver recorded it."""
    records = trace.rows["sync_records"]
    named = [code for code, text in enumerate(trace.strings) if text == "Stream Sync"]
    rows = np.flatnonzero(np.isin(records["name"], named) & (records["call"] != MISSING))
    return dict(zip(records["call"][rows].tolist(), records["stream"][rows].tolist(), strict=True))


def _launching(trace: Trace, lane: Lane, work: _Work) -> Int64:
    """Return the piece of the lane in which each work was launched; ``MISSING`` if the lane was on another thread then.

    Also ``MISSING`` if the piece before began after the work, because clocks differ by some microseconds.
    """
    calls = trace.rows["calls"]
    result = np.full(len(work), MISSING, np.int64)
    known = np.flatnonzero(work.call != MISSING)
    if not len(known) or not len(lane):
        return result
    begins = calls["start_ns"][work.call[known]].astype(np.int64)
    piece = lane.at(begins)
    inside = (lane.starts[piece] <= begins) & (begins < lane.ends[piece])
    followed = inside & (lane.thread[piece] == calls["thread"][work.call[known]])
    fits = followed & (piece > 0) & (lane.starts[piece - 1] < work.starts[known])
    result[known[fits]] = piece[fits]
    return result


def _host_nodes(
    lane: Lane, work: _Work, awaited: dict[int, list[int]], launching: Int64, windows: Windows
) -> dict[str, Int64]:
    """Return the host nodes; ``piece`` holds the first piece of each, ``awaits`` indices of ``work``.

    A wait becomes its call, one node without length at the end of each work that it waited for, and its return.
    """
    waits = np.array(sorted(awaited), np.int64)
    begins = np.zeros(len(lane) + 1, bool)
    begins[[0, *lane.at(windows.starts), *lane.at(windows.ends), *waits, *(waits + 1)]] = True
    begins[launching[launching != MISSING]] = True
    begins[1:-1] |= lane.thread[1:] != lane.thread[:-1]
    run = np.flatnonzero(begins[:-1])
    counts = np.ones(len(run), np.int64)
    counts[np.searchsorted(run, waits)] = [1 + len(awaited[number]) for number in waits.tolist()]
    first = np.repeat(np.arange(len(run)), counts)
    piece, run_ends = run[first], np.append(lane.starts[run[1:]], lane.bounds[-1:])
    call = np.ones(len(piece), bool)
    call[1:] = first[1:] != first[:-1]
    last = np.append(call[1:], np.True_)[: len(piece)]
    awaits = np.full(len(piece), MISSING, np.int64)
    awaits[~call] = [index for number in waits.tolist() for index in awaited[number]]
    starts = lane.starts[piece]
    starts[~call] = np.clip(work.ends[awaits[~call]], lane.starts[piece[~call]], lane.ends[piece[~call]])
    ends = np.where(last, run_ends[first], starts)
    waiting = np.flatnonzero(call & ~last)
    ends[waiting] = np.minimum(starts[waiting] + WAIT_CALL_NS, starts[waiting + 1])
    return {
        "starts": starts,
        "ends": ends,
        "kind": np.where(call, int(NodeKind.HOST), int(NodeKind.RETURN)),
        "thread": lane.thread[piece],
        "call": np.where(call, MISSING, lane.call[piece]),
        "piece": piece,
        "awaits": awaits,
    }


def _assembled(
    trace: Trace, windows: Windows, lane: Lane, work: _Work, host: dict[str, Int64], launching: Int64
) -> Graph:
    """Put the nodes into one order and set their dependencies."""
    hosts, size = len(host["starts"]), len(host["starts"]) + len(work)
    ends = np.concatenate((host["ends"], work.ends))
    work_before, work_lag, work_binds = _work_dependencies(work, host, launching)
    # host nodes and works are each in order already; at equal times the host is first
    on_lane = np.arange(hosts) + np.searchsorted(work.starts, host["starts"], side="left")
    on_device = np.arange(len(work)) + np.searchsorted(host["starts"], work.starts, side="right")
    place = np.concatenate((on_lane, on_device, [MISSING]))
    before, lag = np.full((3, size), MISSING, np.int64), np.zeros((3, size), np.int64)
    returns = np.flatnonzero(host["awaits"] != MISSING)
    waited = host["awaits"][returns] + hosts
    before[Via.ORDER, on_lane[1:]] = on_lane[:-1]
    lag[Via.ORDER, on_lane[1:]] = host["starts"][1:] - host["ends"][:-1]
    lag[Via.ORDER, on_lane[returns]] = 0  # the work binds the return of a wait
    before[Via.DEPENDENCY, on_lane[returns]] = place[waited]
    lag[Via.DEPENDENCY, on_lane[returns]] = host["starts"][returns] - ends[waited]
    before[:, on_device], lag[:, on_device] = place[work_before], work_lag
    host_binds = np.full(hosts, int(Via.ORDER))
    host_binds[:1], host_binds[returns] = MISSING, int(Via.DEPENDENCY)

    def merged(of_host: Int64, of_work: Int64) -> Int64:
        column = np.empty(size, np.int64)
        column[on_lane], column[on_device] = of_host, of_work
        return column

    graph = Graph(
        windows=windows,
        lane=lane,
        starts=merged(host["starts"], work.starts),
        ends=merged(host["ends"], work.ends),
        kind=merged(host["kind"], work.kind).astype(np.uint8),
        row=merged(host["piece"], work.row),
        call=merged(host["call"], work.call),
        thread=merged(host["thread"], work.device),
        before=before,
        lag=lag,
        binds=merged(host_binds, work_binds),
        long=LongPieces(*np.empty((3, 0), np.int64)),
        finish=place[_finishing(trace, windows, lane, work, host)],
    )
    return replace(graph, long=_long_pieces(graph))


def _long_pieces(graph: Graph) -> LongPieces:
    piece = np.flatnonzero(np.diff(graph.lane.bounds) >= POLLED_NS)
    begun = np.flatnonzero(graph.kind == NodeKind.HOST)
    returned = np.flatnonzero(graph.kind == NodeKind.RETURN)
    node = begun[np.searchsorted(graph.starts[begun], graph.lane.starts[piece], side="right") - 1]
    node = np.concatenate((node, returned))
    starts = np.concatenate((graph.lane.starts[piece], graph.starts[returned]))
    ends = np.minimum(np.concatenate((graph.lane.ends[piece], graph.ends[returned])), graph.ends[node])
    chosen = ends - starts >= POLLED_NS
    return LongPieces(node[chosen], starts[chosen], ends[chosen])


def _work_dependencies(work: _Work, host: dict[str, Int64], launching: Int64) -> tuple[Int64, Int64, Int64]:
    """Return (dependencies, lags, binding dependency) per work.

    Nodes are numbered host nodes first, works after them.
    """
    hosts = len(host["starts"])
    starts, ends = np.concatenate((host["starts"], work.starts)), np.concatenate((host["ends"], work.ends))
    before = np.full((3, len(work)), MISSING, np.int64)
    before[Via.ORDER] = _before_on_stream(work, hosts)
    before[Via.LAUNCH] = np.where(launching == MISSING, MISSING, np.searchsorted(host["piece"], launching) - 1)
    before = _begun_before(before, starts, work.starts)
    _infer_dependencies(before, ends, work, hosts)
    return before, *_lags(before, work.starts, ends)


def _before_on_stream(work: _Work, offset: int) -> Int64:
    """Return, per work, the previous work on its stream if that had ended when it began; else ``MISSING``."""
    order = np.lexsort((work.starts, work.stream, work.device))
    result = np.full(len(work), MISSING, np.int64)
    if len(work) > 1:
        earlier, later = order[:-1], order[1:]
        same = (work.device[earlier] == work.device[later]) & (work.stream[earlier] == work.stream[later])
        done = same & (work.ends[earlier] <= work.starts[later])
        result[later[done]] = earlier[done] + offset
    return result


def _begun_before(before: Int64, starts: Int64, own: Int64) -> Int64:
    """Return ``before`` without nodes that began after the work itself, because clocks differ by some microseconds."""
    return np.where((before != MISSING) & (starts[np.maximum(before, 0)] < own), before, MISSING)


def _infer_dependencies(before: Int64, ends: Int64, work: _Work, hosts: int) -> None:
    """Make work depend on the previous work of its device if its own launch and stream do not explain its begin."""
    known = np.where(before == MISSING, _NO_END, ends[before]).max(axis=0)
    unexplained = np.flatnonzero((known == _NO_END) | (work.starts - np.maximum(known, 0) > DEPENDENCY_NS))
    for device in np.unique(work.device[unexplained]).tolist():
        mine = unexplained[work.device[unexplained] == device]
        others = np.flatnonzero(work.device == device)
        others = others[np.argsort(work.ends[others], kind="stable")]
        index = np.searchsorted(work.ends[others], work.starts[mine], side="right") - 1
        last = others[np.maximum(index, 0)]
        end = work.ends[last]
        explains = (index >= 0) & (end > known[mine]) & (work.starts[mine] - end <= DEPENDENCY_NS)
        explains &= work.starts[last] < work.starts[mine]
        before[Via.DEPENDENCY, mine[explains]] = last[explains] + hosts


def _lags(before: Int64, starts: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """Return (lag of each dependency, index of the binding one).

    Exact for the binding one, the usual lag for the others.
    """
    end = np.where(before == MISSING, _NO_END, ends[before])
    binds = np.where((before == MISSING).all(axis=0), MISSING, np.argmax(end, axis=0))
    after = starts - end
    launched = binds == Via.LAUNCH
    usual = min(np.median(after[Via.LAUNCH, launched]), DEPENDENCY_NS) if launched.any() else LAUNCH_LAG_NS
    least = np.array([[ORDER_LAG_NS], [int(usual)], [ORDER_LAG_NS]], np.int64)
    lag = np.where(before == MISSING, 0, np.minimum(after, least))
    bound = np.flatnonzero(binds != MISSING)
    lag[binds[bound], bound] = after[binds[bound], bound]
    return lag, binds


def _finishing(trace: Trace, windows: Windows, lane: Lane, work: _Work, host: dict[str, Int64]) -> Int64:
    """Return the last node of each window: work that is running or queued at its end, else the host piece.

    A host that runs ahead of its device waits for it eventually, so the device bounds such steps. If the host recorded
    nothing at the end, or no launch is recorded, the node is the work that ended last.
    """
    piece = lane.at(windows.ends - 1)
    last_host = np.searchsorted(host["piece"], piece, side="right") - 1
    if not len(work):
        return last_host
    calls, hosts = trace.rows["calls"]["start_ns"], len(host["starts"])
    launched = np.where(work.call == MISSING, work.starts, calls[np.maximum(work.call, 0)] if len(calls) else 0)
    by_end, reach = np.argsort(work.ends, kind="stable"), np.maximum.accumulate(work.ends)
    ends = work.ends[by_end]
    idle = (lane.slice[piece] == MISSING) & (lane.call[piece] == MISSING) | (work.call == MISSING).all()
    result = last_host.copy()
    for window, end in enumerate(windows.ends.tolist()):
        following = int(np.searchsorted(work.starts, end))
        first = int(np.searchsorted(reach, end))  # earlier works have all ended
        running = first + np.flatnonzero(work.ends[first:following] >= end)
        last = int(np.searchsorted(ends, end, side="right")) - 1
        if len(running):
            result[window] = running[-1] + hosts
        elif following < len(work) and launched[following] < end:
            result[window] = following + hosts
        elif idle[window] and last >= 0:
            result[window] = by_end[last] + hosts
    return result
