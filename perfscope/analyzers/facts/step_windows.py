"""Step windows on the trace's clock, and how long a step is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.model.trace import SliceKind, Trace

HOST_AHEAD = 1.1
"""Of the host's median step: a mean with the devices waited for that is longer is another fact, not noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
    """The steps of a trace: recorded ones, or windows between optimizer steps where none is."""

    starts: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray
    how: str
    """``recorded``, ``optimizer`` (from the end of one optimizer step to the next) or ``none``."""

    @property
    def count(self) -> int:
        """Steps; 0 if the trace shows none."""
        return len(self.starts)


def step_windows(trace: Trace) -> StepWindows:
    """Recorded steps; else windows between the ends of optimizer steps; else none."""
    rows = trace.rows["steps"]
    if len(rows):
        return StepWindows(starts=rows["start_ns"], ends=rows["end_ns"], numbers=rows["number"], how="recorded")
    slices = trace.rows["slices"]
    marks = [code for code, text in enumerate(trace.strings) if text.startswith("Optimizer.step#")]
    found = np.isin(slices["name"], marks) & (slices["kind"] == SliceKind.ANNOTATION)
    ends = np.sort(slices["end_ns"][found])
    if len(ends) < 2:
        nothing = np.empty(0, np.int64)
        return StepWindows(starts=nothing, ends=nothing, numbers=nothing, how="none")
    return StepWindows(starts=ends[:-1], ends=ends[1:], numbers=np.arange(len(ends) - 1), how="optimizer")


def whole_ns(trace: Trace) -> int:
    """What a cost over the whole trace is a share of: summed steps, else the device span, else the span.

    Steps that do not wait for their work count from the first one's dispatch to the last one's work end.
    """
    from perfscope.analyzers.facts.device_time import device_times
    from perfscope.analyzers.facts.step_work import late_span_ns

    late = late_span_ns(trace)
    if late is not None:
        return late
    steps = trace.fact(step_windows)
    if steps.count:
        return int((steps.ends - steps.starts).sum())
    devices = trace.fact(device_times)
    if devices:
        return max(device.span_ns for device in devices)
    start, end = trace.span_ns()
    return end - start


def per_step(trace: Trace, cost_ns: int | float) -> int | None:
    """A cost over the whole trace as cost of one step; None where no step is known."""
    steps = trace.fact(step_windows)
    return round(cost_ns / steps.count) if steps.count else None
