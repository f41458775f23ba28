"""The end of a launch's warm-up by MSER-5, and launches that never reach a steady state.

White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69 (1997): of all
truncations, take the one with the least standard error of the mean of batches of five.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

BATCH = 5
"""Steps per batch, as in MSER-5, so that a single odd step decides nothing."""

LEAST_BATCHES = 4
"""Smallest number of batches; with fewer than twenty values the end of a warm-up is unknown, and the floor is dropped.
"""

FLOOR = 3
"""Number of values that are always dropped: allocator pools and caches fill in the first steps."""

WARMUP_UNSTEADY = 0.10
"""Fall of the level within the kept values at which a launch is still warming up. Halves of thirty steps that resemble
their neighbours differ by 5%; compilation or an autotuner multiplies the first steps.
"""


class Steady(Struct, frozen=True, kw_only=True):
    """The steady part of a launch: ``times[dropped:]``. ``problem``: the reason for its absence, or ``None``."""

    dropped: int
    kept: int
    problem: str | None = None


def steady_part(times: Sequence[float], *, floor: int = FLOOR) -> Steady:
    """Return the steady part of a launch.

    ``times``: per step, in order, any unit. ``floor``: values that are always dropped (at most a quarter of all). A
    launch is rejected if the best truncation is the last allowed one, half of the values, and the times still fall
    after it.
    """
    values = np.asarray(times, float)
    if not values.size:
        return Steady(dropped=0, kept=0, problem="no step was timed")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        return Steady(dropped=0, kept=0, problem="a step's time is not a positive number")
    least = min(floor, values.size // 4)
    batches = values.size // BATCH
    if batches < LEAST_BATCHES:
        return Steady(dropped=least, kept=values.size - least)
    cut = truncation(values[: batches * BATCH].reshape(batches, BATCH).mean(axis=1))
    dropped = max(least, cut * BATCH)
    if cut == batches // 2 and (fall := _fall(values[dropped:])) > WARMUP_UNSTEADY:
        return Steady(
            dropped=dropped,
            kept=0,
            problem=f"no steady state in {values.size} timed steps: the last quarter is still {fall:.0%} "
            "faster than the one before; run more steps",
        )
    return Steady(dropped=dropped, kept=values.size - dropped)


def truncation(batches: np.ndarray) -> int:
    """Return how many batch means to drop: argmin over d <= n/2 of sum_{i>d} (z_i - mean)^2 / (n - d)^2."""
    count = batches.size
    centred = batches - batches.mean()  # Sums of squares of large numbers would lose precision.
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred * centred)[::-1])[::-1]
    candidates = np.arange(count // 2 + 1)
    kept = count - candidates
    spread = np.maximum(squares[candidates] - sums[candidates] ** 2 / kept, 0.0)
    return int(np.argmin(spread / kept**2))


def _fall(values: np.ndarray) -> float:
    """Return the relative fall of the level from the first half to the second."""
    middle = values.size // 2
    first, second = float(np.median(values[:middle])), float(np.median(values[middle:]))
    return 1 - second / first
