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
from perfscope.analyzers.readers.xspace import spans
from perfscope.model import intervals
from perfscope.model.trace import SliceKind
from perfscope.native import sweep
from perfscope.native.xspace import Spans
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


@needs_library
@given(SPANS, SPANS)
def test_innermost(drawn: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    held, wanted = (np.array(rows, np.int64).reshape(-1, 3).T for rows in (drawn, asked))
    order = columns.nesting_order(held[0], held[1], held[1] + held[2])
    thread, start, end = held[0][order].astype(np.int32), held[1][order], (held[1] + held[2])[order]
    asked_of = (wanted[0].astype(np.int32), wanted[1], wanted[1] + wanted[2])
    with pytest.MonkeyPatch.context() as without:
        without.setattr(columns, "native_library", lambda: None)
        parent = columns.parents(thread, start, end)
        plain = columns.innermost(thread, start, end, parent, *asked_of)
    found = sweep.innermost((thread, start, end, parent), *asked_of)
    assert (found.dtype, found.tolist()) == (plain.dtype, plain.tolist())


EVENTS = st.lists(
    st.tuples(
        st.integers(-20, 20), st.integers(0, 12), st.sampled_from([*SliceKind, spans.PERHAPS, spans.DROPPED]),
        st.integers(0, 2),
    ),
    max_size=20,
)  # fmt: skip


@st.composite
def part(draw: st.DrawFn) -> Spans:
    start, length, kind, place = np.array(draw(EVENTS), np.int64).reshape(-1, 4).T
    names = np.array(draw(st.permutations(range(4))), np.int32)[:3]
    return Spans(
        draw(st.integers(0, 3)), start.copy(), start + length, kind.astype(np.uint8), place.astype(np.int32), names,
        names < 2, draw(st.booleans()),
    )  # fmt: skip


@needs_library
@given(st.lists(part(), max_size=5))
def test_nesting(parts: list[Spans]) -> None:
    with pytest.MonkeyPatch.context() as without:
        for module in (columns, spans):
            without.setattr(module, "native_library", lambda: None)
        plain, plain_rows, plain_twice = spans.nest(parts)
    found, rows, twice = spans.nest(parts)
    assert twice == plain_twice
    assert {name: (column.dtype, column.tolist()) for name, column in found.items()} == {
        name: (column.dtype, column.tolist()) for name, column in plain.items()
    }
    first = 0
    for given_part in parts:
        part_rows = slice(first, first := first + len(given_part.kind))
        assert not given_part.wanted or rows[part_rows].tolist() == plain_rows[part_rows].tolist()


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
