"""Memory that is held and that nobody reads any more.

Two witnesses. The op graph of a step says which op read a storage last: what lives longer is held by a variable, a list
or a closure of the program. And where several steps were recorded, a block that was made in the forward pass of one
step and let go in the next was kept over the boundary, which the next step has no use for once it makes its own.
"""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.memory.avoidable import Avoidable
from perfscope.analyzers.memory.categories import memory_phases
from perfscope.analyzers.memory.phases import NEVER
from perfscope.analyzers.time.sites import graph_op
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.memory import ALLOCATION_ROUNDING, Int64, MemoryPhase, MemoryTimeline
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory

_NEEDED = (MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE, MemoryCategory.WORKSPACE,
           MemoryCategory.COMMUNICATION)  # fmt: skip
"""Categories that outlive what is seen of them."""


def held_unread(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Blocks that live on behind the op that read them last, by the op graph of a step."""
    if trace.op_graph is None or trace.op_graph.storages is None or timeline.axis != "ns":
        return None
    joined = _joined(trace, timeline.of(trace))
    ends = _ends(joined)
    blocks = timeline.blocks
    last_use = _last_uses(trace.op_graph)
    rows, until = [], []
    free = ~np.isin(blocks["category"], (*_NEEDED, MemoryCategory.GRADIENT))  # a gradient goes when all are used
    candidates = np.flatnonzero(~blocks["before"] & free & (blocks["op"] != MISSING))
    for row in candidates.tolist():
        op = graph_op(joined, int(blocks["op"][row]))
        if op is None:
            continue
        storages = {trace.op_graph.tensors[tensor].storage for tensor in op.outputs}
        made = [
            one
            for one in storages
            if trace.op_graph.storages[one].born == op.index
            and abs(trace.op_graph.storages[one].bytes - int(blocks["bytes"][row])) < ALLOCATION_ROUNDING
        ]
        step = _step_of(joined, int(blocks["op"][row]))
        if not made or step is None:
            continue
        last = max(last_use[one] for one in made)
        at = ends.get((step, last))
        if at is not None and at < int(blocks["end"][row]):
            rows.append(row)
            until.append(max(at, int(blocks["start"][row])))
    if not rows:
        return None
    return Avoidable(
        kind="values that nobody reads any more",
        said="values that no op reads again before they are let go",
        advice="Let go of them before the backward pass: return the loss alone from the function that computes it, or "
        "del the variable (logits, hidden states, outputs of a module with hooks) behind its last use",
        rows=np.array(rows, np.int64),
        until=np.array(until, np.int64),
    )


def kept_into_next_step(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Blocks of one step's forward pass that are let go within the next step, once that has made its own."""
    blocks = timeline.blocks
    phases = memory_phases(trace, timeline)
    forward = np.sort(phases.starts[phases.phase == MemoryPhase.FORWARD])
    optimizer = np.sort(phases.ends[phases.phase == MemoryPhase.OPTIMIZER])
    if not len(forward) or not len(optimizer):
        return None
    made = np.flatnonzero(
        ~blocks["before"] & ~blocks["after"] & ~np.isin(blocks["category"], (*_NEEDED, MemoryCategory.GRADIENT))
        & np.isin(blocks["phase"], (MemoryPhase.FORWARD, MemoryPhase.UNKNOWN))
    )  # fmt: skip
    start, end = blocks["start"][made], blocks["end"][made]
    done = _next(optimizer, start)
    again = _next(forward, np.minimum(done, NEVER - 1))
    kept = (done != NEVER) & (again != NEVER) & (end > again)
    # what lives on into a third step is a buffer of the program's and no leftover
    third = _next(optimizer, np.minimum(again, NEVER - 1))
    kept &= end <= third
    carried = _carried_on(trace)
    if carried:
        places = {index for index, line in enumerate(timeline.lines) if (line.file, line.line) in carried}
        kept &= ~np.isin(blocks["line"][made], list(places))
    if not kept.any():
        return None
    return Avoidable(
        kind="values of the step before",
        said="values of the step before that are kept into the next forward pass",
        advice="Unless the next step reads them (state that is carried on), a variable of the loop names them until it "
        "is assigned again: del loss, logits, batch behind optimizer.step(), or put the body of the loop into a "
        "function that returns loss.detach() alone",
        rows=made[kept],
        until=done[kept],
    )


def _carried_on(trace: Trace) -> set[tuple[str, int | None]]:
    """Lines that read what an earlier step left, by the op graph: ``h = f(h)`` carries its value on."""
    graph = trace.op_graph
    if graph is None or graph.storages is None:
        return set()
    found = set()
    for op in graph.ops:
        read = {graph.tensors[tensor].storage for tensor in op.inputs}
        if op.file is not None and any(graph.storages[one].born is None for one in read - graph.parameters):
            found.add((op.file, op.line))
    return found


def _next(sorted_places: Int64, positions: Int64) -> Int64:
    """The first of ``sorted_places`` at or behind each position, ``NEVER`` if there is none."""
    places = np.concatenate((sorted_places, [NEVER]))
    found: Int64 = places[np.searchsorted(sorted_places, positions, side="left")]
    return found


def _joined(trace: Trace, recorded: Trace) -> Trace:
    """The recording that the blocks are of, with the run's op graph beside it."""
    if recorded is trace:
        return trace
    return Trace(source=recorded.source, strings=recorded.strings, rows=recorded.rows, recorded=recorded.recorded,
                 op_graph=trace.op_graph)  # fmt: skip


def _last_uses(graph: OpGraph) -> dict[int, int]:
    """Storage -> index of the last op that reads, writes or makes it."""
    found: dict[int, int] = {}
    for op in graph.ops:
        for tensor in (*op.inputs, *op.outputs, *op.mutated):
            found[graph.tensors[tensor].storage] = op.index
    return found


def _ends(trace: Trace) -> dict[tuple[int, int], int]:
    """(step, index of the graph's op) -> when that op ended in the recording."""
    slices = trace.rows["slices"]
    found: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(slices["kind"] == SliceKind.OP).tolist():
        op, step = graph_op(trace, row), _step_of(trace, row)
        if op is not None and step is not None:
            key = step, op.index
            found[key] = max(found.get(key, 0), int(slices["end_ns"][row]))
    return found


def _step_of(trace: Trace, row: int) -> int | None:
    """Place of the step that a span starts in; 0 in a recording without steps."""
    windows = trace.fact(step_windows)
    if not windows.count:
        return 0
    at = int(trace.rows["slices"]["start_ns"][row])
    inside = np.flatnonzero((windows.starts <= at) & (at < windows.ends))
    return int(inside[0]) if len(inside) else None
