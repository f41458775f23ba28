"""Where the warm-up of a launch ends: MSER-5, and launches that never reach a steady state.

White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69 (1997): of all
truncations the one after which the standard error of the mean of batches of five is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BATCH = 5
"""Steps of a batch, as in MSER-5: a single odd step decides nothing."""
LEAST_BATCHES = 4
"""Below twenty values nothing can be said of where a warm-up ends; only the floor is dropped."""
FLOOR = 3
"""Values dropped always: allocator pools and caches fill in the first steps, whatever the times say."""
UNSTEADY = 0.10
"""Fall of the level within what is kept at which a launch is still warming up. Halves of thirty steps that resemble
their neighbours differ by 5% by themselves; compilation or an autotuner makes of the first steps a multiple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The steady part of a launch: ``times[dropped:]``. ``problem``: why there is none, or ``None``."""

    dropped: int
    kept: int
    problem: str | None = None


def steady_part(times: Sequence[float], *, floor: int = FLOOR) -> Steady:
    """Where the steady part of a launch begins.

    ``times``: per step, in order, any unit. ``floor``: values dropped whatever they are (less where there are few:
    never more than a quarter). A launch is rejected if the best truncation is the last one allowed, half of the
    values, and the times still fall behind it.
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
    if cut == batches // 2 and (fall := _fall(values[dropped:])) > UNSTEADY:
        return Steady(
            dropped=dropped,
            kept=0,
            problem=f"no steady state in {values.size} timed steps: the last quarter is still {fall:.0%} "
            "faster than the one before; give it more steps",
        )
    return Steady(dropped=dropped, kept=values.size - dropped)


def truncation(batches: np.ndarray) -> int:
    """How many of the batch means to drop: argmin over d <= n/2 of sum_{i>d} (z_i - mean)^2 / (n - d)^2."""
    count = batches.size
    centred = batches - batches.mean()  # sums of squares of large numbers would lose what is looked for
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred * centred)[::-1])[::-1]
    candidates = np.arange(count // 2 + 1)
    kept = count - candidates
    spread = np.maximum(squares[candidates] - sums[candidates] ** 2 / kept, 0.0)
    return int(np.argmin(spread / kept**2))


def _fall(values: np.ndarray) -> float:
    """By what part of it the level of the first half lies above that of the second."""
    middle = values.size // 2
    first, second = float(np.median(values[:middle])), float(np.median(values[middle:]))
    return 1 - second / first
