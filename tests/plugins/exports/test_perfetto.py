"""The Perfetto export as the classes of the ``perfetto`` package read it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.model.errors import DataError
from perfscope.plugins.exports import perfetto as packets
from perfscope.plugins.exports.export import Subject, export
from perfscope.plugins.perfetto_files import reader as reader
from tests.build import TraceBuilder
from tests.plugins.exports.trace_equality import TIMED, comparable_rows, totals
from tests.plugins.exports.traces import SECRET, crowded, everything, finding

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="pip install perfetto")


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


def test_the_same_trace_gives_the_same_bytes_and_gzip_goes_by_the_name(tmp_path: Path) -> None:
    for name in ("a.pftrace.gz", "b.pftrace.gz", "c.pftrace"):
        export(Subject(traces=(everything(),)), "perfetto", tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in ("a.pftrace.gz", "b.pftrace.gz", "c.pftrace"))
    assert a == b
    assert gzip.decompress(a) == c


@pytest.mark.parametrize("block", [3, packets.BLOCK])
def test_our_reader_reads_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(packets, "BLOCK", block)
    traces = [everything(rank=0), everything(rank=5, base=1000), crowded(40)]
    export(Subject(traces=tuple(traces), findings=(finding(rows=60), finding())), "perfetto", tmp_path / "t.pftrace")
    back = reader.read(tmp_path / "t.pftrace")
    assert [one.source.rank for one in back] == [0, 5, 0]
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
        "1 of 2 traces have no times and are left out",
        "left out, because they have no time: 1 rows of frames",
    ]


def test_what_was_recorded_beside_the_timeline_is_named(tmp_path: Path) -> None:
    builder = TraceBuilder(detail=TraceBuilder().build())
    builder.op("op", 0, 1)
    for form in ("perfetto", "parquet"):
        remarks = export(Subject(traces=(builder.build(),)), form, tmp_path / form)
        (remark,) = remarks
        assert remark.startswith(("left out", "not exported"))
        assert remark.endswith(": 1 detail recordings")


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
