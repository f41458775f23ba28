"""Sequences matched with each other, and the resulting times."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.ops.graph_time import align, graph_time, ops_time
from perfscope.analyzers.ops.kernels import Operand, broadcast, parse_inputs, promoted
from tests.build import TraceBuilder
from tests.graphs import GraphBuilder


def test_align_skips_what_only_one_side_has():
    assert align(list("abcd"), list("abxcd")) == [0, 1, 3, 4]
    assert align(list("abxcd"), list("abcd")) == [0, 1, -1, 2, 3]
    assert align(list("ab"), []) == [-1, -1]


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_align_is_increasing_and_matches_equal_names_only(names: list[str], seen: list[str]):
    found = align(names, seen)
    placed = [(i, j) for i, j in enumerate(found) if j >= 0]
    assert all(names[i] == seen[j] for i, j in placed)
    assert all(first[1] < second[1] for first, second in itertools.pairwise(placed))
    if names == seen:
        assert found == list(range(len(names)))


def graph():
    g = GraphBuilder()
    x = g.input((4, 8))
    y = g.op("_to_copy", [g.view(x, (32,))])
    g.op("mul", [y, y])
    return g.graph()


def test_nested_calls_belong_to_the_dispatched_op_and_steps_are_averaged():
    t = TraceBuilder(op_graph=graph())
    for step, (copy_us, mul_us) in enumerate([(10, 4), (20, 4)]):
        at = step * 100
        t.step(step, at, at + 100)
        t.op("aten::_to_copy", at + 1, at + 5, external_id=3 * step)
        t.op("aten::copy_", at + 2, at + 4, external_id=3 * step + 1)
        t.op("aten::mul", at + 6, at + 8, external_id=3 * step + 2)
        t.kernel("copy", at + 10, at + 10 + copy_us, external_id=3 * step + 1)
        t.kernel("mul", at + 40, at + 40 + mul_us, external_id=3 * step + 2)
    trace = t.build()
    assert trace.fact(graph_time).matched_share == 1.0
    whole, one = ops_time(trace, [1, 2]), ops_time(trace, [2])
    assert whole is not None
    assert one is not None
    assert (whole.sum_ns, one.sum_ns) == (19_000, 4_000)


def test_without_an_accelerator_the_span_stands_for_the_kernel():
    t = TraceBuilder(op_graph=graph())
    t.op("aten::_to_copy", 0, 5)
    t.op("aten::mul", 6, 8)
    found = ops_time(t.build(), [1, 2])
    assert found is not None
    assert found.exposed_ns == 7_000


def test_another_program_has_no_times():
    t = TraceBuilder(op_graph=graph())
    t.op("aten::mul", 6, 8)
    trace = t.build()
    assert trace.fact(graph_time).matched_share == 0.5
    assert ops_time(trace, [2]) is None


def test_a_gradient_added_in_place_is_the_one_the_graph_adds_out_of_place():
    g = GraphBuilder()
    x = g.input((4, 8))
    g.op("index_put", [g.op("new_zeros", [x]), g.op("add", [x, x])])
    t = TraceBuilder(op_graph=g.graph())
    t.op("aten::zeros", 0, 1)
    t.op("aten::add_", 2, 5)
    t.op("aten::index_put_", 6, 9)
    t.op("aten::_index_put_impl_", 7, 8)
    trace = t.build()
    assert trace.fact(graph_time).matched_share == 1.0
    found = ops_time(trace, [1])
    assert found is not None
    assert found.sum_ns == 3_000


def test_scalars_are_left_out_and_lists_flattened():
    found = parse_inputs("[[4, 8], [], [[2], [3]], []]", '["float", "Scalar", "c10::BFloat16", ""]')
    assert found == (
        Operand(shape=(4, 8), dtype="float32"),
        Operand(shape=(2,), dtype="bfloat16"),
        Operand(shape=(3,), dtype="bfloat16"),
    )
    assert [tensor.bytes for tensor in found] == [128, 4, 6]


@pytest.mark.parametrize("text", ["", "not json", "{}", "[1, null, {}]", '[["a"]]'])
def test_what_is_no_list_of_shapes_gives_nothing(text: str):
    assert parse_inputs(text, '["float", "float", "float"]') == ()


def test_shapes_broadcast_and_dtypes_promote_as_torch_does():
    assert broadcast(((4, 1), (8,), ())) == (4, 8)
    assert broadcast(((0, 1), (4,))) == (0, 4)
    half, brain, zero_dim = (
        Operand(shape=(2,), dtype="float16"),
        Operand(shape=(2,), dtype="bfloat16"),
        Operand(shape=(), dtype="float64"),
    )
    assert promoted((half, zero_dim)) == "float16"
    assert promoted((half, brain)) == "float32"
    assert promoted(()) == ""
