"""XLA's trace as Chrome JSON (``*.trace.json.gz``): the copy of a profile for viewers.

```
{"displayTimeUnit": "ns", "metadata": {"highres-ticks": true}, "traceEvents": [
  {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
  {"ph": "M", "pid": 3, "tid": 3, "name": "thread_name", "args": {"name": "XLA Ops"}},
  {"ph": "X", "pid": 3, "tid": 3, "ts": us, "dur": us, "name": "fusion.1", "args": {"long_name": "%fusion.1 = ..."}},
  ..., {}]}
```

A process is a plane of an XSpace and a thread is a line, so they are read as such (see ``reader.py``). It has no
compiled programs, at most a million events of the recording, and no allocator events of a TPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.events import Columns
from perfscope.analyzers.readers.xspace.planes import NUMBERS, TEXTS, Line, Plane, Space, line_of, signed
from perfscope.analyzers.readers.xspace.reader import build_from_planes
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder
from perfscope.model.trace.columns import MISSING

FORMAT = "xla_trace_json"

MAX_BYTES = 1 << 30
"""Maximum bytes. XLA writes at most a million events of some hundred bytes each."""

_MARK = b'"highres-ticks"'
_LARGEST_PS = Decimal(1 << 61)
_FRAME = Space(planes=(), ends_with_host=True, errors=0)
_NOTE = "the viewer's copy of a profile: no compiled programs, and a million events at most; the *.xplane.pb has all"

_METADATA = ("bytes_accessed", "program_id")
"""Arguments that all events of an instruction share."""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = MISSING
    tid: int = MISSING
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: dict[str, Any] = msgspec.field(default_factory=dict)


class _ImpossibleTimeError(Exception):
    """Error with the name of an event whose time is impossible."""


class _Document(msgspec.Struct):
    events: list[_Event] = msgspec.field(default_factory=list, name="traceEvents")


def sniff(path: Path, head: bytes) -> bool:
    """Return whether JSON has the mark that XLA's and TensorFlow's profilers write."""
    return head.lstrip()[:1] == b"{" and _MARK in head[:512]


def read(path: Path) -> Trace:
    """Return the trace of one host.

    ``DataError``, one line, for a file that is truncated, corrupt or without events.
    """
    shown = str(path)
    with open_bytes(path, MAX_BYTES) as data:
        try:
            document = msgspec.json.decode(bytes(data), type=_Document)  # It refers to the bytes.
        except (ValueError, RecursionError) as error:
            raise DataError(f"{shown}: cut off or corrupt: {str(error)[:120]}") from None
    pool = TraceBuilder(shown, FORMAT)
    pool.note(_NOTE)
    try:
        return build_from_planes(pool, _planes(document.events, pool), _FRAME)
    except _ImpossibleTimeError as error:
        raise DataError(f"{shown}: corrupt: event {str(error)[:40]!r} has an impossible time") from None


def _planes(events: list[_Event], pool: TraceBuilder) -> Iterator[tuple[Plane, list[Line]]]:
    """Yield a plane per process with its threads as lines, by number."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    spans: dict[int, dict[int, list[_Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.ph == "M" and event.name == "process_name":
            processes[event.pid] = str(event.args.get("name", ""))
        elif event.ph == "M" and event.name == "thread_name":
            threads[event.pid, event.tid] = str(event.args.get("name", ""))
        elif event.ph == "X":
            spans[event.pid][event.tid].append(event)
        elif event.ph not in ("", "M"):
            pool.unplaced[f"phase {event.ph[:12]}"] += 1
    for process, lines in sorted(spans.items()):
        modules = _Modules([event for thread, members in lines.items()
                            if threads.get((process, thread)) == names.MODULES_LINE for event in members])  # fmt: skip
        known: dict[tuple[str, int, int], int] = {}
        made = [
            _line(thread, threads.get((process, thread), ""), members, known, modules, pool.code)
            for thread, members in sorted(lines.items())
        ]
        yield _plane(processes.get(process, ""), known), made


class _Modules:
    """Executions of programs by time, because instructions lack theirs in the file."""

    def __init__(self, executions: list[_Event]) -> None:
        spans = sorted((*_times(event), event.name, event.args.get("run_id")) for event in executions)
        self._starts = np.array([start for start, *_ in spans], np.int64)
        self._ends = np.array([start + length for start, length, *_ in spans], np.int64)
        numbers = [names.numbered_program(name)[1] for _, _, name, _ in spans]
        self._programs = [MISSING if number is None else signed(number) for number in numbers]
        self._runs = [_whole(run) for *_, run in spans]

    def at(self, start_ps: int) -> tuple[int, int]:
        """Return program and run at a moment; ``MISSING`` outside of all."""
        index = int(np.searchsorted(self._starts, start_ps, side="right")) - 1
        if index < 0 or start_ps >= self._ends[index]:
            return MISSING, MISSING
        return self._programs[index], self._runs[index]


def _plane(name: str, known: dict[tuple[str, int, int], int]) -> Plane:
    return Plane(
        name=name,
        stats={},
        names={key: text for (text, _, _), key in known.items()},
        metadata_stats={
            key: {stat: value for stat, value in zip(_METADATA, values, strict=True) if value != MISSING}
            for (_, *values), key in known.items()
        },
        stat_names={},
        lines=(),
    )


def _line(
    thread: int,
    name: str,
    events: list[_Event],
    known: dict[tuple[str, int, int], int],
    modules: _Modules,
    code: Callable[[str], int],
) -> Line:
    times = [_times(event) for event in events]
    columns = Columns.empty(len(events))
    columns.offset_ps[:], columns.duration_ps[:] = ([time[index] for time in times] for index in (0, 1))
    stats = columns.stats
    for stat in (*NUMBERS, *TEXTS):
        given = [(row, event.args[stat]) for row, event in enumerate(events) if stat in event.args]
        if given:
            stats[stat] = np.full(len(events), MISSING, np.int64)
            stats[stat][[row for row, _ in given]] = [
                code(str(value)) if stat in TEXTS else _whole(value) for _, value in given
            ]
    program = np.full(len(events), MISSING, np.int64)
    if name in (names.OPS_LINE, names.ASYNC_LINE):
        runs = [modules.at(start) for start, _ in times]
        program = np.array([found for found, _ in runs], np.int64)
        stats["run_id"] = np.array([run for _, run in runs], np.int64)
    columns.metadata[:] = [
        known.setdefault((str(event.args.get("long_name") or event.name), _whole(event.args.get("bytes_accessed")),
                          of_program), len(known) + 1)
        for event, of_program in zip(events, program.tolist(), strict=True)
    ]  # fmt: skip
    return line_of(thread, name, 0, columns)


def _times(event: _Event) -> tuple[int, int]:
    """Return start and duration in ps; ``_ImpossibleTimeError`` if invalid."""
    try:
        start, length = (Decimal(bytes(raw).decode()) * 1_000_000 for raw in (event.ts, event.dur))
        if abs(start) < _LARGEST_PS and 0 <= length < _LARGEST_PS:
            return int(start), int(length)
    except InvalidOperation:
        pass
    raise _ImpossibleTimeError(event.name)


def _whole(value: Any) -> int:
    """Parse an integer that XLA writes as text; ``MISSING`` for anything else."""
    text = str(value)
    return signed(int(text)) if text.isdecimal() and len(text) < 20 else MISSING
