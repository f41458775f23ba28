"""The reader of Perfetto traces, on traces built with Perfetto's own classes and held to Perfetto's own engine."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.hlo.protos import message
from perfscope.analyzers.hlo.protos.perfetto import SCHEMA
from perfscope.analyzers.hlo.protos.schema import fields
from perfscope.analyzers.readers.file_bytes import HEAD_BYTES
from perfscope.analyzers.readers.load import load_one
from perfscope.model.trace import CallKind, CopyKind, SliceKind
from perfscope.plugins.perfetto_files import reader as perfetto_reader
from tests.plugins.perfetto_files.perfetto_traces import (
    BEGIN,
    BOOT,
    COUNTER,
    END,
    INSTANT,
    MONOTONIC,
    PerfettoBuilder,
    agrees_with_the_engine,
    clocks,
    proto,
    spans,
)


def test_slices_of_threads_and_tracks(tmp_path: Path) -> None:
    made = (
        PerfettoBuilder()
        .track(1, "train", pid=40)
        .track(2, parent=1, pid=40, tid=41, thread_name="main")
        .track(3, "queue")
    )
    made.slice(100, 200, 2, "outer", "cpu_op").slice(110, 150, 2, "inner").slice(150, 150, 2, "empty")
    made.slice(120, 300, 3, "async", "python_function")
    made.event(INSTANT, 130, 2, "mark")
    trace = made.read(tmp_path)
    assert spans(trace) == [
        ("async", 120, 300), ("empty", 150, 150), ("inner", 110, 150), ("mark", 130, 130), ("outer", 100, 200),
    ]  # fmt: skip
    slices = trace.rows["slices"]
    names = [trace.strings[code] for code in slices["name"]]
    parents = {name: -1 if parent < 0 else names[parent] for name, parent in zip(names, slices["parent"], strict=True)}
    assert parents == {"outer": -1, "inner": "outer", "mark": "inner", "empty": "outer", "async": -1}
    kinds = dict(zip(names, slices["kind"].tolist(), strict=True))
    assert (kinds["outer"], kinds["async"], kinds["inner"]) == (SliceKind.OP, SliceKind.PYTHON, SliceKind.OTHER)
    threads = trace.frame("threads")[["process", "thread"]].to_numpy().tolist()
    assert threads == [["40", "main"], ["queue", "queue"]]
    agrees_with_the_engine(trace, tmp_path / "t.pftrace")


def test_times_that_are_equal_go_by_the_order_of_the_file(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a")
    for kind, time, name in (
        (BEGIN, 10, "first"), (END, 20, ""), (BEGIN, 20, "second"), (BEGIN, 20, "within"), (END, 30, ""), (END, 30, ""),
    ):  # fmt: skip
        made.event(kind, time, 1, name)
    assert spans(made.read(tmp_path)) == [("first", 10, 20), ("second", 20, 30), ("within", 20, 30)]


def test_packets_may_stand_in_any_order_of_time(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a").track(2, "b")
    made.slice(500, 600, 1, "later").slice(100, 200, 1, "earlier").slice(50, 70, 2, "other")
    trace = made.read(tmp_path)
    assert spans(trace) == [("earlier", 100, 200), ("later", 500, 600), ("other", 50, 70)]
    agrees_with_the_engine(trace, tmp_path / "t.pftrace")


def test_what_never_began_or_ended_is_counted(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a").track(2, "b")
    made.event(END, 5, 1)
    made.slice(10, 20, 1, "whole")
    made.event(END, 25, 1)
    made.event(BEGIN, 30, 1, "open")
    made.slice(40, 50, 1, "within")
    made.event(END, 1, 2)
    trace = made.read(tmp_path)
    assert spans(trace) == [("whole", 10, 20), ("within", 40, 50)]
    assert trace.source.unplaced == {"slices that never end": 1, "ends of slices that never began": 3}
    assert trace.source.events_read == 6


def test_interned_strings_mean_something_until_the_state_is_cleared(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a").track(2, "b")

    def interned(sequence: int, name: str, category: str, flags: int, time: int, track: int) -> None:
        packet = made.packet(sequence=sequence, timestamp=time, sequence_flags=flags)
        packet.interned_data.event_names.add(iid=1, name=name)
        packet.interned_data.event_categories.add(iid=1, name=category)
        packet.interned_data.debug_annotation_names.add(iid=7, name="External id")
        packet.interned_data.debug_annotation_names.add(iid=8, name="Input Dims")
        packet.interned_data.debug_annotation_string_values.add(iid=1, str=f"[{name}]".encode())
        event = packet.track_event
        event.type, event.track_uuid, event.name_iid = BEGIN, track, 1
        event.category_iids.append(1)
        event.debug_annotations.add(name_iid=7, uint_value=time)
        event.debug_annotations.add(name_iid=8, string_value_iid=1)
        event.debug_annotations.add(name_iid=99, string_value="unknown")
        made.event(END, time + 1, track, sequence=sequence)

    interned(1, "one", "cpu_op", 1, 10, 1)
    interned(2, "two", "overhead", 1, 10, 2)
    interned(1, "three", "user_annotation", 3, 20, 1)
    packet = made.packet(sequence=1, timestamp=30, sequence_flags=2)
    packet.track_event.type, packet.track_event.track_uuid, packet.track_event.name_iid = BEGIN, 1, 1
    made.event(END, 31, 1)
    trace = made.read(tmp_path)
    assert spans(trace) == [("one", 10, 11), ("three", 20, 21), ("three", 30, 31), ("two", 10, 11)]
    slices = trace.rows["slices"]
    found = {
        (trace.strings[name], kind, number, trace.text(shapes))
        for name, kind, number, shapes in zip(
            *(slices[key].tolist() for key in ("name", "kind", "external_id", "shapes")), strict=True
        )
    }
    assert found == {
        ("one", 0, 10, "[one]"), ("two", 3, 10, "[two]"), ("three", 1, 20, "[three]"), ("three", 4, -1, ""),
    }  # fmt: skip


def test_counters(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "power", counter=True).track(2, "KB", counter=True, multiplier=1024)
    made.event(COUNTER, 10, 1, double_counter_value=0.5)
    made.event(COUNTER, 20, 2, counter_value=-3)
    trace = made.read(tmp_path)
    rows = trace.rows["counters"]
    found = [(trace.strings[name], time, value) for name, time, value in
             zip(rows["name"].tolist(), rows["time_ns"].tolist(), rows["value"].tolist(), strict=True)]  # fmt: skip
    assert found == [("power", 10, 0.5), ("KB", 20, -3072.0)]


def test_kernels_and_copies_need_a_device(tmp_path: Path) -> None:
    """Kineto's words, and those of rocprofv3: calls join their kernels by correlation id or arrow."""
    made = PerfettoBuilder().track(1, "host").track(2, "stream")
    made.slice(0, 5, 1, "cudaLaunchKernel", "cuda_runtime", arguments={"correlation": 7})
    made.slice(10, 20, 2, "gemm", "kernel", arguments={"device": 1, "stream": 7, "correlation": 7})
    made.slice(20, 25, 1, "hipLaunchKernel", "hip_api", arguments={"corr_id": 8}, flow=3)
    made.slice(30, 40, 2, "ncclKernel_AllReduce", "kernel_dispatch", arguments={"agent": "GPU 4", "queue": 2}, flow=3)
    made.slice(50, 60, 2, "MEMORY_COPY_HOST_TO_DEVICE", "memory_copy", arguments={"dst_agent": 4, "copy_bytes": 64})
    made.slice(70, 80, 2, "of no device", "kernel")
    trace = made.read(tmp_path)
    kernels = trace.frame("kernels")
    assert kernels["name"].tolist() == ["gemm", "ncclKernel_AllReduce"]
    assert (kernels["stream"].tolist(), kernels["call"].tolist()) == ([7, 2], [0, 1])
    assert trace.rows["devices"]["ordinal"].tolist() == [1, 4]
    assert trace.rows["calls"]["kind"].tolist() == [CallKind.KERNEL, CallKind.KERNEL]
    assert trace.rows["copies"]["bytes"].tolist() == [64]
    assert [trace.strings[code] for code in trace.rows["collectives"]["name"]] == ["all_reduce"]
    assert spans(trace) == [("of no device", 70, 80)]
    assert {"device_work", "launch_links", "runtime_calls"} <= trace.recorded
    assert "waiting_calls" not in trace.recorded, "no call waits: unknown whether such calls were recorded"
    assert "collectives" not in trace.recorded  # a name has no sizes
    assert CopyKind.MEMSET not in trace.rows["copies"]["kind"]


def test_steps_by_their_names(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a").slice(0, 10, 1, "ProfilerStep#3").slice(10, 30, 1, "ProfilerStep#4")
    trace = made.read(tmp_path)
    assert trace.rows["steps"]["number"].tolist() == [3, 4]
    assert "steps" in trace.recorded


def test_other_sources_of_data_are_counted(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a").slice(0, 1, 1, "op")
    made.packet(timestamp=5).ftrace_events.cpu = 1
    made.packet(timestamp=5).sys_stats.num_irq_total = 1
    made.packet().trace_config.duration_ms = 5
    made.packet().system_info.utsname.sysname = "Linux"
    assert made.read(tmp_path).source.unplaced == {"ftrace events": 1, "system statistics": 1}


def compressed(content: bytes) -> bytes:
    return proto.Trace(packet=[proto.TracePacket(compressed_packets=zlib.compress(content))]).SerializeToString()  # type: ignore[no-any-return]


def test_compressed_packets_are_read_in_their_place(tmp_path: Path) -> None:
    first = PerfettoBuilder().track(1, "a").slice(0, 10, 1, "before")
    inner = PerfettoBuilder().slice(20, 30, 1, "within")
    last = PerfettoBuilder().slice(40, 50, 1, "behind")
    raw = b"".join((first.trace.SerializeToString(), compressed(inner.trace.SerializeToString()),
                    last.trace.SerializeToString()))  # fmt: skip
    (tmp_path / "t.pftrace").write_bytes(raw)
    (trace,) = perfetto_reader.read(tmp_path / "t.pftrace")
    assert spans(trace) == [("before", 0, 10), ("behind", 40, 50), ("within", 20, 30)]
    agrees_with_the_engine(trace, tmp_path / "t.pftrace")


def test_nothing_that_is_not_asked_for_is_kept(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a")
    made.slice(0, 1, 1, "op", arguments={"environment": "PASSWORD=hunter2", "hostname": "node17"})
    made.trace.packet[0].track_descriptor.process.cmdline.append("--token=abc")
    trace = made.read(tmp_path)
    assert not {text for text in trace.strings if "hunter2" in text or "node17" in text or "abc" in text}


@pytest.mark.parametrize("change", [lambda raw: raw, gzip.compress])
def test_a_trace_is_found_by_what_is_in_it(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    made = PerfettoBuilder().track(1, "a").slice(0, 1, 1, "op")
    (tmp_path / "anything").write_bytes(change(made.trace.SerializeToString()))
    assert load_one(tmp_path / "anything").source.format == "perfetto"


@pytest.mark.parametrize(
    "head",
    [b"", b"\n", b"\n\x00", b"\n\x04\x08\x01\x12\x00", b"{}", b"\n\x0a/host:CPU ", b"\x0a\x02\x08", b"\n\n\n\n\n\n\n"],
)
def test_other_files_are_not_taken_for_one(tmp_path: Path, head: bytes) -> None:
    assert not perfetto_reader.sniff(tmp_path / "file", head)


@pytest.mark.corpus
def test_no_other_file_of_the_corpus_is_taken_for_one(corpus: Path) -> None:
    from perfscope.analyzers.readers.file_bytes import read_head

    for file in corpus.rglob("*"):
        if file.is_file():
            head = read_head(file)
            assert len(head) <= HEAD_BYTES
            assert perfetto_reader.sniff(Path("file"), head) is (file.parent.name == "perfetto"), file


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["JACC.jl__rocprofv3_3635359.pftrace.gz", "perfetto__nested_tracks.perfetto-trace.gz"])
def test_real_traces_of_others(corpus: Path, name: str) -> None:
    file = corpus / "perfetto" / name
    trace = load_one(file)
    trace.check()
    assert trace.source.events_unplaced == 0
    agrees_with_the_engine(trace, file)


@pytest.mark.corpus
def test_calls_of_rocprof(corpus: Path) -> None:
    trace = load_one(corpus / "perfetto" / "JACC.jl__rocprofv3_3635359.pftrace.gz")
    calls = trace.rows["calls"]
    assert len(calls) == 1132
    assert len(np.unique(calls["correlation"])) == 1132
    assert {"process": "3635359", "thread": "julia"} in trace.frame("threads").to_dict("records")
    assert "waiting_calls" in trace.recorded, "it shows calls that wait"


def test_numbers_and_types_are_perfettos() -> None:
    """Our declarations of its messages match the package's classes."""
    places = {"Clock": proto.ClockSnapshot.Clock}
    for field in fields(SCHEMA):
        theirs = places.get(field.message) or getattr(proto, field.message, None)
        if theirs is None:
            theirs = message_class(field.message)
        found = theirs.DESCRIPTOR.fields_by_number[field.number]
        assert found.name == field.name, (field.message, field.name)
        ours = message(f"perfetto.{field.message}").DESCRIPTOR.fields_by_number[field.number]
        alike = (
            {found.TYPE_ENUM, found.TYPE_INT32, found.TYPE_INT64},
            {found.TYPE_STRING, found.TYPE_BYTES, found.TYPE_MESSAGE},
        )
        both = {found.type, ours.type}
        assert len(both) == 1 or any(both <= types for types in alike), (field.message, field.name)


def message_class(name: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(proto.Trace.DESCRIPTOR.file.pool.FindMessageTypeByName(f"perfetto.protos.{name}"))


def test_events_without_a_track_are_of_the_thread_of_their_sequence(tmp_path: Path) -> None:
    made = PerfettoBuilder()
    for sequence in (1, 2):
        thread = made.packet(sequence=sequence, sequence_flags=1).thread_descriptor
        thread.pid, thread.tid, thread.thread_name = 7, 70 + sequence, f"worker {sequence}"
    for sequence, kind, time, name in (
        (1, BEGIN, 10, "one"), (2, BEGIN, 15, "two"), (1, END, 20, ""), (2, END, 30, ""),
    ):  # fmt: skip
        event = made.packet(sequence=sequence, timestamp=time).track_event
        event.type = kind
        if name:
            event.name = name
    trace = made.read(tmp_path)
    assert spans(trace) == [("one", 10, 20), ("two", 15, 30)]
    assert sorted(trace.frame("threads")[["process", "thread"]].to_numpy().tolist()) == [
        ["7", "worker 1"],
        ["7", "worker 2"],
    ]
    agrees_with_the_engine(trace, tmp_path / "t.pftrace")


def test_clocks_of_a_sequence_count_in_their_own_units_and_differences(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a")
    clocks(made, (BOOT, 1_000_000), (64, 500), unit=1000, incremental=True)
    made.packet(sequence_flags=1).trace_packet_defaults.timestamp_clock_id = 64
    made.trace.packet[-1].trace_packet_defaults.track_event_defaults.track_uuid = 1
    for delta, kind, name in ((5, BEGIN, "first"), (10, END, ""), (0, BEGIN, "second"), (2, END, "")):
        event = made.packet(timestamp=delta).track_event
        event.type = kind
        if name:
            event.name = name
    clocks(made, (BOOT, 2_000_000), (64, 1500), unit=1000, incremental=True)
    event = made.packet(timestamp=3).track_event
    event.type, event.name = BEGIN, "third"
    made.packet(timestamp=1).track_event.type = END
    trace = made.read(tmp_path)
    assert spans(trace) == [
        ("first", 1_005_000, 1_015_000), ("second", 1_015_000, 1_017_000), ("third", 2_003_000, 2_004_000),
    ]  # fmt: skip
    agrees_with_the_engine(trace, tmp_path / "t.pftrace")


def test_clocks_of_the_machine_are_joined_by_snapshots(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a")
    clocks(made, (BOOT, 1000), (MONOTONIC, 400))
    clocks(made, (BOOT, 2010), (MONOTONIC, 1400))  # it went on 10 ns faster
    made.slice(1500, 1600, 1, "boot")
    for time, kind in ((1000, BEGIN), (1500, END)):
        event = made.packet(timestamp=time, timestamp_clock_id=MONOTONIC).track_event
        event.type, event.track_uuid, event.name = kind, 2, "monotonic"
    trace = made.read(tmp_path)
    assert spans(trace) == [("boot", 1500, 1600), ("monotonic", 1600, 2110)]


def test_a_clock_that_nothing_relates_to_the_others_is_counted(tmp_path: Path) -> None:
    made = PerfettoBuilder().track(1, "a").slice(10, 20, 1, "boot")
    for time, kind in ((1000, BEGIN), (1500, END)):
        event = made.packet(timestamp=time, timestamp_clock_id=70).track_event
        event.type, event.track_uuid = kind, 2
    trace = made.read(tmp_path)
    assert spans(trace) == [("boot", 10, 20)]
    assert trace.source.unplaced == {"events on a clock that no snapshot relates to the others": 2}


def test_one_clock_needs_no_snapshot(tmp_path: Path) -> None:
    made = PerfettoBuilder()
    for time, kind in ((1000, BEGIN), (1500, END)):
        event = made.packet(timestamp=time, timestamp_clock_id=MONOTONIC).track_event
        event.type, event.track_uuid, event.name = kind, 2, "m"
    assert spans(made.read(tmp_path)) == [("m", 1000, 1500)]
