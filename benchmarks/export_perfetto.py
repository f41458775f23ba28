"""Speed of the Perfetto export: our writer by columns against the builder of the ``perfetto`` package.

    python benchmarks/export_perfetto.py --spans 200000 --repeat 3

The same spans with the same names, categories and arguments go through both in one run, in turns; the builder gets
interned strings, as it is meant to be used. Both files are read back and must say the same. Also: the time to read
them with our reader. Prints a Markdown table; the ratios are what counts, the seconds are of this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from perfscope.model.trace import Rows, SliceKind, Source, Trace  # noqa: E402
from perfscope.model.trace.tables import TABLES  # noqa: E402
from perfscope.plugins.exports.export import Subject, export  # noqa: E402
from perfscope.plugins.perfetto_files import reader as reader  # noqa: E402

NAMES = 500
SEQUENCE = 1


def made(spans: int) -> Trace:
    """Ops of one thread, eight within each outer one, with an external id and shapes."""
    random = np.random.default_rng(0)
    outer = np.arange(spans) % 9 == 0
    start = np.arange(spans, dtype=np.int64) * 1_000 + 1_783_874_667_000_000_000
    strings = [*(f"aten::op_{one}" for one in range(NAMES)), *(f"[[{one}, 4096]]" for one in range(64)), "1", "2"]
    rows = {
        "threads": Rows(TABLES["threads"], {"process": [len(strings) - 2], "thread": [len(strings) - 1]}),
        "slices": Rows(
            TABLES["slices"],
            {
                "start_ns": start,
                "end_ns": start + np.where(outer, 8_950, 900),
                "name": random.integers(0, NAMES, spans),
                "kind": np.full(spans, int(SliceKind.OP)),
                "thread": np.zeros(spans, np.int32),
                "external_id": np.arange(spans),
                "shapes": NAMES + random.integers(0, 64, spans),
            },
        ),
    }
    source = Source(path="made", format="kineto", rank=0, events_read=spans, events_unplaced=0)
    return Trace(source=source, strings=strings, rows=rows, recorded=frozenset({"host_ops"}))


def ours(trace: Trace, path: Path) -> None:
    export(Subject(traces=(trace,)), "perfetto", path)


def packages(trace: Trace, path: Path) -> None:
    """The same through ``StreamingTraceProtoBuilder``, a packet at a time."""
    rows = trace.rows["slices"]
    columns = (rows[name].tolist() for name in ("start_ns", "end_ns", "name", "external_id", "shapes"))
    with path.open("wb") as stream:
        builder = StreamingTraceProtoBuilder(stream)
        packet = builder.create_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.track_descriptor.uuid = 1
        packet.track_descriptor.thread.pid, packet.track_descriptor.thread.tid = 1, 2
        packet.interned_data.event_categories.add(iid=1, name="cpu_op")
        for iid, name in enumerate(("External id", "Input Dims"), start=1):
            packet.interned_data.debug_annotation_names.add(iid=iid, name=name)
        for code, text in enumerate(trace.strings):
            packet.interned_data.event_names.add(iid=code + 1, name=text)
            packet.interned_data.debug_annotation_string_values.add(iid=code + 1, str=text.encode())
        builder.write_packet(packet)
        open_until: list[int] = []

        def end(time_ns: int) -> None:
            packet = builder.create_packet()
            packet.timestamp = time_ns
            packet.trusted_packet_sequence_id = SEQUENCE
            packet.track_event.type = TrackEvent.TYPE_SLICE_END
            packet.track_event.track_uuid = 1
            builder.write_packet(packet)

        for start_ns, end_ns, name, external, shapes in zip(*columns, strict=True):
            while open_until and open_until[-1] <= start_ns:
                end(open_until.pop())
            packet = builder.create_packet()
            packet.timestamp = start_ns
            packet.trusted_packet_sequence_id = SEQUENCE
            packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            event = packet.track_event
            event.type = TrackEvent.TYPE_SLICE_BEGIN
            event.track_uuid = 1
            event.name_iid = name + 1
            event.category_iids.append(1)
            event.debug_annotations.add(name_iid=1, int_value=external)
            event.debug_annotations.add(name_iid=2, string_value_iid=shapes + 1)
            builder.write_packet(packet)
            open_until.append(end_ns)
        while open_until:
            end(open_until.pop())


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds: what another program on the machine takes does not count."""
    started = time.process_time()
    call()
    return time.process_time() - started


def same(first: Path, second: Path) -> None:
    """Hold both files to the same slices."""
    found = []
    for path in (first, second):
        (trace,) = reader.read(path)
        rows = trace.rows["slices"]
        texts = np.array(trace.strings, object)
        found.append(
            [rows["start_ns"], rows["end_ns"], rows["external_id"], texts[rows["name"]], texts[rows["shapes"]]]
        )
    for one, other in zip(*found, strict=True):
        if not (one == other).all():
            raise SystemExit("the two files differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    trace = made(options.spans)
    writers = {"perfscope": ours, "perfetto's StreamingTraceProtoBuilder": packages}
    best: dict[str, float] = {}
    reading: dict[str, float] = {}
    size: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{number}.pftrace" for number, name in enumerate(writers)}
        for _ in range(options.repeat):
            for name, writer in writers.items():
                took = seconds(lambda writer=writer, name=name: writer(trace, paths[name]))
                best[name] = min(took, best.get(name, took))
        for name, path in paths.items():
            size[name] = path.stat().st_size
            reading[name] = seconds(lambda path=path: reader.read(path))
        same(*paths.values())
    first = best["perfscope"]
    print("| writer | CPU s | spans/s | x perfscope | bytes a span | read back s |\n|-|-:|-:|-:|-:|-:|")
    for name, took in best.items():
        print(
            f"| {name} | {took:.2f} | {options.spans / took:,.0f} | {took / first:.1f} "
            f"| {size[name] / options.spans:.0f} | {reading[name]:.2f} |"
        )


if __name__ == "__main__":
    main()
