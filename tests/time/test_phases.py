"""Busy time by phase."""

from __future__ import annotations

from perfscope.analyzers.time import step_accounts
from tests.build import TraceBuilder


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
