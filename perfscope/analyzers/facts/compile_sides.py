"""What each rank of a job compiled, in an order that can be laid side by side."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from perfscope.analyzers.facts.compile_frames import plain_function
from perfscope.analyzers.facts.compile_phases import compile_times
from perfscope.model.compile_log import Compile, Graph, Recompile
from perfscope.model.trace import Trace

COLLECTIVES = ("_c10d_functional.", "c10d.", "c10d_functional.")
"""Namespaces of ops that every rank of a group must call, in one order."""

_NOT_CALLED = ("wait_tensor",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One compilation as it is compared between ranks."""

    compile_id: str
    function: str
    line: int | None
    """First line of the frame. Paths may differ between machines and are left out."""
    ops: str
    """Hash of the ops of its graphs, in order; ``'-'``: no graph was logged."""
    sizes: str
    """Hash of dtypes and shapes as well."""
    collectives: tuple[str, ...]
    """Collectives of its graphs, in order."""
    eager: bool
    """The frame was left to eager mode."""
    caches: tuple[tuple[str, str], ...]
    total_ns: int
    source: Compile
    why_again: str | None
    """The guard that failed, if it was compiled before."""

    @property
    def what(self) -> tuple[str, int | None, bool, str]:
        """What must be equal on all ranks: function, line, whether it is compiled at all, ops."""
        return (self.function, self.line, self.eager, self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One rank."""

    rank: int
    compiles: tuple[Compiled, ...]
    """In the order they began."""
    breaks: tuple[tuple[str, str | None, int | None], ...]
    """Graph breaks: id or reason, function, line."""
    total_ns: int

    @property
    def collectives(self) -> tuple[str, ...]:
        """Collectives of all graphs, in order."""
        return tuple(name for one in self.compiles for name in one.collectives)


def side_of(trace: Trace) -> Side | None:
    """What a rank compiled; ``None`` without a log of a known rank."""
    log, rank = trace.compile_log, trace.source.rank
    if log is None or rank is None:
        return None
    graphs: dict[str, list[Graph]] = defaultdict(list)
    for graph in log.graphs:
        graphs[graph.compile_id].append(graph)
    again: dict[str, list[Recompile]] = defaultdict(list)
    for recompile in log.recompiles:
        again[recompile.compile_id].append(recompile)
    turns = Counter(one.compile_id for one in log.compiles)
    seen: Counter[str] = Counter()
    times = trace.fact(compile_times)
    compiles = []
    for one in times.compiles:
        key = one.compile.compile_id
        held = _turn(graphs[key], seen[key], turns[key])
        seen[key] += 1
        why = next((reason for recompile in again[key] for reason in recompile.reasons), None)
        compiles.append(_compiled(one.compile, held, one.total_ns, why))
    compiles.sort(key=lambda one: one.source.start_ns or 0)
    return Side(
        rank=rank,
        compiles=tuple(compiles),
        breaks=tuple(
            (one.doc_id or one.reason, one.place.function if one.place else None, one.place.line if one.place else None)
            for one in log.breaks
        ),
        total_ns=times.total_ns,
    )


def _turn(graphs: list[Graph], turn: int, turns: int) -> list[Graph]:
    """The graphs of one compilation of several under one id: they stand in the order of the log, so many for each."""
    if turns == 1:
        return graphs
    each = len(graphs) // turns
    return graphs[turn * each : (turn + 1) * each] if each * turns == len(graphs) else []


def _compiled(one: Compile, graphs: list[Graph], total_ns: int, why: str | None) -> Compiled:
    nodes = [(graph.direction, node) for graph in graphs for node in graph.nodes]
    return Compiled(
        compile_id=one.compile_id,
        function=plain_function(one.function),
        line=one.place.line if one.place else None,
        ops=_hash(f"{direction} {node.op}" for direction, node in nodes),
        sizes=_hash(f"{direction} {node.op} {node.dtype} {node.shape}" for direction, node in nodes),
        collectives=tuple(
            node.op
            for _, node in nodes
            if node.op.startswith(COLLECTIVES) and not any(w in node.op for w in _NOT_CALLED)
        ),
        eager=one.has_code is False,
        caches=tuple(sorted(one.caches.items())),
        total_ns=total_ns,
        source=one,
        why_again=why,
    )


def _hash(lines: Iterable[str]) -> str:
    digest, empty = hashlib.sha256(), True
    for line in lines:
        digest.update(line.encode() + b"\n")
        empty = False
    return "-" if empty else digest.hexdigest()[:16]
