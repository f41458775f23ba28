"""Blocks within an op's span are its scratch; what outlives it, or belongs to no op, is not."""

from __future__ import annotations

from perfscope.analyzers.advice.torch_workspace import workspaces
from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.trace import MemoryAction, Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder


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
    trace.op_graph = g.graph()
    return trace


def found(trace: Trace) -> dict[int, int]:
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
    assert found(trace_with(*events)) == {0: 130, 1: 5}


def test_results_and_what_lies_between_ops_are_no_scratch() -> None:
    assert found(trace_with((12, 1, 100), (35, 1, -100), (22, 2, 50), (25, 2, -50))) == {}


def test_without_allocator_events_there_is_none() -> None:
    trace = trace_with()
    assert trace.op_graph is not None
    assert workspaces(trace, trace.op_graph, None) == {}
