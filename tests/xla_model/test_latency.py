"""XLA's latency-hiding scheduler, held against what it logged of real programs, and its rules one by one."""

from __future__ import annotations

import json
import lzma
from typing import Any

import pytest

from perfscope.analyzers.checkpointing.xla_model.graph import Body, Graph, Node, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values
from perfscope.analyzers.checkpointing.xla_model.heap import needed_peak, planned_order
from perfscope.analyzers.checkpointing.xla_model.latency import Clock, hidden, hides
from perfscope.analyzers.hlo.buffers import memory_timeline
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers.hlo import proto
from tests.conftest import REPOSITORY

SCHEDULES = REPOSITORY / "fixtures" / "h100-schedules"
POLICIES = ("none", "full", "dots")


def program(policy: str, ending: str = "-before") -> HloModule:
    """As it was before the scheduler."""
    return proto.read(SCHEDULES / f"transformer-naive-scan-mesh-{policy}{ending}.hlo.pb.xz").hlo[0]


def logged(policy: str) -> dict[str, Any]:
    """The order that XLA left, and the times it went by."""
    path = SCHEDULES / f"transformer-naive-scan-mesh-{policy}-schedule.json.xz"
    found: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return found


def as_it_is(module: HloModule, graph: Graph) -> dict[str, list[str]]:
    return {name: [one.name for one in module.computations[name].instructions] for name in graph.bodies}


def xlas(policy: str, graph: Graph) -> dict[tuple[str, str], float]:
    microseconds = logged(policy)["microseconds"]
    return {(body.name, name): microseconds.get(name, 0.0) for body in graph.bodies.values() for name in body.nodes}


@pytest.mark.parametrize("policy", POLICIES)
def test_with_xlas_times_the_order_is_xlas_instruction_by_instruction(policy: str) -> None:
    module = program(policy)
    graph = graph_of(module)
    before = as_it_is(module, graph)
    found = hidden(graph, before, xlas(policy, graph))
    after = logged(policy)["order"]
    assert hides(graph) == set(after)
    assert len(after) == 3  # both loops and the program around them
    for name, order in after.items():
        assert found[name] == order
        assert order != before[name]
    assert all(found[name] == before[name] for name in graph.bodies if name not in after)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_our_times_the_peak_is_near_that_of_the_program(policy: str) -> None:
    module = program(policy)
    graph = graph_of(module)
    values = Values(graph)
    timeline = memory_timeline(program(policy, ""))
    assert timeline is not None
    order, _ = planned_order(values)
    found = needed_peak(values, hidden(graph, order, Clock(module, module_cost(module)).times(graph)))
    assert found == pytest.approx(timeline.peak_bytes, rel=0.05)


@pytest.mark.parametrize("policy", POLICIES)
def test_our_times_are_near_those_that_xla_logged(policy: str) -> None:
    module = program(policy)
    graph = graph_of(module)
    ours, theirs = Clock(module, module_cost(module)).times(graph), xlas(policy, graph)
    long = [key for key, time in theirs.items() if time > 5 and not key[1].startswith("while")]
    assert len(long) > 20
    near = [key for key in long if 0.7 < ours[key] / theirs[key] < 1.4]
    assert len(near) >= 0.8 * len(long)
    products = [key for key in long if key[1].startswith("gemm_fusion")]
    assert len(products) >= 10
    assert set(products) <= set(near)


def kernel(name: str, *operands: str, after: tuple[str, ...] = ()) -> Node:
    return Node(name=name, opcode="fusion", operands=operands, after=after, sizes=(8,))


def begin(name: str, operand: str) -> Node:
    return Node(name=name, opcode="all-gather-start", operands=(operand,), sizes=(8, 16), is_tuple=True)


def end(name: str, operand: str) -> Node:
    return Node(name=name, opcode="all-gather-done", operands=(operand,), sizes=(16,))


def ordered(*nodes: Node, **microseconds: float) -> list[str]:
    """In the order given, and then as XLA would run them."""
    body = Body(name="main", nodes={one.name: one for one in nodes}, root=nodes[-1].name)
    graph = Graph(bodies={"main": body}, entry="main")
    times = {("main", one.name): microseconds.get(one.name, 1.0) for one in nodes}
    return hidden(graph, {"main": [one.name for one in nodes]}, times)["main"]


GIVEN = Node(name="given", opcode="parameter", sizes=(8,), number=0)


def test_kernels_run_while_a_collective_is_under_way() -> None:
    nodes = (
        GIVEN, kernel("other", "given"), begin("begin", "given"), end("end", "begin"), kernel("reader", "end", "other")
    )  # fmt: skip
    found = ordered(*nodes, end=50.0, other=40.0)
    assert found == ["given", "begin", "other", "end", "reader"]


def test_the_kernel_that_takes_as_long_as_the_collective_is_put_behind_it() -> None:
    nodes = (
        GIVEN, kernel("long", "given"), kernel("fits", "given"), begin("begin", "given"), end("end", "begin"),
        kernel("reader", "end", "long", "fits"),
    )  # fmt: skip
    assert ordered(*nodes, end=50.0, long=500.0, fits=48.0)[-3:] == ["fits", "end", "reader"]
    assert ordered(*nodes, end=500.0, long=500.0, fits=48.0)[-3:] == ["long", "end", "reader"]


def test_one_collective_is_under_way_at_a_time() -> None:
    nodes = (
        GIVEN, begin("begin", "given"), begin("second", "given"), end("end", "begin"), end("last", "second"),
        kernel("reader", "end", "last"),
    )  # fmt: skip
    found = ordered(*nodes, end=50.0, last=50.0)
    assert found == ["given", "begin", "end", "second", "last", "reader"]


def test_what_must_follow_another_does() -> None:
    nodes = (
        GIVEN, begin("begin", "given"), end("end", "begin"), kernel("other", "given", after=("end",)),
        kernel("reader", "end", "other"),
    )  # fmt: skip
    found = ordered(*nodes, end=50.0, other=40.0)
    assert found.index("end") < found.index("other")


def test_a_loop_with_collectives_waits_for_one_that_is_under_way() -> None:
    state = Node(name="state", opcode="parameter", sizes=(8,), is_tuple=True, number=0)
    taken = Node(name="taken", opcode="get-tuple-element", operands=("state",), sizes=(8,), index=0)
    back = Node(name="back", opcode="tuple", operands=("inner.end",), sizes=(8,), is_tuple=True)
    inside = (state, taken, begin("inner.begin", "taken"), end("inner.end", "inner.begin"), back)
    into = Node(name="into", opcode="tuple", operands=("given",), sizes=(8,), is_tuple=True)
    loop = Node(name="loop", opcode="while", operands=("into",), sizes=(8,), is_tuple=True, body="inside")
    outside = (
        GIVEN, into, loop, begin("begin", "given"), end("end", "begin"), kernel("reader", "end", "loop")
    )  # fmt: skip
    bodies = {
        name: Body(name=name, nodes={one.name: one for one in nodes}, root=nodes[-1].name)
        for name, nodes in (("main", outside), ("inside", inside))
    }
    graph = Graph(bodies=bodies, entry="main")
    order = {name: list(body.nodes) for name, body in bodies.items()}
    times = dict.fromkeys(((name, one) for name, names in order.items() for one in names), 50.0)
    found = hidden(graph, order, times)["main"]
    assert abs(found.index("begin") - found.index("end")) == 1


def test_programs_without_collectives_stay_as_they_are() -> None:
    nodes = (GIVEN, kernel("a", "given"), kernel("b", "given"), kernel("c", "b", "a"))
    assert ordered(*nodes) == [one.name for one in nodes]
