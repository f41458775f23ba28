"""Launches as they are: steps that resemble their neighbours, launches that differ, a machine that drifts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.compare.statistics.estimators import location
from perfscope.analyzers.compare.statistics.warm_up import steady_part


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Spreads and changes are relative. ``walk``: of a random walk over the comparison; ``slope``: from end to end."""

    steps: int = 60
    spread: float = 0.03
    correlation: float = 0.0
    launch: float = 0.0
    walk: float = 0.0
    slope: float = 0.0
    outliers: float = 0.02
    warmup: int = 6


IID = World()
AR = World(correlation=0.7)
LAUNCH = World(correlation=0.7, launch=0.01)
WALK = World(correlation=0.8, launch=0.01, walk=0.02)
SLOPE = World(correlation=0.9, launch=0.01, slope=0.03)
WORLDS = {"iid": IID, "AR .7": AR, "+ launch 1%": LAUNCH, "+ walk 2%": WALK, "AR .9, slope 3%": SLOPE}


def launches(world: World, count: int, rng: np.random.Generator) -> np.ndarray:
    """Step times of ``count`` launches one after the other, shape (count, steps), around 1."""
    innovations = rng.standard_normal((count, world.steps)) * np.sqrt(1 - world.correlation**2)
    noise = np.empty_like(innovations)
    noise[:, 0] = rng.standard_normal(count)
    for step in range(1, world.steps):
        noise[:, step] = world.correlation * noise[:, step - 1] + innovations[:, step]
    logs = world.spread * noise
    logs += world.launch * rng.standard_normal((count, 1))
    logs += (world.walk / np.sqrt(count) * rng.standard_normal(count).cumsum())[:, None]
    logs += (world.slope * np.arange(count) / count)[:, None]
    times = np.exp(logs)
    times[rng.random(times.shape) < world.outliers] *= 1.5
    times[:, : world.warmup] *= 1 + 2 * np.exp(-np.arange(world.warmup))
    return np.asarray(times)


def arms(
    world: World, pairs: int, change: float, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Interleaved pairs in random order: step times of base and head, and which of a pair ran second (head: True)."""
    both = launches(world, 2 * pairs, rng)
    second = rng.random(pairs) < 0.5
    base = [both[2 * pair + (0 if second[pair] else 1)] for pair in range(pairs)]
    head = [both[2 * pair + (1 if second[pair] else 0)] * (1 + change) for pair in range(pairs)]
    return base, head, second


def level(times: np.ndarray, estimator: str = "median") -> float:
    """The level of a launch."""
    part = steady_part(times.tolist())
    assert part.problem is None
    found = location(times[part.dropped :], estimator)
    assert found is not None
    return found
