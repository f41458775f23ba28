"""Real steps of the transformer workload on the CPU: their op graph, and the peak that torch's profiler saw.

Both are taken in this process, of two steps of one program, without `perfscope run`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.ops.op_times import OpTimes, op_bytes, op_times
from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace import Trace
from perfscope.plugins.memory_advice.step_model import StepModel
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model
from tests.build import TraceBuilder


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step."""

    graph: OpGraph
    peak_bytes: int
    """Most bytes of what the step made, as the allocator counted them."""

    def model(self) -> StepModel:
        """Its model; an op takes a nanosecond for each byte it moves."""
        return trace_of(self.graph).fact(torch_step_model)


def trace_of(graph: OpGraph) -> Trace:
    """A trace that holds the op graph, and times by bytes."""
    trace = TraceBuilder(recorded=frozenset({"op_graph"})).build()
    trace = replace(trace, op_graph=graph)
    ns = np.array([0 if op.view else op_bytes(graph, op) for op in graph.ops], np.float64)
    trace.seed(op_times, OpTimes(ns=ns, step_ns=int(ns.sum()), basis="measured", note=None))
    return trace


def recorded(folder: Path, *, change: Callable[[Any], None] | None = None, **options: Any) -> Step:
    """The workload ``transformer``, small; ``change``: what is done to the model before."""
    import torch

    from perfscope.workloads.data import batches
    from perfscope.workloads.options import Options, Size
    from perfscope.workloads.transformer import build, loss_of

    size = Size(batch=4, seq=32, dim=32, heads=2, layers=options.pop("layers", 3), vocab=64)
    asked = Options(variant=options.pop("variant", "sdpa"), size=size, steps=4, **options)
    model = build(asked)
    if change is not None:
        change(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = iter(batches(asked))

    def step() -> None:
        loss, logits, hidden = loss_of(model, next(data))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss, logits, hidden

    return recorded_steps(folder, step)


def recorded_net(folder: Path, name: str, *, checkpointed: bool) -> Step:
    """A net of `nets.py`, two batches a step for ``accumulated``."""
    import torch

    from tests.plugins.memory_advice.nets import NETS

    torch.manual_seed(0)
    model = NETS[name](checkpointed)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        for _ in range(2 if name == "accumulated" else 1):
            model(torch.randn(256, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return recorded_steps(folder, step)


def recorded_steps(folder: Path, step: Callable[[], None]) -> Step:
    """A step in the op graph, and another one under torch's profiler."""
    import torch

    from perfscope.profiler.torch.op_graph.capture import OpGraphCapture

    step()
    capture = OpGraphCapture()
    capture.start(1)
    step()
    capture.stop()
    capture.save(folder / "graph.json")
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    profile.export_chrome_trace(str(folder / "trace.json"))
    return Step(read_op_graph(folder / "graph.json"), _peak(folder / "trace.json"))


def _peak(path: Path) -> int:
    """Most bytes handed out since the recording began, by the allocator's events."""
    events = json.loads(path.read_text())["traceEvents"]
    memory = sorted((event["ts"], index) for index, event in enumerate(events) if event["name"] == "[memory]")
    changes = [events[index]["args"]["Bytes"] for _, index in memory]
    return int(np.cumsum(changes).max())
