"""Traces of steps that are recorded here: the op graph of PyTorch, the compiled program of JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perfscope.analyzers.hlo import module_of_proto
from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.trace import Source, Trace
from tests.hlo_build import hlo_trace


def torch_trace(step: Callable[[], None]) -> Trace:
    """The op graph of one step, recorded."""
    from perfscope.profiler.torch.op_graph.capture import OpGraphCapture

    capture = OpGraphCapture()
    capture.start(1)
    try:
        step()
    finally:
        capture.stop()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "structure.opgraph.json.gz"
        capture.save(path)
        graph = read_op_graph(path)
    source = Source(path="torch", format="op_graph", rank=None, events_read=0, events_unplaced=0)
    return Trace(source=source, strings=(), rows={}, recorded=frozenset({"op_graph"}), op_graph=graph)


def jax_trace(step: Any, arguments: tuple[Any, ...]) -> Trace:
    """The program of a jitted step, compiled."""
    compiled = step.lower(*arguments).compile()  # planted: keep
    (module,) = compiled.runtime_executable().hlo_modules()
    return hlo_trace(module_of_proto(module.as_serialized_hlo_module_proto(), "jax"))
