"""Helpers of the structure capture's tests: a small net, a step of it, and a graph read from its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfscope.model.live_bytes import NEVER, peak
from perfscope.model.op_graph import GraphOp, OpGraph, storage_devices, taken_over

torch = pytest.importorskip("torch")
nn = torch.nn


def named(graph: OpGraph, name: str) -> list[GraphOp]:
    found = [op for op in graph.ops if op.name.startswith(f"aten.{name}.")]
    assert found, f"no {name} among {sorted({op.name for op in graph.ops})}"
    return found


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(index for index, line in enumerate(lines) if text in line)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        h = self.first(x).relu()
        return self.second(h)


def train_step(net: Any, optimizer: Any, x: Any) -> None:
    net(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def simulated_peak(graph: OpGraph) -> int:
    """Peak of the step's storages, by their lifetimes: an op's inputs and results are alive together."""
    assert graph.storages is not None
    devices, late = storage_devices(graph), taken_over(graph, graph.storages)
    spans = [
        (item.born + (index in late), NEVER if item.died is None else item.died, item.bytes)
        for index, item in enumerate(graph.storages)
        if item.born is not None and devices.get(index) == graph.device
    ]
    return peak(*np.array(spans, np.int64).T)[1]
