"""Modules and lines of blocks: from the op graph, from Python spans, from stacks; of the backward by its forward."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.memory.timeline import Line
from perfscope.analyzers.trace import Trace
from tests.analyzers.facts.memory_build import MemoryBuilder
from tests.graphs import GraphBuilder

SITE = "/x/site-packages/"


def _site(trace: Trace, address: int) -> tuple[str, Line | None]:
    (timeline,) = memory_timelines(trace)
    row = int(np.flatnonzero(timeline.blocks["address"] == address)[0])
    line = int(timeline.blocks["line"][row])
    module = timeline.of(trace).text(int(timeline.blocks["module"][row]))
    return module, None if line < 0 else timeline.lines[line]


def _recording() -> MemoryBuilder:
    b = MemoryBuilder()
    b.step(0, 0, 100)
    b.python("train.py(3): main", 0, 99)
    b.python("nn.Module: Net_0", 1, 40)
    b.python("model.py(10): forward", 2, 39)
    b.python("nn.Module: Linear_7", 3, 20)
    b.python("torch/nn/modules/linear.py(90): forward", 4, 19)
    b.op("aten::addmm", 5, 15, sequence=1, forward_thread=0)
    b.op("aten::mul", 25, 30, sequence=2, forward_thread=0)
    b.op("aten::add", 31, 35, sequence=3, forward_thread=0)
    b.op("autograd::engine::evaluate_function: AddmmBackward0", 50, 60, sequence=1, forward_thread=1, tid=2)
    b.op("aten::mm", 52, 55, tid=2)
    b.make(1, 8, 6)
    b.make(2, 8, 26)
    b.make(3, 8, 32)
    b.make(4, 8, 53, thread=b.thread(2))
    return b


def test_python_spans_give_nested_modules_and_the_users_function():
    trace = _recording().build()
    forward = Line(file="model.py", line=10, function="forward")
    assert _site(trace, 1) == ("Net_0.Linear_7", forward)
    assert _site(trace, 2) == ("Net_0", forward)
    assert _site(trace, 4) == ("Net_0.Linear_7", forward)  # the gradient of what was made there


def test_the_op_graph_has_qualified_names_and_the_line_that_ran():
    g = GraphBuilder()
    x = g.input((2, 2))
    g.op("addmm", [x], module="net.head", file="model.py", line=14, function="Net.forward")
    g.op("mul", [x], module="net", file="model.py", line=15, function="Net.forward")
    b = _recording()
    b.op_graph = g.graph()
    trace = b.build()
    assert _site(trace, 1) == ("net.head", Line(file="model.py", line=14, function="Net.forward"))
    assert _site(trace, 2) == ("net", Line(file="model.py", line=15, function="Net.forward"))
    # the graph has no aten::add, but all that it has of Net_0's own call is in ``net``
    assert _site(trace, 3)[0] == "net"


def test_the_graph_of_a_run_is_matched_with_its_detail_recording():
    g = GraphBuilder()
    g.op("mul", [g.input((2, 2))], module="net", file="model.py", line=15, function="Net.forward")
    outer = MemoryBuilder(detail=_recording().build(), op_graph=g.graph())
    outer.op("aten::mul", 0, 1)
    assert _site(outer.build(), 2) == ("net", Line(file="model.py", line=15, function="Net.forward"))


def test_a_stack_gives_the_innermost_line_of_the_users():
    b = MemoryBuilder(recorded=frozenset({"memory", "memory_state"}))
    frames = [
        ("/home/me/train.py", "main", 3, -1),
        ("C:\\env\\Lib\\site-packages\\einops\\einops.py", "einsum", 9, 0),
        (SITE + "torch/functional.py", "einsum", 12, 1),
        ("??", "at::native::einsum()", -1, 2),
        (SITE + "einops/einops.py", "rearrange", 5, -1),
    ]
    for file, name, line, parent in frames:
        b.row("frames", file=b.code(file), name=b.code(name), line=line, parent=parent)
    b.make(1, 8, 1, frame=3)
    b.make(2, 8, 2, frame=4)
    b.make(3, 8, 3)
    trace = b.build()
    assert _site(trace, 1) == ("", Line(file="/home/me/train.py", line=3, function="main"))
    # nothing of the user's is on the stack: the library's own line
    assert _site(trace, 2) == ("", Line(file=SITE + "einops/einops.py", line=5, function="rearrange"))
    assert _site(trace, 3) == ("", None)
