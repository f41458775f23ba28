"""Rows told apart by numbering each column."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.model.intervals import distinct_rows

INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize(
    ("low", "high", "size"),
    [(-3, 3, 500), (0, 1, 50), (INT64.min, INT64.max, 300), (0, 10, 0), (5, 6, 1)],
    ids=["dense", "one", "far apart", "none", "single"],
)
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_distinct_rows_are_those_of_numpy(low: int, high: int, size: int, columns: int) -> None:
    random = np.random.default_rng(columns)
    table = random.integers(low, high, (size, columns))
    table[size // 2 :] = table[: size - size // 2]
    ours, inverse = distinct_rows(*table.T)
    _, first, places = np.unique(table, axis=0, return_index=True, return_inverse=True)
    assert ours.tolist() == first.tolist()
    assert inverse.tolist() == places.ravel().tolist()


def test_many_columns_do_not_overflow() -> None:
    table = np.random.default_rng(0).integers(0, 2**40, (400, 9))
    table[200:] = table[:200]
    ours, inverse = distinct_rows(*table.T)
    _, first, places = np.unique(table, axis=0, return_index=True, return_inverse=True)
    assert ours.tolist() == first.tolist()
    assert inverse.tolist() == places.ravel().tolist()
