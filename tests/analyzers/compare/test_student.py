"""Student's t against scipy and tables."""

from __future__ import annotations

import math

import pytest

from perfscope.analyzers.compare import student


@pytest.mark.parametrize("freedom", [1, 2, 5, 9, 29, 59, 1000])
@pytest.mark.parametrize("t", [0.0, 0.1, 0.7, 1.96, 3.3, 12.7, 80.0, -2.5])
def test_probabilities_are_those_of_scipy(freedom: int, t: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert student.two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9, abs=1e-300)
    assert student.upper_p(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"), [(0.975, 9, 2.262157), (0.975, 1, 12.706205), (0.95, 5, 2.015048)]
)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert student.quantile(probability, freedom) == pytest.approx(value, abs=1e-6)
    assert student.quantile(1 - probability, freedom) == pytest.approx(-value, abs=1e-6)


def test_the_edges() -> None:
    assert student.two_sided_p(math.inf, 3) == 0
    assert student.two_sided_p(0, 3) == 1
    assert student.quantile(0.5, 3) == 0
    assert student.regularized_beta(-0.1, 1, 1) == 0
    assert student.regularized_beta(1, 1, 1) == 1
    with pytest.raises(ValueError):
        student.two_sided_p(1, 0)
    with pytest.raises(ValueError):
        student.two_sided_p(math.nan, 2)
    with pytest.raises(ValueError):
        student.quantile(1.0, 2)
