"""Chakra execution traces, read back with the messages of the public schema (et_def.proto 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from perfscope.analyzers.critical_path import dependency_graph
from perfscope.analyzers.readers.load import load
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, Trace
from perfscope.plugins.exports.export import Subject, export
from tests.build import TraceBuilder

FIELDS = {
    "GlobalMetadata": ("version:1:string", "attr:2:*Attribute"),
    "Attribute": ("name:1:string", "int64_val:9:int64", "bool_val:27:bool", "string_val:29:string"),
    "IOInfo": ("values:1:string", "shapes:2:string", "types:3:string"),
    "Node": (
        "id:1:uint64", "name:2:string", "type:3:int32", "ctrl_deps:4:*uint64", "data_deps:5:*uint64",
        "start_time_micros:6:uint64", "duration_micros:7:uint64", "inputs:8:IOInfo", "outputs:9:IOInfo",
        "attr:10:*Attribute",
    ),
}  # fmt: skip


def classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="chakra_test.proto", package="chakra_test", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for text in fields:
            field, number, kind = text.split(":")
            made = message.field.add(name=field, number=int(number))
            made.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            if kind.lstrip("*") in FIELDS:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".chakra_test.{kind.lstrip('*')}"
            else:
                made.type = kinds.Type.Value(f"TYPE_{kind.lstrip('*').upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra_test.{name}")) for name in FIELDS}


def messages(content: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(content):
        size = shift = 0
        while True:
            byte = content[place]
            place += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield content[place : place + size]
        place += size


def nodes_of(path: Path) -> list[Any]:
    known = classes()
    first, *rest = messages(path.read_bytes())
    assert known["GlobalMetadata"].FromString(first).version == "0.0.4"
    nodes = [known["Node"].FromString(content) for content in rest]
    assert not any(len(UnknownFieldSet(node)) for node in nodes)
    return nodes


def check(trace: Trace, path: Path) -> list[Any]:
    """Check properties of every trace: the graph, node by node."""
    nodes, graph = nodes_of(path), trace.fact(dependency_graph)
    assert graph is not None
    assert [node.id for node in nodes] == list(range(1, len(graph) + 1))
    for number, node in enumerate(nodes):
        before = {int(one) + 1 for one in graph.before[:, number] if one != MISSING}
        assert set(node.data_deps) == before
        assert all(one < node.id for one in before)
    lengths = [attribute(node, "duration_ns").int64_val for node in nodes]
    assert lengths == (graph.ends - graph.starts).tolist()
    return nodes


def attribute(node: Any, name: str) -> Any:
    return next((one for one in node.attr if one.name == name), None)


def test_a_node_for_each_piece_of_host_and_device(tmp_path: Path) -> None:
    builder = TraceBuilder(rank=3)
    builder.op("aten::mm", 0, 20, shapes="[[4, 8], [8, 2]]", dtypes='["float", "float"]')
    builder.launched("gemm", 10, 20, 120, correlation=1)
    builder.step(1, 0, 130)
    trace = builder.build()
    assert export(Subject(traces=(trace,)), "chakra", tmp_path / "out") == []
    nodes = check(trace, tmp_path / "out" / "chakra.3.et")
    (gemm,) = (node for node in nodes if node.name == "gemm")
    assert (gemm.type, gemm.start_time_micros, gemm.duration_micros) == (4, 20, 100)
    assert attribute(gemm, "is_cpu_op").bool_val is False
    assert attribute(nodes[0], "is_cpu_op").bool_val is True


def test_a_trace_without_launches_is_refused(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 20)
    with pytest.raises(DataError, match="no device work with the calls that launched it"):
        export(Subject(traces=(builder.build(),)), "chakra", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.corpus
def test_collectives_of_a_public_trace_have_their_operation_and_size(corpus: Path, tmp_path: Path) -> None:
    trace = load(corpus / "kineto" / "astra-sim__megatron_kineto_0.json.gz")[0]
    export(Subject(traces=(trace,)), "chakra", tmp_path / "out")
    nodes = check(trace, tmp_path / "out" / "chakra.0.et")
    assert Counter(node.type for node in nodes)[7] == 84
    first = next(node for node in nodes if node.type == 7)
    assert first.inputs.shapes == "[[4, 2048, 4096]]"
    assert attribute(first, "comm_type").int64_val == 0
    assert attribute(first, "comm_size").int64_val == 4 * 2048 * 4096 * 2
