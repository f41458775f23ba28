"""The critical path of a job's step, from rank to rank over its collectives.

A collective ends on all ranks when the last rank has arrived and the data has moved. Walking back from the end of the
step, the kernel of a collective is on the path only from the begin of the last rank's kernel. Before that its rank only
waited, and the path continues with the work that made the last rank late. Times are on the clock of the lowest rank,
corrected by the ends of collectives (``Clocks``). Collectives on the host (gloo) are not followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.critical_path.graph import Graph, NodeKind, dependency_graph
from perfscope.analyzers.critical_path.path import Walk
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.ranks import Matched, RankSet

MOST_NODES = 8_000_000
"""Limit on the nodes of all ranks together. The path of larger jobs is not computed, because it needs more than 1 GB.
"""


class JobPiece(Struct, frozen=True, kw_only=True):
    """A piece of the path. Times in ns on the lowest rank's clock."""

    rank: int
    start_ns: int
    end_ns: int
    kind: NodeKind
    waits: bool
    """Time until the node could begin, as opposed to its own time."""
    row: int
    """Row of ``kernels`` or ``copies`` of the rank's trace; ``MISSING`` for host time, which may be in several spans.
    """


class JobPath(Struct, frozen=True, kw_only=True):
    """The path of one step of a job."""

    step: int | None
    """Number of the step; ``None`` for the whole capture."""
    start_ns: int
    end_ns: int
    """End of the step on the rank that ended last."""
    pieces: tuple[JobPiece, ...]
    """Pieces in order of time, without gaps; their lengths sum to the step exactly."""
    jumps: int
    """Number of times the path changes to another rank."""
    uncertainty_ns: int
    """Largest uncertainty of the clocks."""

    @property
    def by_rank(self) -> Mapping[int, int]:
        """Time of the path on each rank, ns."""
        total: dict[int, int] = defaultdict(int)
        for piece in self.pieces:
            total[piece.rank] += piece.end_ns - piece.start_ns
        return dict(total)

    @property
    def by_kind(self) -> Mapping[str, int]:
        """Time of the path by kind of node, with ``waiting`` for the time until nodes could begin; ns."""
        total: dict[str, int] = defaultdict(int)
        for piece in self.pieces:
            total["waiting" if piece.waits else piece.kind.name.lower()] += piece.end_ns - piece.start_ns
        return dict(total)


def job_paths(traces: Sequence[Trace]) -> tuple[JobPath, ...]:
    """Return the paths of all steps of the first job whose ranks share collectives on devices.

    Empty without such a job.

    Only steps that every rank has count. If ranks have no steps, the path covers the capture of the rank that ended
    last.
    """
    from perfscope.analyzers.ranks import rank_sets

    for ranks in rank_sets(traces):
        graphs = {member.rank: member.trace.fact(dependency_graph) for member in ranks.job.members}
        known = {rank: graph for rank, graph in graphs.items() if graph is not None}
        if len(known) == len(graphs) and sum(map(len, known.values())) <= MOST_NODES:
            walker = _JobWalk(ranks, known)
            if walker.sides:
                return tuple(walker.of(number) for number in _common_steps(known))
    return ()


def _common_steps(graphs: Mapping[int, Graph]) -> list[int | None]:
    numbers = set.intersection(*(set(graph.windows.numbers) for graph in graphs.values()))
    return [*sorted(numbers)] or [None]


class _JobWalk:
    """Walk the graphs of all ranks backwards."""

    def __init__(self, ranks: RankSet, graphs: Mapping[int, Graph]) -> None:
        self._graphs = graphs
        self._walks = {rank: Walk(graph) for rank, graph in graphs.items()}
        self._offsets = {rank: ranks.clocks.offset_ns.get(rank, 0) for rank in graphs}
        self._uncertainty = ranks.clocks.worst_ns
        nodes = {rank: _kernel_nodes(graph) for rank, graph in graphs.items()}
        self.sides: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Sides of each collective except the last: (rank, node) -> (rank, node, begin on the common clock) of the last
        side.
        """
        for collective in ranks.matching.matched:
            self._add(collective, nodes)

    def _add(self, collective: Matched, nodes: Mapping[int, Mapping[int, int]]) -> None:
        places = {
            rank: nodes[rank][side.kernel]
            for rank, side in collective.sides.items()
            if side.kernel != MISSING and side.kernel in nodes.get(rank, {})
        }
        if len(places) < 2:
            return
        begins = {rank: collective.sides[rank].start_ns - self._offsets[rank] for rank in places}
        last = max(sorted(begins), key=lambda rank: begins[rank])
        for rank, node in places.items():
            if begins[rank] < begins[last]:
                self.sides[rank, node] = (last, places[last], begins[last])

    def of(self, number: int | None) -> JobPath:
        """Return the path of one step."""
        windows = {}
        for rank, graph in self._graphs.items():
            index = 0 if number is None else graph.windows.numbers.index(number)
            windows[rank] = (int(graph.windows.ends[index]) - self._offsets[rank], index)
        rank = max(sorted(windows), key=lambda rank: windows[rank][0])
        time, index = windows[rank]
        end, node = time, int(self._graphs[rank].finish[index])
        low = int(self._graphs[rank].windows.starts[index]) - self._offsets[rank]
        pieces: list[JobPiece] = []
        jumps = 0
        while time > low and node != MISSING:
            other = self.sides.get((rank, node))
            if other is not None and low < other[2] < time:
                pieces.append(self._piece(rank, node, other[2], time, waits=False))
                rank, node, time = other
                jumps += 1
                continue
            offset = self._offsets[rank]
            found, node, local = self._walks[rank].back(node, time + offset, low + offset)
            pieces += [self._piece(rank, of, start - offset, stop - offset, waits=gap != MISSING)
                       for start, stop, of, gap in found]  # fmt: skip
            time = local - offset
        pieces.sort(key=lambda piece: piece.start_ns)
        return JobPath(
            step=number,
            start_ns=low,
            end_ns=end,
            pieces=tuple(pieces),
            jumps=jumps,
            uncertainty_ns=self._uncertainty,
        )

    def _piece(self, rank: int, node: int, start: int, end: int, *, waits: bool) -> JobPiece:
        graph = self._graphs[rank]
        return JobPiece(
            rank=rank,
            start_ns=start,
            end_ns=end,
            kind=NodeKind(int(graph.kind[node])),
            waits=waits,
            row=MISSING if graph.on_host[node] else int(graph.row[node]),
        )


def _kernel_nodes(graph: Graph) -> dict[int, int]:
    """Map rows of ``kernels`` to nodes, for kernels of collectives."""
    nodes = np.flatnonzero(graph.kind == NodeKind.COMMUNICATION)
    return dict(zip(graph.row[nodes].tolist(), nodes.tolist(), strict=True))
