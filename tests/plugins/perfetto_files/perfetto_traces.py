"""Perfetto traces built with the classes of the ``perfetto`` package, and Perfetto's engine as the judge of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.model.trace import Trace
from perfscope.plugins.perfetto_files import reader as perfetto_reader
from tests.plugins.exports.trace_processor import query_trace

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="pip install perfetto")

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
BOOT, MONOTONIC = 6, 3


class PerfettoBuilder:
    """Packets of one or more sequences."""

    def __init__(self) -> None:
        self.trace = proto.Trace()

    def packet(self, *, sequence: int = 1, **more: Any) -> Any:
        return self.trace.packet.add(trusted_packet_sequence_id=sequence, **more)

    def track(
        self, uuid: int, name: str = "", *, parent: int = 0, pid: int = 0, tid: int = 0, **more: Any
    ) -> PerfettoBuilder:
        found = self.packet().track_descriptor
        found.uuid, found.parent_uuid, found.name = uuid, parent, name
        if tid:
            found.thread.pid, found.thread.tid, found.thread.thread_name = pid, tid, more.get("thread_name", "")
        elif pid:
            found.process.pid, found.process.process_name = pid, name
        if more.get("counter"):
            found.counter.unit_multiplier = more.get("multiplier", 0)
        return self

    def event(self, kind: int, time: int, track: int, name: str = "", category: str = "", *, sequence: int = 1,
              arguments: dict[str, Any] | None = None, flow: int = 0, **more: Any) -> Any:  # fmt: skip
        event = self.packet(sequence=sequence, timestamp=time).track_event
        event.type, event.track_uuid = kind, track
        if name:
            event.name = name
        if category:
            event.categories.append(category)
        if flow:
            event.flow_ids.append(flow)
        for key, value in (arguments or {}).items():
            one = event.debug_annotations.add(name=key)
            field = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}[type(value)]
            setattr(one, field, value)
        for key, value in more.items():
            setattr(event, key, value)
        return event

    def slice(self, start: int, end: int, track: int, name: str, category: str = "", **more: Any) -> PerfettoBuilder:
        self.event(BEGIN, start, track, name, category, **more)
        self.event(END, end, track, sequence=more.get("sequence", 1))
        return self

    def write(self, folder: Path, *, name: str = "t.pftrace") -> Path:
        (folder / name).write_bytes(self.trace.SerializeToString())
        return folder / name

    def read(self, folder: Path) -> Trace:
        (trace,) = perfetto_reader.read(self.write(folder))
        trace.check()
        return trace


def spans(trace: Trace, table: str = "slices") -> list[tuple[str, int, int]]:
    rows = trace.rows[table]
    columns = (rows["name"].tolist(), rows["start_ns"].tolist(), rows["end_ns"].tolist())
    return sorted((trace.strings[name], start, end) for name, start, end in zip(*columns, strict=True))


def agrees_with_the_engine(trace: Trace, file: Path) -> None:
    """Slices, their lengths and samples are as many as trace_processor finds."""
    found = query_trace(file, "select count(*), sum(dur) from slice where dur >= 0", "select count(*) from counter")
    tables = [trace.rows[name] for name in ("slices", "calls", "kernels", "copies")]
    ours = [sum(map(len, tables)), sum(int((rows["end_ns"] - rows["start_ns"]).sum()) for rows in tables)]
    assert [found[0][0][0], found[0][0][1] or 0] == ours
    assert found[1] == [[len(trace.rows["counters"])]]


def clocks(
    made: PerfettoBuilder, *pairs: tuple[int, int], sequence: int = 1, unit: int = 0, incremental: bool = False
) -> None:
    packet = made.packet(sequence=sequence)
    for clock, time in pairs:
        one = packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=time)
        if clock >= 64:
            one.unit_multiplier_ns, one.is_incremental = unit, incremental
