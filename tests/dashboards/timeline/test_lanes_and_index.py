"""Lanes hold every event once and never two at a time; the index agrees with counting one by one."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers.load import load
from perfscope.dashboards.timeline.index import Index, build, names_by_time, save
from perfscope.dashboards.timeline.index import load as load_index
from perfscope.dashboards.timeline.lanes import Events, Lane, events_of
from perfscope.dashboards.timeline.palette import Category
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files


def _events(lanes: list[list[tuple[int, int, int]]]) -> Events:
    """Lanes of (start, end, category), in order."""
    rows = [(at, *event) for at, lane in enumerate(lanes) for event in lane]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return Events(
        lanes=tuple(Lane(group="g", label=str(at), depth=0) for at in range(len(lanes))),
        lane=columns[0].astype(np.int32),
        start=columns[1],
        end=columns[2],
        name=np.arange(len(rows), dtype=np.int32) % 3,
        category=columns[3].astype(np.uint8),
        table=np.ones(len(rows), np.uint8),
        row=np.arange(len(rows), dtype=np.int32),
    )


@st.composite
def _lane(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Events that do not overlap; some take no time."""
    at, found = draw(st.integers(-1000, 1000)), []
    for gap, length, category in draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**20), st.integers(0, 15)), max_size=30)
    ):
        at += gap
        found.append((at, at + length, category))
        at += length
    return found


@settings(deadline=None, max_examples=80)
@given(
    st.lists(_lane(), min_size=1, max_size=4),
    st.lists(st.integers(-2000, 2**22), min_size=2, max_size=12, unique=True),
    st.integers(1, 2**12),
)
def test_the_index_agrees_with_counting(lanes: list[list[tuple[int, int, int]]], edges: list[int], least: int) -> None:
    index, cuts = build(_events(lanes)), np.array(sorted(edges), np.int64)
    for lane, events in enumerate(lanes):
        kinds, found = index.busy(lane, cuts)
        busy = np.zeros((16, len(cuts) - 1), np.int64)
        busy[kinds] = found
        points = index.instants(lane, int(cuts[0]), int(cuts[-1]))
        first = index.of_lane(lane).start
        assert points.tolist() == [
            first + at for at, (start, end, _) in enumerate(events) if start == end and cuts[0] <= start < cuts[-1]
        ]
        for pixel, (low, high) in enumerate(itertools.pairwise(cuts.tolist())):
            for category in range(16):
                wanted = sum(max(0, min(end, high) - max(start, low)) for start, end, of in events if of == category)
                assert busy[category, pixel] == wanted
        wide = index.wide(lane, int(cuts[0]), int(cuts[-1]), least)
        wanted_rows = [
            index.of_lane(lane).start + at
            for at, (start, end, _) in enumerate(events)
            if end - start >= least and end > cuts[0] and start < cuts[-1]
        ]
        assert wide.tolist() == wanted_rows


def _trace() -> Trace:
    made = TraceBuilder()
    made.step(3, 0, 100)
    made.python("train.py(3): step", 0, 95)
    made.op("aten::mm", 1, 20)
    made.op("aten::add", 25, 40)
    made.launched("gemm", 5, 30, 50, correlation=1)
    made.launched("add_kernel", 28, 45, 60, correlation=2)  # beside the first, on the same stream
    made.copy("Memcpy HtoD", 70, 80, size=4096)
    made.kernel("ncclDevKernel_AllReduce", 61, 69, communication=True, stream=9)
    return made.build()


def test_every_event_has_one_place() -> None:
    trace = _trace()
    found = events_of(trace)
    rows = {"steps": 1, "kernels": 3, "copies": 1, "slices": 3, "calls": 2}
    assert len(found) == sum(rows.values())
    assert {(int(table), int(row)) for table, row in zip(found.table, found.row, strict=True)} == {
        (["steps", "kernels", "copies", "hlo_ops", "slices"].index(name) if name != "calls" else 5, row)
        for name, count in rows.items()
        for row in range(count)
    }
    assert [(lane.group, lane.label, lane.depth) for lane in found.lanes] == [
        ("", "steps", 0),
        ("Test GPU (0)", "stream 7", 0),
        ("Test GPU (0)", "stream 7", 1),
        ("Test GPU (0)", "stream 9", 0),
        ("host, process 1", "thread 1", 0),
        ("host, process 1", "thread 1", 1),
        ("host, process 1", "thread 1, Python", 0),
    ]


def test_kernels_side_by_side_on_a_stream_are_both_seen() -> None:
    trace = _trace()
    found = events_of(trace)
    of = {trace.text(int(name)): int(lane) for name, lane in zip(found.name, found.lane, strict=True)}
    assert of["gemm"] != of["add_kernel"]
    categories = {
        trace.text(int(name)): Category(int(one)) for name, one in zip(found.name, found.category, strict=True)
    }
    assert categories["gemm"] == Category.MATRIX
    assert categories["ncclDevKernel_AllReduce"] == Category.COLLECTIVE
    assert categories["Memcpy HtoD"] == Category.COPY


def _check(trace: Trace, index: Index) -> None:
    own = ("steps", "kernels", "copies", "slices", "calls")
    others = int((index.table == 3).sum()) + int((index.table == 6).sum())
    assert len(index) - others == sum(len(trace.rows[name]) for name in own)
    for lane in range(len(index.lanes)):
        held = index.of_lane(lane)
        assert (index.start[held][1:] >= index.end[held][:-1]).all(), index.lanes[lane]
    for number, name in ((1, "kernels"), (2, "copies")):
        mine = index.table == number
        told = int((index.end[mine] - index.start[mine]).sum())
        assert told == int((trace.rows[name]["end_ns"] - trace.rows[name]["start_ns"]).sum())


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path", [path for kind in ("kineto", "xplane") for path in corpus_files(kind)[:6]], ids=lambda path: path.name[:40]
)
def test_real_traces_lose_nothing(path: Path) -> None:
    if path.stat().st_size > 8 << 20:
        pytest.skip("larger ones are the benchmark's")
    try:
        traces = load(path)
    except DataError as error:
        pytest.skip(str(error))
    for trace in traces:
        _check(trace, build(events_of(trace)))


def test_an_index_comes_back_from_the_disk(tmp_path: Path) -> None:
    index = build(events_of(_trace()))
    save(index, tmp_path)
    back = load_index(tmp_path)
    assert back.lanes == index.lanes
    assert back.start.tolist() == index.start.tolist()
    assert back.by_class.tolist() == index.by_class.tolist()
    assert list(names_by_time(back)) == list(names_by_time(index))


def test_without_events_there_is_an_index_too(tmp_path: Path) -> None:
    index = build(events_of(TraceBuilder().build()))
    save(index, tmp_path)
    assert load_index(tmp_path).span() == (0, 0)


def test_a_damaged_index_is_one_line(tmp_path: Path) -> None:
    save(build(events_of(_trace())), tmp_path)
    (tmp_path / "start.npy").write_bytes(b"\x93NUMPY broken")
    with pytest.raises(DataError, match="no timeline is kept here"):
        load_index(tmp_path)
