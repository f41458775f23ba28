"""Graphs that inductor compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.torch_compile.frames import plain_function
from perfscope.model.compile_log import Graph
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace

MOST_OPS = 6
"""Ops of a graph that are named, with their counts: the rest is rare."""


class _Compiled(Struct, frozen=True):
    graph: Graph
    function: str | None


def _rows(trace: Trace) -> Iterator[_Compiled]:
    log = trace.compile_log
    if log is None:
        return
    functions = {item.compile_id: plain_function(item.function) for item in log.compiles if item.function}
    for graph in sorted(log.graphs, key=lambda graph: -len(graph.nodes)):
        yield _Compiled(graph, functions.get(graph.compile_id))


def _most(row: _Compiled) -> str:
    ops = Counter(node.op.removeprefix("aten.").removesuffix(".default") for node in row.graph.nodes)
    return ", ".join(f"{op} {count:,}x" for op, count in ops.most_common(MOST_OPS))


RESULT: ResultTable[_Compiled] = ResultTable(
    name="compile_graphs",
    title="Graphs",
    doc="Graphs that inductor compiled, the largest first.",
    columns=(
        Column(
            "compile_id", str, "code", "id of the compilation", "key", lambda row: row.graph.compile_id, "compilation"
        ),
        Column("function", str | None, "code", "frame that was compiled", title="frame"),
        Column("direction", str, "text", "forward, backward or inference", "key", lambda row: row.graph.direction),
        Column("ops", int, "count", "ops of the graph", of=lambda row: len(row.graph.nodes)),
        Column("inputs", int, "count", "inputs of the graph", of=lambda row: len(row.graph.inputs)),
        Column("outputs", int, "count", "outputs of the graph", of=lambda row: len(row.graph.outputs)),
        Column(
            "recomputed", int, "count", "ops that repeat work of the forward", of=lambda row: len(row.graph.recomputed)
        ),
        Column("frequent_ops", str, "text", "the most frequent ops with their counts", of=_most),
    ),
    rows=_rows,
)
