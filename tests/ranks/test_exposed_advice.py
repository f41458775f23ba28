"""Advice of exposed communication on one rank: by what the collectives are for, and whether one waits."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from tests.build import TraceBuilder

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def advice(*, reductions: int, each_us: float, in_forward: bool, trains: bool = True, world: int = 8) -> str:
    """A step of 10 ms that computes for 4 ms, and all-reduces that nothing overlaps, launched in one of its phases."""
    b = TraceBuilder()
    b.step(0, 0, 10_000)
    b.annotation("forward", 0, 1_000)
    if trains:
        b.annotation("backward", 1_000, 2_000)
    launch = 10.0 if in_forward else 1_010.0
    b.launched("gemm", 5, 100, 4_100, correlation=1)
    for number in range(reductions):
        start = 4_200 + number * (each_us + 50)
        b.launched(ALL_REDUCE, launch + 20 * number, start, start + each_us, correlation=number + 2,
                   communication=True)  # fmt: skip
    built = b.build()
    trace = replace(built, source=replace(built.source, world_size=world))
    (finding,) = judge(load_rule("exposed_communication"), trace).findings
    return finding.advice


def test_reductions_of_the_backward_pass_are_of_gradients() -> None:
    assert advice(reductions=6, each_us=500, in_forward=False).startswith("Let DDP overlap it")


def test_reductions_of_the_forward_pass_are_of_tensor_parallelism() -> None:
    assert "tensor parallelism" in advice(reductions=6, each_us=500, in_forward=True)
    assert "`tensor_parallel_size`" in advice(reductions=6, each_us=500, in_forward=True, trains=False)


def test_two_reductions_in_the_forward_pass_may_be_of_a_metric() -> None:
    assert advice(reductions=2, each_us=500, in_forward=True).startswith("Let DDP overlap it")


def test_one_collective_of_a_quarter_of_the_step_waits_more_likely_than_it_transfers() -> None:
    assert advice(reductions=1, each_us=2_500, in_forward=False).startswith("Give the traces of all ranks")
    assert advice(reductions=1, each_us=2_400, in_forward=False).startswith("Let DDP overlap it")
    assert advice(reductions=1, each_us=2_500, in_forward=False, world=1).startswith("Let DDP overlap it")
