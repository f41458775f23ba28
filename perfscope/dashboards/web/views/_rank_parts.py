"""What the page of ranks takes of one rank's tables while they are in memory: busy shares by step, link counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analyzers.ranks.links import Samples, link_counters
from perfscope.analyzers.time.device_time import device_busy
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.intervals import covered
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

MOST_WINDOWS = 240
"""Steps of a row: four pixels each on a wide screen. Of more, neighbours are one window together."""
PARTS = 100
"""Equal parts of a recording without steps."""


def busy_of(trace: Trace, number: int) -> list[dict[str, Any]]:
    """One entry a device that worked: windows, their length and how long the device worked in each, in ns."""
    starts, ends, labels, of_steps = _windows(trace)
    if not len(starts):
        return []
    rows = trace.rows["devices"]
    rank = trace.source.rank
    found = []
    worked = {device: busy for device, busy in trace.fact(device_busy).items() if len(busy.starts)}
    for device, busy in worked.items():
        ordinal = int(rows["ordinal"][device])
        whose = "" if rank is None else f"rank {rank}"
        name = f"device {ordinal}"
        found.append(
            {
                "rank": rank,
                "trace": number,
                "ordinal": ordinal,
                "label": whose if whose and len(worked) == 1 else " ".join(filter(None, (whose, name))),
                "busy_ns": covered(busy, starts, ends).tolist(),
                "span_ns": (ends - starts).tolist(),
                "starts": [str(start) for start in starts.tolist()],
                "labels": labels,
                "of_steps": of_steps,
            }
        )
    return found


def _windows(trace: Trace) -> tuple[np.ndarray, np.ndarray, list[str], bool]:
    steps = trace.fact(step_windows)
    if steps.count:
        edges = np.unique(np.linspace(0, steps.count, min(steps.count, MOST_WINDOWS) + 1).astype(np.int64))
        first, last = edges[:-1], edges[1:] - 1
        numbers = steps.numbers
        labels = [
            f"step {numbers[a]}" if a == b else f"steps {numbers[a]} to {numbers[b]}"
            for a, b in zip(first.tolist(), last.tolist(), strict=True)
        ]
        return steps.starts[first], np.maximum(steps.ends[last], steps.starts[first]), labels, True
    held = [busy for busy in trace.fact(device_busy).values() if len(busy.starts)]
    if not held:
        return np.empty(0, np.int64), np.empty(0, np.int64), [], False
    low, high = min(int(one.starts[0]) for one in held), max(int(one.ends[-1]) for one in held)
    parts = max(1, min(PARTS, high - low))
    edges = np.array([low + (high - low) * part // parts for part in range(parts + 1)], np.int64)
    return edges[:-1], edges[1:], [f"part {part + 1} of {parts}" for part in range(parts)], False


def links_of(trace: Trace) -> list[list[Any]]:
    """Rows (rank, link, samples, mean, most, unit) of the counters beside communication; empty: none recorded."""
    counters = trace.fact(link_counters)
    rank = trace.source.rank
    rows = [
        _link(rank, f"NVLink of GPU {gpu}", samples, "share of its peak") for gpu, samples in counters.nvlink.items()
    ]
    rows += [_link(rank, f"network card {at}", samples, "bytes/s sent") for at, samples in enumerate(counters.cards)]
    return [row for row in rows if row[2]]


def _link(rank: int | None, name: str, samples: Samples, unit: str) -> list[Any]:
    lasting = samples.ends_ns - samples.starts_ns
    whole = int(lasting.sum())
    mean = float((samples.values * lasting).sum() / whole) if whole else 0.0
    most = float(samples.values.max()) if len(samples.values) else 0.0
    return [rank, sanitize(name), len(samples.values), mean, most, unit]
