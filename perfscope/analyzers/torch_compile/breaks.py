"""Graph breaks by the user's line: what each says, the time around it, and the tensors that cross it.

A break in a function that was inlined is logged more than once: for the frame that calls it, for the function itself,
for what follows it. All of one line are one thing to fix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.ops.kernels import ITEM_SIZES
from perfscope.analyzers.time.compiled_regions import Region, Window, regions
from perfscope.analyzers.time.steps import step_windows
from perfscope.analyzers.torch_compile.frames import CompiledFrame, compiled_frames, resumed_at, user_place
from perfscope.model.compile_log import CodeLine, CompileLog, Graph, GraphBreak, GraphNode
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLine:
    """A line that ends graphs."""

    place: CodeLine | None
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
    places: dict[tuple[str, int] | None, CodeLine | None] = {}
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
            crossing_bytes=_crossing(trace, breaks),
        )
        for key, breaks in groups.items()
    )


def _frames(trace: Trace, breaks: Iterable[GraphBreak]) -> tuple[CompiledFrame, ...]:
    found = [frame for one in breaks for frame in trace.fact(_frames_by_id).get(one.compile_id, ())]
    return tuple({id(frame): frame for frame in found}.values())


def _frames_by_id(trace: Trace) -> dict[str, list[CompiledFrame]]:
    found: dict[str, list[CompiledFrame]] = defaultdict(list)
    for frame in trace.fact(compiled_frames):
        for compile_id in frame.ids:
            found[compile_id].append(frame)
    return found


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


def _crossing(trace: Trace, breaks: Sequence[GraphBreak]) -> int | None:
    """Bytes of results of a broken graph that have dtype and shape of what a later graph of the line takes.

    Results are matched by dtype and shape, for names do not survive the break; of each kind as many as one later
    graph takes at most. An upper bound: two tensors of one shape may be different ones. ``None`` without graphs of
    the line, or where a size is dynamic.
    """
    graphs, resumes = trace.fact(_graphs_by_id), trace.fact(_resumes)
    broken = list(dict.fromkeys(found.compile_id for found in breaks))
    places = {(place.function or "", place.line) for found in breaks for place in _all_places(found)}
    behind = [compile_id for place in places for compile_id in resumes.get(place, ())]
    takers = [graph for compile_id in dict.fromkeys((*broken, *behind)) for graph in graphs.get(compile_id, ())]
    taken = [(graph.compile_id, _counted(graph.inputs)) for graph in takers]
    total, known = 0, False
    for graph in takers:
        if graph.compile_id not in broken:
            continue
        for kind, count in _counted(_results(graph)).items():
            most = max((inputs[kind] for compile_id, inputs in taken if compile_id != graph.compile_id), default=0)
            size = _bytes(*kind)
            if most and size is not None:
                total += min(count, most) * size
                known = True
    return total if known else None


def _graphs_by_id(trace: Trace) -> dict[str, list[Graph]]:
    """Graphs of forward passes."""
    found: dict[str, list[Graph]] = defaultdict(list)
    for graph in _log(trace).graphs:
        if graph.direction != "backward":
            found[graph.compile_id].append(graph)
    return found


def _resumes(trace: Trace) -> dict[tuple[str, int], list[str]]:
    """Compile ids of what goes on behind a line, by function and line."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for one in _log(trace).compiles:
        resumed = resumed_at(one.function)
        if resumed is not None:
            found[resumed].append(one.compile_id)
    return found


def _all_places(found: GraphBreak) -> Iterable[CodeLine]:
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
