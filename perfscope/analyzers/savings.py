"""What a saving is a share of, and how step times spread."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.time import HOST_AHEAD

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.finding import Finding

FEW_STEPS = 10
"""Below it the 10th and 90th percentile are extremes by another name: the range is shown instead."""


SLOW_STEPS = "slow_steps"
"""The rule that says which steps the program itself makes slow."""

SKEWED = 1.25
"""Mean over median: above it the median says too little of what the steps take."""


class Wholes:
    """What costs are a share of: the mean step of the ranks that pay, else the longest span of their devices."""

    def __init__(self, analysis: Analysis) -> None:
        """Of an analysis' own steps and devices."""
        traced = any(step.traced for step in analysis.steps)
        self._steps: dict[int | None, tuple[int, int]] = {}
        """(summed ns, number) of steps by rank."""
        for step in analysis.steps:
            if step.traced == traced and not step.compiled:
                total, number = self._steps.get(step.rank, (0, 0))
                self._steps[step.rank] = (total + step.duration_ns, number + 1)
        self._spans: dict[int | None, int] = {}
        for device in analysis.devices:
            self._spans[device.rank] = max(device.span_ns, self._spans.get(device.rank, 0))
        for account in analysis.accounts:
            self._spans[account.rank] = max(account.whole_ns, self._spans.get(account.rank, 0))

        self._uneven = any(rule == SLOW_STEPS for rule, _ in analysis.findings())
        self._untraced: dict[int | None, list[int]] = {}
        for step in analysis.steps:
            if not step.traced:
                self._untraced.setdefault(step.rank, []).append(step.duration_ns)
        for window in () if self._untraced else analysis.windows:
            if window.steps > 0:
                self._untraced.setdefault(window.rank, []).append(round(window.duration_ns / window.steps))

    def untraced(self, finding: Finding) -> float | None:
        """A step without a profiler of the ranks that pay, in ns; ``None`` where none was timed.

        The median, as single steps may be held up by the machine; the mean where slow ones are the program's own.
        """
        mine = {*finding.ranks, None}
        times = [time for rank, each in self._untraced.items() if not finding.ranks or rank in mine for time in each]
        return (fmean(times) if self._uneven else median(times)) if times else None

    def of(self, finding: Finding) -> float | None:
        """ns, ``None`` if neither steps nor devices tell."""
        mine = {*finding.ranks, None}
        if finding.cost_ns_per_step is not None:
            sums = [pair for rank, pair in self._steps.items() if not finding.ranks or rank in mine]
            count = sum(number for _, number in sums)
            return sum(total for total, _ in sums) / count if count else None
        spans = [span for rank, span in self._spans.items() if not finding.ranks or rank in mine]
        return max(spans, default=None)


class Spread(Struct, frozen=True, kw_only=True):
    """The middle of some durations and how far they spread: the range, or 10th to 90th percentile."""

    count: int
    median_ns: float
    low_ns: float
    high_ns: float
    how: str
    """``'min-max'`` or ``'p10-p90'``."""
    mean_ns: float
    """Where it is far above the median, some of them take far longer than most."""

    @property
    def skewed(self) -> bool:
        """Whether the mean has to be told beside the median."""
        return self.mean_ns >= SKEWED * self.median_ns

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> Spread | None:
        """``None`` if there are no durations."""
        if not durations_ns:
            return None
        low, high, how = float(min(durations_ns)), float(max(durations_ns)), "min-max"
        if len(durations_ns) >= FEW_STEPS:
            deciles = quantiles(durations_ns, n=10, method="inclusive")
            low, high, how = deciles[0], deciles[-1], "p10-p90"
        middle, mean = median(durations_ns), fmean(durations_ns)
        return cls(count=len(durations_ns), median_ns=middle, low_ns=low, high_ns=high, how=how, mean_ns=mean)


def window_mean(analysis: Analysis, host_ns: float | None) -> tuple[float, int] | None:
    """(mean step in ns, steps) with the devices waited for, unless the host's own (``host_ns``) says the same."""
    steps = sum(window.steps for window in analysis.windows)
    if not steps:
        return None
    mean_ns = sum(window.duration_ns for window in analysis.windows) / steps
    return None if host_ns is not None and mean_ns < HOST_AHEAD * host_ns else (mean_ns, steps)
