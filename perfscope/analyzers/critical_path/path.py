"""The critical path of each step: the chain of host pieces, device work and waits that determines its length.

The path is computed backwards from the end of the step, from each node to its binding dependency. Its parts cover the
step without gaps or overlaps, so their lengths sum to the step exactly. The time of a host node is one part, which
consists of pieces, each in one span (``host_pieces``).
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from msgspec import Struct

from perfscope.analyzers.critical_path.graph import Graph, HostPieces, NodeKind, Via, dependency_graph
from perfscope.analyzers.time import divide
from perfscope.model.documents.causes import HostPurpose
from perfscope.model.intervals import EMPTY, Int64, difference, intersection_total, union
from perfscope.model.trace import MISSING, Trace

UNKNOWN_GAP = 3
"""``CriticalPath.gap`` for time before work whose dependencies are not recorded."""

PARTS = (
    "compute",
    "communication",
    "copy",
    "launch",
    "dependency",
    "sync",
    "input",
    *get_args(HostPurpose),
    "host_op",
    "other_host",
    "unexplained",
)
"""Category of a piece of the path, in the order of a report. ``host_op``: an op on the host that launches nothing;
``dependency``: the gap between two works of a device; ``launch``: launch calls, and the delay from a launch to the
begin of its work.
"""

_PART_OF_WORK = {NodeKind.KERNEL: "compute", NodeKind.COMMUNICATION: "communication", NodeKind.COPY: "copy"}
_PART_OF_GAP = {Via.ORDER: "dependency", Via.LAUNCH: "launch", Via.DEPENDENCY: "dependency"}

Piece = tuple[int, int, int, int]
"""Begin and end in ns, node, gap: as in ``CriticalPath``."""


class CriticalPath(Struct, frozen=True, kw_only=True):
    """Parts of the paths of all steps in order of time, as arrays of equal length."""

    graph: Graph
    starts: Int64
    ends: Int64
    window: Int64
    """Index in ``graph.windows``."""
    node: Int64
    """Node of the part; for a gap, the node after it."""
    gap: Int64
    """``MISSING`` for the node's own time; else the ``Via`` that delayed the node, or ``UNKNOWN_GAP``."""

    def __len__(self) -> int:
        """Number of parts."""
        return len(self.starts)

    @property
    def host_own(self) -> Int64:
        """Indices of the parts that are own time of host nodes."""
        return np.flatnonzero(self.graph.on_host[self.node] & (self.gap == MISSING))

    def host_pieces(self) -> HostPieces:
        """Return the pieces of the host's own time; ``interval`` is an index of the path."""
        own = self.host_own
        found = self.graph.host_pieces(self.starts[own], self.ends[own])
        return found._replace(interval=own[found.interval])

    def pieces(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Return begin, end, index of the part, and row of all pieces in order of time: ``rows`` has the tables."""
        inside = self.host_pieces()
        whole = np.ones(len(self), bool)
        whole[inside.interval] = False
        starts, ends = (
            np.concatenate((parts[whole], pieces))
            for parts, pieces in ((self.starts, inside.starts), (self.ends, inside.ends))
        )
        part = np.concatenate((np.flatnonzero(whole), inside.interval))
        rows = np.concatenate((self.rows()[whole], self.graph.lane.slice[inside.piece]))
        order = np.lexsort((ends, starts))
        return starts[order], ends[order], part[order], rows[order]

    def rows(self) -> Int64:
        """Row of ``slices``, ``kernels`` or ``copies`` per part; for a host node that of its first piece."""
        host, rows = self.graph.on_host[self.node], self.graph.row[self.node]
        rows[host] = self.graph.lane.slice[rows[host]]
        return rows


def critical_path(trace: Trace) -> CriticalPath | None:
    """Return the paths of all steps; ``None`` if the trace has no dependency graph."""
    graph = trace.fact(dependency_graph)
    if graph is None:
        return None
    starts, ends, window, node, gap = _pieces(graph)
    order = np.lexsort((ends, starts))
    return CriticalPath(
        graph=graph, starts=starts[order], ends=ends[order], window=window[order], node=node[order], gap=gap[order]
    )


def _pieces(graph: Graph) -> tuple[Int64, ...]:
    """Return begin, end, window, node and gap of each piece of all paths, as in ``Walk.back``."""
    walk = Walk(graph)
    nodes, window = walk.nodes()
    first = np.ones(len(nodes), bool)
    first[1:] = window[1:] != window[:-1]
    low, high = graph.windows.starts[window], graph.windows.ends[window]
    # begin of the node that follows each node on the path
    following = np.where(first, high, np.roll(graph.starts[nodes], 1))
    arrives = np.clip(np.minimum(graph.ends[nodes], following), low, high)
    begins = np.clip(graph.starts[nodes], low, high)
    led_to = np.where(first, nodes, np.roll(nodes, 1))
    gaps = np.where(first | (graph.binds[led_to] == MISSING), UNKNOWN_GAP, graph.binds[led_to])
    last = np.append(first[1:], np.True_)[: len(nodes)]  # nothing before it is known
    columns = (
        (begins, arrives, window, nodes, np.broadcast_to(MISSING, len(nodes))),
        (arrives, np.minimum(following, high), window, led_to, gaps),
        (np.where(last, low, begins), begins, window, nodes, np.broadcast_to(UNKNOWN_GAP, len(nodes))),
    )
    filled = [np.flatnonzero(starts < ends) for starts, ends, *_ in columns]
    return tuple(
        np.concatenate([part[rows][::-1] for part, rows in zip(parts, filled, strict=True)])
        for parts in zip(*columns, strict=True)
    )


class Walk:
    """Walk a graph backwards."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        every, bound = np.arange(len(graph)), graph.binds != MISSING
        self._earlier = np.where(bound, graph.before[np.maximum(graph.binds, 0), every], MISSING)
        self.starts, self._ends = graph.starts.data, graph.ends.data
        self._binds, self._bound_by = graph.binds.data, self._earlier.data
        self._on_host = graph.on_host
        self._lane = np.flatnonzero(self._on_host)
        self._host_starts = graph.starts[self._lane]
        work = np.flatnonzero(~self._on_host)
        self._work = work[np.argsort(graph.ends[work], kind="stable")]
        self._work_ends = graph.ends[self._work]

    def back(self, node: int, time: int, low: int) -> tuple[list[Piece], int, int]:
        """Return (pieces of ``node`` up to ``time`` and of the gap before it, binding dependency, end of that).

        Pieces are clipped at ``low``.
        """
        pieces: list[Piece] = []
        if self._ends[node] < time:  # after the end of the last recorded event
            end = max(self._ends[node], low)
            pieces.append((end, time, node, UNKNOWN_GAP))
            time = end
        start = max(self.starts[node], low)
        if start < time:
            pieces.append((start, time, node, MISSING))
            time = start
        if time <= low:
            return pieces, node, time
        via, earlier = self._binds[node], self._bound_by[node]
        gap = UNKNOWN_GAP if via == MISSING else via
        earlier = self._at(node, time) if via == MISSING else earlier
        end = low if earlier == MISSING else max(min(self._ends[earlier], time), low)
        if end < time:
            pieces.append((end, time, node, gap))
        return pieces, earlier, end

    def nodes(self) -> tuple[Int64, Int64]:
        """Return (nodes on the paths of all windows, each path from its end backwards; number of the window)."""
        windows, starts = self._graph.windows, self.starts
        found: list[int] = []
        counts: list[int] = []
        for low, high, node in zip(
            windows.starts.tolist(), windows.ends.tolist(), self._graph.finish.tolist(), strict=True
        ):
            before = len(found)
            while node != MISSING and low < high:
                found.append(node)
                start = starts[node]
                if start <= low:
                    break
                earlier = self._bound_by[node]
                node = self._at(node, min(start, high)) if earlier == MISSING else earlier
            counts.append(len(found) - before)
        return np.array(found, np.int64), np.repeat(np.arange(len(counts)), counts)

    def _at(self, node: int, time: int) -> int:
        """Return the node active before work with unknown dependencies: the host piece or the work that ended last."""
        if len(self._host_starts) and not self._on_host[node]:
            index = int(np.searchsorted(self._host_starts, time, side="left")) - 1
            if index >= 0 and self._graph.thread[self._lane[index]] != MISSING:
                return int(self._lane[index])
        index = int(np.searchsorted(self._work_ends, time, side="right")) - 1
        while index >= 0 and self.starts[self._work[index]] >= time:
            index -= 1
        return int(self._work[index]) if index >= 0 and self.starts[self._work[index]] < self.starts[node] else MISSING


def path_parts(trace: Trace) -> dict[str, int]:
    """Return the paths of all steps by part, ns; parts without time are omitted.

    The values sum to the steps exactly.
    """
    path = trace.fact(critical_path)
    if path is None:
        return {}
    totals = dict.fromkeys(PARTS, 0)
    lengths, kinds = path.ends - path.starts, path.graph.kind[path.node]
    is_gap, host = path.gap != MISSING, path.graph.on_host[path.node]
    for kind, part in _PART_OF_WORK.items():
        totals[part] += int(lengths[~is_gap & (kinds == kind)].sum())
    for via, part in _PART_OF_GAP.items():
        totals[part] += int(lengths[(path.gap == via) & ~host].sum())
    totals["sync"] += int(lengths[host & is_gap & (path.gap != UNKNOWN_GAP)].sum())
    totals["unexplained"] += int(lengths[path.gap == UNKNOWN_GAP].sum())
    returns = ~is_gap & (kinds == NodeKind.RETURN)
    totals["sync"] += int(lengths[returns].sum())
    for part, time in _host_parts(trace, path, ~is_gap & (kinds == NodeKind.HOST)).items():
        totals[part] += time
    return {part: time for part, time in totals.items() if time}


def _host_parts(trace: Trace, path: CriticalPath, chosen: np.ndarray) -> dict[str, int]:
    """Return the host pieces of the path by activity of their thread.

    If no device worked, ops and XLA programs are compute.
    """
    totals: dict[str, int] = {}
    threads = path.graph.thread[path.node]
    computes = bool(path.graph.on_host.all())
    instructions = trace.rows["hlo_ops"]
    computing = union(instructions["start_ns"], instructions["end_ns"]) if computes else EMPTY  # on XLA's own threads
    for thread in np.unique(threads[chosen]).tolist():
        mine = chosen & (threads == thread)
        spans = union(path.starts[mine], path.ends[mine])
        if thread == MISSING:
            totals["unexplained"] = totals.get("unexplained", 0) + spans.total()
            continue
        totals["compute"] = totals.get("compute", 0) + intersection_total(spans, computing)
        parts, rest = divide(trace, thread, difference(spans, computing))
        for activity, part in parts.items():
            on_cpu = computes and activity.name in ("OP", "LAUNCH")
            name = "compute" if on_cpu else "host_op" if activity.name == "OP" else activity.name.lower()
            totals[name] = totals.get(name, 0) + part.total()
        totals["other_host"] = totals.get("other_host", 0) + rest.total()
    return totals
