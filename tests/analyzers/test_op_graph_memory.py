"""Memory of a step from an op graph that was built by hand."""

from __future__ import annotations

from dataclasses import replace

from perfscope.analyzers.op_graph import GraphStorage, OpGraph
from perfscope.analyzers.op_graph_memory import live_bytes, saved_for_backward
from tests.graphs import GraphBuilder


def with_storages(graph: OpGraph, *rows: tuple[int, int | None, int | None]) -> OpGraph:
    """``rows``: (bytes, born, died); the builder numbers storages from 1."""
    storages = [GraphStorage(bytes=size, born=born, died=died) for size, born, died in ((0, None, None), *rows)]
    return replace(graph, storages=tuple(storages))


def a_step() -> OpGraph:
    """weight, x; h = mul(x, weight); t = relu(h); y = exp(h); and one op of the backward that reads h."""
    builder = GraphBuilder()
    weight, x = builder.input((4,), parameter=True), builder.input((4,))
    h = builder.op("mul", [x, weight], phase="forward")
    t = builder.op("relu", [h], phase="forward")
    y = builder.op("exp", [t], phase="forward")
    builder.op("mul", [y, h], phase="backward")
    return with_storages(
        builder.graph(), (16, None, None), (16, None, 1), (100, 0, None), (10, 1, 3), (1, 2, 4), (1000, 3, 4)
    )


def test_what_is_alive_at_each_op() -> None:
    live = live_bytes(a_step())
    assert live is not None
    assert live.tolist() == [100, 110, 111, 1101]
    with_before = live_bytes(a_step(), made_in_step=False)
    assert with_before is not None
    assert with_before.tolist() == [132, 126, 127, 1117]


def test_other_devices_are_left_out() -> None:
    live = live_bytes(a_step(), "cuda")
    assert live is not None
    assert live.tolist() == [0, 0, 0, 0]


def test_what_the_backward_finds_alive_was_saved() -> None:
    # h outlives the step, y is read by the backward; t is gone before it begins, the last result made in it.
    assert saved_for_backward(a_step()) == frozenset({3, 5})


def test_several_backwards_in_one_step() -> None:
    builder = GraphBuilder()
    x = builder.input((4,))
    for _ in range(2):  # accumulation of gradients
        y = builder.op("exp", [x], phase="forward")
        builder.op("mul", [x, y], phase="backward")
    builder.op("exp", [x], phase="forward")  # behind the last backward: nothing waits for it
    graph = with_storages(builder.graph(), (16, None, None), (8, 0, 2), (8, 1, 2), (8, 2, 3), (8, 3, 4), (8, 4, None))
    assert saved_for_backward(graph) == frozenset({2})


def test_older_recordings_do_not_say() -> None:
    graph = replace(a_step(), storages=None)
    assert live_bytes(graph) is None
    assert saved_for_backward(graph) is None


def accumulation(*, maker_sequence: int, died: int) -> OpGraph:
    """Two gradients of one value, made by nodes 5 and ``maker_sequence``; added up under node 5."""
    builder = GraphBuilder()
    x = builder.input((4,))
    first = builder.op("neg", [x], phase="backward", sequence=maker_sequence)
    second = builder.op("exp", [x], phase="backward", sequence=5)
    builder.op("add", [first, second], phase="backward", sequence=5)
    builder.op("neg", [x], phase="backward", sequence=4)
    graph = builder.graph()
    ops = tuple(replace(op, name="aten.add.Tensor") if "add" in op.name else op for op in graph.ops)
    return with_storages(
        replace(graph, ops=ops), (16, None, None), (16, 0, died), (16, 1, 3), (16, 2, 4), (16, 3, None)
    )


def test_gradients_are_added_up_in_place_without_the_recording() -> None:
    taken_over = live_bytes(accumulation(maker_sequence=6, died=3))
    assert taken_over is not None
    assert taken_over.tolist() == [16, 32, 32, 32]
    for held_longer_or_of_one_formula in (
        accumulation(maker_sequence=6, died=4),
        accumulation(maker_sequence=5, died=3),
    ):
        live = live_bytes(held_longer_or_of_one_formula)
        assert live is not None
        assert live.tolist()[:3] == [16, 32, 48]
