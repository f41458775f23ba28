"""Where a warm-up ends: known series."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.warmup import steady_part, truncation


def test_the_cut_is_where_a_brute_force_search_finds_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        batches = 1e7 + rng.standard_normal(24) + 8 * np.exp(-np.arange(24) / rng.uniform(0.5, 4))
        scores = [np.sum((batches[d:] - batches[d:].mean()) ** 2) / (24 - d) ** 2 for d in range(13)]
        assert truncation(batches) == int(np.argmin(scores))


def test_a_slow_start_is_cut_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    times = 100 + rng.standard_normal(100)
    times[:20] += 50
    part = steady_part(times.tolist())
    assert 20 <= part.dropped <= 40, "all of it; MSER goes a little farther where that lowers the error"
    assert part.problem is None


def test_without_a_warm_up_little_more_than_the_floor_is_dropped() -> None:
    rng = np.random.default_rng(2)
    dropped = [steady_part((100 + rng.standard_normal(100)).tolist()).dropped for _ in range(100)]
    assert min(dropped) == 3
    assert np.median(dropped) <= 10


def test_one_interrupted_step_is_no_warm_up() -> None:
    times = [100.0] * 60
    times[45] = 150.0
    assert steady_part(times).dropped <= 30
    assert steady_part(times).problem is None


def test_a_launch_that_never_settles_is_rejected() -> None:
    part = steady_part((100 * np.exp(-np.arange(60) / 40)).tolist())
    assert part.kept == 0
    assert part.problem is not None
    assert "no steady state in 60 timed steps" in part.problem


@pytest.mark.parametrize(("count", "dropped"), [(1, 0), (3, 0), (4, 1), (12, 3), (19, 3)])
def test_of_few_steps_the_floor_alone_goes(count: int, dropped: int) -> None:
    assert steady_part([5.0] * count).dropped == dropped
    assert steady_part([5.0] * count).kept == count - dropped


@pytest.mark.parametrize("times", [[], [1.0, 0.0], [1.0, float("nan")], [-1.0], [float("inf")]])
def test_what_is_no_time_is_a_problem(times: list[float]) -> None:
    assert steady_part(times).problem is not None


def test_equal_times_stay() -> None:
    part = steady_part([7.0] * 50)
    assert (part.dropped, part.problem) == (3, None)
