"""Chakra execution traces (https://github.com/mlcommons/chakra): what waited for what, for simulators (ASTRA-sim).

A file a rank: the graph of the critical path as a stream of messages of schema ``et_def.proto``, each with its length
in front. Host pieces and device work are compute nodes, kernels of collectives are communication nodes with their
operation and size. All dependencies are ``data_deps``, which is what feeders of simulators read. Times in the schema
are whole microseconds; the attribute ``duration_ns`` is exact.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from perfscope.analyzers.critical_path import Graph, NodeKind, dependency_graph
from perfscope.analyzers.ranks import Local, locals_of
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, Trace
from perfscope.model.wire import write_varint
from perfscope.plugins.exports.events import fit
from perfscope.plugins.exports.export import Subject
from perfscope.plugins.exports.files import whole_folder
from perfscope.plugins.exports.wire import bytes_field, number_field, text_field

SUFFIX = "-chakra"
FOLDER = True

VERSION = "0.0.4"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes."""
OPERATIONS = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_POINT_TO_POINT = {"send": (SEND, "comm_dst"), "recv": (RECEIVE, "comm_src")}
_INT64, _BOOL, _STRING = 9, 27, 29
"""Fields of an attribute's value."""


def write(subject: Subject, target: Path) -> list[str]:
    """Write the folder ``target``. ``DataError``: no trace has device work with the calls that launched it."""
    graphs = [trace.fact(dependency_graph) for trace in subject.traces]
    pairs = [
        (index, trace, graph)
        for index, (trace, graph) in enumerate(zip(subject.traces, graphs, strict=True))
        if graph is not None and not graph.on_host.all() and "launch_links" in trace.recorded
    ]
    if not pairs:
        raise DataError(f"{subject.traces[0].source.path}: no device work with the calls that launched it")
    unknown: Counter[str] = Counter()
    with whole_folder(target) as folder:
        for index, trace, graph in pairs:
            rank = index if trace.source.rank is None else trace.source.rank
            (folder / f"chakra.{rank}.et").write_bytes(_trace(trace, graph, unknown))
    left = len(subject.traces) - len(pairs)
    return [
        *([f"{left:,} traces have no device work with the calls that launched it"] if left else []),
        *(f"{count:,} kernels of {name} are compute nodes: their operation or size is not recorded"
          for name, count in unknown.items()),
    ]  # fmt: skip


def _trace(trace: Trace, graph: Graph, unknown: Counter[str]) -> bytes:
    collectives = {local.kernel: local for local in trace.fact(locals_of) if local.kernel != MISSING}
    messages = [text_field(1, VERSION)]
    low, befores = int(graph.windows.starts.min()), graph.before.T.tolist()
    kinds, rows, threads = graph.kind.tolist(), graph.row.tolist(), graph.thread.tolist()
    times = zip(graph.starts.tolist(), graph.ends.tolist(), strict=True)
    for node, (start, end) in enumerate(times):
        kind, row = NodeKind(kinds[node]), rows[node]
        of_collective = collectives.get(row) if kind == NodeKind.COMMUNICATION else None
        node_type, attributes = _communication(of_collective)
        name = _name(trace, kind, row)
        if kind == NodeKind.COMMUNICATION and node_type == COMPUTE:
            unknown[
                "an unknown collective"
                if of_collective is None or of_collective.operation == "unknown"
                else of_collective.operation
            ] += 1
        on_host = kind in (NodeKind.HOST, NodeKind.RETURN)
        messages.append(
            b"".join(
                (
                    number_field(1, node + 1),
                    text_field(2, fit(name)),
                    number_field(3, node_type),
                    *(number_field(5, before + 1) for before in dict.fromkeys(befores[node]) if before != MISSING),
                    number_field(6, max(start - low, 0) // 1_000),
                    number_field(7, round((end - start) / 1_000)),
                    *_inputs(trace, kind, row),
                    _attribute("is_cpu_op", _BOOL, int(on_host)),
                    _attribute("tid" if on_host else "stream", _INT64, _lane(trace, kind, row, threads[node])),
                    _attribute("duration_ns", _INT64, end - start),
                    *attributes,
                )
            )
        )
    return b"".join(write_varint(len(message)) + message for message in messages)


def _attribute(name: str, field: int, value: int | str) -> bytes:
    held = text_field(field, value) if isinstance(value, str) else number_field(field, value)
    return bytes_field(10, text_field(1, name), held)


def _communication(local: Local | None) -> tuple[int, list[bytes]]:
    """(type of node, its attributes); of what no operation and size is known a compute node."""
    size = None if local is None else local.message_bytes()
    if local is None or (size is None and local.operation != "barrier"):
        return COMPUTE, []
    attributes = [_attribute("comm_size", _INT64, size or 0)]
    if local.group:
        attributes.append(_attribute("pg_name", _STRING, fit(local.group)))
    if local.operation in OPERATIONS:
        return COLLECTIVE, [_attribute("comm_type", _INT64, OPERATIONS[local.operation]), *attributes]
    if local.operation in _POINT_TO_POINT and local.peer is not None:
        node_type, peer = _POINT_TO_POINT[local.operation]
        return node_type, [_attribute(peer, _INT64, local.peer), *attributes]
    return COMPUTE, []


def _name(trace: Trace, kind: NodeKind, row: int) -> str:
    if kind in (NodeKind.HOST, NodeKind.RETURN):
        return "host" if row == MISSING else trace.text(int(trace.rows["slices"]["name"][row]))
    return trace.text(int(trace.rows["copies" if kind == NodeKind.COPY else "kernels"]["name"][row]))


def _lane(trace: Trace, kind: NodeKind, row: int, thread: int) -> int:
    """Number of the thread, or of the stream."""
    if kind in (NodeKind.HOST, NodeKind.RETURN):
        return max(thread, 0)
    return max(int(trace.rows["copies" if kind == NodeKind.COPY else "kernels"]["stream"][row]), 0)


def _inputs(trace: Trace, kind: NodeKind, row: int) -> list[bytes]:
    """Shapes and types of the op that launched a work, where they are recorded."""
    if kind in (NodeKind.HOST, NodeKind.RETURN):
        return []
    slices, op = trace.rows["slices"], int(trace.rows["copies" if kind == NodeKind.COPY else "kernels"]["op"][row])
    codes = {} if op == MISSING else {2: int(slices["shapes"][op]), 3: int(slices["dtypes"][op])}
    fields = [text_field(number, fit(trace.text(code))) for number, code in codes.items() if code != MISSING]
    return [bytes_field(8, *fields)] if fields else []
