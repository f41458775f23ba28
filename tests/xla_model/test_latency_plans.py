"""Plans of programs with collectives: what runs again, how long XLA would think it takes, the peak in that order."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from perfscope.analyzers.checkpointing.step_model_hlo import layers_of
from perfscope.analyzers.checkpointing.xla_model.graph import Body, Graph, graph_of
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values
from perfscope.analyzers.checkpointing.xla_model.latency import Clock, collective_microseconds, hides
from perfscope.analyzers.checkpointing.xla_model.policies import nothing, unbatched_products
from perfscope.analyzers.checkpointing.xla_model.predict import Predictor
from perfscope.analyzers.hlo.buffers import memory_timeline
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.readers.hlo import proto
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module

SCHEDULES = REPOSITORY / "fixtures" / "h100-schedules"
MIB = 2**20


@cache
def program(policy: str) -> HloModule:
    return proto.read(SCHEDULES / f"transformer-naive-scan-mesh-{policy}.hlo.pb.xz").hlo[0]


@cache
def predictor(policy: str) -> Predictor:
    module = program(policy)
    flow, schedule = Flow(module), Schedule(module)
    return Predictor(module, flow, schedule, layers_of(module, flow, schedule))


def peak(policy: str) -> int:
    timeline = memory_timeline(program(policy))
    assert timeline is not None
    return timeline.peak_bytes


def backward(graph: Graph) -> Body:
    """The loop that runs last."""
    loops = [node for node in graph.main.nodes.values() if node.opcode == "while"]
    return graph.bodies[loops[-1].body]


def ends(body: Body) -> Counter[str]:
    return Counter(node.opcode for node in body.nodes.values() if node.opcode.endswith("-done"))


GATHERED = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %main (p: f32[4]) -> f32[32] {
  %p = f32[4]{0} parameter(0)
  %own = f32[4]{0} negate(%p)
  %begin = (f32[4]{0}, f32[32]{0}) all-gather-start(%own), dimensions={0}
  %end = f32[32]{0} all-gather-done(%begin)
  %sum = f32[32]{0} all-reduce-start(%end), to_apply=%add
  %summed = f32[32]{0} all-reduce-done(%sum)
  ROOT %out = f32[32]{0} negate(%summed)
}
"""


def test_a_collective_has_one_buffer_from_its_beginning_to_its_end() -> None:
    values = Values(graph_of(hlo_module(GATHERED)))
    parts = {name: found for (_, name), found in values.parts.items()}
    assert parts["begin"][0] == parts["own"][0]  # what it reads is handed on
    assert parts["end"] == parts["begin"][1:]
    assert parts["summed"] == parts["sum"]
    assert parts["end"][0] != parts["sum"][0]


def test_what_is_not_kept_is_gathered_and_summed_again() -> None:
    today, full = ends(backward(graph_of(program("none")))), ends(backward(predictor("none").graph(nothing)))
    assert full - today == Counter({"all-gather-done": 1, "all-reduce-done": 1})
    assert not today - full


def test_collectives_that_run_again_read_what_went_through_the_barrier() -> None:
    body = backward(predictor("none").graph(nothing))
    again = [node for node in body.nodes.values() if node.like and node.opcode == "all-gather-done"]
    assert again
    for end in again:
        (begin,) = (body.nodes[name] for name in end.operands)
        assert begin.opcode == "all-gather-start"
        assert begin.sizes == graph_of(program("none")).bodies[_home(begin.like)].nodes[begin.like].sizes
        assert all(body.nodes[name].operands[0].startswith("barrier") for name in begin.operands)


def _home(name: str) -> str:
    return next(one.name for one, instruction in program("none").instructions() if instruction.name == name)


def test_a_kept_product_is_kept_as_the_devices_summed_it_up() -> None:
    keeps = unbatched_products(Flow(program("none")))
    dots = ends(backward(predictor("none").graph(keeps)))
    assert dots["all-reduce-done"] == ends(backward(graph_of(program("none"))))["all-reduce-done"]


@pytest.mark.parametrize(("source", "policy"), [("none", "full"), ("none", "dots"), ("full", "none"), ("dots", "none")])
def test_the_peak_is_near_that_of_the_compiled_program(source: str, policy: str) -> None:
    one = predictor(source)
    if policy == "none":
        found = one.peak_of_all(peak(source))
    else:
        found = one.peak(nothing if policy == "full" else unbatched_products(Flow(program(source))), peak(source))
    assert found == pytest.approx(peak(policy), rel=0.1)


def test_a_product_that_runs_again_takes_as_long_as_the_first_time() -> None:
    module = program("none")
    graph = predictor("none").graph(nothing)
    times = Clock(module, module_cost(module)).times(graph)
    kernels = {
        part.name: (computation.name, one.name)
        for computation, one in module.instructions()
        if one.opcode == "fusion" and (computation.name, one.name) in times
        for part in module.computations[one.called[0]].instructions
        if part.opcode == "dot"
    }
    body = backward(graph)
    again = [node for node in body.nodes.values() if node.like in kernels]
    assert len(again) >= 3
    for node in again:
        assert times[body.name, node.name] == pytest.approx(times[kernels[node.like]], rel=0.2)


def test_a_collective_that_runs_again_takes_as_long_as_the_first_time() -> None:
    module = program("none")
    graph = predictor("none").graph(nothing)
    times = Clock(module, module_cost(module)).times(graph)
    assert len(hides(graph)) == 3
    body = backward(graph)
    for node in body.nodes.values():
        if node.like and node.opcode.endswith("-done"):
            assert times[body.name, node.name] == times[_home(node.like), node.like] > 10


def test_collectives_have_the_bandwidth_of_the_nearest_that_was_measured() -> None:
    assert collective_microseconds("all-gather", 16 * MIB, 2) == 60
    assert collective_microseconds("all-gather", 14 * MIB, 2) == pytest.approx(60 * 14 / 16)
    assert collective_microseconds("all-gather", 12 * MIB, 2) == pytest.approx(60 * 12 / 16)  # of two, the larger
    assert collective_microseconds("all-gather", 4096 * MIB, 2) == pytest.approx(4 * 1997)
    assert collective_microseconds("all-reduce", 100, 4) == 20  # nothing is shorter
    assert collective_microseconds("all-reduce", 16 * MIB, 64) == collective_microseconds("all-reduce", 16 * MIB, 8)
    assert collective_microseconds("collective-broadcast", MIB, 4) == collective_microseconds("all-reduce", MIB, 4)
