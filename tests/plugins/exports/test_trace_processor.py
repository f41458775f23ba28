"""Our exports in Perfetto's own engine: complete, with nothing dropped and no errors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.struct_pb2 import ListValue
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.load import load_all
from perfscope.model.trace import Trace
from perfscope.model.wire import FIXED64, VARINT
from perfscope.plugins.exports.about import has_times
from perfscope.plugins.exports.command import FORMATS
from perfscope.plugins.exports.export import Subject, export
from perfscope.plugins.exports.wire import fixed64, nested, number_field, records, tag, varints
from tests.conftest import REPOSITORY, corpus_files
from tests.plugins.exports.trace_equality import totals
from tests.plugins.exports.trace_processor import TROUBLE, query_trace
from tests.plugins.exports.traces import crowded, everything, finding

SPANS = ("slices", "calls", "kernels", "copies", "sync_records", "steps")

SUM = "select count(*), sum(dur) from slice where category not like 'perfscope.%' and category != 'finding'"
OPEN = "select count(*) from slice where dur < 0"
FLOWS = "select count(*) from flow"
BY_STREAM = """
    select t.name, sum(s.dur) from slice s join thread_track k on k.id = s.track_id join thread t using (utid)
    where s.category in ('kernel', 'gpu_memcpy', 'gpu_memset') group by 1 order by 1
"""


def expected(traces: list[Trace]) -> list[int]:
    """[events, ns] in the table ``slice``; allocator events are slices of zero length there."""
    found = [totals(trace) for trace in traces]
    spans = sum(one[table] for one in found for table in SPANS) + sum(one["memory"] for one in found)
    lengths = sum(one[f"{table} ns"] for one in found for table in SPANS)
    for trace in traces:  # those without a kernel or span are slices too
        for table, owners in (("collectives", ("kernel", "slice")), ("hlo_ops", ("kernel", "copy", "slice"))):
            rows = trace.rows[table]
            alone = sum(rows[owner] >= 0 for owner in owners) == 0
            spans += int(alone.sum())
            lengths += int((rows["end_ns"] - rows["start_ns"])[alone].sum())
    return [spans, lengths]


def check(traces: list[Trace], target: Path) -> None:
    timed = [trace for trace in traces if has_times(trace)]
    sums, left_open, flows, trouble = query_trace(target, SUM, OPEN, FLOWS, TROUBLE)
    assert [sums[0][0], sums[0][1] or 0] == expected(timed)
    assert left_open == [[0]]
    launched = sum(totals(trace)[f"{table} launched"] for trace in timed for table in ("kernels", "copies"))
    assert flows == [[launched]]
    assert trouble == []


@pytest.mark.parametrize("form", ["perfetto", "chrome"])
def test_everything_opens_and_nothing_is_dropped(tmp_path: Path, form: str) -> None:
    traces = [everything(rank=0), everything(rank=1, base=50), crowded(300)]
    target = tmp_path / "t.gz"
    export(Subject(traces=tuple(traces), findings=(finding(rows=60),)), form, target)
    check(traces, target)


def test_what_a_user_asks_with_sql(tmp_path: Path) -> None:
    target = tmp_path / "t.pftrace"
    export(Subject(traces=(everything(),), findings=(finding(),)), "perfetto", target)
    processes, kernels, arguments, memory, advice, counters, launches = query_trace(
        target,
        "select name from process where pid != 0 order by name",
        "select name, ts, dur, extract_arg(arg_set_id, 'debug.blocks') from slice where category = 'kernel' "
        "order by ts",
        "select a.key, a.display_value from args a join slice s using (arg_set_id) where s.name = 'Memcpy HtoD' "
        "order by a.key",
        "select t.name, c.value from counter c join counter_track t on t.id = c.track_id "
        "where t.name like 'memory%' order by t.name, c.value desc",
        "select name, extract_arg(arg_set_id, 'debug.advice') from slice where category = 'finding'",
        "select t.name, c.ts, c.value from counter c join counter_track t on t.id = c.track_id "
        "where t.name like 'GPU%' order by ts",
        "select o.name, i.name from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in "
        "order by i.ts",
    )
    assert processes == [["findings"], ["rank 0 · device 0 (Test GPU)"], ["rank 0 · host 1"]]
    assert kernels[:2] == [["gemm", 30_000, 30_000, 264], ["overlapping", 50_000, 40_000, None]]
    assert arguments == [
        ["debug.bytes", 4096], ["debug.copy kind", "host_to_device"], ["debug.correlation", 15], ["debug.device", 0],
        ["debug.host memory", "pageable"], ["debug.stream", 7],
    ]  # fmt: skip
    assert memory == [
        ["memory allocated (cuda:0)", 1024], ["memory allocated (cuda:0)", 512],
        ["memory reserved (cuda:0)", 2 << 20], ["memory reserved (cuda:0)", 2 << 20],
    ]  # fmt: skip
    assert advice == [["The host waits 3 ms in aten::item", "Log every 100 steps:\nif step % 100 == 0: ..."]]
    assert counters == [["GPU 0: power", 0, 0.1], ["GPU 0: power", 1000, -3e300]]
    assert launches == [
        ["cudaLaunchKernel", "gemm"],
        ["cudaLaunchKernel", "overlapping"],
        ["cudaGraphLaunch", "first"],
        ["first", "second"],
    ]


SETS = [
    pytest.param(name, marks=[pytest.mark.corpus, *([pytest.mark.slow] if slow else [])], id=name)
    for name, slow in (
        ("kineto/HolisticTraceAnalysis__alexnet_critical_path.json.gz", False),
        ("kineto/TraceLens__h100_qwen1.5-0.5b.json.gz", False),
        ("nsys_sqlite/nsys-ai__h100_2gpu_1s.sqlite.gz", False),
        ("xplane/xprof__tpu_inference_2.xplane.pb.gz", False),
        ("aot/md.xplane.pb.gz", False),
        ("kineto/HolisticTraceAnalysis__trace_diff_control.json.gz", True),
        ("kineto/HolisticTraceAnalysis__mtia_inference_rank_0.json.gz", True),
        ("nsys_sqlite/gpubootcamp__jacobi_memcpy_nvlink_report.qdrep.sqlite.gz", True),
        ("torch_mem/assignment2-systems__medium512_train.pickle.gz", True),
        ("xplane/TraceLens__mi300_jax_conv_08.xplane.pb.gz", True),
    )
]


@pytest.mark.parametrize("name", SETS)
def test_real_traces_open_whole(tmp_path: Path, corpus: Path, name: str) -> None:
    traces = load_all(corpus / name)
    target = tmp_path / "t.pftrace.gz"
    export(Subject(traces=tuple(traces)), "perfetto", target)
    check(traces, target)


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("name", ["aot/md.xplane.pb.gz", "kineto/TraceLens__resnet_act_checkpoint.json.gz"])
def test_real_traces_open_whole_as_json(tmp_path: Path, corpus: Path, name: str) -> None:
    traces = load_all(corpus / name)
    target = tmp_path / "t.json.gz"
    export(Subject(traces=tuple(traces)), "chrome", target)
    check(traces, target)


@pytest.mark.slow
@pytest.mark.corpus
def test_the_ranks_of_a_job_open_as_one(tmp_path: Path, corpus: Path) -> None:
    files = corpus_files("kineto", "torchrec__sst_long*rank[0-3].json.gz")
    traces = [trace for file in files for trace in load_all(file)]
    assert len(traces) == 4
    target = tmp_path / "t.pftrace.gz"
    export(Subject(traces=tuple(traces)), "perfetto", target)
    check(traces, target)
    ours: dict[str, int] = {}
    for trace in traces:
        found = totals(trace)
        for table in ("kernels", "copies"):
            for (_, stream), ns in found[f"{table} streams"].items():
                ours[f"stream {stream}"] = ours.get(f"stream {stream}", 0) + ns
    (streams,) = query_trace(target, BY_STREAM)
    assert dict(map(tuple, streams)) == ours


PAGE = (REPOSITORY / "docs" / "export.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_format_is_described() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(FORMATS)


def test_the_queries_answer(tmp_path: Path) -> None:
    (sql,) = blocks("sql")
    queries = [one for one in re.split(r";\s*", sql) if one.strip()]
    target = tmp_path / "t.pftrace"
    export(Subject(traces=(everything(),), findings=(finding(),)), "perfetto", target)
    streams, launches, collectives, found = query_trace(target, *queries)
    assert streams[0] == ["rank 0 · device 0 (Test GPU)", "stream 7", 101_000]
    assert launches[0] == ["cudaLaunchKernel", "gemm", 10_000]
    assert collectives == [["ncclDevKernel_AllReduce", "all_reduce", 30_000, 1 << 40]]
    assert found[0][:2] == ["The host waits 3 ms in aten::item", 3_000_000]


def test_the_tables_join_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    export(Subject(traces=(everything(),)), "parquet", tmp_path / "tables")
    (code,) = [one for one in blocks("python") if "read_parquet" in one]
    names: dict[str, object] = {}
    exec(code, names)
    rank = names["rank"]
    assert rank[["name_x", "name_y"]].to_numpy().tolist() == [  # type: ignore[index]
        ["gemm", "cudaLaunchKernel"], ["overlapping", "cudaLaunchKernel"], ["first", "cudaGraphLaunch"],
        ["second", "cudaGraphLaunch"],
    ]  # fmt: skip


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, min_size=1))
def test_numbers_of_one_width_read_back(values: list[int]) -> None:
    rows = records([tag(1, VARINT), varints(np.array(values, np.int64))], len(values))
    assert [Int64Value.FromString(row).value for row in rows] == values
    assert len({len(row) for row in rows}) == 1


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_unsigned_numbers_read_back(values: list[int]) -> None:
    rows = records([tag(1, VARINT), varints(np.array(values, np.uint64))], len(values))
    assert [UInt64Value.FromString(row).value for row in rows] == values


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_doubles_read_back(values: list[float]) -> None:
    rows = records([tag(1, FIXED64), fixed64(np.array(values))], len(values))
    assert [DoubleValue.FromString(row).value for row in rows] == values


def test_messages_carry_their_length() -> None:
    values = np.array([True, False])
    rows = records(nested(1, [number_field(4, 1), b""]), 2)
    assert [ListValue.FromString(row).values[0].bool_value for row in rows] == [True, True]
    assert records([tag(4, VARINT), varints(values)], 2) == [b"\x20\x01", b"\x20\x00"]
    assert varints(np.empty(0, np.int64)).shape == (0, 1)
    assert BytesValue.FromString(records(nested(1, [b"x" * 200]), 1)[0]).value == b"x" * 200
