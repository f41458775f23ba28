"""Programs with a checkpoint policy, as graphs: what is kept, what goes through the barrier, what is there again."""

from __future__ import annotations

from functools import cache

import pytest

from perfscope.analyzers.checkpointing.step_model_hlo import layers_of
from perfscope.analyzers.checkpointing.xla_model.graph import Body, Graph, Node, graph_of
from perfscope.analyzers.checkpointing.xla_model.layers import Layer
from perfscope.analyzers.checkpointing.xla_model.orders import is_dear
from perfscope.analyzers.checkpointing.xla_model.policies import nothing, unbatched_products, with_merged_parts
from perfscope.analyzers.checkpointing.xla_model.predict import Predictor
from perfscope.analyzers.hlo.buffers import memory_timeline
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.readers.hlo import proto
from tests.conftest import REPOSITORY

PROGRAMS = REPOSITORY / "fixtures" / "h100-programs"
SCAN, UNROLLED = "attention-naive-scan-small", "attention-naive-unrolled-small"
BLOCKED = "attention-blocked-scan-small"
HEADS, BLOCK, FLOAT = 8, 64, 4
"""Keys that one turn of its loop takes, and bytes of what it adds up."""
DIM, BATCH, LENGTH, VOCABULARY, LAYERS, WIDTH = 512, 4, 512, 2048, 4, 2
"""Of both: bfloat16."""
ROWS = BATCH * LENGTH


@cache
def program(name: str) -> HloModule:
    return proto.read(PROGRAMS / f"{name}.hlo.pb.xz").hlo[0]


def predictor(name: str) -> tuple[Predictor, Flow]:
    module = program(f"{name}-none")
    flow, schedule = Flow(module), Schedule(module)
    return Predictor(module, flow, schedule, layers_of(module, flow, schedule)), flow


@cache
def planned(name: str, policy: str) -> Graph:
    found, flow = predictor(name)
    return found.graph(nothing if policy == "full" else unbatched_products(flow))


def backward(graph: Graph) -> Body:
    """The body of the entry's last loop."""
    loops = [node for node in graph.main.nodes.values() if node.opcode == "while"]
    return graph.bodies[loops[-1].body]


def through(body: Body, name: str) -> list[int]:
    """Bytes of what goes through a barrier, but for vectors."""
    return sorted(size for size in body.nodes[name].sizes if size > ROWS * WIDTH * 8)


def test_input_weights_and_gradient_go_through_the_barrier_of_a_loop() -> None:
    weights = [WIDTH * DIM * DIM * times for times in (1, 3, 4, 4)]  # out, qkv, up, down
    activation = WIDTH * ROWS * DIM
    found = through(backward(planned(SCAN, "full")), "barrier")
    assert found == sorted([*weights, activation, activation])
    # and the products with weights: qkv, out and the hidden layer's
    found = through(backward(planned(SCAN, "dots")), "barrier")
    assert found == sorted([*weights, activation, activation, 3 * activation, activation, 4 * activation])


def test_each_unrolled_layer_has_a_barrier_that_the_gradient_behind_it_comes_through() -> None:
    main = planned(UNROLLED, "full").main
    for at in range(LAYERS):
        activation = WIDTH * ROWS * DIM
        assert through(main, f"barrier.{at}").count(activation) >= 2  # input and gradient (a weight has that size, too)
        users = main.users()
        assert users[f"barrier.{at}"]


def test_what_is_kept_is_stacked_by_the_forward_and_nothing_else() -> None:
    scores = LAYERS * WIDTH * BATCH * 8 * LENGTH * LENGTH
    before, after = (
        next(node for node in graph.main.nodes.values() if node.opcode == "while").sizes
        for graph in (graph_of(program(f"{SCAN}-none")), planned(SCAN, "full"))
    )
    assert max(before) > scores > max(after)
    gone = [size for size in before if size > WIDTH * ROWS * DIM]
    assert len([size for size in after if size > WIDTH * ROWS * DIM]) < len(gone) / 2


def test_scores_are_there_again_for_one_layer() -> None:
    scores = WIDTH * BATCH * 8 * LENGTH * LENGTH
    for policy in ("full", "dots"):
        again = [node for node in backward(planned(SCAN, policy)).nodes.values() if node.name.startswith("again")]
        assert any(node.bytes == scores for node in again)


def test_what_a_loop_in_the_layer_begins_with_is_there_once() -> None:
    """Of blocked attention: zeros that the loop of its backward begins with, too, and scores that are masked out."""
    body = backward(planned(BLOCKED, "full"))
    (loop,) = (node for node in body.nodes.values() if node.opcode == "while" and node.name.endswith(".again"))
    begins = [body.nodes[name] for name in body.nodes[loop.operands[0]].operands]
    copied = [body.nodes[one.operands[0]] for one in begins if one.opcode == "copy"]
    shared = [one for one in copied if one.opcode == "fusion"]
    assert shared
    assert not any(one.operands for one in shared)
    scores = FLOAT * BATCH * HEADS * LENGTH * BLOCK
    filled = [one for one, same in zip(begins, graph_invariants(loop), strict=True) if same and one.bytes == scores]
    assert [one.operands for one in filled] == [()]


def graph_invariants(loop: Node) -> tuple[bool, ...]:
    return planned(BLOCKED, "full").bodies[loop.body].invariants()


@pytest.mark.parametrize(("name", "written"), [(SCAN, False), ("attention-naive-scan-vocabulary", True)])
def test_what_takes_long_to_compute_is_read_by_a_kernel_that_also_reduces(name: str, written: bool) -> None:
    """The erfc of an exact gelu: XLA sums up the gradient of the bias in the same kernel where the arrays are large."""
    found, flow = predictor(name)
    (layers,) = layers_of(program(f"{name}-none"), flow, Schedule(program(f"{name}-none")))
    layer = Layer(flow, layers)
    dear = [
        number
        for kept in layers.kept
        for number in layer.made(kept.number)
        if is_dear(flow, number, layer.has_buffer) and not any(one.into_product for one in kept.readers)
    ]
    assert dear
    body = backward(found.graph(nothing))
    assert all((f"again.{layer.first_of_its_kind(number)}" in body.nodes) is written for number in dear)


def test_products_that_xla_merged_are_kept_part_by_part() -> None:
    module = program("mlp-swiglu-listed-other-none")
    flow = Flow(module)
    plain = unbatched_products(flow)
    keeps = with_merged_parts(flow, plain)
    parts = [
        number for number, value in enumerate(flow.values) if value.instruction.opcode == "slice" and keeps(number)
    ]
    assert parts  # gate and up
    whole = [number for number in range(len(flow.values)) if plain(number) and not keeps(number)]
    assert whole
    assert {flow.values[number].instruction.opcode for number in whole} == {"dot"}


@pytest.mark.parametrize("policy", ["full", "dots"])
def test_two_loops_have_a_policy_each(policy: str) -> None:
    graph = planned("mlp-swiglu-halves-two", policy)
    barriers = [name for body in graph.bodies.values() for name in body.nodes if name.startswith("barrier")]
    assert len([name for name in barriers if graph_holds_tuple(graph, name)]) == 2


def graph_holds_tuple(graph: Graph, name: str) -> bool:
    return any(name in body.nodes and body.nodes[name].opcode == "tuple" for body in graph.bodies.values())


def test_results_that_are_not_donated_are_predicted_by_the_difference() -> None:
    name = "attention-naive-scan-small-none-no-donation"
    module = program(name)
    flow, schedule = Flow(module), Schedule(module)
    found = Predictor(module, flow, schedule, layers_of(module, flow, schedule))
    timeline = memory_timeline(module)
    assert timeline is not None
    saved = timeline.peak_bytes - found.peak(nothing, timeline.peak_bytes)
    donated, _ = predictor(SCAN)
    twin = memory_timeline(program(f"{SCAN}-none"))
    assert twin is not None
    assert saved == pytest.approx(twin.peak_bytes - donated.peak(nothing, twin.peak_bytes), rel=0.15)
