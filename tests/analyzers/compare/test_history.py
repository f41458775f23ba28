"""One run per commit."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.compare.history import change_points, fence


def test_the_fence() -> None:
    rng = np.random.default_rng(0)
    before = (100 * (1 + 0.005 * rng.standard_normal(40))).tolist()
    inside, outside = fence([*before, before[-1] * 1.003]), fence([*before, before[-1] * 1.1])
    assert inside is not None
    assert outside is not None
    assert not inside.outside
    assert outside.outside
    assert outside.change == pytest.approx(0.1)
    assert fence([1.0] * 6) is None, "too short a history"
    still = fence([5.0] * 20)
    assert still is not None
    assert (still.bound, still.outside) == (0.002, False)


def series(*levels: float, count: int = 25, spread: float = 0.01, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return [level * float(np.exp(spread * rng.standard_normal())) for level in levels for _ in range(count)]


def test_steps_are_found_where_they_are() -> None:
    found = change_points(series(100, 105, 95))
    assert [point.index for point in found] == pytest.approx([25, 50], abs=1)
    assert [point.change for point in found] == pytest.approx([0.05, -0.095], abs=0.015)


def test_a_series_without_a_step_has_none() -> None:
    assert np.mean([bool(change_points(series(100, count=100, seed=seed))) for seed in range(60)]) <= 0.03


def test_a_step_that_does_not_matter_is_left_out() -> None:
    small = series(100, 101, count=40, spread=0.003)
    assert change_points(small) == []
    assert len(change_points(small, least=0.005)) == 1


def test_the_cut_is_that_of_the_formula() -> None:
    from perfscope.analyzers.compare.history import LEAST_SEGMENT, _best_cut

    values = np.random.default_rng(3).standard_normal(20)
    values[8:] += 1.5
    distances = np.abs(values[:, None] - values[None, :])

    def statistic(cut: int) -> float:
        m, n = cut, values.size - cut
        across = 2 / (m * n) * distances[:cut, cut:].sum()
        inside = sum(2 / (k * (k - 1)) * np.triu(part, 1).sum() for k, part in
                     ((m, distances[:cut, :cut]), (n, distances[cut:, cut:])))  # fmt: skip
        return float(m * n / (m + n) * (across - inside))

    cuts = range(LEAST_SEGMENT, values.size - LEAST_SEGMENT + 1)
    assert _best_cut(distances) == max(cuts, key=statistic)


def test_short_equal_and_bad_series() -> None:
    assert change_points([]) == []
    assert change_points([1.0] * 7) == []
    assert change_points([2.0] * 50) == []
    assert [point.index for point in change_points([2.0] * 20 + [3.0] * 20)] == [20]
    for bad in ([0.0] * 9, [float("nan")] * 9):
        with pytest.raises(ValueError):
            change_points(bad)
        with pytest.raises(ValueError):
            fence(bad)


def test_of_a_long_series_the_last_points_count_and_keep_their_numbers() -> None:
    long = series(100, 110, count=400)
    assert [point.index for point in change_points(long)] == pytest.approx([400], abs=2)
