"""Traces of compiled programs with the log that belongs to them: breaks, fallbacks and recompilations."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.compile_log import Compile, CompileLog, GraphBreak, Place, Recompile, StepSpan
from perfscope.analyzers.trace import Trace
from tests.build import EVERYTHING, TraceBuilder

SECOND = 10**9
BEHIND = 1000.0
"""Seconds: compilations lie behind what a test's trace records, unless it places them inside."""
MODEL = Place(file="/home/user/model.py", line=10, function="forward")
STAGE = Place(file="/home/user/stages.py", line=54, function="branching", code="if x.amax() > 30:")
CPU = EVERYTHING - {"device_work", "launch_links", "op_links", "runtime_calls", "waiting_calls", "python_stack"}


def with_log(builder: TraceBuilder, log: CompileLog, *, detail: Trace | None = None) -> Trace:
    """What the builder holds, and the log."""
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
    facts: dict[str, Any] = {"function": "forward", "place": MODEL, "graph_ops": 5, "traced_graphs": 1}
    return Compile(
        compile_id=compile_id,
        start_ns=round((BEHIND + at) * SECOND),
        duration_ns=round(lasts * SECOND),
        **{**facts, "has_code": True, **more},
    )


def graph_break(compile_id: str = "0/0", place: Place | None = STAGE, **more: Any) -> GraphBreak:
    """A branch on a tensor in ``branching``, which ``forward`` calls."""
    facts: dict[str, Any] = {"reason": "Data-dependent branching", "doc_id": "gb0170", "stack": (MODEL, STAGE)}
    return GraphBreak(compile_id=compile_id, place=place, **{**facts, **more})


def recompiled(guards: list[str], *, every: int = 1, first: int = 1, **more: Any) -> CompileLog:
    """``forward`` compiled in step 0 and again for each guard, a second each, one in a step."""
    compiles, recompiles, steps = [compilation("0/0", 0.0)], [], [_span(0, 0.0)]
    for number, guard in enumerate(guards, start=1):
        step = first + (number - 1) // every
        at = 10.0 * number
        compiles.append(compilation(f"0/{number}", at))
        recompiles.append(
            Recompile(compile_id=f"0/{number}", function="forward", place=MODEL, reasons=(guard,), **more)
        )
        if steps[-1].step != step:
            steps.append(_span(step, at))
    return CompileLog(path="log", compiles=tuple(compiles), recompiles=tuple(recompiles), steps=tuple(steps))


def _span(step: int, at: float) -> StepSpan:
    return StepSpan(step=step, start_ns=round((BEHIND + at) * SECOND), end_ns=round((BEHIND + at + 1) * SECOND))
