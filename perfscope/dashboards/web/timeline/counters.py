"""Counters on the timeline's clock: samples of the recording, and memory in use. Each is a step function of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.memory.timelines import memory_timelines
from perfscope.model.intervals import Int64
from perfscope.model.trace import Trace

Float64 = npt.NDArray[np.float64]

MOST_SERIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """``values[i]`` holds from ``times[i]`` (ns, sorted) up to the next. ``unit``: ``bytes`` or as recorded."""

    label: str
    unit: str
    times: Int64
    values: Float64


def series_of(trace: Trace) -> Iterator[Series]:
    """Memory in use by device, then the counters of the recording by name."""
    if not trace.source.events_only:
        for memory in trace.fact(memory_timelines):
            if memory.axis == "ns" and not memory.detail and memory.space != "program":
                curve = memory.live()
                if len(curve.positions):
                    values = curve.bytes.astype(np.float64)
                    yield Series(label=f"memory of {memory.label}", unit="bytes", times=curve.positions, values=values)
    rows = trace.rows["counters"]
    for code in np.unique(rows["name"]).tolist():
        mine = np.flatnonzero(rows["name"] == code)
        mine = mine[np.argsort(rows["time_ns"][mine], kind="stable")]
        label = trace.text(int(code))
        unit = "bytes" if "bytes" in label.lower() else ""
        yield Series(label=label, unit=unit, times=rows["time_ns"][mine], values=rows["value"][mine])


def save(series: Series, folder: Path, number: int) -> None:
    """Write one series as plain arrays."""
    np.save(folder / f"counter_{number}_times.npy", series.times)
    np.save(folder / f"counter_{number}_values.npy", series.values)


def piece(times: Int64, values: Float64, edges: Int64) -> tuple[Float64, Float64]:
    """Lowest and highest value between neighbouring edges: shapes (n - 1,); NaN before the first sample.

    What a pixel holds is the value it begins with and every sample in it, so no spike is lost at any zoom.
    """
    at = np.searchsorted(times, edges, side="right")
    first, stop = at[:-1], at[1:]
    held = np.where(first > 0, values[np.maximum(first - 1, 0)] if len(values) else np.nan, np.nan)
    low, high = held.copy(), held.copy()
    filled = stop > first
    if filled.any():
        starts = first[filled]
        ends = stop[filled]
        bounds = np.column_stack((starts, ends)).ravel()
        padded = np.append(values, values[-1])
        lows = np.minimum.reduceat(padded, bounds)[::2]
        highs = np.maximum.reduceat(padded, bounds)[::2]
        low[filled] = np.fmin(low[filled], lows)
        high[filled] = np.fmax(high[filled], highs)
    return low, high
