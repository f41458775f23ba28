"""Sweeps of the native library equal those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers import columns
from perfscope.model import intervals
from perfscope.native import sweep
from tests.native.twins import needs_library

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 12)), max_size=40)


@needs_library
@given(SPANS)
def test_parents(drawn: list[tuple[int, int, int]]) -> None:
    thread, start, length = np.array(drawn, np.int64).reshape(-1, 3).T
    end = start + length
    order = columns.nesting_order(thread, start, end)
    thread, start, end = thread[order].astype(np.int32), start[order], end[order]
    with pytest.MonkeyPatch.context() as without:
        without.setattr(columns, "native_library", lambda: None)
        plain = columns.parents(thread, start, end)
    found = sweep.parents(thread, start, end)
    assert (found.dtype, found.tolist()) == (plain.dtype, plain.tolist())


@needs_library
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=60))
def test_distinct(values: list[int]) -> None:
    array = np.array(values, np.int64)
    found = intervals.distinct(array)
    with pytest.MonkeyPatch.context() as without:
        without.setattr(intervals, "native_library", lambda: None)
        plain = intervals.distinct(array)
    assert (found.dtype, found.tolist()) == (plain.dtype, plain.tolist()) == (np.int64, sorted(set(values)))
    assert array.tolist() == values
