"""How full links were while a collective ran, by the counters that were recorded with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfscope.analyzers.facts.link_counters import LinkCounters, Samples, link_counters
from perfscope.model.trace import MISSING, Trace

Verdict = Literal["saturated", "idle", "partly"]

SATURATED = 0.8
"""Of the peak, mean: applications reach about 80% of raw NVLink (nccl#1054); there is no more to get."""

IDLE = 0.05
"""Of the peak: a sample below it is of links that carry nothing worth the name (counters are whole percents, and
ranks that wait poll flags over the links)."""

MOSTLY = 0.5
"""Of the time, idle: from here on waiting, protocol or launch decide, not the links."""

COVERED = 0.8
"""Of the time, by samples: below it too much of it was not seen."""

SAMPLES = 4
"""In the time, at least: the first and the last reach beyond it, so two lie inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Of the links of one device, or of the network cards of a node, over some time."""

    mean: float
    """Share of the peak in the fuller direction."""
    peak: float
    """The fullest sample."""
    idle: float
    """Share of the time in samples below ``IDLE``."""
    network: bool

    @property
    def verdict(self) -> Verdict:
        """Whether the links were the limit, had nothing to do, or neither."""
        if self.mean >= SATURATED:
            return "saturated"
        return "idle" if self.idle >= MOSTLY else "partly"


def nvlink_use(trace: Trace, kernel: int, start_ns: int, end_ns: int) -> LinkUse | None:
    """Of the links of the kernel's device from ``start_ns`` to ``end_ns``; None where too little of it was sampled."""
    counters = trace.fact(link_counters)
    if kernel == MISSING or not counters.nvlink:
        return None
    device = int(trace.rows["kernels"]["device"][kernel])
    samples = counters.nvlink.get(int(trace.rows["devices"]["ordinal"][device]))
    return None if samples is None else _use([samples], 1.0, start_ns, end_ns, network=False)


def network_use(trace: Trace, bandwidth: float, start_ns: int, end_ns: int) -> LinkUse | None:
    """Of all network cards of the machine, which send ``bandwidth`` bytes/s together."""
    counters: LinkCounters = trace.fact(link_counters)
    return _use(counters.cards, bandwidth, start_ns, end_ns, network=True) if counters.cards else None


def has_counters(trace: Trace) -> bool:
    """Whether any counter of links lies beside the trace's collectives."""
    counters = trace.fact(link_counters)
    return any(len(samples.values) for samples in (*counters.nvlink.values(), *counters.cards))


def _use(several: Sequence[Samples], peak: float, start_ns: int, end_ns: int, *, network: bool) -> LinkUse | None:
    """Cards are sampled each at moments of its own: their means are added, their peaks too (an upper bound)."""
    mean = highest = 0.0
    idle = 1.0
    for samples in several:
        inside, values = samples.within(start_ns, end_ns)
        total = int(inside.sum())
        if len(inside) < SAMPLES or total < COVERED * (end_ns - start_ns):
            return None
        share = values / peak
        mean += float(np.dot(inside, share)) / total
        highest += float(share.max())
        # a moment is idle only if every card is: of each, IDLE of its own part of the peak
        idle = min(idle, float(inside[share * len(several) < IDLE].sum()) / total)
    return LinkUse(mean=mean, peak=highest, idle=idle, network=network)
