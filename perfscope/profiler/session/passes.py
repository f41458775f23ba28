"""Order of the passes, each on separate steps: timing, then structure, then detail; for jax timing alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfscope.model.capture import CaptureOptions, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass to come: its tool, its number of steps, and its recordings."""

    name: str
    tool: str
    count: int
    """Steps."""
    suffix: str
    """Suffix of the file name."""
    shapes: bool = False
    memory: bool = False
    stacks: bool = False
    device_syncs: bool = False
    """Record synchronisations as the device driver saw them (CUDA)."""


TRACE_SUFFIX = ".pt.trace.json.gz"
GRAPH_SUFFIX = ".opgraph.json.gz"
XSPACE_SUFFIX = ".xplane.pb"

Framework = Literal["torch", "jax", "none"]
"""``none``: a program that has neither, and calls ``perfscope.step()``; only its times can be taken."""

TIMING_STEPS = 3
"""Enough to tell one odd step from two equal ones, few enough that the trace of a large model stays small."""
DEEP_TIMING_STEPS = 5
DEEP_DETAIL_STEPS = 3

SETTLING_STEPS = 1
"""Steps after the last pass that are not timed: the profiler's stop drained the device's queue and
left the caches cold, so the next step is not like the others."""


RESTING_STEPS = 1
"""Steps between two recordings of torch's profiler: what opened under the first must close before the
second begins (`annotate.py`), also the ranges of C++ around an optimizer that steps in the backward pass."""


def passes(options: CaptureOptions, framework: Framework = "torch") -> tuple[Pass, ...]:
    """Passes of a level, in the order they run."""
    if options.times_only or options.recorders:
        return ()
    if options.capture is not None:
        return ()  # one tool at a time can use CUPTI, and the one around the program began first
    level: Level = options.level
    deep = level == "deep"
    count = DEEP_TIMING_STEPS if deep else TIMING_STEPS
    if options.steps is not None:
        count = options.steps[1] - options.steps[0]
    if framework == "jax":
        # Shapes, programs and memory are in the compiled programs, which need no further steps.
        return (Pass(name="timing", tool="jax_profiler", count=1 if options.whole else count, suffix=XSPACE_SUFFIX),)
    timing = Pass(
        name="timing",
        tool="torch_profiler",
        count=count,
        suffix=TRACE_SUFFIX,
        shapes=deep,
        device_syncs=deep,
    )
    if options.whole:
        return (replace(timing, count=1, shapes=level != "light", stacks=deep, memory=deep),)
    if level == "light":
        return (timing,)
    detail = Pass(
        name="detail",
        tool="torch_profiler",
        count=DEEP_DETAIL_STEPS if deep else 1,
        suffix=TRACE_SUFFIX,
        shapes=True,
        memory=True,
        stacks=True,
        device_syncs=deep,
    )
    structure = Pass(name="structure", tool="op_graph", count=1, suffix=GRAPH_SUFFIX)
    # The structure pass uses no profiler of torch's and keeps apart the two that do (`RESTING_STEPS`).
    return (timing, structure, detail)


def first_step(options: CaptureOptions) -> int:
    """The number of the first step that may be captured. Step 0 never is: its beginning was not observed.

    Recorders of plug-ins see all steps, so that the steps that are selected for them do not matter.
    """
    if options.steps is not None and not options.recorders:
        return options.steps[0]
    return max(1, options.warmup)
