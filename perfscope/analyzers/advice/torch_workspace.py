"""Memory that ops of the op graph allocate inside and free again: scratch of convolutions, products and sorts.

The op graph sees what ops return, allocator events all of it. An op's scratch are the blocks that were handed out and
free again within its span.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfscope.analyzers.facts.graph_time import graph_time
from perfscope.model.memory import Int64, MemoryTimeline
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace import MISSING, Trace


def workspaces(trace: Trace, graph: OpGraph, timeline: MemoryTimeline | None) -> dict[int, int]:
    """By op of the graph the most bytes of scratch it held at once; empty where no allocator events tell.

    The allocator may have been watched in another recording of the same program than the times are from
    (`Trace.detail`): the graph is laid beside that one.
    """
    if timeline is None or timeline.axis != "ns":
        return {}
    watched = timeline.of(trace)
    beside = Trace(
        source=watched.source,
        strings=watched.strings,
        rows=watched.rows,
        recorded=watched.recorded,
        op_graph=graph,
    )
    found: dict[int, int] = defaultdict(int)
    slices = watched.rows["slices"]
    for spans in beside.fact(graph_time).spans:
        placed = np.flatnonzero(spans != MISSING)
        rows = spans[placed]
        order = np.argsort(slices["start_ns"][rows], kind="stable")
        placed, rows = placed[order], rows[order]
        for op, size in _within(timeline, slices["start_ns"][rows], slices["end_ns"][rows]).items():
            found[int(placed[op])] = max(found[int(placed[op])], size)
    return dict(found)


def _within(timeline: MemoryTimeline, starts: Int64, ends: Int64) -> dict[int, int]:
    """By span (its place among the sorted ``starts``) the most bytes of blocks that began and ended within it."""
    blocks = timeline.blocks
    chosen = np.flatnonzero(~blocks["before"] & ~blocks["after"])
    first, last, size = (blocks[name][chosen] for name in ("start", "end", "bytes"))
    span = np.searchsorted(starts, first, side="right") - 1
    inside = span >= 0
    inside[inside] &= last[inside] <= ends[span[inside]]
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index in np.flatnonzero(inside).tolist():
        changes[int(span[index])] += [(int(first[index]), int(size[index])), (int(last[index]), -int(size[index]))]
    return {place: int(np.cumsum([change for _, change in sorted(events)]).max()) for place, events in changes.items()}
