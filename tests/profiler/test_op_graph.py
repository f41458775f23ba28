"""The structure capture: what it records of real programs."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.errors import UsageError
from perfscope.model.op_graph import OP_GRAPH_SCHEMA
from perfscope.profiler.torch.op_graph import table
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture, available
from tests.profiler.op_graphs import Net, line_of, named, train_step

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch


def test_it_is_available_with_this_torch() -> None:
    assert available() is None


def test_both_layers_name_the_same_schema() -> None:
    assert table.OP_GRAPH_SCHEMA == OP_GRAPH_SCHEMA


def test_phases_modules_and_lines(record: Any) -> None:
    net, x = Net(), torch.randn(2, 8)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    train_step(net, optimizer, x)
    graph = record(lambda: train_step(net, optimizer, x))

    forward = named(graph, "addmm")
    assert [(op.phase, op.module) for op in forward] == [("forward", "Net.first"), ("forward", "Net.second")]
    assert [op.line for op in forward] == [line_of(Net.forward, "self.first"), line_of(Net.forward, "self.second")]
    assert {op.file for op in forward} == {"tests/profiler/op_graphs.py"}
    assert forward[0].function == "Net.forward"

    backward = named(graph, "threshold_backward")[0]
    relu = named(graph, "relu")[0]
    assert (backward.phase, backward.module, backward.line) == ("backward", "Net", relu.line)
    assert backward.sequence == relu.sequence is not None

    (step,) = [op for op in graph.ops if op.name.startswith("aten._fused_adamw_")]
    assert (step.phase, step.function) == ("optimizer", "train_step")
    # Weights, gradients (its schema says so: it may unscale them) and two moments; not the step counters.
    assert len(step.mutated) == 4 * 4
    assert set(step.mutated) < set(step.inputs)


def test_gradients_of_parameters_belong_to_their_module(record: Any) -> None:
    net = Net()
    loss = net(torch.randn(2, 8)).sum()
    loss.backward(retain_graph=True)  # a second backward adds to the gradients
    graph = record(lambda: net(torch.randn(2, 8)).sum().backward())
    owners = {op.module for op in named(graph, "add_") if op.phase == "backward"}
    assert owners == {"Net.first", "Net.second"}


def test_a_custom_backward_keeps_its_own_line(record: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient * 2

    x = torch.ones(4, requires_grad=True)
    first, second = named(record(lambda: Double.apply(x).sum().backward()), "mul")
    assert (first.phase, first.line) == ("forward", line_of(Double, "return x * 2"))
    assert (second.phase, second.line) == ("backward", line_of(Double, "return gradient * 2"))
    assert first.sequence == second.sequence


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_is_told_from_backward(record: Any, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    x = torch.randn(2, 8, requires_grad=True)
    graph = record(lambda: checkpoint(net, x, use_reentrant=reentrant).sum().backward())
    again = [op for op in graph.ops if op.recompute]
    assert {op.phase for op in again} == {"backward"}
    assert [op.module for op in named(graph, "addmm") if op.recompute] == ["Sequential.0", "Sequential.2"]
    # What follows the recompute is backward again, with the modules of the forward.
    assert {op.module for op in named(graph, "mm") if not op.recompute} == {"Sequential.0", "Sequential.2"}
    assert not any(op.recompute for op in graph.ops if op.phase == "forward")


def test_storages_of_the_dead_are_not_confused_with_those_of_the_living(record: Any) -> None:
    def program() -> None:
        for _ in range(50):  # the allocator hands the same address out again and again
            torch.zeros(1000)

    graph = record(program)
    made = [op.outputs[0] for op in named(graph, "zeros")]
    assert len({graph.tensors[tensor].storage for tensor in made}) == 50


def test_two_parts_of_one_storage_are_two_tensors(record: Any) -> None:
    x = torch.ones(2, 8)
    graph = record(lambda: torch.mul(*x.chunk(2, dim=1)))
    left, right = (graph.tensors[tensor] for tensor in named(graph, "mul")[0].inputs)
    assert left.storage == right.storage
    assert left.shape == right.shape == (2, 4)
    assert len(set(named(graph, "mul")[0].inputs)) == 2


def test_what_lives_on_and_what_are_parameters(record: Any) -> None:
    net, kept = Net(), []

    def program() -> None:
        kept.append(net(torch.randn(2, 8)))

    graph = record(program)
    storage = {tensor: graph.tensors[tensor].storage for tensor in range(len(graph.tensors))}
    result = storage[named(graph, "addmm")[1].outputs[0]]
    noise = storage[named(graph, "randn")[0].outputs[0]]
    assert result in graph.live_out
    assert graph.parameters <= graph.live_out
    assert len(graph.parameters) == 4
    # The input is held by the graph of the result, so it lives; without gradients it would not.
    assert noise in graph.live_out
    with torch.no_grad():
        graph = record(program)
    assert graph.tensors[named(graph, "randn")[0].outputs[0]].storage not in graph.live_out


def test_bytes_count_expanded_dimensions_once(record: Any) -> None:
    graph = record(lambda: torch.ones(1, 8).expand(1000, 8) + torch.ones(1000, 1))
    add = named(graph, "add")[0]
    assert [graph.tensors[tensor].bytes for tensor in add.inputs] == [8 * 4, 1000 * 4]
    assert graph.tensors[add.outputs[0]].bytes == 8000 * 4
    assert graph.tensors[add.inputs[0]].shape == (1000, 8)


def test_views_writes_and_kinds(record: Any) -> None:
    a, b = torch.ones(4, 4), torch.ones(4, 4)

    def program() -> None:
        a.t().add_(b)
        torch.add(a, b, out=b)
        torch._foreach_mul_([a, b], 2.0)
        a.clone().sum()
        torch.softmax(a, 0)
        torch.empty(3)
        a.contiguous().unsqueeze_(0)

    graph = record(program)
    written = {op.name: {graph.tensors[tensor].storage for tensor in op.mutated} for op in graph.ops if op.mutated}
    storage_a = graph.tensors[named(graph, "t")[0].inputs[0]].storage
    storage_b = graph.tensors[named(graph, "add")[0].outputs[0]].storage
    assert written == {
        "aten.add_.Tensor": {storage_a},
        "aten.add.out": {storage_b},
        "aten._foreach_mul_.Scalar": {storage_a, storage_b},
    }
    kinds = {op.name: (op.pointwise, op.reduction, op.view) for op in graph.ops}
    assert kinds["aten.t.default"] == kinds["aten.empty.memory_format"] == (False, False, True)
    assert kinds["aten.clone.default"] == kinds["aten._foreach_mul_.Scalar"] == (True, False, False)
    assert kinds["aten.sum.default"] == kinds["aten._softmax.default"] == (False, True, False)
    assert not named(graph, "sum")[0].mutated


def test_the_written_lists_hold_ops_that_torch_has_and_does_not_tag() -> None:
    from perfscope.profiler.torch.op_graph import recorder as schema

    def tagged(name: str, tag: Any) -> bool:
        packet = getattr(torch.ops.aten, name.removeprefix("aten."))  # AttributeError: no such op
        return all(tag in getattr(packet, overload).tags for overload in packet.overloads())

    assert not [name for name in schema.POINTWISE_UNTAGGED if tagged(name, torch.Tag.pointwise)]
    assert not [name for name in schema.REDUCTION_UNTAGGED if tagged(name, torch.Tag.reduction)]
    for name in (*schema.ALLOCATIONS, *schema.METADATA, *schema.HOST_READS, *schema.MASK_READS):
        assert hasattr(torch.ops.aten, name.removeprefix("aten.")), name


def test_the_line_is_the_users_not_the_librarys(record: Any) -> None:
    x = torch.ones(3)
    graph = record(lambda: copy.deepcopy(x))
    assert named(graph, "copy_")
    assert {op.file for op in graph.ops} == {"tests/profiler/test_op_graph.py"}


def test_the_limit_truncates_and_says_so(record: Any) -> None:
    def program() -> None:
        for _ in range(10):
            torch.ones(1)

    assert (len((graph := record(program, limit=10)).ops), graph.truncated) == (10, False)
    assert (len((graph := record(program, limit=9)).ops), graph.truncated) == (9, True)


def test_fake_tensors(record: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def program() -> None:
        with FakeTensorMode():
            a = torch.empty(3, 4)
            a @ a.t()

    (product,) = named(record(program), "mm")
    assert product.flops == 2 * 3 * 4 * 3


def test_subclasses_show_the_ops_on_their_parts(record: Any) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    graph = record(lambda: TwoTensor(torch.ones(2), torch.zeros(2)) * 2)
    assert len(named(graph, "mul")) == 2


def test_sparse_tensors(record: Any) -> None:
    sparse = torch.eye(3).to_sparse_coo()
    graph = record(lambda: sparse @ torch.ones(3, 3))
    (product,) = named(graph, "mm")
    # 3 values of 4 bytes, 2 * 3 indices of 8.
    assert graph.tensors[product.inputs[0]].bytes == 3 * 4 + 6 * 8


def test_function_transforms(record: Any) -> None:
    x = torch.ones(3)
    graph = record(lambda: torch.func.grad(lambda a: (a * a).sum())(x))
    assert {op.phase for op in named(graph, "mul")} == {"forward", "backward"}


def test_misuse_is_said(tmp_path: Path) -> None:
    capture = OpGraphCapture()
    with pytest.raises(UsageError, match="no op graph to save"):
        capture.save(tmp_path / "graph.json")
    capture.start(0)
    with pytest.raises(UsageError, match="called twice"):
        capture.start(1)
    capture.stop()
    capture.stop()


def test_the_file_is_what_it_says(record: Any, tmp_path: Path) -> None:
    graph = record(lambda: torch.ones(2))
    document = json.loads(gzip.decompress((tmp_path / "structure.opgraph.json.gz").read_bytes()))
    assert document["schema"] == "perfscope.op_graph/1"
    assert (graph.step, graph.device, graph.truncated) == (3, "cpu", False)
    assert [path.name for path in tmp_path.iterdir()] == ["structure.opgraph.json.gz"]
