"""The structure capture in programs that enter ``inference_mode`` in each call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from tests.torch_capture.op_graphs import Net, named

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_a_step_that_ends_inside_inference_mode_has_the_ops_and_reads_of_the_next_call(tmp_path: Path) -> None:
    net, capture = Net(), OpGraphCapture()

    def answer(after_model: Callable[[], None]) -> list[float]:
        with torch.inference_mode():
            scores = net(torch.randn(3, 8))
            after_model()
            return [score.item() for score in scores.mean(1)]

    answer(lambda: capture.start(3))
    answer(capture.stop)
    path = tmp_path / "structure.opgraph.json.gz"
    capture.save(path)
    graph = read_op_graph(path)
    assert sum(op.host_read == "item" for op in graph.ops) == 3
    assert len(named(graph, "randn")) == len(named(graph, "relu")) == 1
    assert not torch._C._len_torch_dispatch_stack()


def test_inference_mode_is_as_before_after_a_capture(record: Any) -> None:
    before = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    record(lambda: None)
    assert (torch.inference_mode.__enter__, torch.inference_mode.__exit__) == before


def test_a_conversion_and_a_copied_shape_are_no_views(record: Any) -> None:
    x = torch.randn(4, 8)

    def step() -> None:
        with torch.inference_mode():
            x.to(torch.float32)
            x.to(torch.bfloat16)
            x.t().reshape(-1)
            x.reshape(-1)

    graph = record(step)
    assert [op.view for op in named(graph, "to")] == [True, False]
    assert [op.view for op in named(graph, "reshape")] == [False, True]
