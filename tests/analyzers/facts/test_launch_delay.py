from __future__ import annotations

from perfscope.analyzers.facts.launch_delay import launch_delays
from perfscope.analyzers.trace import CallKind
from tests.build import TraceBuilder


def test_delay_and_mean_queue():
    b = TraceBuilder()
    b.launched("a", 0, 5, 25, correlation=1)  # 5 us: nothing queued in front of it
    b.launched("b", 5, 25, 45, correlation=2)  # 20 us
    b.launched("c", 10, 45, 105, correlation=3)  # 35 us
    delay = b.build().fact(launch_delays)[0]
    assert (delay.launches, delay.median_ns, delay.unqueued) == (3, 20_000, 1)
    assert delay.mean_queue == 60 / 100  # delays of 60 us over a span of 100 us


def test_of_a_graph_launch_only_the_first_kernel_counts():
    b = TraceBuilder()
    b.call("cudaGraphLaunch", 0, 5, kind=CallKind.GRAPH, correlation=1)
    b.kernel("first", 8, 20, correlation=1)
    b.kernel("second", 20, 30, correlation=1)
    delay = b.build().fact(launch_delays)[0]
    assert (delay.launches, delay.median_ns) == (1, 8_000)


def test_a_kernel_that_starts_before_its_call_by_clock_skew_has_no_delay():
    b = TraceBuilder()
    b.launched("a", 10, 9, 20, correlation=1)
    assert b.build().fact(launch_delays)[0].median_ns == 0


def test_no_link_no_delay():
    b = TraceBuilder()
    b.kernel("a", 0, 5)
    assert b.build().fact(launch_delays) == {}
