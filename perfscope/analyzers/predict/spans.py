"""A stretch of modelled time as a range, and what a step is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Integer ns between the vendor's peaks and what kernels usually reach. ``low <= high``."""

    low: int
    """Nothing is faster: every peak reached, no time to launch but the shortest a kernel takes."""
    high: int
    """With the assumed shares of the peaks and the assumed overheads. No limit: a bad kernel is slower."""

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, count: int) -> Range:
        """The time of ``count`` runs."""
        return Range(low=self.low * count, high=self.high * count)

    @property
    def middle(self) -> int:
        """Geometric mean: what a range of a factor is sorted and shown by. 0 if either end is."""
        return round(math.sqrt(self.low) * math.sqrt(self.high))


NO_TIME = Range(low=0, high=0)


def ns_range(low: float, high: float) -> Range:
    """A range of whole ns around two times: the low end rounded down, the high end up and never below the low."""
    bottom = max(0, math.floor(low))
    return Range(low=bottom, high=max(bottom, math.ceil(high)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a stretch of time is made of, in ns. They add up to it exactly."""

    compute: int = 0
    """A kernel of the program's own stream ran, whatever else did."""
    communication: int = 0
    """Nothing but collectives ran: exposed."""
    copies: int = 0
    """Nothing but copies between memories ran."""
    gaps: int = 0
    """Nothing ran: launches, and waiting for the host."""

    @property
    def total(self) -> int:
        """The stretch."""
        return self.compute + self.communication + self.copies + self.gaps

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            compute=self.compute + other.compute,
            communication=self.communication + other.communication,
            copies=self.copies + other.copies,
            gaps=self.gaps + other.gaps,
        )

    def times(self, count: int) -> Parts:
        """The parts of ``count`` runs."""
        return Parts(
            compute=self.compute * count,
            communication=self.communication * count,
            copies=self.copies * count,
            gaps=self.gaps * count,
        )
