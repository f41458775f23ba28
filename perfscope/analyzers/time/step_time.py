"""The step time of one trace."""

from __future__ import annotations

from perfscope.analyzers.time.account import warm_windows
from perfscope.analyzers.time.steps import late_span_ns, step_windows
from perfscope.model.documents.step_time import StepTime, step_time_of
from perfscope.model.trace import Trace


def trace_step_time(trace: Trace) -> StepTime | None:
    """The step time of one trace, whose slow steps are not looked at."""
    late = late_span_ns(trace) is not None
    return step_time_of(
        window=None if trace.window_ns is None else (trace.window_ns, trace.window_steps),
        unprofiled=() if late else trace.step_times_ns,
        profiled=_profiled(trace),
        rank=trace.source.rank,
    )


def _profiled(trace: Trace) -> list[int]:
    windows, count, late = trace.fact(warm_windows), trace.fact(step_windows).count, late_span_ns(trace)
    if not count:
        return []
    if late is not None and not windows.numbers:  # which work is of which step is not known
        return [round(late / count)] * count
    lengths: list[int] = (windows.ends - windows.starts).tolist()
    return lengths
