"""The Kineto reader on files made here: every layout, exact times, mended faults, damage of every kind."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.ranks.job import locals_of
from perfscope.analyzers.readers import file_bytes
from perfscope.analyzers.readers.columns import innermost, nesting_order, parents
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.kineto import decode, document
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.load import load_one
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, SliceKind, Trace
from tests.readers.refusals import refused

CONTENT = random.Random(1).randbytes(200_000)
"""It does not compress: a file cut in half holds half of it."""


def open_refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught, open_bytes(path):
        raise AssertionError
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(CONTENT)[:10], "gzip is cut off within the first 4 MiB of its content"),
        (gzip.compress(CONTENT)[:100_000], "gzip is cut off within the first 4 MiB of its content"),
        (lzma.compress(CONTENT)[:6], "xz is cut off within the first 4 MiB of its content"),
        (lzma.compress(CONTENT)[:100_000], "xz is cut off after "),
        (gzip.compress(CONTENT)[:-8] + bytes(8), "gzip is corrupt within the first 4 MiB of its content"),
        (b"\xfd7zXZ\x00garbage, garbage", "xz is corrupt within the first 4 MiB of its content"),
    ],
)
def test_damage_in_the_first_piece(tmp_path: Path, content: bytes, said: str) -> None:
    assert open_refused(tmp_path / "x", content).startswith(said)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_damage_behind_it_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: type) -> None:
    monkeypatch.setattr(file_bytes, "_PIECE", 4096)
    said = open_refused(tmp_path / "x", pack(CONTENT)[:150_000])
    kind, _, at = said.partition(" is cut off after ")
    assert kind in ("gzip", "xz")
    whole = int(at.removesuffix(" bytes of its content").replace(",", ""))
    assert 0 < whole < 150_000


def test_nothing_at_all_is_no_damage(tmp_path: Path) -> None:
    for name, content in (("plain", b""), ("gzip", gzip.compress(b"")), ("xz", lzma.compress(b""))):
        (tmp_path / name).write_bytes(content)
        with open_bytes(tmp_path / name) as data:
            assert bytes(data) == b""


BASE = 1_763_000_000_000_000_000


def events() -> list[dict[str, Any]]:
    """Two steps of one op, its launch, its kernel, a copy, an allocation, a collective and what viewers add."""
    made: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "secret-host"}}
    ]
    for step in range(2):
        at, ids = 1000.125 + 100 * step, 10 * step
        made += [
            span("user_annotation", f"ProfilerStep#{step + 3}", at, 90.5, args={"External id": ids + 1}),
            span("cpu_op", "aten::mm", at + 1, 20.25, args={
                "External id": ids + 2, "Sequence number": 5, "Fwd thread id": 0, "Input Dims": [[2, 3], [3, 4]],
                "Input type": ["float", "float"]}),
            span("python_function", "train.py(12): loop", at + 0.5, 80),
            span("cuda_runtime", "cudaLaunchKernel", at + 2, 3, args={"correlation": ids + 5, "External id": ids + 2}),
            span("kernel", "sgemm", at + 10, 30.001, pid=0, tid=7, args={
                "device": 0, "stream": 7, "correlation": ids + 5, "External id": ids + 2, "grid": [4, 2, 1],
                "block": [128, 1, 1], "est. achieved occupancy %": 50}),
            span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 45, 5, pid=0, tid=7, args={
                "device": 0, "stream": 7, "correlation": ids + 6, "bytes": 1024}),
            span("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 60, 10, pid=0, tid=9, args={
                "device": 0, "stream": 9, "correlation": ids + 7, "Collective name": "allreduce", "In msg nelems": 256,
                "Out msg nelems": 256, "Group size": 8, "Process Group Ranks": "[0, 1]", "dtype": "Float",
                "Process Group Description": "mesh_dp"}),
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": at + 5,
             "args": {"Addr": 2**63 + 5, "Bytes": -512, "Total Allocated": 4096, "Device Type": 1, "Device Id": 0}},
            {"ph": "C", "name": "power", "pid": 0, "ts": at, "args": {"watts": 300.5}},
            {"ph": "s", "id": ids, "cat": "ac2g", "name": "ac2g", "pid": 7, "tid": 7, "ts": at + 2},
            {"ph": "f", "id": ids, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": at + 10, "bp": "e"},
        ]  # fmt: skip
    return made


def span(category: str, name: str, ts: float, dur: float, *, pid: Any = 7, tid: Any = 7, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, **more}


def text(found: list[dict[str, Any]], *, indent: int | None = None, **head: Any) -> str:
    top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU X", "totalGlobalMem": 80, "numSms": 132}]}
    top |= {"distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl"}, "baseTimeNanoseconds": BASE}
    return json.dumps({**top, **head, "traceEvents": found, "traceName": "x.json"}, indent=indent)


def read(folder: Path, content: str | bytes, name: str = "trace.json") -> Trace:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    trace = kineto_reader.read(path)
    trace.check()
    return trace


@pytest.mark.parametrize("layout", ["compact", "indented", "line an event", "gzip", "bare list", "events first"])
def test_layouts_give_the_same_tables(tmp_path: Path, layout: str) -> None:
    found = events()
    content: str | bytes = text(found)
    if layout == "indented":
        content = text(found, indent=2)
    elif layout == "line an event":
        head = text([])
        content = head.replace("[]", "[\n" + ",\n".join(map(json.dumps, found)) + "\n]", 1)
        content = head.replace('"traceEvents": []', '"traceEvents": [\n' + ",\n".join(map(json.dumps, found)) + "\n]")
    elif layout == "gzip":
        content = gzip.compress(text(found).encode())
    elif layout == "bare list":
        content = json.dumps(found)
    elif layout == "events first":
        top = json.loads(text(found))
        content = json.dumps({"traceEvents": top.pop("traceEvents"), **top})
    trace = read(tmp_path, content)
    offset = 0 if layout == "bare list" else BASE
    kernels = trace.rows["kernels"]
    assert kernels["start_ns"].tolist() == [
        offset + 1_010_125,
        offset + 1_110_125,
        offset + 1_060_125,
        offset + 1_160_125,
    ]
    assert (kernels["end_ns"] - kernels["start_ns"]).tolist() == [30_001, 30_001, 10_000, 10_000]
    assert trace.source.events_read == len(found)
    assert trace.source.events_unplaced == 0
    assert trace.source.rank == (None if layout == "bare list" else 3)


def test_everything_is_placed_and_linked(tmp_path: Path) -> None:
    trace = read(tmp_path, text(events()))
    kernels, calls, slices = trace.rows["kernels"], trace.rows["calls"], trace.rows["slices"]
    assert [trace.text(code) for code in slices["name"][:3]] == ["ProfilerStep#3", "train.py(12): loop", "aten::mm"]
    assert slices["parent"][:3].tolist() == [MISSING, 0, 1]
    assert slices["kind"][:3].tolist() == [SliceKind.ANNOTATION, SliceKind.PYTHON, SliceKind.OP]
    assert calls["kind"].tolist() == [CallKind.KERNEL] * 2
    assert calls["parent"].tolist() == [2, 5]
    assert kernels["call"].tolist() == [0, 1, MISSING, MISSING]
    assert kernels["op"].tolist() == [2, 5, MISSING, MISSING]
    assert kernels["blocks"].tolist() == [8, 8, MISSING, MISSING]
    assert kernels["communication"].tolist() == [False, False, True, True]
    assert trace.rows["copies"]["kind"].tolist() == [CopyKind.HOST_TO_DEVICE] * 2
    assert trace.rows["steps"]["number"].tolist() == [3, 4]
    collectives = trace.rows["collectives"]
    assert [trace.text(code) for code in collectives["name"]] == ["all_reduce"] * 2
    assert collectives["elements_in"].tolist() == [256, 256]
    assert [trace.text(code) for code in collectives["description"]] == ["mesh_dp", "mesh_dp"]
    memory = trace.rows["memory"]
    assert memory["address"].tolist() == [2**63 + 5] * 2
    assert memory["bytes"].tolist() == [-512] * 2
    assert trace.text(int(slices["shapes"][2])) == "[[2, 3], [3, 4]]"
    assert trace.rows["counters"]["value"].tolist() == [300.5, 300.5]
    assert "secret-host" not in trace.strings
    assert trace.recorded == {
        "autograd", "collectives", "device_work", "host_ops", "launch_links", "memory", "op_links", "python_stack",
        "runtime_calls", "shapes", "steps", "waiting_calls",
    }  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1, 20])
def test_numbers_among_the_inputs_are_kept_however_the_file_is_indented(tmp_path: Path, indent: int | None) -> None:
    inputs = ["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False", "1e-05", "None"]
    found = [
        span("cpu_op", "aten::conv2d", 1, 5, args={"Concrete Inputs": inputs}),
        span("cpu_op", "aten::secret", 10, 5, args={"Concrete Inputs": ["", "a name"]}),
    ]
    trace = read(tmp_path, text(found, indent=indent))
    kept, dropped = (int(code) for code in trace.rows["slices"]["values"])
    assert json.loads(trace.text(kept)) == inputs
    assert dropped == MISSING


def test_names_with_bare_quotes_are_read_and_counted(tmp_path: Path) -> None:
    found = events()
    for layout in (None, 2):
        content = text(found, indent=layout).replace("aten::mm", 'a "b" \\\\ "c')
        assert content.count('"b"') == 2
        trace = read(tmp_path, content)
        assert trace.source.events_read == len(found)
        assert trace.source.repairs == {"unescaped quotes in a name": 2}
        assert 'a "b" \\ "c' in trace.strings
        assert "repaired" in trace.source.notes[-1]


def test_nan_and_control_characters_are_read_and_counted(tmp_path: Path) -> None:
    found = events()
    content = text(found).replace('"est. achieved occupancy %": 50', '"est. achieved occupancy %": nan', 1)
    trace = read(tmp_path, content.replace("train.py", "train\x01.py", 1))
    assert trace.source.repairs == {"nan or inf where JSON has none": 1, "control characters in a string": 1}
    assert np.isnan(trace.rows["kernels"]["occupancy"][0])


def test_odd_events_are_counted_by_reason_and_the_rest_is_kept(tmp_path: Path) -> None:
    odd = [
        "no event",
        {"ph": "B", "name": "begin", "ts": 1},
        span("kernel", "overflow", 1, -5, pid=0, tid=7),
        span("kernel", "31 years", 1, 1e15, pid=0, tid=7),
        span("mystery", "what", 1, 5),
        {"ph": "X", "cat": "cpu_op", "name": "no time", "pid": 1, "tid": 1, "dur": 3},
        span("cpu_op", "strange types", 1, 5, pid=1.5, tid=None, args={"External id": "12", "Input Dims": {}}),
        span("kernel", "huge id", 1, 5, pid=0, tid=7, args={"correlation": 2**63 + 1, "stream": "stream 4"}),
    ]
    trace = read(tmp_path, text([*events(), *odd]))
    assert trace.source.unplaced == {
        "not an object": 1,
        "phase B": 1,
        "missing, negative or overflown duration": 2,
        "category mystery": 1,
        "time is not a number": 1,
    }
    assert trace.source.events_read == len(events()) + len(odd)
    assert "strange types" in trace.strings
    kernels = trace.rows["kernels"]
    (row,) = np.flatnonzero(kernels["stream"] == 4)
    assert kernels["correlation"][row] == MISSING


def test_epoch_microseconds_keep_their_digits(tmp_path: Path) -> None:
    """Around 1.7e15 us a float64 has a step of 0.25 us: the decimal text is what counts."""
    line = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1698954910154219.%03d, "dur": 1.5}'
    trace = read(tmp_path, '{"traceEvents": [' + ", ".join(line % n for n in range(0, 1000, 7)) + "]}")
    assert trace.rows["kernels"]["start_ns"].tolist() == [1698954910154219000 + n for n in range(0, 1000, 7)]


def test_what_has_no_time_is_counted_once_when_a_chunk_is_decoded_again(tmp_path: Path) -> None:
    """A small time among epoch microseconds: the chunk is decoded twice, its events count once."""
    found = [span("cpu_op", "small", 1, 2), span("cpu_op", "negative", 1, -2), span("user_annotation", "late", 2e15, 1)]
    trace = read(tmp_path, json.dumps({"traceEvents": found}))
    assert trace.source.unplaced == {"missing, negative or overflown duration": 1}
    assert len(trace.rows["slices"]) == 2


def test_several_processes_give_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        dict(event, ts=event["ts"] + 500 * n) if "ts" in event else event for n in range(200) for event in events()
    ]
    path = tmp_path / "trace.json"
    path.write_text(text(found, indent=1))
    alone = kineto_reader.read(path)
    monkeypatch.setattr(decode, "processes", lambda size: 3)
    monkeypatch.setattr(decode, "CHUNK", 5000)
    together = kineto_reader.read(path)
    together.check()
    assert together.source == alone.source
    for name, rows in alone.rows.items():
        for column in rows.table.columns:
            ours, theirs = rows[column.name], together.rows[name][column.name]
            if column.text:
                assert list(map(alone.text, ours.tolist())) == list(map(together.text, theirs.tolist()))
            else:
                np.testing.assert_array_equal(ours, theirs)


def test_mtia_events_are_kernels_unless_they_say_otherwise(tmp_path: Path) -> None:
    """Kernels of MTIA have names of every kind; a DMA request contains its direction and bytes."""
    category = "mtia_ccp_events"
    made = [
        span("cpu_op", "aten::mm", 1, 20, args={"External id": 2}),
        span("mtia_runtime", "runFunction", 2, 3, args={"correlation": 5}),
        span(category, "fc-dtype_Float", 10, 30, pid=9, tid=4, args={"correlation": 5, "stream": 1}),
        span(category, "aten::cat.out-dtype_Long-extraKey_1", 41, 2, pid=9, tid=4, args={"stream": 1}),
        span(category, "dma_request", 3, 4, pid=9, tid=801, args={"direction": "HOST_TO_DEVICE", "size": 4096}),
        span(category, "dma_request", 50, 4, pid=9, tid=801, args={"direction": "DEVICE_TO_HOST", "size": 16}),
        span(category, "dma_request", 60, 4, pid=9, tid=801),
        span(category, "event_wait", 55, 4, pid=9, tid=4, args={"stream": 1, "seq_num": 7}),
    ]
    trace = read(tmp_path, text(made))
    kernels, copies = trace.rows["kernels"], trace.rows["copies"]
    assert sorted(map(trace.text, kernels["name"].tolist())) == [
        "aten::cat.out-dtype_Long-extraKey_1",
        "fc-dtype_Float",
    ]
    assert sorted(kernels["call"].tolist()) == [MISSING, 0]
    assert copies["kind"].tolist() == [CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.UNKNOWN]
    assert copies["bytes"].tolist() == [4096, 16, MISSING]
    assert copies["host_memory"].tolist() == [HostMemory.UNKNOWN, HostMemory.UNKNOWN, HostMemory.NONE]
    assert len(trace.rows["sync_records"]) == 1


def test_ranges_of_the_old_schema_are_annotations(tmp_path: Path) -> None:
    made = [
        span("Operator", "ProfilerStep#5", 1, 90),
        span("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2, 10),
        span("Operator", "aten::mm", 20, 10),
        span("Operator", "Optimizer.step#SGD.step", 40, 10),
        span("Operator", "AddmmBackward", 60, 10),
        span("Operator", "ProfilerStep#6", 100, 50),
    ]
    trace = read(tmp_path, text(made))
    steps, slices = trace.rows["steps"], trace.rows["slices"]
    assert steps["number"].tolist() == [5, 6]
    assert (steps["end_ns"] - steps["start_ns"]).tolist() == [90_000, 50_000]
    ops = slices["name"][slices["kind"] == SliceKind.OP].tolist()
    assert [trace.text(code) for code in ops] == ["aten::mm", "AddmmBackward"]


@pytest.mark.parametrize("last", [{}, {"name": "no phase"}])
@pytest.mark.parametrize("first", [False, True])
def test_an_object_without_a_phase_is_no_damage(tmp_path: Path, last: dict[str, Any], *, first: bool) -> None:
    """XLA closes its list of events with an empty object."""
    found = [last, *events()] if first else [*events(), last]
    trace = read(tmp_path, text(found))
    assert trace.source.events_read == len(found)
    assert trace.source.unplaced == ({"phase None": 1} if last else {})


def test_cuts_inside_strings_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = events()
    for event in found:
        if event["ph"] == "X":
            event["name"] += "}, {" * 30
    monkeypatch.setattr(decode, "processes", lambda size: 4)
    monkeypatch.setattr(decode, "CHUNK", 400)
    trace = read(tmp_path, text(found))
    assert trace.source.events_read == len(found)
    assert trace.source.events_unplaced == 0


def test_the_tail_may_hold_lists_of_objects(tmp_path: Path) -> None:
    top = json.loads(text(events()))
    found = top.pop("traceEvents")
    padding = [{"name": "x" * 100, "ph": [1, {"a": 2}]} for _ in range(1000)]
    content = json.dumps({"traceEvents": found, **top, "pg_config": padding})
    assert len(json.dumps(padding)) > document._TAIL_WINDOW
    assert read(tmp_path, content).source.events_read == len(found)


intervals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=25)


@given(intervals)
def test_parents_equal_brute_force(drawn: list[tuple[int, int, int]]) -> None:
    thread = np.array([t for t, _, _ in drawn], np.int32)
    start = np.array([s for _, s, _ in drawn], np.int64)
    end = start + np.array([d for _, _, d in drawn], np.int64)
    order = nesting_order(thread, start, end)
    thread, start, end = thread[order], start[order], end[order]
    found = parents(thread, start, end)
    for row in range(len(drawn)):
        enclosing = [
            other
            for other in range(row)
            if thread[other] == thread[row]
            and end[other] >= end[row]
            and (end[other] > start[row] or start[other] == start[row])
        ]
        assert found[row] == (enclosing[-1] if enclosing else MISSING)


@given(intervals, intervals)
def test_innermost_equals_brute_force(drawn: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    spans, moments = np.array(drawn, np.int64).reshape(-1, 3), np.array(asked, np.int64).reshape(-1, 3)
    spans[:, 2] += spans[:, 1] + 1
    spans = spans[nesting_order(*spans.T)]
    threads, starts, ends = spans.T
    parent = parents(threads, starts, ends)
    found = innermost(threads, starts, ends, parent, moments[:, 0], moments[:, 1], moments[:, 1] + moments[:, 2])
    for row, (thread, start, length) in enumerate(asked):
        enclosing = [
            at for at, (of, low, high) in enumerate(spans.tolist()) if of == thread and low <= start
            and high >= start + length
        ]  # fmt: skip
        assert found[row] == (enclosing[-1] if enclosing else MISSING)


def test_sniff_knows_its_own() -> None:
    path = Path("x")
    assert kineto_reader.sniff(path, text([]).encode())
    assert kineto_reader.sniff(path, b' [{"ph": "X"}]')
    assert not kineto_reader.sniff(path, b'{"schema": "perfscope.run/1"}')
    assert not kineto_reader.sniff(path, b"HloModule jit_f")


def said_of(folder: Path, content: bytes) -> str:
    return refused(kineto_reader.read, folder / "bad.json", content)


def read_or_refused(folder: Path, content: bytes) -> Trace | str:
    """The checked trace, or the one line with which it was refused; any other error fails the test."""
    try:
        return read(folder, content)
    except DataError:
        return said_of(folder, content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty file"),
        (b"{}", 'no "traceEvents" in it, so not a trace of torch.profiler'),
        (b"hello", 'no "traceEvents" in it, so not a trace of torch.profiler'),
        (b'{"traceEvents": []}', "0 events, but none of torch.profiler"),
        (b'{"traceEvents": [{"ph": "X"', "cut off or corrupt: the event array does not end (read 27 bytes)"),
        (b'{"traceEvents": [1, 2]}', "cut off or corrupt: the event array does not end (read 23 bytes)"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "tf_op", "name": "x", "ts": 1, "dur": 2}]}',
            "1 events, but none of torch.profiler (1 of category tf_op)",
        ),
        (b"\x1f\x8b\x08\x00broken", "gzip is cut off within the first 4 MiB of its content"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    assert said_of(tmp_path, content) == said


@pytest.mark.parametrize("base", [-1, 2**61, 2**63, 10**30])
def test_a_base_that_is_no_time_is_refused(tmp_path: Path, base: int) -> None:
    said = said_of(tmp_path, text(events(), baseTimeNanoseconds=base).encode())
    assert said.startswith("baseTimeNanoseconds is ")


def test_hundredfold_nesting_is_read_or_refused(tmp_path: Path) -> None:
    for depth in (100, 100_000):
        deep = b"[" * depth + b"]" * depth
        head = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 2, "args": {"deep": '
        content = head + deep + b"}}]}"
        found = read_or_refused(tmp_path, content)
        if isinstance(found, Trace):
            assert found.source.events_read == 1
        else:
            assert depth > 1000


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line(tmp_path: Path, data: st.DataObject) -> None:
    whole = text(events(), indent=data.draw(st.sampled_from([None, 1]))).encode()
    if data.draw(st.booleans()):
        whole = gzip.compress(whole)
    said_of(tmp_path, whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.analyzers.readers import file_bytes

    monkeypatch.setattr(file_bytes, "LARGEST", 1 << 20)
    assert "refused" in said_of(tmp_path, gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))


def test_a_large_gzip_is_mapped_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.analyzers.readers import file_bytes

    monkeypatch.setattr(file_bytes, "IN_MEMORY", 100)
    assert read(tmp_path, gzip.compress(text(events()).encode())).source.events_read == len(events())


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.json: No such file"):
        kineto_reader.read(tmp_path / "nothing.json")
    with pytest.raises(DataError, match="directory"):
        kineto_reader.read(tmp_path)


KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
LARGE = list(range(0, 128, 2))


def kernel(**args: Any) -> dict[str, Any]:
    held = {"device": 0, "stream": 20, "correlation": 7, "Collective name": "allreduce", "dtype": "BFloat16",
            "In msg nelems": 64, "Out msg nelems": 64, **args}  # fmt: skip
    return {"ph": "X", "cat": "kernel", "name": KERNEL, "pid": 0, "tid": 20, "ts": 10.0, "dur": 5.0, "args": held}


def gloo(operation: str = "all_reduce") -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"gloo:{operation}",
        "pid": 9,
        "tid": 3,
        "ts": 40.0,
        "dur": 2.0,
    }


def kineto_with_groups(path: Path, events: list[dict[str, Any]], config: Any) -> Trace:
    distributed = {"backend": "nccl", "rank": 6, "world_size": 128, "pg_count": 1, "pg_config": config}
    file = path / "rank6.pt.trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": distributed, "traceEvents": events}))
    return load_one(file)


def group(name: str = "1", *, description: str = "mesh_dp", size: int | None = None, ranks: Any = LARGE,
          backends: str = "cuda:nccl") -> dict[str, Any]:  # fmt: skip
    found = {"pg_name": name, "pg_desc": description, "backend_config": backends, "ranks": ranks}
    return {**found, "pg_size": len(ranks) if size is None else size}


CUT_SHORT = {"Process Group Name": "1", "Process Group Ranks": "[0, 2, 4, ...]", "Group size": 64}


def test_a_list_that_the_event_cuts_short_is_whole_in_the_head(tmp_path: Path) -> None:
    (one,) = kineto_with_groups(tmp_path, [kernel(**CUT_SHORT)], [group()]).fact(locals_of)
    assert (one.ranks, one.size, one.description, one.group) == (tuple(LARGE), 64, "mesh_dp", "1")


def test_what_the_event_tells_stays(tmp_path: Path) -> None:
    told = {"Process Group Name": "1", "Process Group Ranks": "[0, 6]", "Group size": 2,
            "Process Group Description": "mine"}  # fmt: skip
    (one,) = kineto_with_groups(tmp_path, [kernel(**told)], [group()]).fact(locals_of)
    assert (one.ranks, one.size, one.description) == ((0, 6), 2, "mine")


def test_an_undefined_description_and_a_size_are_filled(tmp_path: Path) -> None:
    told = {"Process Group Name": "1", "Process Group Description": "undefined"}
    (one,) = kineto_with_groups(tmp_path, [kernel(**told)], [group("0"), group("1", ranks=[4, 6])]).fact(locals_of)
    assert (one.ranks, one.size, one.description) == ((4, 6), 2, "mesh_dp")


def test_a_group_of_another_name_says_nothing(tmp_path: Path) -> None:
    (one,) = kineto_with_groups(tmp_path, [kernel(**CUT_SHORT)], [group("2")]).fact(locals_of)
    assert (one.ranks, one.description) == (None, None)


def test_a_kernel_without_a_name_is_left_as_it_is(tmp_path: Path) -> None:
    """It may belong to a library with its own communicators."""
    bare = kernel()
    bare["args"] = {"device": 0, "stream": 20}
    (one,) = kineto_with_groups(tmp_path, [bare], [group()]).fact(locals_of)
    assert (one.group, one.ranks) == (None, None)


def test_gloo_spans_are_of_the_one_group_that_runs_gloo(tmp_path: Path) -> None:
    only = [group("0", ranks=[0, 6], backends="cpu:gloo,cuda:gloo", description="default_pg"), group("1")]
    (one,) = kineto_with_groups(tmp_path, [gloo()], only).fact(locals_of)
    assert (one.group, one.ranks, one.size, one.description) == ("0", (0, 6), 2, "default_pg")
    two = [*only, group("2", ranks=[6, 7], backends="cpu:gloo")]
    (one,) = kineto_with_groups(tmp_path, [gloo()], two).fact(locals_of)
    assert (one.group, one.ranks) == (None, None)


@pytest.mark.parametrize(
    "config",
    [
        None, 7, "[]", {"pg_name": "1"}, [], [3], [None], [{"pg_name": "1", "ranks": "[0, 1]"}],
        [{"pg_name": "1", "ranks": [0, -1]}], [group(size=3)], [{"ranks": LARGE}], [group(), group(ranks=[1, 2])],
        [group(ranks=["a"], size=1)],
    ],
)  # fmt: skip
def test_what_is_odd_in_it_costs_neither_the_rank_nor_the_file(tmp_path: Path, config: Any) -> None:
    trace = kineto_with_groups(tmp_path, [kernel(**CUT_SHORT), gloo()], config)
    assert (trace.source.rank, trace.source.world_size) == (6, 128)
    assert {one.ranks for one in trace.fact(locals_of)} == {None}


@pytest.mark.corpus
def test_real_heads(corpus: Path) -> None:
    """Events of these name the same members as the head; ROCm's unnamed kernels stay unnamed."""
    held = load_one(corpus / "kineto" / "HolisticTraceAnalysis__nccl_data.json.gz").fact(locals_of)
    assert {(one.ranks, one.description) for one in held} == {((0, 1), "default_pg")}
    rocm = load_one(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz").fact(locals_of)
    assert sorted({one.ranks is None for one in rocm}) == [False, True]


def test_the_error_has_the_place_of_the_damage_and_no_other(tmp_path: Path) -> None:
    """Two writers joined their events without a comma."""
    event = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}'
    text = "[" + ", ".join([event] * 5) + ", ".join([event] * 5) + "]"
    path = tmp_path / "joined.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        kineto_reader.read(path)
    place, _, what = str(caught.value).rpartition("corrupt near byte ")[2].partition(": ")
    assert place == str(text.index("}{") + 1)
    assert "expect" in what.lower()
    assert not any(char.isdigit() for char in what)
