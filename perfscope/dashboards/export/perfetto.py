"""Perfetto: all ranks in one protobuf trace, for ui.perfetto.dev and trace_processor.

A process a rank and a device, a thread a host thread and a stream; steps, allocator events, counters and findings on
tracks of their own; arrows from a launch to its work; every argument under its name. Times are the traces' own, whole
nanoseconds. Spans of one track that overlap without nesting lie on lanes below it. What has no time (held memory,
segments, stacks, compiled programs) is not in it: ``--to parquet`` keeps that.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.dashboards.export import Subject
from perfscope.dashboards.export.about import first_ns, found, has_times
from perfscope.dashboards.export.files import whole_file
from perfscope.dashboards.export.perfetto_packets import Sequence
from perfscope.dashboards.export.placing import placed
from perfscope.dashboards.export.scene import Scene
from perfscope.dashboards.export.texts import Texts
from perfscope.dashboards.export.tracks import Tracks
from perfscope.model.errors import DataError

SUFFIX = ".pftrace.gz"
FOLDER = False


def write(subject: Subject, target: Path) -> list[str]:
    """Write ``subject`` to ``target``; gzip where it ends in ``.gz``. ``DataError``: nothing in it has a time."""
    traces = [trace for trace in subject.traces if has_times(trace)]
    if not traces:
        raise DataError(f"{subject.traces[0].source.path}: nothing in it has a time; `--to parquet` keeps its tables")
    tracks = Tracks()
    with whole_file(target) as stream:
        for index, trace in enumerate(traces):
            scene = Scene(trace, tracks, index=index, label=label_of(index, len(traces), trace.source.rank))
            sequence = Sequence(number=index + 1, texts=scene.texts, tracks=tracks)
            for track in scene.threads:  # also those without spans: allocator events name them
                stream.write(sequence.describe(track))
            for events in placed(scene.events(), tracks):
                for piece in sequence.pieces(events):
                    stream.write(piece)
        texts = Texts()
        sequence = Sequence(number=len(traces) + 1, texts=texts, tracks=tracks)
        for events in placed(found(subject.findings, texts, tracks, min(map(first_ns, traces))), tracks):
            for piece in sequence.pieces(events):
                stream.write(piece)
    return left_out(subject)


def label_of(index: int, count: int, rank: int | None) -> str:
    """What the processes of a trace are called by where several are in one file."""
    if rank is not None:
        return f"rank {rank} · "
    return f"trace {index} · " if count > 1 else ""


def left_out(subject: Subject) -> list[str]:
    """What a timeline cannot hold, in one sentence each."""
    remarks = []
    silent = sum(not has_times(trace) for trace in subject.traces)
    if silent:
        remarks.append(f"{silent} of {len(subject.traces)} traces have no times and are not in it")
    kept = ("held", "segments", "tensors", "frames")
    rows = {name: sum(len(trace.rows[name]) for trace in subject.traces) for name in kept}
    left = [f"{count:,} rows of {name}" for name, count in rows.items() if count]
    if left:
        remarks.append(f"without a time, and not in it: {', '.join(left)}")
    beside = recorded_beside(subject)
    if beside:
        remarks.append(f"recorded beside the timeline, and not in it: {', '.join(beside)}")
    return remarks


def recorded_beside(subject: Subject) -> list[str]:
    """What the traces hold besides their tables, by what it is."""
    kinds = {
        "detail recordings": sum(trace.detail is not None for trace in subject.traces),
        "op graphs": sum(trace.op_graph is not None for trace in subject.traces),
        "compiled programs": sum(len(trace.hlo) for trace in subject.traces),
        "logs of torch.compile": sum(trace.compile_log is not None for trace in subject.traces),
        "compilations of jax": sum(len(trace.compile_events) for trace in subject.traces),
        "reads by the host": sum(len(trace.host_reads) for trace in subject.traces),
        "flight records": sum(trace.flight_record is not None for trace in subject.traces),
    }
    return [f"{count:,} {what}" for what, count in kinds.items() if count]
