"""Traces of nothing but a log of torch.compile, and parts of such logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfscope.analyzers.compile_log import Compile, CompileLog, Phase, Place
from perfscope.analyzers.trace import Source, Trace

SECOND = 10**9
START = 1_795_000_000 * SECOND
MODEL = Place(file="/home/user/train.py", line=12, function="forward")


def log_trace(log: CompileLog, *, rank: int | None = None) -> Trace:
    """A trace as the reader of logs makes it."""
    source = Source(path=log.path, format="torch_trace", rank=rank, events_read=1, events_unplaced=0)
    held = frozenset({"compile_log"} if log.compiles else ())
    return Trace(source=source, strings=[], rows={}, recorded=held, compile_log=replace(log, rank=rank))


def compiled(compile_id: str = "0/0", **more: Any) -> Compile:
    """A compilation of ``forward`` with one graph of ten ops."""
    facts: dict[str, Any] = {
        "function": "forward",
        "place": MODEL,
        "graph_ops": 10,
        "start_ns": START,
        "has_code": True,
    }
    return Compile(compile_id=compile_id, **{**facts, **more})


def phase(name: str, start: float, end: float, compile_id: str | None = "0/0", **more: Any) -> Phase:
    """A phase; seconds after ``START``."""
    begin, stop = START + round(start * SECOND), START + round(end * SECOND)
    return Phase(name=name, start_ns=begin, end_ns=stop, compile_id=compile_id, **more)
