"""The Perfetto export as the classes of the ``perfetto`` package read it."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.readers.perfetto import reader as reader
from perfscope.dashboards.export import Subject, export
from perfscope.dashboards.export import perfetto as packets
from perfscope.dashboards.export.events import fit
from perfscope.model.errors import DataError
from tests.build import TraceBuilder
from tests.export.trace_equality import TIMED, comparable_rows, totals
from tests.export.traces import SECRET, crowded, everything, finding

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="pip install perfetto")


class Opened:
    """A file as packets, with strings and tracks looked up."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        self.packets = list(proto.Trace.FromString(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).packet)
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor for p in self.packets if p.HasField("track_descriptor")
        }
        self.names: dict[tuple[int, str, int], str] = {}
        self.slices: list[tuple[str, str, str, int, int, dict[str, Any], int]] = []
        self.instants: list[tuple[str, str, str, int, dict[str, Any]]] = []
        self.samples: list[tuple[str, int, float]] = []
        opened: dict[int, list[Any]] = {}
        for p in self.packets:
            sequence = p.trusted_packet_sequence_id
            for kind in ("event_names", "event_categories", "debug_annotation_names"):
                for one in getattr(p.interned_data, kind):
                    self.names[sequence, kind, one.iid] = one.name
            for one in p.interned_data.debug_annotation_string_values:
                self.names[sequence, "text", one.iid] = one.str.decode()
        # by time, and as written where times are equal: as trace_processor sorts
        for p in sorted((p for p in self.packets if p.HasField("track_event")), key=lambda p: p.timestamp):
            event, sequence = p.track_event, p.trusted_packet_sequence_id
            if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
                opened.setdefault(event.track_uuid, []).append(p)
            elif event.type == proto.TrackEvent.TYPE_SLICE_END:
                begun = opened[event.track_uuid].pop()
                self.slices.append((*self._said(begun)[:3], begun.timestamp, p.timestamp, *self._said(begun)[3:]))
            elif event.type == proto.TrackEvent.TYPE_COUNTER:
                self.samples.append((self.path(event.track_uuid), p.timestamp, event.double_counter_value))
            else:
                track, category, name, arguments, _ = self._said(p)
                self.instants.append((track, category, name, p.timestamp, arguments))
        assert not any(opened.values())

    def path(self, uuid: int) -> str:
        """``rank 0 · host 1/thread 1``."""
        track = self.tracks[uuid]
        own = track.process.process_name or track.thread.thread_name or track.name
        return f"{self.path(track.parent_uuid)}/{own}" if track.parent_uuid else own

    def _said(self, p: Any) -> tuple[str, str, str, dict[str, Any], int]:
        event, sequence = p.track_event, p.trusted_packet_sequence_id
        arguments = {}
        for one in event.debug_annotations:
            field = one.WhichOneof("value")
            value = getattr(one, field)
            if field == "string_value_iid":
                value = self.names[sequence, "text", value]
            arguments[self.names[sequence, "debug_annotation_names", one.name_iid]] = value
        category = self.names[sequence, "event_categories", event.category_iids[0]]
        flow = event.flow_ids[0] if event.flow_ids else 0
        return (
            self.path(event.track_uuid),
            category,
            self.names[sequence, "event_names", event.name_iid],
            arguments,
            flow,
        )


def opened(tmp_path: Path, *traces: Any, **more: Any) -> Opened:
    export(Subject(traces=traces, **more), "perfetto", tmp_path / "t.pftrace")
    return Opened(tmp_path / "t.pftrace")


def test_tracks_times_names_and_arguments(tmp_path: Path) -> None:
    found = opened(tmp_path, everything())
    by_name = {name: (track, category, start, end, said) for track, category, name, start, end, said, _ in found.slices}
    assert by_name["aten::mm"] == (
        "rank 0 · host 1/thread 1", "cpu_op", 0, 100_000,
        {"External id": 5, "Sequence number": 3, "Input Dims": "[[2, 3], [3, 4]]", "Input type": '["float", "float"]',
         "op id": 0},
    )  # fmt: skip
    assert by_name["gemm"] == (
        "rank 0 · device 0 (Test GPU)/stream 7", "kernel", 30_000, 60_000,
        {"stream": 7, "communication": False, "correlation": 11, "External id": 5, "blocks": 264,
         "threads per block": 128, "device": 0, "op id": 0},
    )  # fmt: skip
    nccl = by_name["ncclDevKernel_AllReduce"]
    assert nccl[0] == "rank 0 · device 0 (Test GPU)/stream 20"
    assert (nccl[4]["Collective name"], nccl[4]["In msg nelems"], nccl[4]["communication"]) == (
        "all_reduce",
        1 << 40,
        True,
    )
    assert by_name["cudaStreamSynchronize"][4]["call kind"] == "sync"
    assert by_name["Memcpy HtoD"][4] | {"device": 0, "op id": None} == {
        "stream": 7, "correlation": 15, "copy kind": "host_to_device", "host memory": "pageable", "bytes": 4096,
        "device": 0, "op id": None,
    }  # fmt: skip
    assert by_name["Stream Sync"][0] == "rank 0 · device 0 (Test GPU)/stream 7/stream 7 waits"
    assert [(start, end, said) for _, category, _, start, end, said, _ in found.slices if category == "step"] == [
        (0, 180_000, {"number": 4}),
        (180_000, 350_000, {"number": 5}),
    ]


def test_every_span_is_there_with_its_length(tmp_path: Path) -> None:
    trace = everything()
    found = opened(tmp_path, trace)
    expected = Counter(
        (fit(trace.strings[name]), start, end)
        for table in ("slices", "calls", "kernels", "copies", "sync_records", "steps")
        for name, start, end in zip(
            *(trace.rows[table][key].tolist() for key in ("name", "start_ns", "end_ns")), strict=True
        )
    )
    assert Counter((name, start, end) for _, _, name, start, end, _, _ in found.slices) == expected


def test_arrows_lead_from_a_call_to_all_it_launched(tmp_path: Path) -> None:
    found = opened(tmp_path, everything())
    arrows: dict[int, set[str]] = {}
    for *_, name, _, _, _, flow in found.slices:
        if flow:
            arrows.setdefault(flow, set()).add(name)
    assert sorted(map(sorted, arrows.values())) == [
        ["cudaGraphLaunch", "first", "second"],
        ["cudaLaunchKernel", "gemm"],
        ["cudaLaunchKernel", "overlapping"],
    ]


def test_overlapping_spans_lie_on_lanes_below_their_track(tmp_path: Path) -> None:
    found = opened(tmp_path, everything())
    places = {name: track for track, _, name, *_ in found.slices}
    assert places["overlapping"] == f"{places['gemm']}/stream 7 (2)"
    assert places["crossing"].endswith("/thread 2/thread 2 (2)")
    lanes = {track for track, *_ in opened(tmp_path, crowded(40)).slices}
    assert len(lanes) == 40


def test_counters_and_allocator_events(tmp_path: Path) -> None:
    found = opened(tmp_path, everything())
    assert [sample for sample in found.samples if "memory" not in sample[0]] == [
        ("rank 0 · host 1/GPU 0: power", 0, 0.1),
        ("rank 0 · host 1/nvlink", 0, 12.0),
        ("rank 0 · host 1/GPU 0: power", 1_000, -3e300),
    ]
    assert [(path, value) for path, _, value in found.samples if "memory" in path] == [
        ("rank 0 · host 1/memory allocated (cuda:0)", 1024.0),
        ("rank 0 · host 1/memory allocated (cuda:0)", 512.0),
        ("rank 0 · host 1/memory reserved (cuda:0)", float(2 << 20)),
        ("rank 0 · host 1/memory reserved (cuda:0)", float(2 << 20)),
    ]
    events = [said for _, category, _, _, said in found.instants if category == "memory"]
    assert [(said["Addr"], said["Bytes"], said["action"]) for said in events] == [
        ((1 << 64) - 512, 512, "allocate"),
        ((1 << 64) - 512, -512, "free"),
    ]


def test_findings_carry_their_advice(tmp_path: Path) -> None:
    found = opened(tmp_path, everything(base=7), findings=(finding(),))
    ((track, _, name, time, said),) = [one for one in found.instants if one[1] == "finding"]
    assert (track, name, time) == ("findings/what was found", "The host waits 3 ms in aten::item", 7_000)
    assert said == {
        "rule": "host_sync", "subject": "aten::item", "severity": "high", "basis": "measured", "where": "train.py:88",
        "ranks": "0, 3", "advice": "Log every 100 steps:\nif step % 100 == 0: ...", "cost_ns": 3_000_000,
        "evidence 01": "wait_ns=1000, line=key=[hidden]", "evidence 02": "wait_ns=999, line=key=[hidden]",
    }  # fmt: skip


def test_more_optional_arguments_than_a_number_has_bits(tmp_path: Path) -> None:
    found = opened(tmp_path, everything(), findings=(finding(rows=60), finding(rows=2), finding(rows=59)))
    counts = [sum(key.startswith("evidence") for key in said) for _, category, _, _, said in found.instants
              if category == "finding"]  # fmt: skip
    assert counts == [60, 2, 59]


def test_ranks_of_several_hosts_share_no_ids(tmp_path: Path) -> None:
    found = opened(tmp_path, *(everything(rank=rank) for rank in range(3)))
    pids = [t.process.pid for t in found.tracks.values() if t.HasField("process")]
    tids = [t.thread.tid for t in found.tracks.values() if t.HasField("thread")]
    assert len(set(pids)) == len(pids) == 6
    assert len(set(tids)) == len(tids)
    assert {t.thread.pid for t in found.tracks.values() if t.HasField("thread")} <= set(pids)
    assert len({flow for *_, flow in found.slices if flow}) == 9
    names = [t.process.process_name for t in found.tracks.values() if t.HasField("process")]
    assert "rank 2 · host 1" in names


def test_field_numbers_are_perfettos() -> None:
    def number(message: Any, name: str) -> int:
        return int(message.DESCRIPTOR.fields_by_name[name].number)

    packet, event, interned = proto.TracePacket, proto.TrackEvent, proto.InternedData
    assert [
        number(packet, name) for name in ("timestamp", "trusted_packet_sequence_id", "track_event", "interned_data",
                                          "sequence_flags", "track_descriptor")
    ] == [packets._TIMESTAMP, packets._SEQUENCE, packets._TRACK_EVENT, packets._INTERNED, packets._FLAGS,
            packets._DESCRIPTOR]  # fmt: skip
    assert [
        number(event, name) for name in ("category_iids", "debug_annotations", "type", "name_iid", "track_uuid",
                                         "double_counter_value", "flow_ids")
    ] == [packets._CATEGORY, packets._ANNOTATION, packets._TYPE, packets._NAME, packets._UUID, packets._DOUBLE,
            packets._FLOW]  # fmt: skip
    assert [
        number(interned, name) for name in ("event_categories", "event_names", "debug_annotation_names",
                                            "debug_annotation_string_values")
    ] == [packets._CATEGORIES, packets._NAMES, packets._ARGUMENT_NAMES, packets._TEXTS]  # fmt: skip
    assert (packets._BEGIN, packets._END, packets._INSTANT, packets._COUNTER) == (
        event.TYPE_SLICE_BEGIN, event.TYPE_SLICE_END, event.TYPE_INSTANT, event.TYPE_COUNTER
    )  # fmt: skip
    assert proto.CounterDescriptor.UNIT_SIZE_BYTES == packets._BYTES


def test_no_secret_is_passed_on(tmp_path: Path) -> None:
    export(Subject(traces=(everything(),), findings=(finding(),)), "perfetto", tmp_path / "t.pftrace")
    assert SECRET.encode() not in (tmp_path / "t.pftrace").read_bytes()


def test_blocks_of_events_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = opened(tmp_path, everything()).slices
    monkeypatch.setattr(packets, "BLOCK", 3)
    assert opened(tmp_path, everything()).slices == whole


def test_the_same_trace_gives_the_same_bytes_and_gzip_goes_by_the_name(tmp_path: Path) -> None:
    for name in ("a.pftrace.gz", "b.pftrace.gz", "c.pftrace"):
        export(Subject(traces=(everything(),)), "perfetto", tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in ("a.pftrace.gz", "b.pftrace.gz", "c.pftrace"))
    assert a == b
    assert gzip.decompress(a) == c


def test_our_reader_reads_it_back(tmp_path: Path) -> None:
    traces = [everything(rank=0), everything(rank=5, base=1000)]
    export(Subject(traces=tuple(traces), findings=(finding(),)), "perfetto", tmp_path / "t.pftrace")
    back = reader.read(tmp_path / "t.pftrace")
    assert [one.source.rank for one in back] == [0, 5]
    for before, after in zip(traces, back, strict=True):
        after.check()
        assert totals(after) == totals(before)
        for table in TIMED:
            assert comparable_rows(after, table) == comparable_rows(before, table), table
        assert after.recorded == before.recorded
        assert len(after.rows["devices"]) == 1


def test_what_has_no_time_is_refused_or_named(tmp_path: Path) -> None:
    empty = TraceBuilder().build()
    with pytest.raises(DataError, match=r"^built\.json: nothing in it has a time"):
        export(Subject(traces=(empty,)), "perfetto", tmp_path / "t.pftrace")
    assert list(tmp_path.iterdir()) == []
    builder = TraceBuilder()
    builder.op("op", 0, 1)
    builder.row("frames", name=builder.code("f"))
    remarks = export(Subject(traces=(builder.build(), empty)), "perfetto", tmp_path / "t.pftrace")
    assert remarks == [
        "1 of 2 traces have no times and are not in it",
        "without a time, and not in it: 1 rows of frames",
    ]


def test_what_was_recorded_beside_the_timeline_is_named(tmp_path: Path) -> None:
    builder = TraceBuilder(detail=TraceBuilder().build())
    builder.op("op", 0, 1)
    for form in ("perfetto", "parquet"):
        remarks = export(Subject(traces=(builder.build(),)), form, tmp_path / form)
        assert [remark.endswith("and not in it: 1 detail recordings") for remark in remarks] == [True]


def test_a_source_that_says_too_much_is_still_known(tmp_path: Path) -> None:
    trace = everything()
    unplaced = {f"category token {one}": 10**9 for one in range(2_000)}
    trace = replace(trace, source=replace(trace.source, unplaced=unplaced, backend=f"token={SECRET}" * 500))
    export(Subject(traces=(trace,)), "perfetto", tmp_path / "t.pftrace")
    (back,) = reader.read(tmp_path / "t.pftrace")
    assert back.source.rank == 0
    assert totals(back) == totals(trace)


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written: no such file or directory"):
        export(Subject(traces=(everything(),)), "perfetto", tmp_path / "absent" / "t.pftrace")
    (tmp_path / "t.pftrace").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        export(Subject(traces=(everything(),)), "perfetto", tmp_path / "t.pftrace")
    assert [one.name for one in tmp_path.iterdir()] == ["t.pftrace"]


def test_times_are_whole_nanoseconds_of_any_clock(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.row("slices", name=builder.code("late"), start_ns=1_783_874_667_812_052_001,
                end_ns=1_783_874_667_812_052_004, kind=0, thread=builder.thread(1), external_id=-1)  # fmt: skip
    ((*_, start, end, _, _),) = opened(tmp_path, builder.build()).slices
    assert (start, end) == (1_783_874_667_812_052_001, 1_783_874_667_812_052_004)
    assert int(np.float64(start)) != start
