"""What happened to the machine meanwhile: the base against itself over time, the place in a pair, throttling.

Pairs take a drift out of the effect (docs/compare.md has the simulation), so a drift is told and does not void the
verdict. What strikes one arm only does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.compare.statistics.paired import effect_of
from perfscope.analyzers.compare.statistics.verdict import STEP_LEAST

LEVEL = 0.001
"""Of the sentinels: they are asked of every comparison, and an alarm must mean something."""
LEAST_LAUNCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the launches of the base differ among themselves, first to last."""

    change: float
    """Level of the last third against the first, relative."""
    spread: float
    """Standard deviation between neighbours, as a log ratio."""
    moved: bool
    """Whether the change is more than neighbours differ by, and matters."""

    def remark(self) -> str | None:
        """For the reader of a result; ``None`` if nothing moved."""
        if not self.moved:
            return None
        return (
            f"environment changed: the base itself moved by {self.change:+.1%} from the first third of the comparison "
            "to the last; pairs take that out, but times are not those of a quiet machine"
        )


def drift_of(base: Sequence[float], *, least: float = STEP_LEAST) -> Drift | None:
    """From one number for each launch of the base, in the order they ran; ``None`` with too few of them.

    The thirds' medians differ by more than ``least`` and by four times what the spread between neighbours, which a
    slow drift leaves alone, lets thirds differ.
    """
    if len(base) < LEAST_LAUNCHES:
        return None
    logs = np.log(np.asarray(base, float))
    third = len(base) // 3
    change = float(np.median(logs[-third:]) - np.median(logs[:third]))
    spread = float(np.sqrt(np.mean(np.diff(logs) ** 2) / 2))
    # The median of n normal values has 1.25 times the standard error of their mean.
    error = 1.2533 * spread * math.sqrt(2 / third)
    moved = abs(change) > math.log1p(least) and abs(change) > 4 * error
    return Drift(change=math.expm1(change), spread=spread, moved=moved)


def order_remark(first: Sequence[float], second: Sequence[float]) -> str | None:
    """Whether the launch that ran second in its pair differs from the one before it, whichever arm it was.

    The order is random, so it cancels out of the effect; it widens the interval all the same.
    """
    if len(first) < LEAST_LAUNCHES:
        return None
    found = effect_of(np.log(np.asarray(second, float) / np.asarray(first, float)))
    if found.p is None or found.p >= LEVEL:
        return None
    return (
        f"the second launch of a pair takes {found.effect:+.1%}: the one before it leaves the machine different; "
        "the order is random, so the effect is not touched"
    )
