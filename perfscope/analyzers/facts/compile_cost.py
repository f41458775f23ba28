"""What of torch.compile's time a cache would have spared, and what a second look at its graphs tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.facts.compile_frames import compiled_frames
from perfscope.analyzers.facts.compile_phases import CompileTime, compile_times
from perfscope.model.compile_log import Compile, CompileLog, Graph
from perfscope.model.trace import Trace

Warmth = Literal["cold", "warm", "uncached"]

MIN_REPEATS = 4
"""Times a line's op must stand in a graph for its block to count as repeated: fewer are q, k, v and their like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """First compilations of frames by what the caches answered. Times in ns, moments once (``compile_times``)."""

    cold: tuple[CompileTime, ...]
    """A cache was asked and had it not, or does not take it."""
    warm: tuple[CompileTime, ...]
    uncached: tuple[CompileTime, ...]
    """A graph was compiled and the log says of no cache that it was asked."""
    again: tuple[CompileTime, ...]
    """Compilations of frames that were compiled before, whatever the caches said."""

    @property
    def spared_ns(self) -> int:
        """What warm caches would have spared at most."""
        return sum(one.cached_ns for one in (*self.cold, *self.uncached))


def cache_use(trace: Trace) -> CacheUse:
    """The compilations of a log by their caches; first ones without a graph are in none of the four."""
    first = {id(frame.compiles[0]) for frame in trace.fact(compiled_frames)}
    held: dict[Warmth | None, list[CompileTime]] = {"cold": [], "warm": [], "uncached": [], None: []}
    again = []
    for one in trace.fact(compile_times).compiles:
        if id(one.compile) in first:
            held[warmth(one.compile)].append(one)
        else:
            again.append(one)
    return CacheUse(
        cold=tuple(held["cold"]), warm=tuple(held["warm"]), uncached=tuple(held["uncached"]), again=tuple(again)
    )


def warmth(one: Compile) -> Warmth | None:
    """Whether its graphs came from a cache; ``None``: it has none, or was given up.

    What inductor makes of a graph is the dear part: where its cache hit, AOT autograd's own may have been bypassed.
    """
    inductor = [result for cache, result in one.caches.items() if cache.startswith("fx_graph")]
    answers = inductor or list(one.caches.values())
    if answers:
        return "warm" if all(result == "hit" for result in answers) else "cold"
    return "uncached" if one.graph_ops and one.fail_type is None else None


def repeated_part(log: CompileLog, compiles: Iterable[Compile]) -> float:
    """Of the nodes of the given compilations' graphs the part that a repeated block makes twice or more, 0 to 1.

    A model of N equal layers has every line's op N times in its graph with the same dtype and shape; compiled
    once, all but the first were not compiled. Nodes without a line, and whatever stands fewer than ``MIN_REPEATS``
    times, count as made once.
    """
    wanted = {one.compile_id for one in compiles}
    nodes = again = 0
    for graph in log.graphs:
        if graph.compile_id not in wanted:
            continue
        nodes += len(graph.nodes)
        again += _made_again(graph)
    return again / nodes if nodes else 0.0


def _made_again(graph: Graph) -> int:
    counts = Counter((node.op, node.dtype, node.shape, node.place) for node in graph.nodes if node.place is not None)
    return sum(count - 1 for count in counts.values() if count >= MIN_REPEATS)
