"""Sweeps of the native library equal those of numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.critical_path import lane
from perfscope.analyzers.readers import columns
from perfscope.analyzers.readers.kineto import reader
from perfscope.model import intervals
from perfscope.native import sweep
from tests.build import TraceBuilder
from tests.conftest import corpus_files
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


BOUNDS = st.lists(st.integers(-15, 60), max_size=14, unique=True).map(sorted)


@st.composite
def pieces(draw: st.DrawFn) -> lane._Pieces:
    bounds = np.array(draw(BOUNDS), np.int64)
    kept = np.array(draw(st.lists(st.booleans(), min_size=len(bounds), max_size=len(bounds))), bool)[:-1]
    starts, ends = bounds[:-1][kept], bounds[1:][kept]
    rows = st.lists(st.integers(-1, 2), min_size=len(starts), max_size=len(starts))
    of_slices, calls = (np.array(draw(rows), np.int64) for _ in range(2))
    works = np.array(draw(rows), np.int64) > 0
    return lane._Pieces(starts=starts, ends=ends, slice=of_slices, call=calls, works=works)


@needs_library
@given(st.lists(pieces(), max_size=3), BOUNDS, st.integers(-20, 40), st.integers(0, 50))
def test_host_lane(threads: list[lane._Pieces], cuts: list[int], low: int, length: int) -> None:
    trace = TraceBuilder().build()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lane, "main_thread", lambda _: 0 if threads else -1)
        patched.setattr(lane, "helper_threads", lambda _: list(range(len(threads))))
        patched.setattr(lane, "_thread_pieces", lambda _, thread: threads[thread])
        found = lane.host_lane(trace, low, low + length, np.array(cuts, np.int64))
        patched.setattr(lane, "native_library", lambda: None)
        plain = lane.host_lane(trace, low, low + length, np.array(cuts, np.int64))
    for name in ("starts", "ends", "thread", "slice", "call"):
        assert getattr(found, name).tolist() == getattr(plain, name).tolist(), name


@pytest.mark.corpus
@needs_library
@pytest.mark.parametrize("path", corpus_files("kineto", "*.json.gz"), ids=lambda path: path.name)
def test_the_lanes_of_the_corpus(path: Path) -> None:
    trace = reader.read(path)
    if not len(trace.rows["slices"]):
        pytest.skip("the recording has no host spans")
    whole = (int(trace.rows["slices"]["start_ns"].min()), int(trace.rows["slices"]["end_ns"].max()))
    cuts = trace.rows["kernels"]["start_ns"][:50].astype(np.int64)
    found = lane.host_lane(trace, *whole, cuts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lane, "native_library", lambda: None)
        plain = lane.host_lane(trace, *whole, cuts)
    for name in ("starts", "ends", "thread", "slice", "call"):
        assert (getattr(found, name) == getattr(plain, name)).all(), name


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
