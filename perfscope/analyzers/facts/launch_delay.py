"""How far the host runs ahead of each device: delay from launch call to start, and the queue it makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.model.trace import MISSING, Trace

SHORT_DELAY_NS = 10_000
"""A launch on an idle device starts in 3 to 8 us; below 10 us nothing was queued in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDelay:
    """Launches of one device. Of a graph launch only the first kernel counts."""

    device: int
    launches: int
    median_ns: int
    """From the start of the launch call to the start of its first kernel."""
    unqueued: int
    """Launches that started within ``SHORT_DELAY_NS``: the device had nothing else to do."""
    mean_queue: float
    """Launched and not yet started work, averaged over the device's span (Little: sum of delays / span)."""


def launch_delays(trace: Trace) -> dict[int, LaunchDelay]:
    """Per row of ``devices`` that has launches with a known call. Delays below zero (clock skew) count as 0."""
    kernels, calls = trace.rows["kernels"], trace.rows["calls"]
    found = {}
    for device in range(len(trace.rows["devices"])):
        on_device = kernels["device"] == device
        linked = on_device & (kernels["call"] != MISSING)
        if not linked.any():
            continue
        order = np.argsort(kernels["start_ns"][linked], kind="stable")
        call, first = np.unique(kernels["call"][linked][order], return_index=True)
        start = kernels["start_ns"][linked][order][first]
        delay = np.maximum(start - calls["start_ns"][call], 0)
        span = int(kernels["end_ns"][on_device].max() - kernels["start_ns"][on_device].min())
        found[device] = LaunchDelay(
            device=device,
            launches=len(call),
            median_ns=int(np.median(delay)),
            unqueued=int((delay < SHORT_DELAY_NS).sum()),
            mean_queue=float(delay.sum() / span) if span else 0.0,
        )
    return found
