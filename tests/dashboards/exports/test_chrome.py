"""Chrome's JSON: valid, in Kineto's words, exact to the nanosecond, and read by our Kineto reader."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.load import load
from perfscope.dashboards.exports import Subject, export
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.dashboards.exports.built import SECRET, everything, finding
from tests.dashboards.exports.same import lines, totals


def written(folder: Path, *traces: Trace, **more: Any) -> dict[str, Any]:
    export(Subject(traces=traces, **more), "chrome", folder / "t.json")
    found: dict[str, Any] = json.loads((folder / "t.json").read_text())
    return found


def told(trace: Trace, table: str) -> Counter[tuple[Any, ...]]:
    """Rows without the thread and what follows from it: lanes have thread ids of their own in this format."""
    names = [column.name for column in trace.rows[table].table.columns]
    kept = [place for place, name in enumerate(names) if name not in ("thread", "parent", "slice", "call", "op")]
    return Counter(tuple(row[place] for place in kept) for row in lines(trace, table).elements())


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


def test_arrows_are_pairs_for_every_launch(tmp_path: Path) -> None:
    events = written(tmp_path, everything())["traceEvents"]
    starts = [event["id"] for event in events if event["ph"] == "s"]
    ends = [event["id"] for event in events if event["ph"] == "f"]
    assert len(starts) == len(set(starts)) == 3
    assert sorted(ends) == sorted([*starts, max(starts)])  # the graph launched two kernels


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
    assert lines(kineto_reader.read(tmp_path / "t.json"), "slices") == lines(trace, "slices")


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
    (trace,) = load(corpus / "kineto" / f"{name}.json.gz")
    export(Subject(traces=(trace,)), "chrome", tmp_path / "t.json.gz")
    json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    (back,) = load(tmp_path / "t.json.gz")
    ours, theirs = totals(trace), totals(back)
    assert {key for key in ours if ours[key] != theirs[key]} <= {"counters", "counters by name", "counters sum"}
    assert told(back, "slices") == told(trace, "slices")
    assert lines(back, "steps") == lines(trace, "steps")


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
