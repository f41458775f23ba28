"""Traces of compiled programs with the log that belongs to them: breaks, fallbacks and recompilations."""

from __future__ import annotations

from typing import Any

from perfscope.model.compile_log import CodeLine, Compile, CompileLog, GraphBreak, LoggedRecompile, Phase, StepSpan
from perfscope.model.trace import Source, Trace
from tests.build import EVERYTHING, TraceBuilder, replace

SECOND = 10**9
AFTER_TRACE_S = 1000.0
"""Seconds by which compilations follow a test's trace, unless it places them inside."""
MODEL_FRAME = CodeLine(file="/home/user/model.py", line=10, function="forward")
STAGE_FRAME = CodeLine(file="/home/user/stages.py", line=54, function="branching", code="if x.amax() > 30:")
CPU = EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls", "waiting_calls", "python_stack"}


def with_log(builder: TraceBuilder, log: CompileLog, *, detail: Trace | None = None) -> Trace:
    """The builder's trace with the log."""
    built = builder.build()
    return Trace(
        source=built.source,
        strings=built.strings,
        rows=built.rows,
        recorded=built.recorded | {"compile_log"},
        step_times_ns=built.step_times_ns,
        detail=detail,
        compile_log=log,
    )


def log_alone(log: CompileLog) -> Trace:
    """The log, and nothing that ran."""
    return with_log(TraceBuilder(recorded=frozenset()), log)


def compilation(compile_id: str = "0/0", at: float = 0.0, lasts: float = 1.0, **more: Any) -> Compile:
    """A compilation of ``forward`` that takes ``lasts`` seconds from ``BEHIND + at``."""
    facts: dict[str, Any] = {"function": "forward", "place": MODEL_FRAME, "graph_ops": 5, "traced_graphs": 1}
    return Compile(
        compile_id=compile_id,
        start_ns=round((AFTER_TRACE_S + at) * SECOND),
        duration_ns=round(lasts * SECOND),
        **{**facts, "has_code": True, **more},
    )


def graph_break(compile_id: str = "0/0", place: CodeLine | None = STAGE_FRAME, **more: Any) -> GraphBreak:
    """A branch on a tensor in ``branching``, which ``forward`` calls."""
    facts: dict[str, Any] = {
        "reason": "Data-dependent branching",
        "doc_id": "gb0170",
        "stack": (MODEL_FRAME, STAGE_FRAME),
    }
    return GraphBreak(compile_id=compile_id, place=place, **{**facts, **more})


def recompiled(guards: list[str], *, every: int = 1, first: int = 1, **more: Any) -> CompileLog:
    """``forward`` compiled in step 0 and again for each guard, a second each, one in a step."""
    compiles, recompiles, steps = [compilation("0/0", 0.0)], [], [_span(0, 0.0)]
    for number, guard in enumerate(guards, start=1):
        step = first + (number - 1) // every
        at = 10.0 * number
        compiles.append(compilation(f"0/{number}", at))
        recompiles.append(
            LoggedRecompile(compile_id=f"0/{number}", function="forward", place=MODEL_FRAME, reasons=(guard,), **more)
        )
        if steps[-1].step != step:
            steps.append(_span(step, at))
    return CompileLog(path="log", compiles=tuple(compiles), recompiles=tuple(recompiles), steps=tuple(steps))


def _span(step: int, at: float) -> StepSpan:
    return StepSpan(
        step=step, start_ns=round((AFTER_TRACE_S + at) * SECOND), end_ns=round((AFTER_TRACE_S + at + 1) * SECOND)
    )


START = 1_795_000_000 * SECOND
MODEL = CodeLine(file="/home/user/train.py", line=12, function="forward")


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
