"""What was recorded of links while collectives ran: NVLink of each GPU, and the network cards of the machine.

Units, as Nsight Systems exports them:

- ``GPU 0: NVLink TX Requests User Data [Throughput %]`` and its kin: integer percent of the peak of all links of the
  GPU in one direction. Requests and responses, user and protocol data each have a counter of their own; together they
  fill the links, so they are added. Older exports have one ``NVLink TX Throughput`` for all of them.
- ``NIC 0: IB: Bytes sent [bytes/ms]``: a rate. ``[B/s]`` and ``[bytes/s]`` are taken as well, other units are not.

A sample stands for the time since the one before it. NVIDIA notes that links that are down may read as 100 percent: a
GPU whose links read full in every sample of a recording is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from perfscope.model.intervals import Int64, Intervals, covered, union
from perfscope.model.trace import MISSING, Trace

_NVLINK = re.compile(r"GPU (\d{1,4}): NVLink (RX|TX) (.+? Data|Throughput|Bandwidth)(?: \[(.*)\])?")
_CARD = re.compile(r"NIC (\d{1,4}): (?:IB|RoCE): Bytes (sent|received) \[(.*)\]")
_RATES = {"bytes/ms": 1e3, "B/ms": 1e3, "bytes/s": 1.0, "B/s": 1.0}
"""Bytes/s of one of that unit."""

GAP = 2.0
"""Times the usual distance of two samples: after a longer one samples were lost, and only the usual one is covered."""

FULL = 1.0
"""Of the peak. Counters are rounded each for itself, so their sum may pass it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of one link in order of time; each is the mean of ``[start, end)``. Shapes (n,)."""

    starts_ns: Int64
    ends_ns: Int64
    values: npt.NDArray[np.float64]
    """Of NVLink the fuller direction, as a share of the peak; of a network card bytes/s that it sent."""

    def within(self, start_ns: int, end_ns: int) -> tuple[Int64, npt.NDArray[np.float64]]:
        """(ns of each sample inside the interval, its value), of those that reach into it."""
        first = int(np.searchsorted(self.ends_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.starts_ns, end_ns, side="left"))
        inside = np.minimum(self.ends_ns[first:last], end_ns) - np.maximum(self.starts_ns[first:last], start_ns)
        return inside, self.values[first:last]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """Samples that lie beside communication kernels."""

    nvlink: Mapping[int, Samples]
    """By the device's number."""
    cards: tuple[Samples, ...]
    """The network cards of the machine."""


def link_counters(trace: Trace) -> LinkCounters:
    """The counters of links of a trace; empty where none were recorded."""
    counters = trace.rows["counters"]
    kernels = trace.rows["kernels"]
    talking = kernels["communication"] if len(kernels) else np.empty(0, bool)
    spans = union(kernels["start_ns"][talking], kernels["end_ns"][talking])
    nvlink: dict[tuple[int, str], list[Int64]] = defaultdict(list)
    sent: dict[int, list[tuple[Int64, float]]] = defaultdict(list)
    for code in np.unique(counters["name"]).tolist() if len(counters) else ():
        name = trace.text(code)
        if (found := _NVLINK.fullmatch(name)) and found[4] in (None, "Throughput %"):
            nvlink[int(found[1]), found[2]].append(np.flatnonzero(counters["name"] == code))
        elif (found := _CARD.fullmatch(name)) and found[2] == "sent" and found[3] in _RATES:
            sent[int(found[1])].append((np.flatnonzero(counters["name"] == code), _RATES[found[3]]))
    times, values = counters["time_ns"], counters["value"]
    gpus = {}
    for gpu in sorted({gpu for gpu, _ in nvlink}):
        sides = [_summed(times, values / 100, rows) for (one, _), parts in nvlink.items()
                 if one == gpu for rows in [np.concatenate(parts)]]  # fmt: skip
        moments = np.unique(np.concatenate([moment for moment, _ in sides]))
        share = np.zeros(len(moments))
        for moment, value in sides:
            at = np.searchsorted(moments, moment)
            share[at] = np.maximum(share[at], value)
        if len(moments) and share.min() < FULL:
            gpus[gpu] = _beside(moments, np.minimum(share, FULL), spans)
    cards = []
    for parts in sent.values():
        rows = np.concatenate([found for found, _ in parts])
        scale = np.concatenate([np.full(len(found), by) for found, by in parts])
        moment, rate = _summed(times[rows], values[rows] * scale, np.arange(len(rows)))
        cards.append(_beside(moment, rate, spans))
    return LinkCounters(nvlink=gpus, cards=tuple(cards))


def _summed(times: Int64, values: npt.NDArray[np.float64], rows: Int64) -> tuple[Int64, npt.NDArray[np.float64]]:
    """Values of the rows of one moment, added."""
    moments, inverse = np.unique(times[rows], return_inverse=True)
    added = np.bincount(inverse.reshape(-1), weights=values[rows], minlength=len(moments))
    return moments, added.astype(np.float64)


def _beside(moments: Int64, values: npt.NDArray[np.float64], spans: Intervals) -> Samples:
    """Samples with the time they stand for, those that lie beside ``spans``."""
    if len(moments) < 2:  # one moment: what it stands for is not known
        return Samples(starts_ns=moments[:0], ends_ns=moments[:0], values=values[:0])
    apart = np.diff(moments)
    usual = int(np.median(apart))
    lasting = np.concatenate(([usual], np.where(apart > GAP * usual, usual, apart)))
    starts = moments - lasting
    kept = covered(spans, starts, moments) > 0
    return Samples(starts_ns=starts[kept], ends_ns=moments[kept], values=values[kept])


# How full links were while a collective ran.


Verdict = Literal["saturated", "idle", "partly"]

SATURATED = 0.8
"""Of the peak, mean: applications reach about 80% of raw NVLink (nccl#1054); there is no more to get."""

IDLE = 0.05
"""Of the peak: a sample below it is of links that carry nothing worth the name (counters are whole percents, and
ranks that wait poll flags over the links)."""

LINK_USE_MOSTLY = 0.5
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
        return "idle" if self.idle >= LINK_USE_MOSTLY else "partly"


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
