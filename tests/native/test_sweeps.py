"""Sweeps of the native library equal those of numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.critical_path import (
    critical_path,
    dependency_graph,
    lane,
    path_rows,
    replay,
    unchanged,
)
from perfscope.analyzers.critical_path.replay import replayed_path
from perfscope.analyzers.readers import columns
from perfscope.analyzers.readers.kineto import reader
from perfscope.analyzers.readers.xspace import spans
from perfscope.analyzers.spans import nearest_ancestor, outermost_ancestor
from perfscope.model import intervals
from perfscope.model.intervals import Int64
from perfscope.model.trace import SliceKind, Trace
from perfscope.native import sweep
from perfscope.native.xspace import Spans
from tests.build import TraceBuilder
from tests.conftest import corpus_files, every_file
from tests.critical_path.machine import OPS, Op, run
from tests.native.twins import needs_library, without_library

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


LANE = ("bounds", "thread", "slice", "call")
HOST = st.lists(
    st.tuples(
        st.sampled_from([SliceKind.OP, SliceKind.PYTHON, None]),  # None: a call
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=30,
)
"""Kind, thread, begin and length of spans and calls."""


def host_of(drawn: list[tuple[SliceKind | None, int, int, int]]) -> Trace:
    builder = TraceBuilder()
    for kind, thread, start, length in drawn:
        if kind is None:
            builder.call("cudaLaunchKernel", start, start + length, tid=thread)
        else:
            builder.slice("span", start, start + length, kind=kind, tid=thread)
    return builder.build()


@needs_library
@given(HOST, st.lists(st.integers(-5_000, 45_000), max_size=8), st.integers(-5_000, 30_000), st.integers(0, 40_000))
def test_host_lane(drawn: list[tuple[SliceKind | None, int, int, int]], cuts: list[int], low: int, length: int) -> None:
    trace = host_of(drawn)
    found = lane.host_lane(trace, low, low + length, np.array(cuts, np.int64))
    with without_library():
        plain = lane.host_lane(host_of(drawn), low, low + length, np.array(cuts, np.int64))
    for name in LANE:
        one, other = getattr(found, name), getattr(plain, name)
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist()), name


@pytest.mark.corpus
@needs_library
@pytest.mark.parametrize("path", every_file(corpus_files("kineto", "*.json.gz")), ids=lambda path: path.name)
def test_the_lanes_of_the_corpus(path: Path) -> None:
    trace = reader.read(path)
    if not len(trace.rows["slices"]):
        pytest.skip("the recording has no host spans")
    whole = (int(trace.rows["slices"]["start_ns"].min()), int(trace.rows["slices"]["end_ns"].max()))
    cuts = trace.rows["kernels"]["start_ns"][:50].astype(np.int64)
    found = lane.host_lane(trace, *whole, cuts)
    with without_library():
        plain = lane.host_lane(trace, *whole, cuts)
    for name in LANE:
        assert (getattr(found, name) == getattr(plain, name)).all(), name


@needs_library
@given(OPS, st.integers(0, 2**16))
def test_replay(ops: list[Op], seed: int) -> None:
    graph = dependency_graph(run(ops)[0])
    assert graph is not None
    change, drawn = unchanged(graph), np.random.default_rng(seed)
    change.durations[:] = drawn.integers(0, 50, len(graph))
    change.lag[:] = drawn.integers(-20, 20, graph.lag.shape)
    change.before[:, drawn.random(len(graph)) < 0.2] = -1
    with without_library():
        plain = replay(graph, change)
    found = replay(graph, change)
    assert (found.dtype, found.tolist()) == (plain.dtype, plain.tolist())


@needs_library
@pytest.mark.parametrize("ancestor", [nearest_ancestor, outermost_ancestor])
@given(SPANS, st.integers(0, 2**16))
def test_ancestors(
    ancestor: Callable[[Trace, Int64, np.ndarray], Int64], drawn: list[tuple[int, int, int]], seed: int
) -> None:
    trace = host_of([(SliceKind.OP, thread, start + 20, length) for thread, start, length in drawn])
    size, numbers = len(drawn), np.random.default_rng(seed)
    wanted, rows = numbers.random(size) < 0.3, numbers.integers(-1, size, 50) if size else np.full(3, -1)
    with without_library():
        plain = ancestor(trace, rows, wanted)
    found = ancestor(trace, rows, wanted)
    assert (found.dtype, found.tolist()) == (plain.dtype, plain.tolist())


def set_of(drawn: list[tuple[int, int, int]]) -> intervals.Intervals:
    numbers = np.array(drawn, np.int64).reshape(-1, 3)
    return intervals.union(numbers[:, 1], numbers[:, 1] + numbers[:, 2])


@needs_library
@given(SPANS, SPANS)
def test_sets_of_intervals(first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]) -> None:
    with without_library():
        one, other = set_of(first), set_of(second)
        plain = [one, intervals.intersection(one, other), intervals.difference(one, other)]
    found = [set_of(first), intervals.intersection(one, other), intervals.difference(one, other)]
    assert [[column.tolist() for column in each] for each in found] == [
        [column.tolist() for column in each] for each in plain
    ]


@needs_library
@given(SPANS, SPANS)
def test_covered(busy: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    starts, lengths = np.array(asked, np.int64).reshape(-1, 3)[:, 1:].T
    with without_library():
        held = set_of(busy)
        plain = intervals.covered(held, starts, starts + lengths)
    found = intervals.covered(held, starts, starts + lengths)
    assert (found.dtype, found.tolist()) == (plain.dtype, plain.tolist())


@needs_library
@given(OPS, st.sampled_from([0, 20]), st.integers(0, 2**16))
def test_paths(ops: list[Op], stall: int, seed: int) -> None:
    trace = run(ops, stall=stall)[0]
    with without_library():
        path, plain_rows = critical_path(trace), path_rows(trace)
    assert path is not None
    change, drawn, last = unchanged(path.graph), np.random.default_rng(seed), int(path.graph.finish[0])
    change.lag[:] += drawn.integers(-9_000, 9_000, change.lag.shape)
    change.before[:, drawn.random(len(path.graph)) < 0.2] = -1
    ends = replay(path.graph, change)
    with without_library():
        plain = replayed_path(path.graph, change, ends, last)
    found = replayed_path(path.graph, change, ends, last)
    assert [column.tolist() for column in found] == [column.tolist() for column in plain]
    assert path_rows(trace) == plain_rows
