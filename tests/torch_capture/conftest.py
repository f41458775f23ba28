"""Fixtures of the profiler's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.op_graph import OpGraph
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., OpGraph]:
    """Runs a program under capture, by way of the file, and hands back the graph."""

    def recorded(program: Callable[[], Any], **options: Any) -> OpGraph:
        capture = OpGraphCapture(**options)
        capture.start(3)
        try:
            program()
        finally:
            capture.stop()
        path = tmp_path / "structure.opgraph.json.gz"
        capture.save(path)
        return read_op_graph(path)

    return recorded
