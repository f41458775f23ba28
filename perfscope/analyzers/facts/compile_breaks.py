"""Graph breaks by the user's line: what each says, the time around it, and the tensors that cross it.

A break in a function that was inlined is logged more than once: for the frame that calls it, for the function itself,
for what follows it. All of one line are one thing to fix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.compile_log import Compile, CompileLog, Graph, GraphBreak, GraphNode, Place
from perfscope.analyzers.facts.compile_frames import CompiledFrame, compiled_frames, resumed_at, user_place
from perfscope.analyzers.facts.compile_regions import Region, Window, regions
from perfscope.analyzers.facts.op_signature import ITEM_SIZES
from perfscope.analyzers.facts.step_windows import step_windows
from perfscope.analyzers.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLine:
    """A line that ends graphs."""

    place: Place | None
    breaks: tuple[GraphBreak, ...]
    frames: tuple[CompiledFrame, ...]
    """Whose graphs it ends."""
    windows: tuple[Window, ...] | None
    """Host time it costs; ``None``: the trace does not tell it from compiled code."""
    seen: bool | None
    """Whether its frames run in the recorded steps; ``None``: the trace does not tell."""
    crossing_bytes: int | None
    """Of tensors that leave one graph and enter the next at this line, at most; ``None``: sizes are not known."""


def broken_lines(trace: Trace) -> tuple[BrokenLine, ...]:
    """Lines that end a graph and leave the rest of their frame compiled, in the order of the log."""
    log = trace.compile_log
    if log is None:
        return ()
    eager = {one.compile_id for one in log.compiles if one.has_code is False}
    groups: dict[tuple[str, int] | None, list[GraphBreak]] = defaultdict(list)
    places: dict[tuple[str, int] | None, Place | None] = {}
    for found in log.breaks:
        if found.skipped_frame or found.compile_id in eager:
            continue
        place = user_place(found.place, found.stack)
        key = None if place is None else (place.file, place.line)
        groups[key].append(found)
        places.setdefault(key, place)
    windows = _windows(trace, groups)
    return tuple(
        BrokenLine(
            place=places[key],
            breaks=tuple(breaks),
            frames=_frames(trace, breaks),
            windows=windows.get(key),
            seen=_seen(trace, breaks),
            crossing_bytes=_crossing(log, breaks),
        )
        for key, breaks in groups.items()
    )


def _frames(trace: Trace, breaks: Iterable[GraphBreak]) -> tuple[CompiledFrame, ...]:
    ids = {one.compile_id for one in breaks}
    return tuple(frame for frame in trace.fact(compiled_frames) if frame.ids & ids)


def _in_steps(trace: Trace) -> tuple[Region, ...]:
    """Regions of recorded steps; all of them where there are no steps."""
    steps = trace.fact(step_windows)
    if not steps.count:
        return trace.fact(regions)
    kept = []
    for one in trace.fact(regions):
        begun = one.own[0].start_ns if one.own else None
        if begun is None or bool(((steps.starts <= begun) & (begun < steps.ends)).any()):
            kept.append(one)
    return tuple(kept)


def _seen(trace: Trace, breaks: Iterable[GraphBreak]) -> bool | None:
    """Frames are asked for, not compilations: after a recompilation another id runs the same line."""
    runs = trace.fact(_in_steps)
    if not runs or any(one.compile_id is None for one in runs):
        return None
    ids = frozenset().union(*(frame.ids for frame in _frames(trace, breaks)))
    return any(one.compile_id in ids for one in runs)


def _windows(
    trace: Trace, groups: dict[tuple[str, int] | None, list[GraphBreak]]
) -> dict[tuple[str, int] | None, tuple[Window, ...]]:
    """By line: own time of the regions it breaks, and of regions inside them that have no break of their own."""
    every = trace.fact(regions)
    if not every or any(one.compile_id is None for one in every):
        return {}
    line_of = {found.compile_id: key for key, breaks in groups.items() for found in breaks}
    holds_ops = {one.compile_id for one in _log(trace).compiles if one.graph_ops}
    found: dict[tuple[str, int] | None, list[Window]] = defaultdict(list)
    blurred: set[tuple[str, int] | None] = set()
    runs = set(map(id, trace.fact(_in_steps)))
    owners: list[tuple[str, int] | None] = []
    owned: list[bool] = []
    for one in every:  # a region stands behind the one around it
        mine = one.compile_id in line_of
        inherited = not mine and one.outer is not None and owned[one.outer]
        owner = (
            line_of[one.compile_id]
            if mine and one.compile_id
            else owners[one.outer]
            if inherited and one.outer is not None
            else None
        )
        owners.append(owner)
        owned.append(mine or inherited)
        if not owned[-1] or id(one) not in runs:
            continue
        if not one.graphs and one.compile_id in holds_ops:
            blurred.add(owner)  # a backend whose graphs leave no mark in the trace
        found[owner].extend(one.own)
    return {key: tuple(windows) for key, windows in found.items() if key not in blurred}


def _log(trace: Trace) -> CompileLog:
    assert trace.compile_log is not None
    return trace.compile_log


def _crossing(log: CompileLog, breaks: Sequence[GraphBreak]) -> int | None:
    """Bytes of results of a broken graph that have dtype and shape of what a later graph of the line takes.

    Results are matched by dtype and shape, for names do not survive the break; of each kind as many as one later
    graph takes at most. An upper bound: two tensors of one shape may be different ones. ``None`` without graphs of
    the line, or where a size is dynamic.
    """
    broken = {found.compile_id for found in breaks}
    consumers = broken | {one.compile_id for one in log.compiles if _resumes(one, breaks)}
    takers = [graph for graph in log.graphs if graph.compile_id in consumers and graph.direction != "backward"]
    total, known = 0, False
    for graph in takers:
        if graph.compile_id not in broken:
            continue
        given = _counted(_results(graph))
        later = [_counted(taker.inputs) for taker in takers if taker.compile_id != graph.compile_id]
        if not later or given is None:
            continue
        for kind, count in given.items():
            taken = max((one[kind] for one in later if one is not None), default=0)
            size = _bytes(*kind)
            if taken and size is not None:
                total += min(count, taken) * size
                known = True
    return total if known else None


def _resumes(one: Compile, breaks: Iterable[GraphBreak]) -> bool:
    """Whether a compilation goes on behind one of the breaks, or behind the call that leads to it."""
    resumed = resumed_at(one.function)
    if resumed is None:
        return False
    return any((place.function or "", place.line) == resumed for found in breaks for place in _all_places(found))


def _all_places(found: GraphBreak) -> Iterable[Place]:
    yield from found.stack
    if found.place is not None:
        yield found.place


def _results(graph: Graph) -> list[GraphNode]:
    nodes = {node.name: node for node in graph.nodes}
    return [nodes[name] for name in dict.fromkeys(graph.outputs) if name in nodes]


_Kind = tuple[str, tuple[int | str, ...]]


def _counted(nodes: Iterable[GraphNode]) -> Counter[_Kind]:
    return Counter((node.dtype, node.shape) for node in nodes if node.dtype is not None)


def _bytes(dtype: str, shape: tuple[int | str, ...]) -> int | None:
    size = ITEM_SIZES.get(dtype.removeprefix("torch.").lower())
    numbers = [length for length in shape if isinstance(length, int)]
    if size is None or len(numbers) != len(shape):
        return None
    return size * int(np.prod(numbers, dtype=np.int64))
