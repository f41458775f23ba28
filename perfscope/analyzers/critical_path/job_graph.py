"""The graphs of a job's ranks joined into one: a collective proceeds on every rank once the last rank has arrived.

The kernel of a matched collective is two nodes: the arrival of its rank, which has no length and the kernel's own
dependencies, and the transfer, from the moment that all ranks have arrived to the kernel's end. Between them are joins
without length, each with up to three dependencies. Times are on the clock of the lowest rank, corrected by the ends of
collectives (``Clocks``). If the corrected end of a transfer is before the last arrival, the transfer has no length and
a negative lag, so that replaying the graph without a change still reproduces the recording.

Sends and receives, and collectives on the host (gloo), do not join ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.critical_path.graph import Graph, LongPieces, NodeKind, Via, dependency_graph
from perfscope.analyzers.critical_path.lane import NO_LANE
from perfscope.analyzers.ranks import Matched, RankSet, over, rank_sets
from perfscope.analyzers.time import Windows
from perfscope.model.finding import Removed
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

MOST_RANKS = 16
"""Limit on the ranks of one job: each finding replays all of them, and their dependencies take up to 20 MB per rank."""
MOST_NODES = 2_000_000
"""Limit on the nodes of all ranks together: a larger graph takes seconds to replay for each finding."""

TOO_LARGE = f"the ranks have more than {MOST_NODES:,} events together"
NOT_KEPT = "the events of all ranks are not kept together (too many ranks, or too many events in one)"
PROGRAMS = "dependencies inside programs of XLA are not recorded"
NO_JOINS = "no collective on the devices of several ranks was matched, and sends and receives are not followed"
NO_ORDER = "the matched collectives of the ranks contradict the order of their work"


class JobGraph(Struct, frozen=True, kw_only=True):
    """The ranks of a job in one graph, or the reason for its absence.

    Its windows are the recorded time of each rank.
    """

    ranks: frozenset[int]
    reason: str | None = None
    graph: Graph | None = None
    rank: Int64
    """Rank of each node; ``MISSING`` for joins."""
    joined: np.ndarray
    """Mask of the nodes that are transfers of a matched collective."""
    before_joining: Int64
    """``Graph.before`` of such a node if it waited for its own rank only."""
    offsets: Mapping[int, int]
    """Offset of each rank's clock from the common clock, ns."""

    @property
    def whole_ns(self) -> int:
        """Length of the steps on the rank whose steps are longest, ns."""
        return 0 if self.graph is None else int((self.graph.windows.ends - self.graph.windows.starts).max())

    def on_clock(self, removed: Removed) -> Removed:
        """Return ``removed`` with its intervals on the graph's clock."""
        if removed.table not in ("idle", "work") or removed.rank is None:
            return removed
        return replace(removed, rows=removed.rows - self.offsets.get(removed.rank, 0))


def job_graphs(traces: Sequence[Trace]) -> tuple[JobGraph, ...]:
    """Return the graph of each job with several ranks among the traces. Cached."""
    return over(traces, _job_graphs) if traces else ()


def _job_graphs(traces: tuple[Trace, ...]) -> tuple[JobGraph, ...]:
    return tuple(_job_graph(ranks) for ranks in rank_sets(traces) if len(ranks.job.members) > 1)


def _job_graph(ranks: RankSet) -> JobGraph:
    numbers = frozenset(member.rank for member in ranks.job.members)
    nothing = JobGraph(
        ranks=numbers, rank=np.empty(0, np.int64), joined=np.empty(0, bool),
        before_joining=np.empty((3, 0), np.int64), offsets={},
    )  # fmt: skip
    if len(numbers) > MOST_RANKS:
        return replace(nothing, reason=NOT_KEPT)
    graphs = {member.rank: member.trace.fact(dependency_graph) for member in ranks.job.members}
    known = {rank: graph for rank, graph in graphs.items() if graph is not None}
    if any(len(member.trace.rows["hlo_ops"]) for member in ranks.job.members):
        return replace(nothing, reason=PROGRAMS)
    if len(known) < len(graphs):
        return replace(nothing, reason=NOT_KEPT)
    if sum(map(len, known.values())) > MOST_NODES:
        return replace(nothing, reason=TOO_LARGE)
    return _Joining(ranks, known).result(nothing)


class _Joining:
    """Merge the nodes of all ranks into one set of arrays: nodes of the ranks, followed by arrivals and joins."""

    def __init__(self, ranks: RankSet, graphs: Mapping[int, Graph]) -> None:
        self._graphs = dict(sorted(graphs.items()))
        self._offsets = {rank: ranks.clocks.offset_ns.get(rank, 0) for rank in graphs}
        self._base = dict(zip(self._graphs, np.cumsum([0, *map(len, self._graphs.values())]).tolist(), strict=False))
        self._size = sum(map(len, self._graphs.values()))
        self._sides = list(self._matched(ranks.matching.matched))

    def _matched(self, collectives: Sequence[Matched]) -> Iterator[Int64]:
        """Yield the kernel nodes of each collective that appears on several ranks."""
        at = {}
        for rank, graph in self._graphs.items():
            nodes = np.flatnonzero(graph.kind == NodeKind.COMMUNICATION)
            at[rank] = dict(zip(graph.row[nodes].tolist(), (nodes + self._base[rank]).tolist(), strict=True))
        for collective in collectives:
            sides = [
                at[rank][side.kernel]
                for rank, side in collective.sides.items()
                if side.kernel != MISSING and side.kernel in at.get(rank, {})
            ]
            if len(sides) > 1:
                yield np.array(sides, np.int64)

    def result(self, nothing: JobGraph) -> JobGraph:
        """Return the graph with every node after its dependencies."""
        if not self._sides:
            return replace(nothing, reason=NO_JOINS)
        columns = self._ranks()
        kernels = np.concatenate(self._sides)
        joins = [-(-(len(side) - 1) // 2) for side in self._sides]
        extra = len(kernels) + sum(joins)
        longer = {name: _longer(column, extra, 0 if name == "lag" else MISSING) for name, column in columns.items()}
        graph = self._with_joins(longer, kernels, joins)
        rank = np.concatenate((columns["rank"], columns["rank"][kernels], np.full(sum(joins), MISSING)))
        joined = np.zeros(len(rank), bool)
        joined[kernels] = True
        alone = graph["before"].copy()
        alone[:, kernels] = MISSING
        alone[Via.ORDER, kernels] = self._size + np.arange(len(kernels))
        order = _order(graph["starts"], graph["before"])
        if order is None:
            return replace(nothing, reason=NO_ORDER)
        return replace(
            nothing,
            graph=self._ordered(graph, order),
            rank=rank[order],
            joined=joined[order],
            before_joining=_renamed(alone, order)[:, order],
            offsets=self._offsets,
        )

    def _ranks(self) -> dict[str, np.ndarray]:
        """Concatenate the columns of all ranks' nodes."""
        parts: dict[str, list[np.ndarray]] = {}
        for rank, graph in self._graphs.items():
            offset, base = self._offsets[rank], self._base[rank]
            for name, column in (
                ("starts", graph.starts - offset),
                ("ends", graph.ends - offset),
                ("kind", graph.kind),
                ("row", graph.row),
                ("call", graph.call),
                ("thread", graph.thread),
                ("before", np.where(graph.before == MISSING, MISSING, graph.before + base)),
                ("lag", graph.lag),
                ("binds", graph.binds),
                ("rank", np.full(len(graph), rank)),
            ):
                parts.setdefault(name, []).append(np.asarray(column, np.int64))
        return {name: np.concatenate(columns, axis=-1) for name, columns in parts.items()}

    def _with_joins(
        self, columns: dict[str, np.ndarray], kernels: Int64, joins: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Give arrivals their kernels' dependencies; make kernels depend on the last join of their collective."""
        before, lag, starts, ends, binds = (columns[name] for name in ("before", "lag", "starts", "ends", "binds"))
        arrivals = self._size + np.arange(len(kernels))
        before[:, arrivals], lag[:, arrivals], binds[arrivals] = before[:, kernels], lag[:, kernels], binds[kernels]
        for name in ("starts", "row", "call", "thread", "kind"):
            columns[name][arrivals] = columns[name][kernels]
        ends[arrivals] = starts[arrivals]
        columns["kind"][arrivals[-1] + 1 :] = NodeKind.COMMUNICATION
        before[:, kernels], lag[:, kernels], binds[kernels] = MISSING, 0, Via.DEPENDENCY
        first, join = 0, self._size + len(kernels)
        for side, count in zip(self._sides, joins, strict=True):
            here = arrivals[first : first + len(side)]
            for number in range(count):
                taken = here[2 * number + (number > 0) : 2 * number + 3]
                sources = [*taken] if not number else [join - 1, *taken]
                before[: len(sources), join] = sources
                latest = ends[sources]
                starts[join] = ends[join] = latest.max()
                binds[join] = int(latest.argmax())
                join += 1
            before[Via.DEPENDENCY, side] = join - 1
            first += len(side)
        met = ends[before[Via.DEPENDENCY, kernels]]
        lag[Via.DEPENDENCY, kernels] = np.minimum(ends[kernels] - met, 0)
        starts[kernels] = np.minimum(met, ends[kernels])
        return columns

    def _long_pieces(self, place: Int64) -> LongPieces:
        """Return the long pieces of all ranks; ``place``: the new number of each node."""
        parts = [
            (place[graph.long.node + self._base[rank]], graph.long.starts - offset, graph.long.ends - offset)
            for rank, graph in self._graphs.items()
            for offset in (self._offsets[rank],)
        ]
        return LongPieces(*map(np.concatenate, zip(*parts, strict=True)))

    def _ordered(self, columns: dict[str, np.ndarray], order: Int64) -> Graph:
        """Return the nodes in ``order``."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        last = {rank: int(np.argmax(graph.windows.ends)) for rank, graph in self._graphs.items()}
        finish = [graph.finish[last[rank]] + self._base[rank] for rank, graph in self._graphs.items()]
        windows = Windows(
            starts=np.array([graph.windows.starts.min() - self._offsets[r] for r, graph in self._graphs.items()]),
            ends=np.array([graph.windows.ends.max() - self._offsets[r] for r, graph in self._graphs.items()]),
            numbers=(),
        )
        return Graph(
            windows=windows,
            lane=NO_LANE,
            starts=columns["starts"][order],
            ends=columns["ends"][order],
            kind=columns["kind"][order].astype(np.uint8),
            row=columns["row"][order],
            call=columns["call"][order],
            thread=columns["thread"][order],
            before=_renamed(columns["before"], order)[:, order],
            lag=columns["lag"][:, order],
            binds=columns["binds"][order],
            long=self._long_pieces(place),
            finish=place[finish],
        )


def _longer(column: np.ndarray, extra: int, filled: int) -> np.ndarray:
    return np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, extra)], constant_values=filled)


def _renamed(before: np.ndarray, order: Int64) -> np.ndarray:
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), MISSING
    renamed: np.ndarray = place[before]
    return renamed


def _order(starts: Int64, before: Int64) -> Int64 | None:
    """Return the nodes by begin, each after its dependencies; ``None`` if the dependencies have a cycle."""
    order = np.argsort(starts, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if ((before == MISSING) | (place[before] < place)).all():
        return order
    left = (before != MISSING).sum(axis=0)
    source = before.T.ravel()
    target = np.repeat(np.arange(len(order)), len(before))
    known = source != MISSING
    by_source = np.argsort(source[known], kind="stable")
    following, owner = target[known][by_source], source[known][by_source]
    firsts = np.searchsorted(owner, np.arange(len(order) + 1)).tolist()
    following_list, counts = following.tolist(), left.tolist()
    ready = deque(order[left[order] == 0].tolist())
    result: list[int] = []
    while ready:
        node = ready.popleft()
        result.append(node)
        for other in following_list[firsts[node] : firsts[node + 1]]:
            counts[other] -= 1
            if not counts[other]:
                ready.append(other)
    return np.array(result, np.int64) if len(result) == len(order) else None
