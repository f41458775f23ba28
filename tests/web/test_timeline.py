"""Data of an event in the timeline besides its times: partner, line, number, and the clock of its rank."""

from __future__ import annotations

import itertools
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.timeline import answer
from perfscope.dashboards.web.timeline.index import Index, build, names_by_time, save, tile
from perfscope.dashboards.web.timeline.index import load as load_index
from perfscope.dashboards.web.timeline.lanes import Category, Events, Lane, events_of, piece, series_of
from perfscope.dashboards.web.timeline.marks import marks
from perfscope.dashboards.web.views import Gathered, Job, Place, timeline
from perfscope.model.errors import DataError
from perfscope.model.finding import Finding, Outcome, Where
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files
from tests.web.views import view_of


def _made(shift: float = 0.0, rank: int = 0) -> TraceBuilder:
    made = TraceBuilder(rank=rank)
    made.step(7, shift, shift + 100)
    made.python("train.py(12): step", shift, shift + 95)
    made.op("aten::mm", shift + 10, shift + 30)
    made.launched("gemm", shift + 12, shift + 40, shift + 60, correlation=1, blocks=128)
    made.copy("Memcpy HtoD", shift + 70, shift + 80, size=4096)
    return made


def _ask(folder: Path, what: str, **asked: object) -> dict:
    return json.loads(answer.LOOKS[what](folder, {"trace": "0", **{key: str(value) for key, value in asked.items()}}))


def _prepared(tmp_path: Path) -> Path:
    view = view_of("timeline", [_made().build()], tmp_path / "timeline")
    (tmp_path / "timeline.json").write_text(json.dumps({"view": view}))
    return tmp_path


def _event(folder: Path, text: str) -> dict:
    names = {name: code for code, name, *_ in _ask(folder, "names")}
    first = _ask(folder, "matches", names=names[text], t0=-(2**50))["first"]
    return _ask(folder, "event", event=first["event"])


def test_a_kernel_knows_its_launch_its_line_and_its_blocks(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    kernel = _event(folder, "gemm")
    assert (kernel["start"], kernel["ns"]) == ("40000", 20_000)
    assert kernel["partner"]["text"] == "cudaLaunchKernel"
    assert kernel["number"] == 128
    assert kernel["site"]["label"].startswith("train.py:12")
    assert kernel["group"] == "Test GPU (0)"


def test_a_launch_knows_its_kernel_and_what_encloses_it(tmp_path: Path) -> None:
    launch = _event(_prepared(tmp_path), "cudaLaunchKernel")
    assert launch["partner"]["text"] == "gemm"
    assert [one["text"] for one in launch["enclosing"]] == ["aten::mm"]


def test_a_piece_is_cut_at_its_edges(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    lanes = len(_ask(folder, "about")["traces"][0]["lanes"])
    found = _ask(folder, "selection", t0=50_000, t1=75_000, lanes=f"0-{lanes - 1}")
    names = {code: name for code, name, *_ in _ask(folder, "names")}
    held = {names[row["name"]]: row["ns"] for row in found["rows"]}
    assert held["gemm"] == 10_000
    assert held["Memcpy HtoD"] == 5_000
    assert held["train.py(12): step"] == 25_000
    assert "aten::mm" not in held
    assert found["ns"] == sum(held.values())


def test_refused_numbers(tmp_path: Path) -> None:
    import pytest

    from perfscope.model.errors import UsageError

    folder = _prepared(tmp_path)
    for asked in (
        {"t0": 5, "t1": 5, "w": 10, "lanes": "0"}, {"t0": 0, "t1": 9, "w": 10**9, "lanes": "0"},
        {"t0": 0, "t1": 9, "w": 10, "lanes": "0-99999999"}, {"t0": "x", "t1": 9, "w": 10, "lanes": "0"},
        {"t0": 0, "t1": 10**40, "w": 10, "lanes": "0"}, {"t0": 0, "t1": 9, "w": 10, "lanes": "-1"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            answer.tile_of(folder, {"trace": "0", **{key: str(value) for key, value in asked.items()}})
    with pytest.raises(UsageError):
        answer.event_of(folder, {"trace": "0", "event": "999"})


def test_tiles_are_of_the_lanes_that_were_asked_for(tmp_path: Path) -> None:
    content = answer.tile_of(_prepared(tmp_path), {"trace": "0", "t0": "0", "t1": "100000", "w": "100", "lanes": "1,0"})
    size = int(np.frombuffer(content, "<u4", 1)[0])
    assert json.loads(content[4 : 4 + size])["lanes"] == [1, 0]


def test_the_nearest_event_of_a_lane_is_found(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    kernel = _event(folder, "gemm")
    first, last = "gemm", "Memcpy HtoD"
    for moment, text in ((-(2**61), first), (50_000, first), (64_000, first), (66_000, last), (2**61, last)):
        assert _ask(folder, "near", lane=kernel["lane"], t=moment)["text"] == text, moment


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


@settings(deadline=None, max_examples=30)
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
    made.launched("add_kernel", 28, 45, 60, correlation=2)  # after the first, on the same stream
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
        traces = load_all(path)
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


def test_a_damaged_index_is_one_line(tmp_path: Path) -> None:
    save(build(events_of(_trace())), tmp_path)
    (tmp_path / "start.npy").write_bytes(b"\x93NUMPY broken")
    with pytest.raises(DataError, match="no timeline is kept here"):
        load_index(tmp_path)


KINDS = {
    "cell_lane": "<u2", "cell_x": "<u2", "cell_width": "<u2", "cell_category": "u1", "cell_level": "u1",
    "box_event": "<u4", "box_low": "<f4", "box_high": "<f4", "box_lane": "<u2", "box_name": "<u4", "box_category": "u1",
}  # fmt: skip


def _parsed(content: bytes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    (size,) = struct.unpack_from("<I", content)
    head = json.loads(content[4 : 4 + size])
    arrays = {}
    for key, kind in KINDS.items():
        offset, length = head["arrays"][key]
        assert (4 + size + offset) % 4 == 0
        arrays[key] = np.frombuffer(content, kind, length, 4 + size + offset).tolist()
    return head, arrays


def _index(*kernels: tuple[float, float]):
    made = TraceBuilder()
    for start, end in kernels:
        made.kernel("gemm", start, end)
    return build(events_of(made.build()))


def test_wide_events_are_boxes_where_they_are() -> None:
    head, found = _parsed(tile(_index((10, 30), (50, 51)), 0, 100_000, 100, [0]))
    assert head["columns"] == 100
    assert found["box_low"] == [10.0]
    assert found["box_high"] == [30.0]
    assert found["box_category"] == [Category.MATRIX]


def test_narrow_events_are_cells_as_full_as_they_are() -> None:
    _, found = _parsed(tile(_index((50, 50.5)), 0, 100_000, 100, [0]))
    assert found["box_low"] == []
    assert (found["cell_x"], found["cell_width"], found["cell_level"]) == ([50], [1], [8])


def test_what_is_cut_reaches_beyond_the_tile() -> None:
    _, found = _parsed(tile(_index((0, 1000)), 400_000, 500_000, 100, [0]))
    assert found["box_low"][0] < 0
    assert found["box_high"][0] > 100
    assert (found["cell_x"], found["cell_width"], found["cell_level"]) == ([0], [100], [16])


def test_an_event_without_duration_is_seen() -> None:
    made = TraceBuilder()
    made.annotation("mark", 42, 42)
    _, found = _parsed(tile(build(events_of(made.build())), 0, 100_000, 100, [0]))
    assert (found["cell_x"], found["cell_level"]) == ([42], [1])


def test_pixels_below_a_nanosecond() -> None:
    """Deeper than the clock: edges coincide, and nothing is divided by zero."""
    _, found = _parsed(tile(_index((0, 1)), 500, 510, 100, [0]))
    assert len(found["box_event"]) == 1


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(-9, 9)), min_size=1, max_size=30),
    st.lists(st.integers(-10, 700), min_size=2, max_size=10, unique=True),
)
def test_no_sample_is_lost(samples: list[tuple[int, int]], cuts: list[int]) -> None:
    times = np.cumsum([gap for gap, _ in samples])
    values = np.array([value for _, value in samples], float)
    edges = np.array(sorted(cuts))
    low, high = piece(times, values, edges)
    for at, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):  # noqa: RUF007
        before = [value for time, value in zip(times, values, strict=True) if time <= begin]
        inside = [value for time, value in zip(times, values, strict=True) if begin < time <= end]
        held = [*before[-1:], *inside]
        if not held:
            assert math.isnan(low[at])
        else:
            assert (low[at], high[at]) == (min(held), max(held))


def test_counters_by_name() -> None:
    made = TraceBuilder()
    for at, value in ((30, 2.0), (10, 1.0), (20, 5.0)):
        made.row("counters", time_ns=at, name=made.code("power W"), value=value)
    made.row("counters", time_ns=5, name=made.code("Total bytes"), value=9.0)
    found = {one.label: one for one in series_of(made.build())}
    assert found["power W"].times.tolist() == [10, 20, 30]
    assert found["power W"].values.tolist() == [1.0, 5.0, 2.0]
    assert found["Total bytes"].unit == "bytes"


@pytest.mark.corpus
def test_memory_in_use_is_a_counter(corpus: Path) -> None:
    (trace,) = load_all(corpus / "kineto" / "TraceLens__h100_bert-small.json.gz")
    memory = next(one for one in series_of(trace) if one.label == "memory of cuda:0")
    assert memory.unit == "bytes"
    device = next(one for one in trace.fact(memory_timelines) if one.label == "cuda:0")
    assert memory.values.max() == device.peak()[1]


CLOCK_US = 5e9
"""Start of recorded clocks: far from zero."""


def stalled(rank: int | None, idle_us: float, clock_us: float = CLOCK_US) -> TraceBuilder:
    """Two kernels with nothing between them while the host is in a checkpoint."""
    made = TraceBuilder(rank=rank, path=f"rank{rank}.json")
    made.launched("a", clock_us, clock_us + 5, clock_us + 1000, correlation=1)
    made.python("train.py(12): checkpoint", clock_us + 500, clock_us + 998 + idle_us)
    made.launched("b", clock_us + 998 + idle_us, clock_us + 1000 + idle_us, clock_us + 4000 + idle_us, correlation=2)
    return made


def _of(view: dict[str, Any], rule: str) -> dict[str, Any]:
    (found,) = [one for one in view["findings"] if one["rule"] == rule]
    return found


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_rank_has_its_own_pieces_in_whatever_order_it_was_read(tmp_path: Path, order: tuple[int, int]) -> None:
    idle, clock = {0: 2000.0, 1: 3000.0}, {0: CLOCK_US, 1: CLOCK_US + 70_000}
    traces = [stalled(rank, idle[rank], clock[rank]).build() for rank in order]
    spans = _of(view_of("timeline", traces, tmp_path), "host_bound")["spans"]
    found = {order[number]: (int(start), int(end)) for number, start, end in spans}
    assert found == {
        rank: (round((clock[rank] + 1000) * 1000), round((clock[rank] + 998 + idle[rank]) * 1000)) for rank in (0, 1)
    }


def test_the_page_of_findings_names_the_same_piece_and_rank(tmp_path: Path) -> None:
    traces = [stalled(rank, 2000 + 1000 * rank, CLOCK_US + 70_000 * rank).build() for rank in (0, 1)]
    (row,) = [one for one in view_of("findings", traces, tmp_path)["findings"] if one["rule"] == "host_bound"]
    start = int((CLOCK_US + 70_000 + 1000) * 1000)
    said = "3.00 ms, 1.00 ms after the start of rank 1"
    assert row["at"][0] == {
        "mark": f"1:{start}-{start + 2_998_000}",
        "said": said,
        "short": "3.00 ms at 1.00 ms, rank 1",
    }
    assert row["at"][1]["mark"].startswith("0:")


def _marked(where: Where, folder: Path) -> list[dict[str, Any]]:
    """The marks of one finding that names no piece, on a trace with a line that runs three ops and one kernel."""
    made = TraceBuilder(rank=None)
    for at in range(3):
        begin = 100.0 + 600 * at
        made.python("train.py(30): read", begin, begin + 90)
        made.op("aten::item", begin + 10, begin + 20 * (at + 2))
    made.launched("gemm", 250, 255, 300, correlation=1)
    trace = made.build()
    place = Place(folder=folder, number=0)
    gathered = [Gathered(source=trace.source, place=place, held=timeline.gather(trace, place))]
    told = Finding(subject="s", title="t", severity="low", basis="structural", advice="a", where=where)
    outcome = Outcome(rule="host_sync", status="flagged", findings=(told,))
    analysis = replace(analyze(trace, rules=[]), outcomes=(outcome,))
    return marks(Job(analysis=analysis, traces=[trace], report={}, gathered=gathered, folder=folder))


def test_a_finding_without_pieces_is_where_its_line_runs(tmp_path: Path) -> None:
    (found,) = _marked(Where(file="train.py", line=30), tmp_path)
    assert found["how"] == "line"
    assert [(int(start) // 1000, int(end) // 1000) for _, start, end in found["spans"]] == [
        (1310, 1380), (710, 760), (110, 140),
    ]  # fmt: skip


def test_or_where_its_kernel_runs(tmp_path: Path) -> None:
    (found,) = _marked(Where(kernel="gemm", op="aten::item"), tmp_path)
    assert (found["how"], found["spans"]) == ("name", [[0, "255000", "300000"]])


def test_a_finding_of_nothing_that_was_recorded_has_no_mark(tmp_path: Path) -> None:
    assert _marked(Where(file="other.py", line=3, op="aten::relu"), tmp_path) == []
