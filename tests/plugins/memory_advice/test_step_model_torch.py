"""The model of a real step: its peak under every policy is that of the step which was run with that policy."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.__main__ import run
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.ops.op_times import op_times
from perfscope.model.finding import AbstainError
from perfscope.model.op_graph import GraphStorage, OpGraph
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryAction, MemoryCategory
from perfscope.plugins.memory_advice.plans import plan_memory
from perfscope.plugins.memory_advice.simulate import Simulator, todays
from perfscope.plugins.memory_advice.step_model import Policy, StepModel
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model, workspaces
from perfscope.plugins.memory_advice.torch_regions import held_of, inside, module_calls
from perfscope.plugins.memory_advice.wording import code_for
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.plugins.memory_advice.recorded import Step, recorded, recorded_net, trace_of
from tests.readers.test_run import TORCH, make


def products(count: int = 12, **more: object) -> GraphBuilder:
    """So many products in a row, 64 x 64 each."""
    g = GraphBuilder()
    x = g.input((64, 64))
    for _ in range(count):
        x = g.op("mm", [x, x], flops=2 * 64**3, **more)
    return g


def host(*spans: tuple[float, float], step: float = 1_000, free: tuple[int, ...] = ()) -> Trace:
    t = TraceBuilder(recorded=EVERYTHING)
    t.step(0, 0, step)
    for start, end in spans:
        t.op("aten::mm", start, end)
    trace = t.build()
    trace = replace(trace, step_times_ns=free)
    return replace(trace, op_graph=products(len(spans)).graph())


def test_on_the_host_an_op_of_the_forward_lasts_until_the_next_one() -> None:
    """The Python between runs again with it."""
    found = host((10, 20), (25, 40), (50, 60)).fact(op_times)
    assert found.ns.tolist() == [15_000, 25_000, 10_000]
    assert (found.basis, found.step_ns, found.note) == ("measured", 1_000_000, None)


def test_profiling_is_taken_off_on_the_host() -> None:
    found = host((10, 20), (25, 40), (50, 60), free=(490_000, 500_000, 510_000)).fact(op_times)
    assert found.step_ns == 500_000
    assert found.ns.tolist() == [7_500, 12_500, 5_000]


def test_an_unprofiled_step_that_took_longer_makes_no_op_longer() -> None:
    found = host((10, 20), (25, 40), free=(2_000_000,)).fact(op_times)
    assert found.ns.tolist() == [15_000, 15_000]


def test_on_a_device_an_op_takes_what_its_kernels_take() -> None:
    t = TraceBuilder(recorded=EVERYTHING)
    t.step(0, 0, 1_000)
    for index in range(4):
        begin = 10 + 20 * index
        t.op("aten::mm", begin, begin + 10, external_id=index + 1)
        t.kernel("gemm", 200 + 50 * index, 230 + 50 * index, external_id=index + 1)
    trace = t.build()
    trace = replace(trace, op_graph=products(4).graph())
    trace = replace(trace, step_times_ns=(500_000,))
    assert trace.fact(op_times).ns.tolist() == [30_000] * 4  # a kernel takes no longer under a profiler


def test_an_op_without_a_time_is_priced_like_the_others_and_that_is_said() -> None:
    trace = host(*((10.0 + 20 * index, 20.0 + 20 * index) for index in range(12)))
    g = products(12)
    g.op("neg", [g.ops[-1].outputs[0]])
    trace = replace(trace, op_graph=g.graph())
    found = trace.fact(op_times)
    assert found.note is not None
    assert found.note.startswith("1 of 13 ops")
    assert found.ns[12] >= 0
    assert found.basis == "measured"


def test_without_timed_steps_the_peaks_of_the_device_that_is_named_count() -> None:
    trace = TraceBuilder(recorded=EVERYTHING).build()
    trace = replace(trace, op_graph=products(3).graph())
    with pytest.raises(AbstainError, match="0% of the op graph's ops"):
        trace.fact(op_times)
    trace = replace(trace, judged_device="H100")
    found = trace.fact(op_times)
    assert found.basis == "modelled"
    assert "H100" in (found.note or "")
    moved = 3 * 64 * 64 * 4 - 64 * 64 * 4  # the operand once, the result once
    assert found.ns[0] == pytest.approx(1e9 * max(2 * 64**3 / 66.9e12, moved / 3352e9))


def test_views_take_nothing() -> None:
    trace = host((10, 20))
    g = products(1)
    g.view(g.ops[0].outputs[0], (4096,))
    trace = replace(trace, op_graph=g.graph())
    assert trace.fact(op_times).ns.tolist() == [10_000, 0]


POLICY: dict[str, Policy] = {"none": "keep", "full": "full", "selective": "selective"}
WITHIN = 0.02
"""Relative tolerance of the measured peak. Observed errors are 0; the allowance is for another torch."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    folder = tmp_path_factory.mktemp("steps")
    found = {policy: recorded(folder, policy=policy) for policy in POLICY}
    found["reentrant"] = recorded(folder, policy="full", reentrant=True)
    return found


@pytest.mark.parametrize("run", ["none", "full", "selective", "reentrant"])
@pytest.mark.parametrize("asked", list(POLICY))
def test_every_policy_is_predicted_from_every_recording(steps: dict[str, Step], run: str, asked: str) -> None:
    model = steps[run].model()
    told = Simulator(model).run([POLICY[asked]] * len(model.regions))
    assert told.peak_bytes - told.held_bytes == pytest.approx(steps[asked].peak_bytes, rel=WITHIN)


def test_regions_are_the_blocks(steps: dict[str, Step]) -> None:
    regions = steps["none"].model().regions
    assert [region.name for region in regions] == [f"Transformer.blocks.{index}" for index in range(3)]
    assert {region.group for region in regions} == {"Transformer.blocks.*"}
    assert all(a.forward[1] <= b.forward[0] for a, b in pairwise(regions))
    assert all(a.backward[0] >= b.backward[1] for a, b in pairwise(regions))


@pytest.mark.parametrize(
    ("run", "policy"), [("none", "keep"), ("full", "full"), ("selective", "selective"), ("reentrant", "full")]
)
def test_todays_policy_is_seen(steps: dict[str, Step], run: str, policy: str) -> None:
    assert set(todays(steps[run].model())) == {policy}


def test_a_checkpointed_step_has_the_values_of_a_plain_one(steps: dict[str, Step]) -> None:
    def sizes(run: str) -> list[int]:
        return sorted(value.bytes for value in steps[run].model().values if value.bytes)

    assert sizes("full") == sizes("selective") == sizes("none")


def test_recomputing_costs_what_the_ops_that_ran_again_cost(steps: dict[str, Step]) -> None:
    """With a nanosecond a byte, in the recording of `full` itself: early stop included."""
    graph = steps["full"].graph
    trace = trace_of(graph)
    again = sum(
        sum(graph.tensors[index].bytes for index in {*op.inputs, *op.outputs, *op.mutated})
        for op in graph.ops
        if op.recompute and not op.view
    )
    model = trace.fact(torch_step_model)
    assert Simulator(model).run(todays(model)).recompute_ns == again


@pytest.mark.parametrize("name", ["nested", "in place", "shared", "accumulated"])
def test_other_nets_are_predicted_both_ways(name: str, tmp_path: Path) -> None:
    steps = {policy: recorded_net(tmp_path, name, checkpointed=policy == "full") for policy in ("keep", "full")}
    assert steps["full"].peak_bytes < 0.8 * steps["keep"].peak_bytes
    for step in steps.values():
        model = step.model()
        assert len(model.regions) == {"shared": 6, "accumulated": 10}.get(name, 5)
        for asked, truth in steps.items():
            told = Simulator(model).run([asked] * len(model.regions))  # type: ignore[list-item]
            assert told.peak_bytes - told.held_bytes == pytest.approx(truth.peak_bytes, rel=WITHIN)


def test_the_recommended_code_does_what_was_predicted(steps: dict[str, Step], tmp_path: Path) -> None:
    model = steps["none"].model()
    lowest = min(plan.peak_bytes for plan in plan_memory(model).front)
    budget = (lowest + Simulator(model).run(todays(model)).peak_bytes) // 2
    plan = plan_memory(model, budget_bytes=budget).recommended
    assert plan is not None
    assert {"keep", "selective"} <= set(plan.policies) or {"keep", "full"} <= set(plan.policies)
    code = "\n".join(code_for(model, plan))

    def apply(built: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            exec(code, {"model": built})

    ran = recorded(tmp_path, change=apply)
    assert plan.simulation.peak_bytes - plan.simulation.held_bytes == pytest.approx(ran.peak_bytes, rel=WITHIN)


def test_it_abstains_without_a_graph_or_a_backward() -> None:
    with pytest.raises(AbstainError, match="no op graph"):
        torch_step_model(TraceBuilder().build())


def graph(device: str = "cuda") -> OpGraph:
    """Forward, backward, and an update of one parameter of 64 bytes, its gradient summed into one that was there."""
    g = GraphBuilder(device=device)
    weight = g.input((4, 4), parameter=True)
    gradient, momentum, x = g.input((4, 4)), g.input((4, 4)), g.input((4, 4))
    y = g.op("mm", [x, weight])
    z = g.op("mm", [y, x], phase="backward")
    g.op("add_", [gradient, z], phase="backward")
    g.op("mul_", [momentum, gradient], phase="optimizer")
    g.op("add_", [weight, momentum], phase="optimizer")
    found = g.graph()
    made = {found.tensors[op.outputs[0]].storage: op.index for op in found.ops if not op.mutated}
    storages = tuple(GraphStorage(bytes=64, born=made.get(index), died=None) for index in range(g.storages + 1))
    return OpGraph(
        step=0, device=device, ops=found.ops, tensors=found.tensors, live_out=found.live_out,
        parameters=found.parameters, storages=storages,
    )  # fmt: skip


def allocator_trace(*, listed: bool = False, reserved: bool = False, failed: bool = False) -> Trace:
    t = TraceBuilder(recorded=EVERYTHING)
    t.device()
    t.tables["devices"][0]["memory_bytes"] = 20_000
    t.step(0, 0, 100)
    events = [(1, 1, 1_000, 7_000), (20, 2, 500, 7_500), (40, 2, -500, 7_000)]
    for at, address, size, total in events:
        action = MemoryAction.ALLOCATE if size > 0 else MemoryAction.FREE
        row(t, at, address, size, action, allocated_bytes=total, reserved_bytes=11_250 if reserved else -1)
    if failed:
        row(t, 50, 9, 9_000, MemoryAction.OUT_OF_MEMORY)
    if listed:
        for name, category, size, freed in (
            ("w", MemoryCategory.PARAMETER, 2_000, MISSING),
            ("w.grad", MemoryCategory.GRADIENT, 2_048, 5),
            ("v.grad", MemoryCategory.GRADIENT, 512, MISSING),
            ("exp_avg", MemoryCategory.OPTIMIZER_STATE, 1_024, MISSING),
        ):
            t.row("tensors", name=t.code(name), module=MISSING, category=int(category), on_device=True, ordinal=0,
                  address=100 + size, bytes=size, freed_ns=freed)  # fmt: skip
    return t.build()


def row(t: TraceBuilder, at: int, address: int, size: int, action: MemoryAction, **more: Any) -> None:
    t.row("memory", time_ns=at * 1000, thread=t.thread(1), op=-1, on_device=True, ordinal=0, address=address,
          bytes=size, action=int(action), **({"allocated_bytes": -1, "reserved_bytes": -1} | more))  # fmt: skip


def state_of_step(**more: bool) -> StepModel:
    return held_of(allocator_trace(**more), graph(), ())


def test_the_programs_own_list_counts() -> None:
    found = state_of_step(listed=True)
    assert (found.parameter_bytes, found.optimizer_bytes, found.gradient_bytes) == (2_000, 1_024, 512)
    # 6,000 were held before the first event, 5,632 of them by name; rounding the parameter added 48.
    assert found.other_bytes == 6_000 - 5_632 + 48
    assert found.notes == ()


def test_without_a_list_what_the_ops_touch_counts_and_that_is_said() -> None:
    found = state_of_step()
    assert (found.parameter_bytes, found.gradient_bytes, found.optimizer_bytes) == (64, 64, 64)
    assert found.other_bytes == 6_000 - 3 * 64
    assert "were not listed" in found.notes[0]


def test_the_peak_of_the_steps_and_the_size_of_the_device() -> None:
    found = state_of_step()
    assert found.measured_peak_bytes == 7_500
    assert found.capacity_bytes == 20_000
    assert found.out_of_memory == 0
    assert state_of_step(failed=True).out_of_memory == 1


def test_what_the_allocator_holds_beyond_the_peak() -> None:
    assert state_of_step().reserve_share is None
    assert state_of_step(reserved=True).reserve_share == 0.5


def test_the_host_has_no_size_and_reserves_nothing() -> None:
    found = held_of(allocator_trace(), graph("cpu"), ())
    assert found.capacity_bytes is None
    assert found.measured_peak_bytes is None  # a device was watched, and not the host
    assert found.reserve_share is None


def net(*modules: tuple[str, int], ops: tuple[str, ...] = ("mm", "gelu")) -> GraphBuilder:
    """Modules in order, each running ``ops`` on values with so many rows of 8."""
    g = GraphBuilder()
    x = g.input((4, 8))
    for module, rows in modules:
        for name in ops:
            x = g.op(name, [x], shape=(rows, 8), module=module)
    return g


def names(g: GraphBuilder) -> list[str]:
    return [call.module for call in module_calls(g.graph())]


def test_copies_of_a_layer_are_regions_of_one_group() -> None:
    g = net(*((f"Net.blocks.{index}.mlp", 4) for index in range(3)))
    calls = module_calls(g.graph())
    assert [call.module for call in calls] == ["Net.blocks.0", "Net.blocks.1", "Net.blocks.2"]
    assert {call.group for call in calls} == {"Net.blocks.*"}
    assert [(call.first, call.last) for call in calls] == [(0, 2), (2, 4), (4, 6)]


def test_kinds_of_layers_under_one_container_are_groups_of_their_own() -> None:
    g = GraphBuilder()
    x = g.input((4, 8))
    for index in range(4):
        for name in ("mm", "gelu", "neg")[: 2 + index % 2]:
            x = g.op(name, [x], module=f"Net.blocks.{index}")
    assert {call.group for call in module_calls(g.graph())} == {"Net.blocks.*", "Net.blocks.* (kind 2)"}


def test_of_nested_containers_the_level_that_leaves_least() -> None:
    blocks = [(f"Net.stages.{stage}.{block}", 16) for stage in range(2) for block in range(4)]
    found = net(*blocks, ops=("mm", "gelu", "neg", "relu"))
    assert names(found) == [module for module, _ in blocks]


def test_a_large_module_that_is_no_copy_is_a_region_and_a_small_one_is_not() -> None:
    modules = [("Net.stem", 40), *((f"Net.blocks.{index}", 4) for index in range(2)), ("Net.tail.norm", 1)]
    assert names(net(*modules)) == ["Net.stem", "Net.blocks.0", "Net.blocks.1"]


def test_a_module_that_is_called_twice_has_two_calls() -> None:
    g = net(("Net.blocks.0", 4), ("Net.blocks.1", 4), ("Net", 4), ("Net.blocks.0", 4), ("Net.blocks.1", 4))
    assert names(g) == ["Net.blocks.0", "Net.blocks.1"] * 2


def test_backward_and_repeated_ops_are_in_no_call() -> None:
    g = net(("Net.blocks.0", 4), ("Net.blocks.1", 4))
    g.op("mm", [g.ops[-1].outputs[0]], phase="backward", module="Net.blocks.1")
    g.op("mm", [g.ops[-1].outputs[0]], phase="backward", module="Net.blocks.1", recompute=True)
    assert max(call.last for call in module_calls(g.graph())) == 4


def test_a_module_is_inside_itself_and_its_parents_only() -> None:
    assert inside("Net.blocks.1.mlp", "Net.blocks.1")
    assert inside("Net.blocks.1", "Net.blocks.1")
    assert not inside("Net.blocks.10", "Net.blocks.1")


def trace_with(*events: tuple[float, int, int]) -> Trace:
    """Two products from 10 to 20 and 30 to 40 us; ``events``: (us, address, bytes)."""
    t = TraceBuilder(recorded=EVERYTHING)
    t.step(0, 0, 100)
    t.op("aten::mm", 10, 20)
    t.op("aten::mm", 30, 40)
    for at, address, size in sorted(events):
        action = MemoryAction.ALLOCATE if size > 0 else MemoryAction.FREE
        t.row("memory", time_ns=round(at * 1000), thread=t.thread(1), op=-1, on_device=False, ordinal=-1,
              address=address, bytes=size, allocated_bytes=-1, reserved_bytes=-1, action=int(action))  # fmt: skip
    trace = t.build()
    g = GraphBuilder()
    x = g.input((4, 4))
    g.op("mm", [g.op("mm", [x, x]), x])
    return replace(trace, op_graph=g.graph())


def workspaces_of(trace: Trace) -> dict[int, int]:
    (timeline,) = trace.fact(memory_timelines)
    assert trace.op_graph is not None
    return workspaces(trace, trace.op_graph, timeline)


def test_scratch_is_the_most_that_is_held_at_once() -> None:
    events = [
        (11, 1, 100),
        (12, 1, -100),
        (13, 2, 60),
        (14, 3, 70),
        (15, 2, -60),
        (16, 3, -70),
        (32, 4, 5),
        (33, 4, -5),
    ]
    assert workspaces_of(trace_with(*events)) == {0: 130, 1: 5}


def test_results_and_what_lies_between_ops_are_no_scratch() -> None:
    assert workspaces_of(trace_with((12, 1, 100), (35, 1, -100), (22, 2, 50), (25, 2, -50))) == {}


def test_without_allocator_events_there_is_none() -> None:
    trace = trace_with()
    assert trace.op_graph is not None
    assert workspaces(trace, trace.op_graph, None) == {}


def test_what_is_recorded_differs_by_policy(steps: dict[str, Step]) -> None:
    """Else the predictions above would say nothing."""
    none, full, selective = (steps[name].peak_bytes for name in POLICY)
    assert full < 0.75 * none
    assert full < 0.9 * selective < 0.9 * none


def test_a_run_without_an_op_graph_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "run", TORCH, options={"level": "light"})
    assert run(["advise", "memory", str(path)]) == 4
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"perfscope: {path}: the run has no op graph of a step: it was recorded with --level light")
