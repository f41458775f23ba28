"""Python loops of the program that run small ops many times in a step, by the op graph.

A loop counts if the same ops run in it with the same parameters each time: a loop over layers has other parameters in
each round. Its rounds are independent if no result of one is used in the next, except to add it up or collect it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.graph import short_name, trace_flow
from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.analyzers.spans import named_slices, nearest_ancestor
from perfscope.analyzers.time import device_busy, time_with_core, warm_windows
from perfscope.model.intervals import Int64, Intervals, difference, merge, union
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

LEAST_ROUNDS = 16
"""Rounds per step: models have loops of a dozen over layers, heads or scales."""

SHORT_NS = 10_000
"""Time of an op on the host that its launch explains: an eager op takes 2 to 10 us before it computes anything."""

MOST_GAP_NS = 1_000_000
"""Time between two ops of a loop from which the host does something else: Python and dispatch take 2 to 30 us."""

MOST_LOOPS = 50
"""Loops of a step that are examined, most ops first."""

_COLLECTS = frozenset({"add", "add_", "cat", "stack", "maximum", "minimum", "copy_", "index_put_", "sum"})
"""Ops that add up or collect the results of rounds."""

_CELLS = {
    "aten::lstm_cell": "LSTM",
    "aten::gru_cell": "GRU",
    "aten::rnn_tanh_cell": "RNN",
    "aten::rnn_relu_cell": "RNN",
}

LoopKind = Literal["cell", "gradients", "rounds", "tensors", "update"]


class PythonLoop(Struct, frozen=True, kw_only=True):
    """One loop of the program in the recorded step."""

    kind: LoopKind
    """cell: a recurrent cell over time. gradients: each round has its own backward pass. rounds: independent rounds.
    tensors: a round for each of many tensors. update: a round for each parameter."""
    file: str
    line: int
    """Line of the ``for`` or ``while``."""
    lines: tuple[tuple[str, int], ...]
    """Places in it and the number of their ops, most ops first."""
    rounds: int
    """Rounds per step."""
    ops: tuple[int, ...]
    """Indices in ``OpGraph.ops``: its ops and their backward ops."""
    cell: str = ""
    """Module of ``torch.nn`` that runs the cell over all of the time."""


def python_loops(trace: Trace) -> tuple[PythonLoop, ...]:
    """Return the loops whose rounds one call could do. A fact of the trace."""
    graph = trace.op_graph
    if graph is None:
        return ()
    groups: dict[tuple[str, int], list[GraphOp]] = defaultdict(list)
    for op in graph.ops:
        own = op.loop_file is not None and op.loop_line is not None and op.loop_file not in graph.libraries
        if own and op.phase in ("forward", "other") and not op.recompute:
            groups[str(op.loop_file), int(op.loop_line or 0)].append(op)
    longest = sorted(groups.items(), key=lambda item: -len(item[1]))[:MOST_LOOPS]
    longest.sort(key=lambda item: item[1][0].index - item[1][-1].index)  # outer loops before those inside them
    found: list[PythonLoop] = []
    for place, ops in longest:
        loop = _loop(trace, graph, place, ops)
        around = None if loop is None else next((other for other in found if _is_inside(loop, other)), None)
        if loop is not None and around is not None:
            found[found.index(around)] = replace(around, ops=tuple(sorted({*around.ops, *loop.ops})))
        elif loop is not None:
            found.append(loop)
    return tuple(found)


def _is_inside(inner: PythonLoop, outer: PythonLoop) -> bool:
    """Whether a loop of the same file begins between the first and the last op of another, and has more rounds."""
    begins_inside = outer.ops[0] < inner.ops[0] < outer.ops[-1]
    return inner.file == outer.file and begins_inside and inner.rounds >= outer.rounds


def _loop(trace: Trace, graph: OpGraph, place: tuple[str, int], ops: Sequence[GraphOp]) -> PythonLoop | None:
    by_call: dict[tuple[object, ...], list[GraphOp]] = defaultdict(list)
    for op in ops:
        by_call[op.file, op.line, op.name, op.module].append(op)
    repeated = [calls for calls in by_call.values() if len(calls) >= LEAST_ROUNDS]
    computing = [calls for calls in repeated if not calls[0].view]
    if not computing:
        return None
    rounds = Counter(len(calls) for calls in computing for _ in calls).most_common(1)[0][0]
    mine = sorted((op for calls in repeated for op in calls), key=lambda op: op.index)
    lines = Counter(f"{op.file}:{op.line}" for op in mine).most_common()
    kind, cell = _kind(trace, graph, computing, mine)
    if kind is None:
        return None
    numbers = {op.sequence for op in mine} - {None}
    behind = [op.index for op in graph.ops if op.phase == "backward" and op.sequence in numbers]
    return PythonLoop(
        kind=kind, file=place[0], line=place[1], lines=tuple(lines), rounds=rounds, cell=cell,
        ops=tuple(sorted({*(op.index for op in mine), *behind})),
    )  # fmt: skip


def _kind(
    trace: Trace, graph: OpGraph, calls: Sequence[Sequence[GraphOp]], mine: Sequence[GraphOp]
) -> tuple[LoopKind | None, str]:
    """Return what the loop does.

    ``None``: it is over layers, or each round needs the previous one or a value on the host, or runs the same graph
    backward.
    """
    parameters = [_read_by_all(graph, same) & graph.parameters for same in calls]
    if any(_takes_other_tensors(graph, same) for same in calls) and not any(parameters):
        updated = frozenset().union(*(_storages(graph, op.mutated) for same in calls for op in same))
        return ("update" if updated and updated <= graph.parameters else "tensors"), ""
    if any(_reads_other_parameters(graph, same) for same in calls):
        return None, ""
    cell = _cell(trace, mine)
    if cell:
        return "cell", cell
    if _carries(trace, calls):
        return None, ""
    if sum(op.host_read is not None for op in mine) >= LEAST_ROUNDS:
        return None, ""
    backward = [op.sequence for op in graph.ops[mine[0].index : mine[-1].index] if op.phase == "backward"]
    if len(backward) < LEAST_ROUNDS:
        return "rounds", ""
    made = {op.sequence for op in mine}
    of_rounds = sum(sequence in made for sequence in backward)
    return ("gradients" if 2 * of_rounds > len(backward) else None), ""  # else `repeated_backward`: one graph, again


def _storages(graph: OpGraph, tensors: Sequence[int]) -> frozenset[int]:
    return frozenset(graph.tensors[index].storage for index in tensors)


def _takes_other_tensors(graph: OpGraph, calls: Sequence[GraphOp]) -> bool:
    """Whether each call updates, in place, a tensor that no other call updates; or reads one, of several shapes."""
    updated = [_storages(graph, op.mutated) for op in calls]
    if all(len(ids) == 1 for ids in updated):
        return len(set(updated)) == len(calls)
    first = [graph.tensors[op.inputs[0]] for op in calls if op.inputs]
    read = {tensor.storage for tensor in first}
    made = [graph.storages[index].born for index in read] if graph.storages is not None else [calls[0].index]
    ready = all(born is None or born < calls[0].index for born in made)
    several = len(read) == len(calls) and len({tensor.shape for tensor in first}) > 1
    return ready and several and not _read_by_all(graph, calls)


def _read_by_all(graph: OpGraph, calls: Sequence[GraphOp]) -> frozenset[int]:
    """Return the storages that all calls read."""
    return frozenset.intersection(*(_storages(graph, op.inputs) for op in calls))


def _reads_other_parameters(graph: OpGraph, calls: Sequence[GraphOp]) -> bool:
    """Whether most calls read a parameter that the others do not: the loop is over layers."""
    read = [_storages(graph, op.inputs) & graph.parameters for op in calls]
    return 2 * len({ids for ids in read if ids}) > len(calls)


def _cell(trace: Trace, mine: Sequence[GraphOp]) -> str:
    """Return ``LSTM``, ``GRU`` or ``RNN`` if most ops of the loop run in such a cell; else ``""``."""
    spans = trace.fact(graph_time).spans
    rows = np.array([spans[0][op.index] for op in mine], np.int64) if spans else np.empty(0, np.int64)
    rows = rows[rows != MISSING]
    for name, module in _CELLS.items():
        cells = named_slices(trace, lambda text, name=name: text == name)  # type: ignore[misc]
        if len(rows) and 2 * np.count_nonzero(nearest_ancestor(trace, rows, cells) != MISSING) > len(rows):
            return module
    return ""


def _carries(trace: Trace, calls: Sequence[Sequence[GraphOp]]) -> bool:
    """Whether rounds compute with a result of the previous one: then ops depend on each other in a chain of all rounds.

    Adding up or collecting results makes no chain.
    """
    flow, graph = trace.fact(trace_flow), trace.op_graph
    if flow is None or graph is None:
        return True
    mine = {op.index for same in calls for op in same}
    depth: dict[int, int] = {}
    for index in sorted(mine):
        before = max((depth[made] for _, made in flow.producers[index] if made in depth), default=0)
        depth[index] = before + (short_name(graph.ops[index]) not in _COLLECTS)
    return max(depth.values()) >= min(len(same) for same in calls)


def loop_spans(trace: Trace, loop: PythonLoop) -> Iterator[tuple[Int64, Intervals]]:
    """Yield, per matched usual step, the rows of ``slices`` of the loop's ops and the time of the host around them."""
    slices, usual = trace.rows["slices"], trace.fact(warm_windows)
    for spans in trace.fact(graph_time).spans:
        rows = spans[np.array(loop.ops, np.int64)]
        rows = rows[rows != MISSING]
        starts = slices["start_ns"][rows]
        if not len(rows) or not ((usual.starts <= starts.min()) & (starts.max() < usual.ends)).any():
            continue
        pieces = []
        for thread in np.unique(slices["thread"][rows]):
            mine = np.sort(rows[slices["thread"][rows] == thread])
            starts, ends = slices["start_ns"][mine], slices["end_ns"][mine]
            near = starts[1:] - ends[:-1] < MOST_GAP_NS
            ends = np.append(np.where(near, starts[1:], ends[:-1]), ends[-1:])
            pieces.append(union(starts, ends))
        yield rows, merge(*pieces) if pieces else union([], [])


def loop_time(trace: Trace, loop: PythonLoop) -> Intervals:
    """Return the time of the host around the loop's ops in all matched steps."""
    return merge(*(around for _, around in loop_spans(trace, loop)))


def loop_saving(trace: Trace, loop: PythonLoop) -> tuple[int, int]:
    """Return (saving, time) of the loop in the usual steps, ns.

    One round of ``rounds`` remains. With an accelerator the saving is its idle time meanwhile; on the host, the time
    without ops that take longer than ``SHORT_NS``, because they compute.
    """
    slices, total, saved = trace.rows["slices"], 0, 0.0
    busy = merge(*trace.fact(device_busy).values()) if len(trace.rows["kernels"]) else None
    for rows, around in loop_spans(trace, loop):
        time = time_with_core(trace, around)
        total += time
        if busy is not None:
            time = time_with_core(trace, difference(around, busy))
        else:
            begins, ends = slices["start_ns"][rows], slices["end_ns"][rows]
            long = ends - begins > SHORT_NS
            time -= time_with_core(trace, union(begins[long], ends[long]))
        saved += max(0, time) * (1 - 1 / loop.rounds)
    return round(saved), total
