"""Columns of one stretch of events, with a string dictionary of its own; shards are merged later."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.readers.kineto_json.categories import CATEGORIES, Group
from perfscope.analyzers.readers.kineto_json.events import (
    NO_ARGS,
    Args,
    Counter,
    ExactSpan,
    FlowEnd,
    FlowStart,
    FlowStep,
    Instant,
    Metadata,
    Span,
)
from perfscope.analyzers.readers.kineto_json.numbers import LARGEST_NS, floats_to_ns, text_to_ns
from perfscope.analyzers.trace.columns import MISSING, Array

Columns = dict[str, Array]
_SILENT = frozenset((Metadata, FlowStart, FlowEnd, FlowStep))
LARGEST_ID = 2**63 - 1


class Shard:
    """Collects chunks of events as numpy columns. Nothing of an event survives but its numbers and codes."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.threads: dict[tuple[Any, Any], int] = {}
        self.parts: dict[str, list[Columns]] = defaultdict(list)
        self.events = 0
        self.unplaced: Tally[str] = Tally()
        self.repairs: Tally[str] = Tally()

    def code(self, text: str) -> int:
        """Code of a string in this shard's dictionary."""
        return self.strings.setdefault(text, len(self.strings))

    def add(self, events: Sequence[Any]) -> bool:
        """Take a chunk's events; False (and nothing taken) if a time needs its decimal text."""
        groups: dict[Any, list[Any]] = defaultdict(list)
        for event in events:
            kind = type(event)
            if kind is Span or kind is ExactSpan:
                groups[event.cat].append(event)
            elif kind not in _SILENT:
                groups[kind].append(event)
        times: dict[Any, tuple[Array, Array, list[Any]]] = {}
        for key, members in groups.items():
            if key in (Instant, Counter):
                continue
            timed = self._times(members)
            if timed is None:
                return False
            times[key] = timed
        self.events += len(events)
        for category, (start, end, members) in times.items():
            self._spans(category, start, end, members)
        self._memory(groups.get(Instant, ()))
        self._counters(groups.get(Counter, ()))
        return True

    def _times(self, members: list[Any]) -> tuple[Array, Array, list[Any]] | None:
        if type(members[0]) is Span:
            start, length = floats_to_ns([m.ts for m in members]), floats_to_ns([m.dur for m in members])
            if start is None or length is None:
                return None
        else:
            exact = [(text_to_ns(bytes(m.ts)), text_to_ns(bytes(m.dur)), m) for m in members]
            good = [(s, d, m) for s, d, m in exact if s is not None and d is not None]
            if len(good) < len(exact):
                self.unplaced["time is not a number"] += len(exact) - len(good)
            start = np.array([s for s, _, _ in good], np.int64)
            length = np.array([d for _, d, _ in good], np.int64)
            members = [m for _, _, m in good]
        wrong = (length < 0) | (length >= LARGEST_NS // 2)
        if wrong.any():
            self.unplaced["negative or overflown duration"] += int(wrong.sum())
            members = [m for m, bad in zip(members, wrong, strict=True) if not bad]
            start, length = start[~wrong], length[~wrong]
        return start, start + length, members

    def _spans(self, category: str | None, start: Array, end: Array, members: list[Any]) -> None:
        if not members:
            return
        lowered = (category or "").lower()
        group = CATEGORIES.get(lowered)
        if group is Group.MIRROR:
            return
        if group is None:
            self.unplaced[f"category {lowered[:24] or '(none)'}"] += len(members)
            return
        strings, size = self.strings, len(members)
        columns: Columns = {
            "start_ns": start,
            "end_ns": end,
            "name": self._codes(m.name for m in members),
        }
        if group is Group.SLICE:
            self._thread(columns, members)
            columns["category"] = np.full(size, strings.setdefault(lowered, len(strings)), np.int32)
            if lowered != "python_function":
                args = [m.args or NO_ARGS for m in members]
                columns["external_id"] = _external(args)
                columns["sequence"] = _ids(a.sequence for a in args)
                columns["forward_thread"] = _ids(a.forward_thread for a in args)
                columns["shapes"] = self._raw([a.shapes for a in args])
                columns["dtypes"] = self._raw([a.dtypes for a in args])
            self.parts["slices"].append(columns)
            return
        args = [m.args or NO_ARGS for m in members]
        columns["correlation"] = _ids(a.correlation for a in args)
        columns["external_id"] = _external(args)
        if group is Group.CALL:
            self._thread(columns, members)
            self.parts["calls"].append(columns)
            return
        columns["device"] = _numbers(
            [m.pid if a.device is None else a.device for m, a in zip(members, args, strict=True)]
        )
        columns["stream"] = _numbers(
            [m.tid if a.stream is None else a.stream for m, a in zip(members, args, strict=True)]
        )
        if group is Group.KERNEL:
            self._kernel(columns, args)
        elif group in (Group.COPY, Group.MTIA):
            columns["bytes"] = _ids(a.size if isinstance(a.size, int) else _number(a.size) for a in args)
        self.parts[group.name.lower()].append(columns)

    def _kernel(self, columns: Columns, args: list[Args]) -> None:
        columns["blocks"] = _ids(_product(a.grid) for a in args)
        columns["threads_per_block"] = _ids(_product(a.block) for a in args).astype(np.int32)
        columns["occupancy"] = np.array([np.nan if a.occupancy is None else a.occupancy for a in args], np.float32)
        described = [(row, a) for row, a in enumerate(args) if a.collective is not None]
        if described:
            rows, found = [row for row, _ in described], [a for _, a in described]
            self.parts["described"].append(
                {
                    "start_ns": columns["start_ns"][rows],
                    "correlation": columns["correlation"][rows],
                    "name": self._codes(str(a.collective) for a in found),
                    "group": self._codes(str(a.group) for a in found),
                    "ranks": self._raw([a.ranks for a in found]),
                    "dtype": self._codes(str(a.dtype) for a in found),
                    "group_size": _ids(a.group_size for a in found),
                    "elements_in": _ids(a.elements_in for a in found),
                    "elements_out": _ids(a.elements_out for a in found),
                    "sequence": _ids(a.group_sequence for a in found),
                }
            )

    def _memory(self, instants: Iterable[Instant]) -> None:
        events = []
        for event in instants:
            if event.name != "[memory]" or event.args is None or event.args.size is None:
                continue  # marks of the capture's own start and end
            time = text_to_ns(bytes(event.ts))
            if time is None:
                self.unplaced["time is not a number"] += 1
            else:
                events.append((time, event, event.args))
        if not events:
            return
        columns: Columns = {
            "time_ns": np.array([time for time, _, _ in events], np.int64),
            "on_device": np.array([a.device_type != 0 for _, _, a in events], bool),
            "ordinal": _ids(a.device for _, _, a in events),
            "address": np.array([a.address & 0xFFFFFFFFFFFFFFFF for _, _, a in events], np.uint64),
            "bytes": np.array([a.size or 0 for _, _, a in events], np.int64),
            "allocated_bytes": _ids(a.allocated for _, _, a in events),
            "reserved_bytes": _ids(a.reserved for _, _, a in events),
        }
        self._thread(columns, [event for _, event, _ in events])
        self.parts["memory"].append(columns)

    def _counters(self, samples: Iterable[Counter]) -> None:
        rows = []
        for sample in samples:
            time = text_to_ns(bytes(sample.ts))
            for series, value in (sample.args or {}).items():
                if time is not None and isinstance(value, int | float):
                    rows.append((time, self.code(f"{sample.name}: {series}"), float(value)))
        if rows:
            time_column, names, values = zip(*rows, strict=True)
            self.parts["counters"].append(
                {
                    "time_ns": np.array(time_column, np.int64),
                    "name": np.array(names, np.int32),
                    "value": np.array(values, np.float64),
                }
            )

    def _thread(self, columns: Columns, members: Sequence[Any]) -> None:
        threads, add = self.threads, self.threads.setdefault
        columns["thread"] = np.array([add((m.pid, m.tid), len(threads)) for m in members], np.int32)

    def _codes(self, texts: Iterable[str]) -> Array:
        strings, add = self.strings, self.strings.setdefault
        return np.array([add(text, len(strings)) for text in texts], np.int32)

    def _raw(self, raws: list[msgspec.Raw]) -> Array:
        strings, add = self.strings, self.strings.setdefault
        texts = [bytes(raw) for raw in raws]
        known: dict[bytes, int] = {b"": MISSING}
        codes = []
        for text in texts:
            found = known.get(text)
            if found is None:
                found = known[text] = add(text.decode("utf-8", "replace"), len(strings))
            codes.append(found)
        return np.array(codes, np.int32)


def _ids(values: Iterable[int]) -> Array:
    listed = list(values)
    try:
        return np.array(listed, np.int64)
    except OverflowError:
        return np.array([value if -LARGEST_ID <= value <= LARGEST_ID else MISSING for value in listed], np.int64)


def _external(args: list[Args]) -> Array:
    return _ids(a.external_id if a.external_id >= 0 else a.old_external_id for a in args)


def _numbers(values: list[Any]) -> Array:
    """Device and stream ids; old files write ``'stream 7'``."""
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(value) for value in values], np.int64)


def _number(value: Any) -> int:
    if isinstance(value, int) and abs(value) <= LARGEST_ID:
        return value
    digits = "".join(char for char in str(value) if char.isdigit())[:18]
    return int(digits) if digits else 0


def _product(sizes: list[int] | None) -> int:
    total = 1
    for size in sizes or (MISSING,):
        total *= size
    return total
