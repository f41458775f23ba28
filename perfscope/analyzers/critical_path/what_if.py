"""Effect of a change on the step, by replaying the graph with the change.

A change is ``TARGET xFACTOR``: time of the target is multiplied by the factor; ``x0`` removes it. Targets:

- a name: an op (with everything inside it and all work that it launched), a host span, or a part of a kernel's name,
- ``launch``: launch calls and the delay from a launch to an idle device,
- ``sync`` (x0 only): waits for the device except the last one, which ends the recording; values that the host read are
  assumed to be needed later, or never,
- ``communication``: kernels of collectives; 0 means infinite bandwidth and peers that are never late,
- ``copy``: copies and memsets.

Everything else keeps its recorded duration and dependencies.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from perfscope.analyzers.critical_path.graph import Graph, HostPieces, NodeKind, Via, dependency_graph
from perfscope.analyzers.critical_path.replay import Change, replayed_ns, unchanged
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.model.errors import UsageError
from perfscope.model.trace import MISSING, CallKind, Trace

_CHANGE = re.compile(r"(?P<target>.+?)\s+x\s*(?P<factor>\d+(\.\d+)?|\.\d+)")
_LAUNCHING = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)
GENERAL_TARGETS = ("launch", "sync", "communication", "copy")


class Hypothesis(Struct, frozen=True, kw_only=True):
    """A change requested by the user."""

    text: str
    target: str
    factor: float


class WhatIf(Struct, frozen=True, kw_only=True):
    """Effect of a change on the steps, modelled by replaying the recorded dependencies."""

    text: str
    """The change."""
    rank: int | None
    nodes: int
    """Number of host pieces and works that change."""
    changed_ns: int
    """Recorded time of those nodes, all steps together, ns."""
    before_ns: int
    """Length of all steps together, ns; of the capture without steps."""
    after_ns: int
    """The same with the change."""
    steps: int
    """Number of steps; 1 without steps."""

    @property
    def saved_ns(self) -> int:
        """Time saved in all steps together, ns."""
        return self.before_ns - self.after_ns


def parse_hypothesis(text: str) -> Hypothesis:
    """Parse ``'aten::mm x0.5'``. ``UsageError`` for invalid text."""
    match = _CHANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--what-if {text}: give TARGET xFACTOR, such as 'aten::mm x0.5', 'sync x0' or 'launch x0'")
    hypothesis = Hypothesis(text=text.strip(), target=match["target"], factor=float(match["factor"]))
    if hypothesis.target == "sync" and hypothesis.factor:
        raise UsageError(f"--what-if {text}: a wait can be taken away (sync x0), not made shorter")
    return hypothesis


def what_if(trace: Trace, hypothesis: Hypothesis) -> WhatIf | None:
    """Return the steps with the change; ``None`` if the trace has no dependencies to replay.

    ``UsageError`` if nothing in the trace matches the target.
    """
    graph = trace.fact(dependency_graph)
    if graph is None:
        return None
    change = unchanged(graph)
    chosen, pieces = _apply(trace, graph, change, hypothesis)
    nodes = int(chosen.sum()) + len(pieces.starts)
    if not nodes and hypothesis.target not in GENERAL_TARGETS:
        raise UsageError(f"--what-if {hypothesis.text}: no op, host span or kernel is called {hypothesis.target}")
    changed_ns = int((graph.ends - graph.starts)[chosen].sum() + (pieces.ends - pieces.starts).sum())
    return WhatIf(
        text=hypothesis.text,
        rank=trace.source.rank,
        nodes=nodes,
        changed_ns=changed_ns,
        before_ns=graph.windows.whole_ns,
        after_ns=replayed_ns(graph, change),
        steps=max(len(graph.windows.numbers), 1),
    )


def _apply(trace: Trace, graph: Graph, change: Change, hypothesis: Hypothesis) -> tuple[np.ndarray, HostPieces]:
    """Apply the change in place; return a mask of the changed nodes and the changed pieces of other host nodes."""
    target, factor = hypothesis.target, hypothesis.factor
    host = np.flatnonzero(graph.on_host)
    pieces = graph.host_pieces(graph.starts[host], graph.ends[host])
    chosen = np.zeros(len(graph), bool)
    on_host = np.zeros(len(pieces.starts), bool)
    if target == "sync":
        chosen = graph.kind == NodeKind.RETURN
        chosen &= graph.call != _last_call(graph, chosen)
        change.before[Via.DEPENDENCY, chosen] = MISSING
    elif target == "communication":
        chosen = graph.kind == NodeKind.COMMUNICATION
    elif target == "copy":
        chosen = graph.kind == NodeKind.COPY
    elif target == "launch":
        kinds, call = trace.rows["calls"]["kind"], graph.lane.call[pieces.piece]
        on_host = (call != MISSING) & np.isin(kinds[np.maximum(call, 0)], _LAUNCHING) if len(kinds) else on_host
        change.lag[Via.LAUNCH] = np.round(change.lag[Via.LAUNCH] * factor)
    else:
        chosen, spans = _named(trace, graph, target)
        row = graph.lane.slice[pieces.piece]
        on_host = (row != MISSING) & np.append(spans, np.False_)[row]
    change.durations[chosen] = np.round(change.durations[chosen] * factor)
    pieces = HostPieces(*(column[on_host] for column in pieces))
    lengths = pieces.ends - pieces.starts
    np.add.at(change.durations, host[pieces.interval], np.round(lengths * factor).astype(np.int64) - lengths)
    return chosen, pieces


def _last_call(graph: Graph, returns: np.ndarray) -> int:
    """Return the row of ``calls`` of the wait that returned last; ``MISSING`` without waits."""
    rows = np.flatnonzero(returns)
    return int(graph.call[rows[np.argmax(graph.starts[rows])]]) if len(rows) else MISSING


def _named(trace: Trace, graph: Graph, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of the works launched inside spans of that name and of kernels whose name contains it.

    Second, a mask of the rows of ``slices`` inside these spans.
    """
    slices, kernels, copies = (trace.rows[table] for table in ("slices", "kernels", "copies"))
    of_name = np.array([code for code, text in enumerate(trace.strings) if text == name], np.int64)
    spans = np.isin(slices["name"], of_name)
    inside = nearest_ancestor(trace, np.arange(len(slices)), spans) != MISSING
    containing = np.array([code for code, text in enumerate(trace.strings) if name in text], np.int64)
    in_kernel = np.isin(kernels["name"], containing) | _launched_in(inside, kernels["op"])
    in_copy = np.isin(copies["name"], containing) | _launched_in(inside, copies["op"])
    chosen: np.ndarray = np.zeros(len(graph), bool)
    for kinds, rows in (((NodeKind.KERNEL, NodeKind.COMMUNICATION), in_kernel), ((NodeKind.COPY,), in_copy)):
        here = np.isin(graph.kind, kinds) & (graph.row != MISSING)
        chosen[here] = rows[graph.row[here]]
    return chosen, inside


def _launched_in(inside: np.ndarray, ops: np.ndarray) -> np.ndarray:
    """Mask of the works whose op is one of the spans; False for unknown ops."""
    return (ops != MISSING) & inside[np.maximum(ops, 0)] if len(inside) else np.zeros(len(ops), bool)
