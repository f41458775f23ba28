"""What an op takes: measured on the host or the device, priced like others, or by the peaks of the device."""

from __future__ import annotations

import pytest

from perfscope.analyzers.advice.op_times import op_times
from perfscope.analyzers.finding import AbstainError
from perfscope.analyzers.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder


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
    trace.step_times_ns = free
    trace.op_graph = products(len(spans)).graph()
    return trace


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
    trace.op_graph = products(4).graph()
    trace.step_times_ns = (500_000,)
    assert trace.fact(op_times).ns.tolist() == [30_000] * 4  # a kernel takes no longer under a profiler


def test_an_op_without_a_time_is_priced_like_the_others_and_that_is_said() -> None:
    trace = host(*((10.0 + 20 * index, 20.0 + 20 * index) for index in range(12)))
    g = products(12)
    g.op("neg", [g.ops[-1].outputs[0]])
    trace.op_graph = g.graph()
    found = trace.fact(op_times)
    assert found.note is not None
    assert found.note.startswith("1 of 13 ops")
    assert found.ns[12] >= 0
    assert found.basis == "measured"


def test_without_timed_steps_the_peaks_of_the_device_that_is_named_count() -> None:
    trace = TraceBuilder(recorded=EVERYTHING).build()
    trace.op_graph = products(3).graph()
    with pytest.raises(AbstainError, match="0% of the op graph's ops"):
        trace.fact(op_times)
    trace.judged_device = "H100"
    found = trace.fact(op_times)
    assert found.basis == "modelled"
    assert "H100" in (found.note or "")
    moved = 3 * 64 * 64 * 4 - 64 * 64 * 4  # the operand once, the result once
    assert found.ns[0] == pytest.approx(1e9 * max(2 * 64**3 / 66.9e12, moved / 3352e9))


def test_views_take_nothing() -> None:
    trace = host((10, 20))
    g = products(1)
    g.view(g.ops[0].outputs[0], (4096,))
    trace.op_graph = g.graph()
    assert trace.fact(op_times).ns.tolist() == [10_000, 0]
