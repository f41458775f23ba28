"""The critical path of each step: the chain of host pieces, device work and waits between them that bound it.

It is walked from the end of the step backwards, at each node to the dependency that bound it. Its pieces cover the
step without a hole and without an overlap, so their lengths sum to the step exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.critical_path.graph import Graph, NodeKind, Via, dependency_graph
from perfscope.analyzers.time import HostActivity, divide
from perfscope.model.intervals import EMPTY, Int64, difference, intersection_total, union
from perfscope.model.trace import MISSING, Trace

UNKNOWN_GAP = 3
"""``CriticalPath.gap`` of time before work whose dependencies are not recorded."""

PARTS = (
    "compute",
    "communication",
    "copy",
    "launch",
    "dependency",
    "sync",
    "input",
    "compilation",
    "memory",
    "collective_setup",
    "garbage_collection",
    "saving",
    "sleeping",
    "host_op",
    "other_host",
    "unexplained",
)
"""What a piece of the path is, in the order of a report. ``host_op``: an op on the host that launches nothing;
``dependency``: between two works of a device; ``launch``: launching, and from a launch to the begin of its work."""

_PART_OF_ACTIVITY = {
    HostActivity.INPUT: "input",
    HostActivity.COMPILATION: "compilation",
    HostActivity.COLLECTIVE_SETUP: "collective_setup",
    HostActivity.GARBAGE_COLLECTION: "garbage_collection",
    HostActivity.SAVING: "saving",
    HostActivity.SLEEPING: "sleeping",
    HostActivity.MEMORY: "memory",
    HostActivity.SYNC: "sync",
    HostActivity.LAUNCH: "launch",
    HostActivity.OP: "host_op",
}
_PART_OF_WORK = {NodeKind.KERNEL: "compute", NodeKind.COMMUNICATION: "communication", NodeKind.COPY: "copy"}
_PART_OF_GAP = {Via.ORDER: "dependency", Via.LAUNCH: "launch", Via.DEPENDENCY: "dependency"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """Pieces of the paths of all steps in order of time, as equally long arrays."""

    graph: Graph
    starts: Int64
    ends: Int64
    window: Int64
    """Which of ``graph.windows``."""
    node: Int64
    """The node that the piece is of, or that it led to where it is a gap."""
    gap: Int64
    """``MISSING``: the node's own time. Else the ``Via`` that the node began late by, or ``UNKNOWN_GAP``."""

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self.starts)


def critical_path(trace: Trace) -> CriticalPath | None:
    """The paths of all steps; ``None`` where there is nothing to walk."""
    graph = trace.fact(dependency_graph)
    if graph is None:
        return None
    pieces: list[tuple[int, ...]] = []
    walk = Walk(graph)
    for window, (low, time) in enumerate(zip(graph.windows.starts.tolist(), graph.windows.ends.tolist(), strict=True)):
        node = int(graph.finish[window])
        while time > low:
            found, node, time = walk.back(node, time, low)
            pieces += [(start, end, window, of, gap) for start, end, of, gap in found]
    columns = np.array(pieces, np.int64).reshape(-1, 5)
    columns = columns[np.lexsort((columns[:, 1], columns[:, 0]))]
    return CriticalPath(
        graph=graph,
        starts=columns[:, 0],
        ends=columns[:, 1],
        window=columns[:, 2],
        node=columns[:, 3],
        gap=columns[:, 4],
    )


Piece = tuple[int, int, int, int]
"""Begin and end in ns, the node, the gap: as in ``CriticalPath``."""


class Walk:
    """Walks a graph backwards; plain lists, since one node is looked at at a time."""

    def __init__(self, graph: Graph) -> None:
        """Of one trace."""
        self._graph = graph
        self.starts, self._ends = graph.starts.tolist(), graph.ends.tolist()
        self._binds, self._before = graph.binds.tolist(), graph.before.tolist()
        self._on_host = graph.on_host.tolist()
        self._host_starts = graph.starts[graph.lane]
        work = np.flatnonzero(~graph.on_host)
        self._work = work[np.argsort(graph.ends[work], kind="stable")]
        self._work_ends = graph.ends[self._work]

    def back(self, node: int, time: int, low: int) -> tuple[list[Piece], int, int]:
        """(pieces of ``node`` up to ``time`` and of the gap before it, what bound it, the time where that ended).

        Nothing reaches below ``low``.
        """
        pieces: list[Piece] = []
        if self._ends[node] < time:  # after the last thing that is known
            end = max(self._ends[node], low)
            pieces.append((end, time, node, UNKNOWN_GAP))
            time = end
        start = max(self.starts[node], low)
        if start < time:
            pieces.append((start, time, node, MISSING))
            time = start
        if time <= low:
            return pieces, node, time
        via = self._binds[node]
        earlier, gap = (self._before[via][node], via) if via != MISSING else (self._at(node, time), UNKNOWN_GAP)
        end = low if earlier == MISSING else max(min(self._ends[earlier], time), low)
        if end < time:
            pieces.append((end, time, node, gap))
        return pieces, earlier, end

    def _at(self, node: int, time: int) -> int:
        """What went on before work with unknown dependencies: the host then, else the work that ended last."""
        if len(self._host_starts) and not self._on_host[node]:
            index = int(np.searchsorted(self._host_starts, time, side="left")) - 1
            if index >= 0 and self._graph.thread[self._graph.lane[index]] != MISSING:
                return int(self._graph.lane[index])
        index = int(np.searchsorted(self._work_ends, time, side="right")) - 1
        while index >= 0 and self.starts[self._work[index]] >= time:
            index -= 1
        return int(self._work[index]) if index >= 0 and self.starts[self._work[index]] < self.starts[node] else MISSING


def path_parts(trace: Trace) -> dict[str, int]:
    """The paths of all steps by part in ns, parts that do not occur left out; they sum to the steps exactly."""
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
    """Host pieces of the path by what their thread did; ops and XLA programs are compute where no device worked."""
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
            on_cpu = computes and activity in (HostActivity.OP, HostActivity.LAUNCH)
            name = "compute" if on_cpu else _PART_OF_ACTIVITY[activity]
            totals[name] = totals.get(name, 0) + part.total()
        totals["other_host"] = totals.get("other_host", 0) + rest.total()
    return totals
