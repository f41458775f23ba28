"""The nodes of a job: which ones train slower than the others, and how often."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from perfscope.plugins.job.causes import CAUSES, KEPT, Cause
from perfscope.plugins.job.rank import RankAccount
from perfscope.plugins.job.timeline import Timeline

SLOW = 0.05
"""Smallest excess over the median of the other nodes that counts as slow: bins on shared machines differ by some per
cent."""
LEAST_BINS = 3
"""Bins that must be slow for a node that is slow again and again."""
_TRAINING = tuple(CAUSES.index(cause) for cause in ("training steps", "lost work"))


class Node(Struct, frozen=True, kw_only=True):
    """A host of a job."""

    host: str
    ranks: int
    kept_share: float
    """Share of its ranks' time in which they trained what the job kept."""
    step_ns: float | None
    """Median over bins of its mean training time per step, without waits for other ranks; ``None`` without steps."""
    excess: float | None
    """Median of its excess over the median of the other nodes, relative; ``None`` without other nodes."""
    slow_bins: int
    """Bins of the job's time in which the excess was 5 % or more."""
    bins: int
    """Bins that were compared."""
    killed: int
    stalled: int
    lost_ns: int

    @property
    def slow_again(self) -> bool:
        """Whether it is slow in most of the compared bins, and in three or more."""
        return self.slow_bins >= LEAST_BINS and 2 * self.slow_bins > self.bins


class _Course(NamedTuple):
    host: str
    width_ns: int
    steps: dict[int, tuple[int, int]]
    """Bin -> (training time in ns, steps)."""


class Courses:
    """Training of each rank over time, and sums by host."""

    def __init__(self) -> None:
        """No rank yet."""
        self._courses: list[_Course] = []
        self._totals: dict[str, Counter[Cause]] = defaultdict(Counter)
        self._events: Counter[tuple[str, str]] = Counter()
        self._lost: Counter[str] = Counter()

    def add(self, rank: RankAccount, timeline: Timeline) -> None:
        """Add a rank; it belongs to the host of its last process."""
        host = rank.attempts[-1].host
        trained = {at: (sum(row[column] for column in _TRAINING), row[-1]) for at, row in timeline.rows.items()}
        steps = {at: (ns, steps) for at, (ns, steps) in trained.items() if ns and steps}
        self._courses.append(_Course(host, timeline.width_ns, steps))
        self._totals[host].update(rank.totals)
        for event in rank.events:
            self._events[host, event.kind] += 1
        for attempt in rank.attempts:
            self._lost[host] += attempt.lost_ns

    def nodes(self) -> tuple[Node, ...]:
        """The hosts, slowest first."""
        by_bin = self._by_bin()
        times: dict[str, list[float]] = defaultdict(list)
        excesses: dict[str, list[float]] = defaultdict(list)
        for hosts in by_bin.values():
            for host, step_ns in hosts.items():
                times[host].append(step_ns)
            for host, excess in _excesses(hosts).items():
                excesses[host].append(excess)
        found = [self._node(host, times[host], excesses[host]) for host in self._totals]
        return tuple(sorted(found, key=lambda node: (-node.slow_bins, -(node.excess or 0.0), node.host)))

    def _by_bin(self) -> dict[int, dict[str, float]]:
        """Mean training time per step of each host by bin."""
        width = max((course.width_ns for course in self._courses), default=1)
        sums: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        for course in self._courses:
            for at, (ns, steps) in course.steps.items():
                held = sums[at * course.width_ns // width][course.host]
                held[0] += ns
                held[1] += steps
        return {at: {host: ns / steps for host, (ns, steps) in hosts.items()} for at, hosts in sums.items()}

    def _node(self, host: str, times: list[float], excesses: list[float]) -> Node:
        totals = self._totals[host]
        whole = totals.total()
        return Node(
            host=host,
            ranks=sum(course.host == host for course in self._courses),
            kept_share=sum(totals[cause] for cause in KEPT) / whole if whole else 0.0,
            step_ns=median(times) if times else None,
            excess=median(excesses) if excesses else None,
            slow_bins=sum(excess >= SLOW for excess in excesses),
            bins=len(excesses),
            killed=self._events[host, "killed"],
            stalled=self._events[host, "stalled"],
            lost_ns=self._lost[host],
        )


def _excesses(hosts: dict[str, float]) -> dict[str, float]:
    """Excess of each host over the median of the other hosts; empty for a host alone."""
    if len(hosts) < 2:
        return {}
    ordered = sorted(hosts.values())
    return {host: step_ns / _median_without(ordered, step_ns) - 1 for host, step_ns in hosts.items()}


def _median_without(ordered: list[float], value: float) -> float:
    at = ordered.index(value)
    return median([*ordered[:at], *ordered[at + 1 :]])
