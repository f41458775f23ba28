"""Which span of another recording of the same program is the same call: by order within a step, never by time.

Two recordings of one loop differ in every time but run the same ops in the same order. A span is the
k-th of its (name, enclosing op's name) in its step; it corresponds to the k-th of that key in a step of
the other recording that has the same number of them. A step whose whole op sequence is the same is
preferred. Where no step agrees, nothing is matched: no line is better than a wrong one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.time.spans import lineage, nearest_ancestor
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.op_graph import GraphOp
from perfscope.model.trace import MISSING, SliceKind, Trace

Key = tuple[str, str]
"""Name of a span, and name of the innermost op around it (``''``: none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequences:
    """The ops and annotations of a trace by step and key."""

    key_of: dict[int, Key]
    place_of: dict[int, tuple[int, int]]
    """Row of ``slices`` -> (step, position among the rows of its key in that step)."""
    rows_of: dict[int, dict[Key, list[int]]]
    """Step -> key -> rows in order of start."""
    shape_of: dict[int, tuple[tuple[str, int], ...]]
    """Step -> how often each op name ran, a short stand for its whole sequence."""


def detail_row(trace: Trace, row: int) -> int | None:
    """Row of ``trace.detail``'s ``slices`` that is the same call as ``row`` of ``trace``; None if unsure."""
    if trace.detail is None:
        return None
    ours, theirs = trace.fact(_sequences), trace.detail.fact(_sequences)
    for ancestor in lineage(trace, row):
        if ancestor not in ours.place_of:
            continue
        step, position = ours.place_of[ancestor]
        key = ours.key_of[ancestor]
        count = len(ours.rows_of[step][key])
        agreeing = [number for number, keys in theirs.rows_of.items() if len(keys.get(key, ())) == count]
        if not agreeing:
            return None
        same = [number for number in agreeing if theirs.shape_of[number] == ours.shape_of[step]]
        return theirs.rows_of[(same or agreeing)[0]][key][position]
    return None


def graph_op(trace: Trace, row: int) -> GraphOp | None:
    """The op of ``trace.op_graph`` that is the same call as ``row`` or its innermost matching op; None if unsure."""
    if trace.op_graph is None:
        return None
    graph, ours = trace.fact(_graph_ops_by_name), trace.fact(_dispatched_ops)
    for ancestor in lineage(trace, row):
        if ancestor not in ours.places:
            continue
        step, name, position = ours.places[ancestor]
        if ours.counts[step, name] == len(graph[name]):
            return graph[name][position]
    return None


def graph_ops_inside(trace: Trace, enclosing: frozenset[str]) -> frozenset[int]:
    """``GraphOp.index`` of the graph's ops that ran inside an op of one of these names (``aten::one_hot``)."""
    slices, ours, graph = trace.rows["slices"], trace.fact(_dispatched_ops), trace.fact(_graph_ops_by_name)
    around = [code for code, text in enumerate(trace.strings) if text in enclosing]
    rows = np.array(sorted(ours.places), np.int64)
    inside = nearest_ancestor(trace, rows, np.isin(slices["name"], around)) != MISSING
    found = set()
    for row in rows[inside].tolist():
        step, name, position = ours.places[row]
        if ours.counts[step, name] == len(graph[name]):
            found.add(graph[name][position].index)
    return frozenset(found)


def _graph_ops_by_name(trace: Trace) -> dict[str, list[GraphOp]]:
    """Ops of the graph by the name a profiler gives them: ``aten::add`` for ``aten.add.Tensor``."""
    named: dict[str, list[GraphOp]] = defaultdict(list)
    for op in trace.op_graph.ops if trace.op_graph is not None else ():
        namespace, _, rest = op.name.partition(".")
        named[f"{namespace}::{rest.split('.')[0]}"].append(op)
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpPlaces:
    """(step, name, position among those of its name) of each op that a dispatch mode would see; and how many."""

    places: dict[int, tuple[int, str, int]]
    counts: dict[tuple[int, str], int]


def _dispatched_ops(trace: Trace) -> _OpPlaces:
    """Ops named in the graph that no other such op encloses: what a kernel calls inside is not dispatched again."""
    slices = trace.rows["slices"]
    names = slices["name"]
    in_graph = [code for code, text in enumerate(trace.strings) if text in trace.fact(_graph_ops_by_name)]
    wanted = (slices["kind"] == SliceKind.OP) & np.isin(names, in_graph)
    rows = _ordered(trace, np.flatnonzero(wanted))
    rows = rows[nearest_ancestor(trace, slices["parent"][rows], wanted) == MISSING]
    places: dict[int, tuple[int, str, int]] = {}
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for row, step in zip(rows.tolist(), _steps_of(trace, rows).tolist(), strict=True):
        if step != MISSING:
            key = (step, trace.strings[names[row]])
            places[row] = (*key, counts[key])
            counts[key] += 1
    return _OpPlaces(places=places, counts=dict(counts))


def _sequences(trace: Trace) -> _Sequences:
    slices = trace.rows["slices"]
    rows = _ordered(trace, np.flatnonzero(np.isin(slices["kind"], [SliceKind.OP, SliceKind.ANNOTATION])))
    step = _steps_of(trace, rows)
    enclosing = _enclosing_op(trace, rows)
    key_of: dict[int, Key] = {}
    place_of: dict[int, tuple[int, int]] = {}
    rows_of: dict[int, dict[Key, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, number, outer in zip(rows.tolist(), step.tolist(), enclosing.tolist(), strict=True):
        if number == MISSING:
            continue
        key = (trace.strings[slices["name"][row]], trace.text(MISSING if outer == MISSING else slices["name"][outer]))
        members = rows_of[number][key]
        key_of[row] = key
        place_of[row] = (number, len(members))
        members.append(row)
    shapes = {}
    for number, keys in rows_of.items():
        shapes[number] = tuple(sorted((f"{name}<{outer}", len(members)) for (name, outer), members in keys.items()))
    return _Sequences(key_of=key_of, place_of=place_of, rows_of=dict(rows_of), shape_of=shapes)


def _ordered(trace: Trace, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return rows[np.argsort(trace.rows["slices"]["start_ns"][rows], kind="stable")]


def _steps_of(trace: Trace, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number of the step window each row starts in; ``MISSING`` outside. Without steps the trace is one step."""
    windows = trace.fact(step_windows)
    if not windows.count:
        return np.zeros(len(rows), np.int64)
    order = np.argsort(windows.starts, kind="stable")
    starts, ends = windows.starts[order], windows.ends[order]
    moments = trace.rows["slices"]["start_ns"][rows]
    index = np.searchsorted(starts, moments, side="right") - 1
    inside = (index >= 0) & (moments < ends[np.maximum(index, 0)])
    return np.where(inside, index, MISSING)


def _enclosing_op(trace: Trace, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    slices = trace.rows["slices"]
    return nearest_ancestor(trace, slices["parent"][rows], slices["kind"] == SliceKind.OP)
