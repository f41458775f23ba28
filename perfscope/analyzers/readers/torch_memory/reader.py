"""CUDA memory snapshots from ``torch.cuda.memory._dump_snapshot``, gzip or not.

```
{"segments": [{"device": 0, "address": N, "total_size": B, "allocated_size": B, "active_size": B, "stream": N,
   "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [...],
   "blocks": [{"address": N, "size": B, "requested_size": B, "state": "active_allocated", "frames": [...]}]}],
 "device_traces": [[{"action": "alloc", "addr": N, "size": B, "stream": N, "time_us": T, "frames": [
   {"filename": "model.py", "line": 7, "name": "forward"}]}]],
 "external_annotations": [{"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": T}]}
```

Sizes of the history are requested sizes, because torch does not record the rounded ones there. Torch's own viewer sums
requested sizes, and so do the totals of allocated bytes here; ``held`` and ``segments`` have the rounded sizes.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers.columns import join_columns, nesting_order, parents
from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.pickles import load
from perfscope.analyzers.readers.torch_memory.history import Entries, History, history_of
from perfscope.analyzers.readers.torch_memory.state import Stacks, pool_of, state_of
from perfscope.model.errors import DataError
from perfscope.model.trace import TABLES, Rows, SliceKind, Trace, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array
from perfscope.model.trace.tables import MEMORY, MemoryAction
from perfscope.native import library as native_library

_STEP = re.compile(r"(?:perfscope\.step#|ProfilerStep\s?#)(\d{1,15})")

FORMAT = "torch_memory"
_DOCUMENT = "memory snapshot"

_KEYS = (b"segments", b"device_traces", b"segment_type", b"total_size", b"free_completed")

_OTHERS = (b"pg_config", b"collective_seq_id")
"""Keys of the flight recorder."""


# The annotations of a snapshot next to its history: ranges of the program on the same clock.


class Annotations(Struct, frozen=True, kw_only=True):
    """Tables ``threads``, ``slices`` and ``steps`` of the annotations."""

    rows: dict[str, Rows]
    unplaced: dict[str, int]

    def around(self, times_ns: Array) -> Array | None:
        """Return the row of the innermost range around each time, (n,) int32; ``None`` without ranges."""
        slices = self.rows["slices"]
        if not len(slices):
            return None
        start, end = slices["start_ns"], slices["end_ns"]
        edges = np.unique(np.concatenate((start, end)))
        inner = np.full(len(edges), MISSING, np.int32)
        for row in range(len(slices)):  # Callers come before their callees, which then overwrite them.
            inner[np.searchsorted(edges, start[row]) : np.searchsorted(edges, end[row])] = row
        positions = np.searchsorted(edges, times_ns, side="right") - 1
        return np.where(positions >= 0, inner[np.maximum(positions, 0)], MISSING).astype(np.int32)


def annotations_of(found: Any, strings: TraceBuilder) -> Annotations:
    """Return ranges of ``external_annotations``: START and END of one name on one device; the last begun ends first."""
    opened: dict[tuple[int, str], list[int]] = {}
    ranges: list[tuple[int, int, int, str]] = []
    lost = 0
    for one in found if type(found) is list else ():
        name, stage, time = (one.get(key) for key in ("name", "stage", "time_us")) if type(one) is dict else (None,) * 3
        if type(name) is not str or type(time) is not int or not 0 <= time < 2**63 // 1000:
            lost += 1
            continue
        device = one.get("device")
        key = (device if type(device) is int else MISSING, name)
        if stage == "START":
            opened.setdefault(key, []).append(time)
        elif stage == "END" and opened.get(key):
            start = opened[key].pop()
            ranges.append((start * 1000, max(start, time) * 1000, key[0], name))
        else:
            lost += 1
    lost += sum(map(len, opened.values()))
    return Annotations(
        rows=_rows(ranges, strings), unplaced={"annotations without their other end": lost} if lost else {}
    )


def _rows(ranges: list[tuple[int, int, int, str]], strings: TraceBuilder) -> dict[str, Rows]:
    if not ranges:
        return {name: Rows(TABLES[name], {}) for name in ("threads", "slices", "steps")}
    devices = sorted({device for _, _, device, _ in ranges})
    start, end = (np.array([one[at] for one in ranges], np.int64) for at in (0, 1))
    thread = np.array([devices.index(device) for _, _, device, _ in ranges], np.int32)
    name = np.array([strings.code(text) for _, _, _, text in ranges], np.int32)
    order = nesting_order(thread, start, end)
    start, end, thread, name = start[order], end[order], thread[order], name[order]
    steps = [
        (row, match) for row, code in enumerate(name.tolist()) if (match := _STEP.fullmatch(strings.strings[code]))
    ]
    positions = np.array([row for row, _ in steps], np.int64)
    return {
        "threads": Rows(TABLES["threads"], {
            "process": np.full(len(devices), strings.code("memory snapshot")),
            "thread": [strings.code(f"annotations of device {device}") for device in devices],
        }),
        "slices": Rows(TABLES["slices"], {
            "start_ns": start, "end_ns": end, "name": name, "thread": thread,
            "kind": np.full(len(start), SliceKind.ANNOTATION), "parent": parents(thread, start, end),
        }),
        "steps": Rows(TABLES["steps"], {
            "start_ns": start[positions], "end_ns": end[positions], "name": name[positions],
            "number": np.array([int(match[1]) for _, match in steps], np.int64),
        }),
    }  # fmt: skip


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is a pickle that begins with the segments, or the history, of an allocator."""
    return head[:1] == b"\x80" and any(key in head for key in _KEYS[:2]) and _has_snapshot_keys(head)


def _has_snapshot_keys(head: bytes) -> bool:
    return not any(key in head for key in _OTHERS) and sum(key in head for key in _KEYS) >= 2


def read(path: Path) -> Trace:
    """Return the snapshot at ``path``. ``DataError``, one line, if it is corrupt, hostile or of another kind.

    Memory: about three times the decompressed file, five without the native library. Nothing in it can be run.
    """
    strings = TraceBuilder(str(path), FORMAT)
    stacks = Stacks(strings)
    try:
        with open_bytes(path) as data:
            found, histories = _content(data, stacks)
        del data
        return _trace(found, histories, stacks, strings)
    except DataError as error:
        text = str(error)
        raise DataError(text if text.startswith(f"{path}: ") else f"{path}: not a memory snapshot: {text}") from error


def _content(data: bytes | mmap.mmap, stacks: Stacks) -> tuple[dict[str, Any], list[Entries]]:
    """Return the snapshot, which may lack its histories, and these as columns."""
    if native_library() is not None:
        from perfscope.native.snapshot import read_snapshot

        native = read_snapshot(data)
        if native is not None:
            stacks.start(native.texts, native.frames, native.rows)
            return load(native.rest, _DOCUMENT), [Entries(one.columns, one.words) for one in native.histories]
    found = load(data, _DOCUMENT)
    if type(found) is not dict or type(found.get("segments")) is not list:
        raise DataError("no dictionary with segments")
    listed = found.get("device_traces")
    return found, [Entries.of(one, stacks) for one in listed if type(one) is list] if type(listed) is list else []


def _trace(found: dict[str, Any], histories: list[Entries], stacks: Stacks, strings: TraceBuilder) -> Trace:
    read = sum(history.count for history in histories)
    state = state_of(found["segments"], stacks, strings)
    annotations = annotations_of(found.get("external_annotations"), strings)

    parts: list[History] = []
    for ordinal, entries in enumerate(histories):
        if entries.count:
            _pools(entries, strings)
            rows = state.held.take(np.flatnonzero(state.held["ordinal"] == ordinal))
            part = history_of(entries, rows, state.reserved.get(ordinal, 0))
            part.columns |= _constant(len(part.columns["action"]), on_device=True, ordinal=ordinal)
            if len(part.columns["action"]) == part.before:  # The history has only marks, so its start is unknown.
                part.columns, part.before = {}, 0
            parts.append(part)
    if not all(part.timed for part in parts):  # Otherwise all devices count events.
        strings.events_only = True
        for part in parts:
            part.columns |= {"time_ns": np.arange(len(part.columns["action"]))} if part.columns else {}
    memory = _memory([part for part in parts if part.columns])
    if (around := annotations.around(memory.get("time_ns", np.empty(0, np.int64)))) is not None:
        memory["op"] = around
    strings.events = read
    for counts in (state.unplaced, annotations.unplaced, *(part.unplaced for part in parts)):
        strings.unplaced.update(counts)
    for part in parts:
        strings.repairs.update(part.repairs)
    strings.note(*_notes(parts, len(memory.get("action", ())), len(state.segments)))
    strings.record("memory_state", *(("memory",) if memory else ()))
    strings.rows = {
        "memory": Rows(MEMORY, memory), "frames": stacks.rows(), "segments": state.segments, "held": state.held,
        **annotations.rows,
    }  # fmt: skip
    if len(annotations.rows["steps"]):
        strings.record("steps")
    return strings.build()


def _pools(entries: Entries, strings: TraceBuilder) -> None:
    """Replace the words of pools by codes of the trace's strings."""
    words = entries.words["pool_id"]
    if words:
        codes = [MISSING if (pool := pool_of(word)) is None else strings.code(pool) for word in words]
        entries.recode("pool_id", np.array([*codes, MISSING], np.int32))


def _constant(size: int, **values: float) -> dict[str, Array]:
    """Return columns of one value each, which take no memory."""
    return {
        name: np.broadcast_to(np.array(value, MEMORY.column(name).dtype), (size,)) for name, value in values.items()
    }


def _blank(size: int) -> dict[str, Array]:
    """Return all optional columns with their default values, without memory for each row."""
    blank = {
        column.name: column.default if column.default is not None else np.nan if column.dtype[0] == "f" else MISSING
        for column in MEMORY.columns
        if column.nullable or column.default is not None
    }
    return _constant(size, **blank)


def _memory(parts: list[History]) -> dict[str, Array]:
    """Return the rows of all devices in order of time, with blocks held before in front."""
    if not parts:
        return {}
    if len(parts) == 1:
        columns = parts[0].columns
    else:
        columns = join_columns([part.columns for part in parts])
        held = columns["action"] != MemoryAction.HELD_BEFORE
        order = np.lexsort((columns["time_ns"], held))
        columns = {name: values[order] for name, values in columns.items()}
    size, before = len(columns["action"]), sum(part.before for part in parts)
    if before and len(parts) > 1:
        columns["time_ns"][:before] = columns["time_ns"].min()
    columns["address"] = (
        columns["address"].view(np.uint64) if columns["address"].dtype == np.int64 else columns["address"]
    )
    moves = (columns["action"] == MemoryAction.RESERVE) | (columns["action"] == MemoryAction.RELEASE)
    columns["requested_bytes"] = np.where(moves, MISSING, np.abs(columns["bytes"]))
    return _blank(size) | columns


def _notes(parts: list[History], rows: int, segments: int) -> Iterable[str]:
    yield from (note for part in parts for note in part.notes)
    if not rows and not segments:
        yield "the allocator held nothing at the moment of the snapshot, and its history has no allocation"
    if rows:
        yield "sizes of the history are requested sizes, as torch records them; `held` has rounded sizes"
    if before := sum(part.before for part in parts):
        yield f"{before:,} blocks were held before the first entry of the history: computed backwards from the snapshot"
