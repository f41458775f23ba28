"""Chrome's trace JSON with Kineto's names: for chrome://tracing, Perfetto, and tools that read torch.profiler's files.

Tracks, lanes and arrows are the same as in the Perfetto export. Times are microseconds with three decimals after
``baseTimeNanoseconds``, so that viewers, which hold them as floating-point numbers, show them to the nanosecond;
readers that support Kineto add the base. A file whose name ends in ``.gz`` is compressed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import MISSING
from perfscope.plugins.exports.about import first_ns, found, has_times
from perfscope.plugins.exports.events import Argument, Events, Texts, Track, Tracks, fit
from perfscope.plugins.exports.export import Subject
from perfscope.plugins.exports.files import whole_file
from perfscope.plugins.exports.lanes import placed
from perfscope.plugins.exports.perfetto import label_of, left_out
from perfscope.plugins.exports.scene import Scene

SUFFIX = ".trace.json.gz"
FOLDER = False

_BLOCK = 1 << 14
"""Events that are serialised at once."""
_RAW = frozenset(
    {
        *(words.ARGUMENTS["slices"][name] for name in ("shapes", "dtypes", "strides", "values")),
        words.ARGUMENTS["collectives"]["ranks"],
    }
)
"""Arguments whose text is already JSON."""
_MEMORY_NAMES = {"allocate": "[memory]", "free": "[memory]"}
"""Kineto's name of both kinds of event; it does not write other allocator events."""


def write(subject: Subject, target: Path) -> list[str]:
    """Write ``subject`` to ``target``. ``DataError``: nothing in it has a time."""
    traces = [trace for trace in subject.traces if has_times(trace)]
    if not traces:
        raise DataError(f"{subject.traces[0].source.path}: nothing in it has a time; `--to parquet` keeps its tables")
    with whole_file(target) as stream:
        first = min(map(first_ns, traces))
        stream.write(_head(traces, first).encode("utf-8", "replace"))
        tracks = Tracks()
        before = b""
        for part in _texts(subject, traces, tracks, first):
            stream.write(before + part.encode("utf-8", "replace"))
            before = b",\n"
        stream.write(b"\n]}\n")
    return left_out(subject)


def _head(traces: list[Trace], first: int) -> str:
    """The keys before the events, as Kineto writes them."""
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns", "baseTimeNanoseconds": first}
    source = traces[0].source
    if len(traces) == 1 and source.rank is not None:
        given = {"rank": source.rank, "world_size": source.world_size, "backend": source.backend}
        head["distributedInfo"] = {key: value for key, value in given.items() if value is not None}
    if len(traces) == 1:
        head["deviceProperties"] = _devices(traces[0])
    text = json.dumps(head)
    return text[:-1] + ', "traceEvents": [\n'


def _devices(trace: Trace) -> list[dict[str, Any]]:
    rows = trace.rows["devices"]
    devices = []
    for row in range(len(rows)):
        item: dict[str, Any] = {"id": int(rows["ordinal"][row])}
        if rows["name"][row] != MISSING:
            item["name"] = fit(trace.strings[int(rows["name"][row])])
        for key, column in (("numSms", "cores"), ("totalGlobalMem", "memory_bytes")):
            if rows[column][row] != MISSING:
                item[key] = int(rows[column][row])
        devices.append(item)
    return devices


def _texts(subject: Subject, traces: list[Trace], tracks: Tracks, first: int) -> Iterator[str]:
    """The events as JSON, in batches joined with commas."""
    for index, trace in enumerate(traces):
        scene = Scene(trace, tracks, index=index, label=label_of(index, len(traces), trace.source.rank))
        yield from _events(scene.events(), scene.texts, tracks, first)
    texts = Texts()
    yield from _events(iter(found(subject.findings, texts, tracks, first)), texts, tracks, first)


def _events(groups: Iterator[Events], texts: Texts, tracks: Tracks, first: int) -> Iterator[str]:
    for group in placed(groups, tracks):
        events = group.events
        for uuid in np.unique(events.track).tolist():
            yield from _described(tracks, tracks[uuid])
        for begin in range(0, len(events), _BLOCK):
            yield ",\n".join(_block(events, begin, min(begin + _BLOCK, len(events)), texts, tracks, first))


def _described(tracks: Tracks, track: Track) -> Iterator[str]:
    if not tracks.is_new(track):
        return
    if track.parent:
        yield from _described(tracks, tracks[track.parent])
    if track.kind == "counter":
        return
    what = "process_name" if track.kind == "process" else "thread_name"
    yield json.dumps({"ph": "M", "name": what, "pid": track.pid, "tid": track.tid, "args": {"name": track.name}})


def _block(events: Events, low: int, high: int, texts: Texts, tracks: Tracks, first: int) -> Iterator[str]:
    part = slice(low, high)
    names = events.name[part].tolist()
    categories = events.category[part].tolist()
    quoted = {code: json.dumps(texts.shown(code)) for code in {*names, *categories}}
    start = (events.start_ns[part] - first).tolist()
    lasted = (events.end_ns[part] - events.start_ns[part]).tolist()
    uuids = events.track[part].tolist()
    places = {uuid: f'"pid": {tracks[uuid].pid}, "tid": {tracks[uuid].tid}' for uuid in set(uuids)}
    if events.kind == "counters":
        assert events.value is not None
        for uuid, at, value in zip(uuids, start, events.value[part].tolist(), strict=True):
            yield _sample(tracks[uuid], at, value)
        return
    columns = [_values(argument, part, texts) for argument in events.arguments]
    flows = events.flow[part].tolist()
    call = texts.code(words.CALL)
    for row, (name, category, at, ns, uuid, flow) in enumerate(
        zip(names, categories, start, lasted, uuids, flows, strict=True)
    ):
        arguments = ", ".join(filter(None, (values(row) for values in columns)))
        shown = quoted[name]
        if events.kind == "instants":
            head = f'"ph": "i", "s": "t", "ts": {_us(at)}'
            shown = json.dumps(_MEMORY_NAMES.get(texts.shown(name), texts.shown(name)))
        else:
            head = f'"ph": "X", "ts": {_us(at)}, "dur": {_us(ns)}'
        yield f'{{{head}, "name": {shown}, "cat": {quoted[category]}, {places[uuid]}, "args": {{{arguments}}}}}'
        if flow:
            side = '"ph": "s"' if category == call else '"ph": "f", "bp": "e"'
            yield f'{{{side}, "id": {flow}, "ts": {_us(at)}, "name": "launch", "cat": "ac2g", {places[uuid]}}}'


def _us(ns: int) -> str:
    """Nanoseconds as microseconds, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03}"


def _sample(track: Track, index: int, value: float) -> str:
    name, _, series = track.name.rpartition(": ")
    shown = {series if name else "value": value if np.isfinite(value) else None}
    event = {"ph": "C", "name": name or track.name, "pid": track.pid, "args": shown}
    return f'{{"ts": {_us(index)}, {json.dumps(event)[1:]}'


def _values(argument: Argument, part: slice, texts: Texts) -> Callable[[int], str]:
    """The argument of a row as ``"name": value``, empty if the row lacks it."""
    values = argument.values[part].tolist()
    present = None if argument.present is None else argument.present[part].tolist()
    name = json.dumps(argument.name)
    known: dict[int, str] = {}

    def shown(row: int) -> str:
        if present is not None and not present[row]:
            return ""
        value = values[row]
        if argument.value != "text":
            return f"{name}: {json.dumps(value)}"
        if value not in known:
            known[value] = f"{name}: {_json(texts.shown(value), raw=argument.name in _RAW)}"
        return known[value]

    return shown


def _json(text: str, *, raw: bool) -> str:
    """A text as a JSON value: unchanged if it is JSON already."""
    if raw:
        with contextlib.suppress(ValueError, RecursionError):  # cut to its length, or never JSON
            json.loads(text, parse_constant=_no_number)
            return text
    return json.dumps(text)


def _no_number(name: str) -> None:
    """Refuse ``NaN`` and infinities, which Python's parser accepts and JSON forbids."""
    raise ValueError(name)
