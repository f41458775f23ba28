"""Chrome's JSON: valid, in Kineto's words, exact to the nanosecond, and read by our Kineto reader."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.exports.clocks import aligned, apart, moved
from perfscope.plugins.exports.export import Subject, export
from perfscope.plugins.exports.lanes import MOST_NESTED, lanes, nest, sequence
from tests.build import TraceBuilder
from tests.plugins.exports.trace_equality import TIMED, comparable_rows, totals
from tests.plugins.exports.traces import SECRET, everything, finding, random_spans


def written(folder: Path, *traces: Trace, **more: Any) -> dict[str, Any]:
    export(Subject(traces=traces, **more), "chrome", folder / "t.json")
    found: dict[str, Any] = json.loads((folder / "t.json").read_text())
    return found


def told(trace: Trace, table: str) -> Counter[tuple[Any, ...]]:
    """Rows without the thread and values derived from it: lanes have separate thread ids in this format."""
    names = [column.name for column in trace.rows[table].table.columns]
    kept = [place for place, name in enumerate(names) if name not in ("thread", "parent", "slice", "call", "op")]
    return Counter(tuple(row[place] for place in kept) for row in comparable_rows(trace, table).elements())


def test_an_event_as_it_is_written(tmp_path: Path) -> None:
    found = written(tmp_path, everything(base=10))
    assert found["baseTimeNanoseconds"] == 10_000
    assert found["distributedInfo"] == {"rank": 0}
    assert found["deviceProperties"] == [{"id": 0, "name": "Test GPU", "numSms": 132}]
    events = {event["name"]: event for event in found["traceEvents"] if event["ph"] == "X"}
    assert events["aten::mm"] == {
        "ph": "X", "ts": 0.0, "dur": 100.0, "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1,
        "args": {"External id": 5, "Sequence number": 3, "Input Dims": [[2, 3], [3, 4]],
                 "Input type": ["float", "float"], "op id": 0},
    }  # fmt: skip
    assert events["ncclDevKernel_AllReduce"]["args"]["Process Group Ranks"] == [0, 1]
    memory = [event for event in found["traceEvents"] if event["name"] == "[memory]"]
    assert [event["args"]["Bytes"] for event in memory] == [512, -512]


def test_times_are_exact(tmp_path: Path) -> None:
    builder = TraceBuilder()
    base = 1_783_874_667_812_052_001
    for start, end in ((0, 7), (999, 1_000), (123_456_789, 123_456_790)):
        builder.row("slices", name=builder.code("op"), start_ns=base + start, end_ns=base + end, kind=0,
                    thread=builder.thread(1), external_id=-1)  # fmt: skip
    trace = builder.build()
    written(tmp_path, trace)
    text = (tmp_path / "t.json").read_text()
    assert '"ts": 0.999, "dur": 0.001' in text
    assert '"ts": 123456.789, "dur": 0.001' in text
    assert comparable_rows(kineto_reader.read(tmp_path / "t.json"), "slices") == comparable_rows(trace, "slices")


def test_our_kineto_reader_reads_it(tmp_path: Path) -> None:
    trace = everything()
    written(tmp_path, trace, findings=(finding(),))
    back = kineto_reader.read(tmp_path / "t.json")
    ours, theirs = totals(trace), totals(back)
    assert {key for key in ours if ours[key] != theirs[key]} <= {
        "counters", "counters by name", "counters sum", "steps", "steps ns", "copies kinds",
    }  # fmt: skip
    for table in ("slices", "calls", "sync_records"):
        assert told(back, table) == told(trace, table)
    assert told(back, "collectives") == told(trace, "collectives")


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["TraceLens__h100_bert-small", "torchrec__sst_long_a2a_optimizer_4_44237__rank0"])
def test_a_real_trace_survives(tmp_path: Path, corpus: Path, name: str) -> None:
    (trace,) = load_all(corpus / "kineto" / f"{name}.json.gz")
    export(Subject(traces=(trace,)), "chrome", tmp_path / "t.json.gz")
    json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    (back,) = load_all(tmp_path / "t.json.gz")
    ours, theirs = totals(trace), totals(back)
    assert {key for key in ours if ours[key] != theirs[key]} <= {"counters", "counters by name", "counters sum"}
    assert told(back, "slices") == told(trace, "slices")
    assert comparable_rows(back, "steps") == comparable_rows(trace, "steps")


def test_hostile_text_stays_json_and_no_secret_is_passed_on(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for name in ('"}],"', "</script>", "\x00\ud800\n", "x" * 100_000, f"hf {SECRET}"):
        builder.op(name, 0, 1, shapes="[[not json", dtypes="[" * 5_000)
    builder.row("counters", time_ns=0, name=builder.code('c"\n: s'), value=np.nan)
    found = written(tmp_path, builder.build())
    assert len([event for event in found["traceEvents"] if event["ph"] == "X"]) == 5
    assert SECRET not in (tmp_path / "t.json").read_text()
    assert max(len(event["name"]) for event in found["traceEvents"]) <= 4_000
    assert [event["args"] for event in found["traceEvents"] if event["ph"] == "C"] == [{"s": None}]


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing in it has a time"):
        written(tmp_path, TraceBuilder().build())


def rank(number: int, *, clock: float) -> Trace:
    """Four all-reduces that both ranks leave together; ``clock``: how many us this rank's clock is ahead."""
    b = TraceBuilder(rank=number, path=f"rank{number}.json")
    for one in range(4):
        start, end = 1_000.0 * one + 100 * number + clock, 1_000.0 * one + 500 + clock
        b.kernel("ncclDevKernel_AllReduce_Sum", start, end, stream=9, communication=True, correlation=one)
        b.row("collectives", start_ns=round(start * 1000), end_ns=round(end * 1000), name=b.code("all_reduce"),
              kernel=one, group=b.code("0"), group_size=2, ranks=b.code("[0, 1]"), elements_in=64, elements_out=64,
              dtype=b.code("float"), sequence=one)  # fmt: skip
    return b.build()


def test_clocks_are_moved_only_when_asked() -> None:
    traces = (rank(0, clock=0), rank(1, clock=5_000))
    assert apart(traces) == [
        "the clocks of the ranks are up to 5.00 ms apart and are not aligned; --align-clocks aligns them to within 0 ns"
    ]
    (first, second), remarks = aligned(traces)
    assert remarks == ["clocks moved by up to 5.00 ms; they agree to within 0 ns"]
    assert first is traces[0]
    assert (second.rows["kernels"]["end_ns"] == first.rows["kernels"]["end_ns"]).all()
    assert (traces[1].rows["kernels"]["end_ns"] != first.rows["kernels"]["end_ns"]).all()


def test_only_moments_move() -> None:
    before = everything(base=10)
    after = moved(before, 77)
    after.check()
    found, expected = totals(after), totals(before)
    assert found == expected
    for table in TIMED:
        for column in before.rows[table].table.columns:
            held, given = after.rows[table][column.name], before.rows[table][column.name]
            by = 77 if column.name in ("start_ns", "end_ns", "time_ns") else 0
            if held.dtype.kind != "f":
                assert (held == given + held.dtype.type(by)).all(), (table, column.name)


def test_traces_of_no_job_stay(tmp_path: Path) -> None:
    trace = everything(rank=None)
    assert apart([trace]) == []
    assert aligned([trace]) == ((trace,), ["no collectives of several ranks to align clocks by: no clock was moved"])


def replayed(start: np.ndarray, end: np.ndarray) -> list[tuple[int, int]]:
    """(row, end) of each span as a viewer reads it: in time and written order, an end closes the last begun."""
    rows, ends = sequence(start, end)
    times = np.where(ends, end[rows], start[rows])
    assert (np.diff(times) >= 0).all()
    stack: list[int] = []
    found = []
    for row, closes, time in zip(rows.tolist(), ends.tolist(), times.tolist(), strict=True):
        if closes:
            found.append((stack.pop(), time))
        else:
            stack.append(row)
    assert not stack
    return sorted(found)


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_every_lane_reads_back_as_it_was(seed: int, count: int) -> None:
    start, end = random_spans(seed, count)
    lane = lanes(start, end)
    for one in np.unique(lane):
        mine = np.flatnonzero(lane == one)
        assert nest(start[mine], end[mine])
        assert replayed(start[mine], end[mine]) == [(row, int(end[mine][row])) for row in range(len(mine))]


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_what_nests_stays_on_one_lane(seed: int, count: int) -> None:
    start, end = random_spans(seed, count)
    crossing = any(a < c < b < d for a, b in zip(start, end, strict=True) for c, d in zip(start, end, strict=True))
    assert nest(start, end) is not crossing
    assert bool(lanes(start, end).any()) is crossing


def test_many_overlaps_take_as_many_lanes_as_overlap_at_once() -> None:
    start = np.arange(5_000, dtype=np.int64)
    lane = lanes(start, start + 101)  # each overlaps the hundred before it
    assert 101 <= len(np.unique(lane)) <= 101 + MOST_NESTED
    for one in np.unique(lane):
        mine = start[lane == one]
        assert (np.diff(mine) >= 101).all()


@pytest.mark.parametrize("count", [0, 1])
def test_few_spans(count: int) -> None:
    start = np.zeros(count, np.int64)
    assert lanes(start, start).tolist() == [0] * count
    assert len(sequence(start, start)[0]) == 2 * count
