"""Growth of the process's memory over the run: readings after steps without a profiler, and growing variables.

Device memory is the memory allocated by torch's allocator, or held by living JAX arrays. Host memory is the whole
resident size, including the interpreter, the libraries and our own recording, so a smaller part of its growth counts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.growth import MOST_STEPS, STILL, SURE
from perfscope.analyzers.time import GrownName, grown_names
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

LEAST_READINGS = 6
"""Minimum number of readings after the excluded ones: of six, one order in 720 rises by chance."""
LEAST_STEPS = 20
"""Minimum number of steps from the first reading to the last: fewer are the warm-up of caches and pools."""
LEFT_OUT = 0.2
"""Share of the readings that is excluded at the begin, while allocators and caches grow."""
LEAST_DEVICE_BYTES = 4096
"""Smallest growth per step on a device. A few scalars, each rounded up to 512 B by CUDA's allocator, are metrics that
are kept on purpose.
"""
LEAST_RESIDENT_BYTES = 65_536
"""Smallest growth per step of the resident size. Our sampled stacks and step times take up to 16 KiB in a step of one
second.
"""
MATTERS_STEPS = 10_000
MATTERS_SHARE = 0.1
"""Smallest growth within 10,000 steps (a short training run), as a share of the memory held; less does not fill a
memory.
"""
EXPLAINS = 0.5
"""Share of the growth that a variable must have to explain it."""


class RunGrowth(Struct, frozen=True, kw_only=True):
    """Growth of one memory of the process over the run."""

    space: Literal["device", "host"]
    readings: int
    first_step: int
    last_step: int
    first_bytes: int
    last_bytes: int
    per_step: float
    """Bytes: the median of the slopes of all pairs of readings."""
    growing: bool
    """Whether it rises nearly always, also in the second half, and enough to matter."""
    name: GrownName | None
    """The variable that keeps it, if known."""


def run_growth(trace: Trace) -> RunGrowth | None:
    """Return the growth of the device's memory if it was read, else of the host's; ``None`` with too few readings."""
    rows = trace.rows["run_memory"]
    device = rows["device_bytes"] != MISSING
    if device.any():
        grown = _growth(trace, "device", rows["step"][device], rows["device_bytes"][device], LEAST_DEVICE_BYTES)
        if grown is None or grown.growing or (rows["device_bytes"][device] > 0).all():
            return grown
    resident = rows["rss_bytes"] > 0
    return _growth(trace, "host", rows["step"][resident], rows["rss_bytes"][resident], LEAST_RESIDENT_BYTES)


def _growth(
    trace: Trace, space: Literal["device", "host"], steps: Int64, values: Int64, least: int
) -> RunGrowth | None:
    from_row = round(LEFT_OUT * len(steps))
    steps, values = steps[from_row:], values[from_row:]
    if len(steps) < LEAST_READINGS or int(steps[-1] - steps[0]) < LEAST_STEPS:
        return None
    slope, sure = slope_of(steps, values)
    late, _ = slope_of(steps[len(steps) // 2 :], values[len(steps) // 2 :])
    matters = slope >= least and slope * MATTERS_STEPS >= MATTERS_SHARE * float(values[-1])
    growing = matters and sure >= SURE and late >= STILL * slope
    return RunGrowth(
        space=space,
        readings=len(steps),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        first_bytes=int(values[0]),
        last_bytes=int(values[-1]),
        per_step=slope,
        growing=growing,
        name=_keeper(trace, slope) if growing else None,
    )


def slope_of(steps: Int64, values: Int64) -> tuple[float, float]:
    """Return ``(median slope of all pairs, share of pairs that rise)``; ``(0, 0)`` for fewer than two values."""
    if len(steps) > MOST_STEPS:
        chosen = np.linspace(0, len(steps) - 1, MOST_STEPS).astype(np.int64)
        steps, values = steps[chosen], values[chosen]
    if len(steps) < 2:
        return 0.0, 0.0
    earlier, later = np.triu_indices(len(steps), 1)
    apart = steps[later] - steps[earlier]
    rise = (values[later] - values[earlier]).astype(np.float64)[apart > 0]
    return float(np.median(rise / apart[apart > 0])), float((rise > 0).mean())


def _keeper(trace: Trace, per_step: float) -> GrownName | None:
    """Return the variable that explains the growth: by its bytes, else one that keeps each step's graph."""
    names = trace.fact(grown_names)
    by_bytes = [name for name in names if name.bytes_per_step >= EXPLAINS * per_step]
    graphs = [name for name in names if name.keeps_graphs]
    return next(iter((*by_bytes, *graphs)), None)
