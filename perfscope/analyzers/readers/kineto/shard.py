"""Columns of one part of the events, with its own string dictionary; shards are merged later."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.analyzers.readers.columns import ColumnBuffer, Columns, join_columns, reorder
from perfscope.analyzers.readers.kineto.categories import (
    ASCEND_DEVICE,
    CATEGORIES,
    DEVICE_MARKS,
    NUMBERS,
    Group,
    ascend_group,
    is_step,
)
from perfscope.analyzers.readers.kineto.counter_ranges import CATEGORY, counted_ranges, counter_value
from perfscope.analyzers.readers.kineto.events import (
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
from perfscope.analyzers.readers.kineto.process_groups import OPERATION_OF, table_of
from perfscope.model.trace.columns import MISSING, Array

EXACT_BELOW_US = 2.0**43
"""Largest time in us whose three decimals a float64 holds."""

LARGEST_NS = 2**62
"""Upper bound of a time; a larger one is an overflow of the profiler."""

LONGEST_TEXT = 40
"""Maximum characters of times that are converted in bulk; profilers write fewer."""

LONGEST_NS = 2**53
"""104 days: a longer event is a corrupt number. Sums of a thousand shorter ones do not overflow."""

_SILENT = frozenset((Metadata, FlowStart, FlowEnd, FlowStep))

LARGEST_ID = 2**63 - 1

_TS, _DUR, _NAME, _THREAD = attrgetter("ts"), attrgetter("dur"), attrgetter("name"), attrgetter("pid", "tid")


# Exact conversion of a trace's microseconds to integer nanoseconds.
#
# A float64 holds three decimals of a microsecond exactly up to 2**43 us (its step there is below 1 ns, so rounding the
# fraction restores the written digits). Epoch microseconds (1.7e15) have a step of 0.25 us: those are converted from
# their decimal text instead.


def floats_to_ns(us: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
    """Convert us as float to ns, shape (n,); ``None`` if a float cannot hold the written digits."""
    if not (np.abs(us) < EXACT_BELOW_US).all():  # Also false for nan.
        return None
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def text_to_ns(text: bytes | str) -> int | None:
    """Convert decimal text of us to ns, halves to even; ``None`` if it is not finite or overflows."""
    written = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    whole, _, fraction = written.partition(".")
    if whole.isdigit() and len(whole) < 17 and len(fraction) <= 3 and (fraction.isdigit() or not fraction):
        exact = int(whole) * 1000 + int((fraction + "000")[:3])
        return exact if exact < LARGEST_NS else None
    try:
        value = (Decimal(written) * 1000).to_integral_value(ROUND_HALF_EVEN)
    except ArithmeticError:  # Not a number, or an exponent that is too large.
        return None
    if not value.is_finite() or abs(value) >= LARGEST_NS:
        return None
    return int(value)


def texts_to_ns(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Convert many texts as ``text_to_ns``; return (ns, shape (n,); whether each is valid)."""
    padded = np.array(texts, np.bytes_)
    letters = padded.view(np.uint8).reshape(len(texts), padded.itemsize)
    value, known = np.zeros(len(texts), np.uint64), np.ones(len(texts), bool)
    whole, fraction, dots = (np.zeros(len(texts), np.uint8) for _ in range(3))
    for letter in letters.T if padded.itemsize <= LONGEST_TEXT else ():
        is_digit = (letter >= ord("0")) & (letter <= ord("9"))
        is_dot = letter == ord(".")
        value = np.where(is_digit, value * np.uint64(10) + (letter - ord("0")), value)
        whole += is_digit & (dots == 0)
        fraction += is_digit & (dots > 0)
        dots += is_dot
        known &= is_digit | is_dot | (letter == 0)
    known &= (whole > 0) & (whole < 17) & (fraction <= 3) & (dots <= 1)
    value *= np.uint64(10) ** (3 - np.minimum(fraction, 3)).astype(np.uint64)
    known &= value < LARGEST_NS
    result = np.where(known, value, 0).astype(np.int64)
    for row in np.flatnonzero(~known).tolist():  # Exponents, signs, more decimals.
        exact = text_to_ns(texts[row])
        if exact is not None:
            result[row], known[row] = exact, True
    return result, known


class Codes(dict[Any, int]):
    """Assign codes in order of first occurrence; a known key is looked up at C speed."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


class Shard:
    """Collect chunks of events as numpy columns. Only numbers and codes of an event are kept."""

    def __init__(self) -> None:
        self.strings = Codes()
        self.threads = Codes()
        self.tables: dict[str, ColumnBuffer] = defaultdict(ColumnBuffer)
        self.received: dict[str, Columns] = {}
        """Tables decoded by another process, in memory shared with it."""
        self.events = 0
        self.ranges = 0
        """Number of ranges of hardware counters whose counters were not taken yet."""
        self.unplaced: Tally[str] = Tally()
        self.repairs: Tally[str] = Tally()

    def columns(self) -> dict[str, Columns]:
        """Hand over all tables that have rows: rows in the order of the file, threads numbered in it."""
        received, self.received = self.received, {}
        found: dict[str, Columns] = {}
        for table in [*received, *(name for name in self.tables if name not in received)]:
            grown = self.tables.pop(table, None)
            parts = [part for part in (received.get(table), grown and grown.take()) if part]
            if parts:
                found[table] = join_columns(parts)
        first = np.full(len(self.threads), LARGEST_ID, np.int64)
        for columns in found.values():
            place = columns.pop("place", None)
            if place is None:
                continue
            if (np.diff(place) < 0).any():
                order = np.argsort(place, kind="stable")
                reorder(columns, order)
                place = place[order]
            if "thread" in columns:
                here = np.full(len(first), LARGEST_ID, np.int64)
                here[columns["thread"][::-1]] = place[::-1]  # the first of equal ones stays
                first = np.minimum(first, here)
        self._number_threads(np.argsort(first, kind="stable"), found)
        return found

    def _number_threads(self, order: Array, tables: dict[str, Columns]) -> None:
        """Give the threads new codes; ``order``: the old codes in the new order."""
        known, number = list(self.threads), np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        self.threads = Codes((known[old], new) for new, old in enumerate(order.tolist()))
        for columns in tables.values():
            if "thread" in columns:
                columns["thread"] = number[columns["thread"]]

    def add(self, events: Sequence[Any], places: Array | None = None) -> bool:
        """Add a chunk's events; return ``False`` without adding any if a time needs its decimal text.

        ``places``: number of each event in the file, shape (events,); by default they follow those added before.
        """
        groups: dict[Any, list[Any]] = defaultdict(list)
        rows: dict[Any, list[int]] = defaultdict(list)
        for row, event in enumerate(events):
            kind = type(event)
            if kind is Span or kind is ExactSpan:
                groups[event.cat].append(event)
                rows[event.cat].append(row)
            elif kind not in _SILENT:
                groups[kind].append(event)
                rows[kind].append(row)
        times: dict[Any, _Timed] = {}
        unplaced: Tally[str] = Tally()
        if places is None:
            places = np.arange(self.events, self.events + len(events))
        for key, members in groups.items():
            if key in (Instant, Counter):
                continue
            timed = _times(members, places[rows[key]], unplaced)
            if timed is None:
                return False
            times[key] = timed
        self.events += len(events)
        self.unplaced += unplaced
        for category, timed in times.items():
            self._spans(category, timed)
        self._memory(groups.get(Instant, ()), places[rows[Instant]])
        self._counters(groups.get(Counter, ()))
        return True

    def _spans(self, category: str | None, timed: _Timed) -> None:
        start, end, place, members = timed
        if not members:
            return
        lowered = (category or "").lower()
        group = CATEGORIES.get(lowered)
        if group is Group.MIRROR:
            self.ranges += len(members) if lowered == CATEGORY else 0
            self._marks(lowered, start, end, members)
            return
        if group is None and not lowered:
            members, start, end = self._ascend(timed)
            if not members:
                return
        if group is None:
            self.unplaced[f"category {lowered[:24] or '(none)'}"] += len(members)
            return
        columns: Columns = {"place": place, "start_ns": start, "end_ns": end, "name": self._codes(_NAME, members)}
        if group is Group.SLICE:
            self._thread(columns, members)
            columns["category"] = np.full(len(members), self.strings[lowered], np.int32)
            if lowered != "python_function":
                args = [m.args or NO_ARGS for m in members]
                columns["external_id"] = _external(args)
                columns["sequence"] = _ids(attrgetter("sequence"), args)
                columns["forward_thread"] = _ids(attrgetter("forward_thread"), args)
                columns["shapes"] = self._raw(attrgetter("shapes"), args)
                columns["dtypes"] = self._raw(attrgetter("dtypes"), args)
                columns["strides"] = self._raw(attrgetter("strides"), args)
                columns["values"] = self._raw(attrgetter("concrete"), args, _NumberCodes)
                self._messages(columns, members)
            self.tables["slices"].append(columns)
            return
        args = [m.args or NO_ARGS for m in members]
        columns["correlation"] = _ids(attrgetter("correlation"), args)
        columns["external_id"] = _external(args)
        if group is Group.CALL:
            self._thread(columns, members)
            self.tables["calls"].append(columns)
            return
        columns["device"] = _numbers(
            [m.pid if a.device is None else a.device for m, a in zip(members, args, strict=True)]
        )
        columns["stream"] = _numbers(
            [m.tid if a.stream is None else a.stream for m, a in zip(members, args, strict=True)]
        )
        if group is Group.KERNEL:
            self._kernel(columns, args)
        elif group is Group.COPY:
            columns["bytes"] = _ids(_size, args)
        elif group is Group.MTIA:
            columns["bytes"] = _ids(lambda a: _number(a.dma_bytes) if a.dma_bytes is not None else _size(a), args)
            columns["direction"] = self._codes(lambda a: str(a.direction or ""), args)
        self.tables[group.name.lower()].append(columns)

    def _marks(self, category: str, start: Array, end: Array, members: list[Any]) -> None:
        """Add the marks of steps on devices."""
        rows = [row for row, member in enumerate(members) if is_step(member.name)] if category in DEVICE_MARKS else []
        if rows:
            named = [members[row] for row in rows]
            self.tables["marks"].append(
                {"start_ns": start[rows], "end_ns": end[rows], "name": self._codes(_NAME, named)}
            )

    def _ascend(self, timed: _Timed) -> tuple[list[Any], Array, Array]:
        """Add the ``torch_npu`` events without category; return the rest of the events, and their times."""
        start, end, place, members = timed
        rows: dict[Group | None, list[int]] = defaultdict(list)
        for row, member in enumerate(members):
            args = member.args or NO_ARGS
            rows[ascend_group(member.name, args.task_type, args.level, args.data_type)].append(row)
        for group, table in ((Group.CALL, "calls"), (Group.KERNEL, "kernel"), (Group.COPY, "copy")):
            if not (chosen := rows[group]):
                continue
            taken = [members[row] for row in chosen]
            args = [member.args for member in taken]
            columns: Columns = {
                "place": place[chosen],
                "start_ns": start[chosen],
                "end_ns": end[chosen],
                "name": self._codes(_NAME, taken),
                "correlation": _ids(attrgetter("connection"), args),
                "external_id": np.full(len(taken), MISSING, np.int64),
            }
            if group is Group.CALL:
                self._thread(columns, taken)
            else:
                columns["device"] = np.full(len(taken), ASCEND_DEVICE, np.int64)
                columns["stream"] = _numbers(
                    [
                        m.tid if a.physical_stream is None else a.physical_stream
                        for m, a in zip(taken, args, strict=True)
                    ]
                )
            if group is Group.KERNEL:
                self._kernel(columns, args)
            elif group is Group.COPY:
                columns["bytes"] = _ids(_size, args)
            self.tables[table].append(columns)
        left = rows[None]
        return [members[row] for row in left], start[left], end[left]

    def _messages(self, columns: Columns, members: list[Any]) -> None:
        codes = [code for name in OPERATION_OF if (code := self.strings.get(name)) is not None]
        positions = np.flatnonzero(np.isin(columns["name"], codes)).tolist() if codes else []
        rows = [(index, members[index].name, members[index].args) for index in positions if members[index].args]
        if rows:
            self.tables["messages"].append(table_of(columns, rows))

    def _kernel(self, columns: Columns, args: list[Args]) -> None:
        columns["blocks"] = _ids(lambda a: _product(a.grid), args)
        columns["threads_per_block"] = _ids(lambda a: _product(a.block), args).astype(np.int32)
        columns["occupancy"] = np.array([np.nan if a.occupancy is None else a.occupancy for a in args], np.float32)
        described = [(row, a) for row, a in enumerate(args) if a.collective is not None]
        if described:
            rows, found = [row for row, _ in described], [a for _, a in described]
            self.tables["described"].append(
                {
                    "start_ns": columns["start_ns"][rows],
                    "correlation": columns["correlation"][rows],
                    "stream": columns["stream"][rows],
                    "name": self._codes(lambda a: str(a.collective), found),
                    "group": self._codes(lambda a: str(a.group), found),
                    "description": self._codes(lambda a: a.description or "", found),
                    "ranks": self._raw(attrgetter("ranks"), found),
                    "dtype": self._codes(lambda a: str(a.dtype), found),
                    "group_size": _ids(attrgetter("group_size"), found),
                    "elements_in": _ids(attrgetter("elements_in"), found),
                    "elements_out": _ids(attrgetter("elements_out"), found),
                    "sequence": _ids(attrgetter("group_sequence"), found),
                    "peer": _ids(_peer, found),
                }
            )

    def _memory(self, instants: Iterable[Instant], places: Array) -> None:
        events, chosen = [], []
        for row, event in enumerate(instants):
            if event.name != "[memory]" or event.args is None or event.args.size is None:
                continue  # Marks of the capture's own start and end.
            time = text_to_ns(bytes(event.ts))
            if time is None:
                self.unplaced["time is not a number"] += 1
            else:
                events.append((time, event, event.args))
                chosen.append(row)
        if not events:
            return
        args = [a for _, _, a in events]
        columns: Columns = {
            "place": places[chosen],
            "time_ns": np.array([time for time, _, _ in events], np.int64),
            "on_device": np.array([a.device_type != 0 for a in args], bool),
            "ordinal": _ids(attrgetter("device"), args),
            "address": np.array([a.address & 0xFFFFFFFFFFFFFFFF for a in args], np.uint64),
            "bytes": _ids(attrgetter("size"), args),
            "allocated_bytes": _ids(attrgetter("allocated"), args),
            "reserved_bytes": _ids(attrgetter("reserved"), args),
        }
        self._thread(columns, [event for _, event, _ in events])
        self.tables["memory"].append(columns)

    def _counters(self, samples: Iterable[Counter]) -> None:
        rows = []
        for sample in samples:
            time = text_to_ns(bytes(sample.ts))
            for series, value in (sample.args or {}).items():
                if time is not None and not math.isnan(number := counter_value(value)):
                    rows.append((time, self.strings[f"{sample.name}: {series}"], number))
        if rows:
            time_column, names, values = zip(*rows, strict=True)
            self.tables["counters"].append(
                {
                    "time_ns": np.array(time_column, np.int64),
                    "name": np.array(names, np.int32),
                    "value": np.array(values, np.float64),
                }
            )

    def add_counters(self, text: bytes) -> None:
        """Add the counters of a chunk's ranges from JSON: a row each, the first of a range marked."""
        waiting, self.ranges = self.ranges, 0
        try:
            ranges = counted_ranges(text)
        except (ValueError, RecursionError):  # The decoder that skips a value unread accepts more.
            self.unplaced["ranges whose counters cannot be read"] += waiting
            return
        rows = [
            (event.start, event.name, event.device, event.correlation, not place, metric, value)
            for event in ranges
            for place, (metric, value) in enumerate(event.counters)
        ]
        if not rows:
            return
        start, name, device, correlation, begins, metric, value = zip(*rows, strict=True)
        self.tables["ranges"].append(
            {
                "start": np.array(start, np.float64),
                "name": self._codes(str, name),
                "ordinal": _numbers(list(device)),
                "correlation": np.array(correlation, np.int64),
                "begins": np.array(begins, bool),
                "metric": np.array([MISSING if text is None else self.strings[text] for text in metric], np.int32),
                "value": np.array(value, np.float64),
            }
        )

    def _thread(self, columns: Columns, members: Sequence[Any]) -> None:
        columns["thread"] = _from(map(self.threads.__getitem__, map(_THREAD, members)), np.int32, len(members))

    def _codes(self, text: Callable[[Any], str], members: Sequence[Any]) -> Array:
        return _from(map(self.strings.__getitem__, map(text, members)), np.int32, len(members))

    def _raw(
        self, raw: Callable[[Any], msgspec.Raw], members: Sequence[Any], codes: type[_RawCodes] | None = None
    ) -> Array:
        known = (codes or _RawCodes)(self.strings)
        return _from(map(known.__getitem__, map(bytes, map(raw, members))), np.int32, len(members))


_Timed = tuple[Array, Array, Array, list[Any]]
"""Starts, ends and places in the file of events, and the events."""


def _times(members: list[Any], place: Array, unplaced: Tally[str]) -> _Timed | None:
    """Return the events with their times; ``None`` if a time needs its text. Events without a time are counted."""
    if type(members[0]) is Span:
        start, length = floats_to_ns(_floats(_TS, members)), floats_to_ns(_floats(_DUR, members))
        if start is None or length is None:
            return None
    else:
        start, has_start = texts_to_ns(list(map(bytes, map(_TS, members))))
        length, has_length = texts_to_ns(list(map(bytes, map(_DUR, members))))
        good = has_start & has_length
        if not good.all():
            unplaced["time is not a number"] += int((~good).sum())
            start, length, place = start[good], length[good], place[good]
            members = list(compress(members, good.tolist()))
    wrong = (length < 0) | (length >= LONGEST_NS)
    if wrong.any():
        unplaced["missing, negative or overflown duration"] += int(wrong.sum())
        members = [m for m, bad in zip(members, wrong, strict=True) if not bad]
        start, length, place = start[~wrong], length[~wrong], place[~wrong]
    return start, start + length, place, members


class _RawCodes(dict[bytes, int]):
    """Codes of undecoded JSON texts; ``MISSING`` if nothing is recorded."""

    def __init__(self, strings: Codes) -> None:
        super().__init__({b"": MISSING})
        self._strings = strings

    def __missing__(self, key: bytes) -> int:
        code = self[key] = self._strings[key.decode("utf-8", "replace")]
        return code


class _NumberCodes(_RawCodes):
    """Codes of inputs that are numbers, truth values or lists of them; all others are values of the program."""

    def __missing__(self, key: bytes) -> int:
        if NUMBERS.fullmatch(key):
            return super().__missing__(key)
        self[key] = MISSING
        return MISSING


def _from(values: Iterable[Any], dtype: type[np.generic], size: int) -> Array:
    return np.fromiter(values, dtype, size)


def _floats(get: Callable[[Any], float], members: Sequence[Any]) -> Array:
    return _from(map(get, members), np.float64, len(members))


def _ids(get: Callable[[Any], int], members: Sequence[Any]) -> Array:
    try:
        return _from(map(get, members), np.int64, len(members))
    except OverflowError:
        values = map(get, members)
        return np.array([value if -LARGEST_ID <= value <= LARGEST_ID else MISSING for value in values], np.int64)


def _external(args: list[Args]) -> Array:
    found = _ids(attrgetter("external_id"), args)
    return found if (found >= 0).all() else np.where(found < 0, _ids(attrgetter("old_external_id"), args), found)


def _peer(args: Args) -> int:
    """Return the rank on the other side: the destination of a send, the source of a receive."""
    if args.collective == "send":
        return args.destination_rank
    return args.source_rank if args.collective == "recv" else -1


def _size(args: Args) -> int:
    return args.size if isinstance(args.size, int) else _number(args.size)


def _numbers(values: list[Any]) -> Array:
    """Return device and stream ids; old files write ``'stream 7'``."""
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
