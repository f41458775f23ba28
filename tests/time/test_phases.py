"""Busy time by phase."""

from __future__ import annotations

from perfscope.analyzers.time import PHASES, step_accounts, work_phases
from tests.build import EVERYTHING, TraceBuilder


def a_step() -> TraceBuilder:
    """Work of every phase, launched one after another; the collective overlaps the backward pass for 50 us."""
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::linear", 10, 30, sequence=5)
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 40, 80, tid=2)
    builder.annotation("Optimizer.step#SGD.step", 90, 120)
    builder.launched("forward_gemm", 20, 100, 200, correlation=1)
    builder.launched("backward_gemm", 50, 200, 400, correlation=2, tid=2)
    builder.launched("all_reduce", 60, 350, 500, correlation=3, tid=2, communication=True, stream=9)
    builder.launched("adam", 100, 500, 530, correlation=4)
    builder.launched("other", 130, 530, 570, correlation=5)
    return builder


def test_phases_sum_to_the_busy_time_and_work_belongs_to_where_it_was_launched() -> None:
    (account,) = step_accounts(a_step().build())
    assert account.phases_ns == {
        "forward": 100_000,
        "backward": 200_000,
        "optimizer": 30_000,
        "input": 0,
        "communication": 100_000,
        "not_told": 40_000,
    }
    assert sum(account.phases_ns.values()) == account.busy_ns


def test_a_copy_to_the_device_is_input_unless_a_module_makes_it() -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.python("nn.Module: Linear_0", 100, 200)
    for index, launch in enumerate((10, 150)):
        builder.call("cudaMemcpyAsync", launch, launch + 5, correlation=index + 1)
        builder.copy("Memcpy HtoD", launch + 10, launch + 40, correlation=index + 1)
    (account,) = step_accounts(builder.build())
    assert (account.phases_ns["input"], account.phases_ns["forward"]) == (30_000, 30_000)
    assert sum(account.phases_ns.values()) == account.busy_ns == 60_000


def test_work_without_a_launch_is_not_told() -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::linear", 0, 900, sequence=5)
    builder.kernel("gemm", 100, 200)
    (account,) = step_accounts(builder.build())
    assert account.phases_ns["not_told"] == 100_000


def test_a_collective_after_the_backward_pass_is_communication_and_one_between_layers_is_forward() -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 1000)
    builder.op("aten::linear", 10, 30, sequence=5)
    builder.op("c10d::allreduce_", 30, 40, sequence=6)
    builder.op("aten::linear", 40, 50, sequence=7)
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 60, 80, tid=2)
    builder.op("c10d::allreduce_", 85, 95, sequence=8)
    builder.op("aten::div", 87, 93, sequence=8)
    builder.annotation("Optimizer.step#SGD.step", 96, 120)
    builder.launched("of_a_layer", 35, 100, 200, correlation=1, communication=True)
    builder.launched("of_gradients", 86, 300, 400, correlation=2, communication=True)
    builder.launched("scale", 88, 400, 430, correlation=3)
    trace = builder.build()
    assert [PHASES[phase] for phase in trace.fact(work_phases)["kernels"]] == ["forward", *["communication"] * 2]
    (account,) = step_accounts(trace)
    assert account.phases_ns["communication"] == 230_000
    assert sum(account.phases_ns.values()) == account.busy_ns


def test_on_the_host_too() -> None:
    builder = TraceBuilder(recorded=EVERYTHING - {"device_work"})
    builder.step(1, 0, 1000)
    builder.op("aten::linear", 0, 100, sequence=5)
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 100, 300)
    builder.op("c10d::allreduce_", 300, 600, sequence=8)
    (account,) = step_accounts(builder.build())
    phases = {phase: ns for phase, ns in account.phases_ns.items() if ns}
    assert phases == {"forward": 100_000, "backward": 200_000, "communication": 300_000}
