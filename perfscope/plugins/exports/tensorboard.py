"""A log folder for TensorBoard's profile plugin and XProf: ``plugins/profile/perfscope/RANK.xplane.pb``.

A source that was an XSpace is copied unchanged, because only the original has XProf's programs and counters. Any other
trace becomes a new XSpace: one plane for the host and one per device, one line per thread and stream, with names,
times, correlation ids and XLA instructions. XProf's trace viewer shows all of it; its other pages need records that
only its own profilers make, and stay empty. Allocator events, counters and stream waits are left out. Field numbers:
``tsl/profiler/protobuf/xplane.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from perfscope.analyzers.readers import open_bytes
from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import Array
from perfscope.model.wire import VARINT
from perfscope.plugins.exports.about import has_times
from perfscope.plugins.exports.events import Argument, Events, Texts, Tracks
from perfscope.plugins.exports.export import Subject
from perfscope.plugins.exports.files import whole_folder
from perfscope.plugins.exports.scene import Scene
from perfscope.plugins.exports.wire import Piece, bytes_field, nested, number_field, records, tag, text_field, varints

SUFFIX = "-tensorboard"
FOLDER = True

SESSION = ("plugins", "profile", "perfscope")
LARGEST = (1 << 31) - 1
"""Most bytes of a protocol buffer that its readers accept."""

_PLANES, _HOSTNAMES = 1, 4  # XSpace
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES = 2, 3, 4, 5  # XPlane
_LINE_ID, _LINE_NAME, _LINE_TIME, _EVENTS = 1, 2, 3, 4  # XLine
_METADATA, _OFFSET, _DURATION, _STATS = 1, 2, 3, 4  # XEvent
_INT64, _REFERENCE = 4, 7  # XStat
_PS = 1000

_NUMBERS = {"correlation": "correlation_id", "number": "step_num"}
_TEXTS = {"hlo_op": "hlo_op", "hlo_module": "hlo_module"}
"""Our arguments -> XProf's stats."""


def write(subject: Subject, target: Path) -> list[str]:
    """Write the folder ``target``. ``DataError``: no trace has a time, or one is too large for its format."""
    traces = [trace for trace in subject.traces if has_times(trace)]
    if not traces:
        raise DataError(f"{subject.traces[0].source.path}: nothing in it has a time; `--to parquet` keeps its tables")
    copied = 0
    with whole_folder(target) as folder:
        session = folder.joinpath(*SESSION)
        session.mkdir(parents=True)
        for index, trace in enumerate(traces):
            file = session / f"{_host(trace, index)}.xplane.pb"
            if trace.source.format == "xplane" and Path(trace.source.path).is_file():
                with open_bytes(Path(trace.source.path), LARGEST) as data:
                    file.write_bytes(data)
                copied += 1
            else:
                file.write_bytes(_space(trace, index))
    remarks = [f"open it with `tensorboard --logdir {target}` or `xprof {target}`"]
    if copied:
        remarks.append(f"{copied} profiles are copies of what the profiler wrote, with all names that it recorded")
    if copied < len(traces):
        remarks.append(
            "made from our tables: the trace viewer shows it; pages that need XProf's own records stay empty"
        )
    return remarks


def _host(trace: Trace, index: int) -> str:
    return f"rank{trace.source.rank:05}" if trace.source.rank is not None else f"trace{index:05}"


def _space(trace: Trace, index: int) -> bytes:
    """A trace as an XSpace."""
    tracks = Tracks()
    scene = Scene(trace, tracks, index=index, label="")
    planes: dict[int, list[bytes]] = {0: []}
    names: dict[int, dict[int, str]] = {0: {}}
    devices = {track.uuid: index + 1 for index, track in enumerate(scene.device_tracks)}
    stats = {name: number + 1 for number, name in enumerate((*_NUMBERS.values(), *_TEXTS.values()))}
    texts: dict[int, str] = {}
    wait = scene.texts.code(words.SYNC)  # XProf would show waits as kernels
    for events in scene.events():
        if events.kind != "slices" or events.category[0] == wait:
            continue
        streams = {track.uuid: stream for (_, stream), track in scene.streams.items()}
        for uuid in np.unique(events.track).tolist():
            rows = np.flatnonzero(events.track == uuid)
            plane = devices[tracks.top(uuid).uuid] if uuid in streams else 0
            known = names.setdefault(plane, {})
            for code in np.unique(events.name[rows]).tolist():
                known[code + 1] = scene.texts.shown(code)
            number = streams.get(uuid, tracks[uuid].tid)
            line = _line(tracks[uuid].name, number, events, rows, scene.texts, stats, texts)
            planes.setdefault(plane, []).append(line)
    titles = {0: "/host:CPU"}
    for position, ordinal in enumerate(trace.rows["devices"]["ordinal"].tolist(), start=1):
        titles[position] = f"/device:GPU:{ordinal}"
    held = {**{number: name for name, number in stats.items()}, **texts}
    parts = [
        bytes_field(_PLANES, *_plane(title, titles[title], planes.get(title, []), names.get(title, {}), held))
        for title in titles
    ]
    parts.append(text_field(_HOSTNAMES, _host(trace, index)))
    if sum(map(len, parts)) > LARGEST:
        raise DataError(f"{trace.source.path}: more than {LARGEST:,} bytes as XSpace, which no reader of it accepts")
    return b"".join(parts)


def _plane(
    number: int, title: str, lines: list[bytes], names: Mapping[int, str], stats: Mapping[int, str]
) -> list[bytes]:
    fields = [number_field(1, number), text_field(_PLANE_NAME, title), *lines]
    for field, held in ((_EVENT_NAMES, names), (_STAT_NAMES, stats)):
        fields += [_entry(field, key, text) for key, text in held.items()]
    return fields


def _entry(field: int, key: int, text: str) -> bytes:
    """An entry of a map from ids to metadata."""
    return bytes_field(field, number_field(1, key), bytes_field(2, number_field(1, key), text_field(2, text)))


def _line(
    name: str, number: int, events: Events, rows: Array, texts: Texts, stats: Mapping[str, int], used: dict[int, str]
) -> bytes:
    """A track as a line: its events in whole picoseconds after the first."""
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    first = int(events.start_ns[rows[0]])
    offset = (events.start_ns[rows] - first) * _PS
    lasted = (events.end_ns[rows] - events.start_ns[rows]) * _PS
    head: list[Piece] = [
        tag(_METADATA, VARINT), varints(events.name[rows] + 1), tag(_OFFSET, VARINT), varints(offset),
        tag(_DURATION, VARINT), varints(lasted),
    ]  # fmt: skip
    kept = [argument for argument in events.arguments if argument.name in _NUMBERS or argument.name in _TEXTS]
    shape = np.zeros(len(rows), np.int64)
    for index, argument in enumerate(kept):
        shape |= (
            np.ones(1, np.int64) if argument.present is None else argument.present[rows].astype(np.int64)
        ) << index
    result = np.empty(len(rows), object)
    for pattern in np.unique(shape).tolist():
        chosen = np.flatnonzero(shape == pattern)
        pieces = [piece if isinstance(piece, bytes) else piece[chosen] for piece in head]
        for index, argument in enumerate(kept):
            if pattern >> index & 1:
                pieces += _stat(argument, rows[chosen], texts, stats, used)
        result[chosen] = records(nested(_EVENTS, pieces), len(chosen))
    fields = [number_field(_LINE_ID, number), text_field(_LINE_NAME, name), number_field(_LINE_TIME, first)]
    return bytes_field(_LINES, *fields, *result.tolist())


def _stat(argument: Argument, rows: Array, texts: Texts, stats: Mapping[str, int], used: dict[int, str]) -> list[Piece]:
    values = argument.values[rows].astype(np.int64)
    if argument.name in _NUMBERS:
        name = number_field(1, stats[_NUMBERS[argument.name]])
        return nested(_STATS, [name, tag(_INT64, VARINT), varints(values)])
    codes = values + 1 + len(stats)  # texts are named by stat metadata, numbered after the stats
    for code in np.unique(values).tolist():
        used[code + 1 + len(stats)] = texts.shown(code)
    return nested(_STATS, [number_field(1, stats[_TEXTS[argument.name]]), tag(_REFERENCE, VARINT), varints(codes)])
