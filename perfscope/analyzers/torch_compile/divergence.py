"""Where the ranks of a job part from each other in what they compile."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from perfscope.analyzers.torch_compile.frames import plain_function
from perfscope.analyzers.torch_compile.phases import compile_times
from perfscope.model.compile_log import Compile, Graph, Recompile
from perfscope.model.trace import Trace

# What each rank of a job compiled, in an order that can be laid side by side.


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
        return tuple(name for compiled in self.compiles for name in compiled.collectives)


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
    turns = Counter(compilation.compile_id for compilation in log.compiles)
    seen: Counter[str] = Counter()
    times = trace.fact(compile_times)
    compiles = []
    for compile_time in times.compiles:
        key = compile_time.compile.compile_id
        held = _turn(graphs[key], seen[key], turns[key])
        seen[key] += 1
        why = next((reason for recompile in again[key] for reason in recompile.reasons), None)
        compiles.append(_compiled(compile_time.compile, held, compile_time.total_ns, why))
    compiles.sort(key=lambda compiled: compiled.source.start_ns or 0)
    return Side(
        rank=rank,
        compiles=tuple(compiles),
        breaks=tuple(
            (
                graph_break.doc_id or graph_break.reason,
                graph_break.place.function if graph_break.place else None,
                graph_break.place.line if graph_break.place else None,
            )
            for graph_break in log.breaks
        ),
        total_ns=times.total_ns,
    )


def _turn(graphs: list[Graph], turn: int, turns: int) -> list[Graph]:
    """The graphs of one compilation of several under one id: they stand in the order of the log, so many for each."""
    if turns == 1:
        return graphs
    each = len(graphs) // turns
    return graphs[turn * each : (turn + 1) * each] if each * turns == len(graphs) else []


def _compiled(compilation: Compile, graphs: list[Graph], total_ns: int, why: str | None) -> Compiled:
    nodes = [(graph.direction, node) for graph in graphs for node in graph.nodes]
    return Compiled(
        compile_id=compilation.compile_id,
        function=plain_function(compilation.function),
        line=compilation.place.line if compilation.place else None,
        ops=_hash(f"{direction} {node.op}" for direction, node in nodes),
        collectives=tuple(
            node.op
            for _, node in nodes
            if node.op.startswith(COLLECTIVES) and not any(w in node.op for w in _NOT_CALLED)
        ),
        eager=compilation.has_code is False,
        caches=tuple(sorted(compilation.caches.items())),
        total_ns=total_ns,
        source=compilation,
        why_again=why,
    )


def _hash(lines: Iterable[str]) -> str:
    digest, empty = hashlib.sha256(), True
    for line in lines:
        digest.update(line.encode() + b"\n")
        empty = False
    return "-" if empty else digest.hexdigest()[:16]


HeldT = TypeVar("HeldT")

Kind = Literal["collectives", "graphs", "caches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Ranks that part from the others, and the first place where they do."""

    kind: Kind
    others: tuple[Side, ...]
    """The ranks that part."""
    most: tuple[Side, ...]
    """The largest set of ranks that agree (of equal ones that with the lowest rank)."""
    index: int
    """Of the first compilation, or collective, that differs."""
    here: Compiled | None
    """What ``others`` compiled there; ``None``: nothing more."""
    there: Compiled | None
    """What ``most`` compiled there."""
    names: tuple[str | None, str | None] = (None, None)
    """Collectives that differ, of ``others`` and of ``most``."""

    @property
    def wait_ns(self) -> int:
        """The longest that one of these ranks waits for another's compiling.

        Of other graphs the difference of what was spent on compilations that the other side has not; of caches the
        difference of all that was spent.
        """
        if self.kind == "caches":
            totals = [side.total_ns for side in (*self.others, *self.most)]
            return max(totals) - min(totals)
        return max(abs(_alone_ns(one, other) - _alone_ns(other, one)) for one in self.others for other in self.most[:1])


def _alone_ns(side: Side, other: Side) -> int:
    """Time of the compilations of ``side`` that ``other`` has not."""
    theirs = Counter(compiled.what for compiled in other.compiles)
    spent = 0
    for compiled in side.compiles:
        if theirs[compiled.what]:
            theirs[compiled.what] -= 1
        else:
            spent += compiled.total_ns
    return spent


def divergences(sides: Sequence[Side]) -> Iterator[Divergence]:
    """Each set of ranks that parts from the largest one, by the gravest kind that holds of it."""
    told: set[int] = set()
    for kind, key in _KEYS:
        for most, others in _apart([side for side in sides if side.rank not in told], key):
            told.update(side.rank for side in others)
            yield _divergence(kind, most, others)


def _of_collectives(side: Side) -> Hashable:
    return side.collectives


def _of_graphs(side: Side) -> Hashable:
    return tuple(compiled.what for compiled in side.compiles)


def _of_caches(side: Side) -> Hashable:
    return tuple(compiled.caches for compiled in side.compiles)


_KEYS: tuple[tuple[Kind, Callable[[Side], Hashable]], ...] = (
    ("collectives", _of_collectives),
    ("graphs", _of_graphs),
    ("caches", _of_caches),
)


def _apart(
    sides: Sequence[Side], key: Callable[[Side], Hashable]
) -> Iterator[tuple[tuple[Side, ...], tuple[Side, ...]]]:
    """(The largest set with one key, a smaller set), for each smaller one."""
    groups: dict[Hashable, list[Side]] = defaultdict(list)
    for side in sides:
        groups[key(side)].append(side)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), min(side.rank for side in group)))
    for group in ordered[1:]:
        yield tuple(ordered[0]), tuple(group)


def _divergence(kind: Kind, most: tuple[Side, ...], others: tuple[Side, ...]) -> Divergence:
    ours, theirs = others[0].compiles, most[0].compiles
    if kind == "collectives":
        mine, their = others[0].collectives, most[0].collectives
        index = _first(mine, their)
        return Divergence(
            kind=kind,
            others=others,
            most=most,
            index=index,
            here=_holder(ours, index),
            there=_holder(theirs, index),
            names=(_get(mine, index), _get(their, index)),
        )
    if kind == "graphs":
        index = _first([one.what for one in ours], [one.what for one in theirs])
    else:
        index = _first([one.caches for one in ours], [one.caches for one in theirs])
    return Divergence(
        kind=kind, others=others, most=most, index=index, here=_get(ours, index), there=_get(theirs, index)
    )


def _first(mine: Sequence[Hashable], their: Sequence[Hashable]) -> int:
    """The first index at which two sequences differ, the end of the shorter one included."""
    return next(
        (index for index, pair in enumerate(zip(mine, their, strict=False)) if pair[0] != pair[1]),
        min(len(mine), len(their)),
    )


def _get(held: Sequence[HeldT], index: int) -> HeldT | None:
    return held[index] if index < len(held) else None


def _holder(compiles: Sequence[Compiled], index: int) -> Compiled | None:
    """The compilation whose graphs hold the collective of that number."""
    for compiled in compiles:
        if index < len(compiled.collectives):
            return compiled
        index -= len(compiled.collectives)
    return None
