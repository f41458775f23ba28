"""What a saving is a share of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.finding import Finding


class Wholes:
    """What costs are a share of: the mean step of the ranks that pay, else the longest span of their devices."""

    def __init__(self, analysis: Analysis) -> None:
        """Of an analysis' own steps and devices."""
        traced = any(step.traced for step in analysis.steps)
        self._steps: dict[int | None, tuple[int, int]] = {}
        """(summed ns, number) of steps by rank."""
        for step in analysis.steps:
            if step.traced == traced:
                total, number = self._steps.get(step.rank, (0, 0))
                self._steps[step.rank] = (total + step.duration_ns, number + 1)
        self._spans: dict[int | None, int] = {}
        for device in analysis.devices:
            self._spans[device.rank] = max(device.span_ns, self._spans.get(device.rank, 0))

    def of(self, finding: Finding) -> float | None:
        """ns, ``None`` if neither steps nor devices tell."""
        mine = {*finding.ranks, None}
        if finding.cost_ns_per_step is not None:
            sums = [pair for rank, pair in self._steps.items() if not finding.ranks or rank in mine]
            count = sum(number for _, number in sums)
            return sum(total for total, _ in sums) / count if count else None
        spans = [span for rank, span in self._spans.items() if not finding.ranks or rank in mine]
        return max(spans, default=None)
