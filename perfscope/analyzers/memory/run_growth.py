"""Does the memory of the process grow over the run: readings after steps without a profiler, and who grows with it.

Device memory is what torch's allocator has given out, or what living JAX arrays hold. Memory of the host is all that is
resident, with the interpreter, the libraries and our own recording in it, so less of its growth counts.
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
"""After the first ones are left out: of six, one order in 720 rises by chance."""
LEAST_STEPS = 20
"""Steps from the first reading to the last: less is the warm-up of caches and pools."""
LEFT_OUT = 0.2
"""Of the readings, at the front: allocators and caches grow there."""
LEAST_DEVICE_BYTES = 4096
"""A step. A few scalars, each rounded up to 512 B by CUDA's allocator, are metrics that are kept on purpose."""
LEAST_RESIDENT_BYTES = 65_536
"""A step. Sampled stacks and step times of our own take up to 16 KiB of it in a step of a second."""
MATTERS_STEPS = 10_000
MATTERS_SHARE = 0.1
"""What does not grow by a tenth of what is held within 10,000 steps, a short training run, fills no memory."""
EXPLAINS = 0.5
"""Of the growth: a variable with less of it is not why the memory grows."""


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
    """It rises nearly always, still in the second half, and enough to matter."""
    name: GrownName | None
    """The variable that keeps it, as far as one is known."""


def run_growth(trace: Trace) -> RunGrowth | None:
    """Growth of the device's memory where it was read, else of the host's; ``None`` with too few readings."""
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
    """``(median of the slopes of all pairs, share of pairs that rise)``; ``(0, 0)`` for fewer than two values."""
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
    """The variable that explains the growth: by its bytes, else one that keeps each step's graph."""
    names = trace.fact(grown_names)
    by_bytes = [name for name in names if name.bytes_per_step >= EXPLAINS * per_step]
    graphs = [name for name in names if name.keeps_graphs]
    return next(iter((*by_bytes, *graphs)), None)
