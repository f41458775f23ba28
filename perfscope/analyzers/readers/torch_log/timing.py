"""Chromium events to timed phases: B and E pairs, and complete X events."""

from __future__ import annotations

import calendar
import math
from collections import Counter

import msgspec

from perfscope.analyzers.readers.torch_log.records import MAX_SPANS, CorruptRecordError, Record, decode
from perfscope.analyzers.readers.torch_log.text import clean
from perfscope.model.compile_log import Phase

LATEST_US = 4e15
"""Of a time in µs: the year 2096. Past it a number is no time."""


class _Args(msgspec.Struct):
    compile_id: str | None = None


class _Event(msgspec.Struct):
    name: str
    ph: str
    ts: float
    dur: float = 0.0
    args: _Args | None = None
    tid: int | str = 0
    pid: int | str = 0


_Lane = tuple[int, int | str, int | str]


class Phases:
    """Collects events in the order of the log."""

    def __init__(self) -> None:
        self._open: dict[tuple[_Lane, str], list[tuple[int, str | None]]] = {}
        self._closed: list[tuple[_Lane, int, int, str, str | None]] = []
        self.left_out: Counter[str] = Counter()

    def add(self, record: Record) -> int | None:
        """Take an event; its time in ns since the epoch if it was written as it happened (B and E)."""
        event = decode(record.payload(), _Event)
        if not (0 < event.ts < LATEST_US and math.isfinite(event.dur) and 0 <= event.dur < LATEST_US):
            raise CorruptRecordError("not a time")
        at = _ns(event.ts)
        lane = (record.process, event.pid, event.tid)
        name = clean(event.name, 200)
        said = event.args.compile_id if event.args else None
        compile_id = record.compile_id if said is None or said == "None" else clean(said, 64)
        if event.ph == "B":
            if len(self._open) < MAX_SPANS:
                self._open.setdefault((lane, name), []).append((at, compile_id))
            return at
        if event.ph == "E":
            begun = self._open.get((lane, name))
            if not begun:
                self.left_out["ends of phases without their begin"] += 1
                return at
            start, begun_id = begun.pop()
            if not begun:
                del self._open[lane, name]
            self._close(lane, start, max(start, at), name, begun_id or compile_id)
            return at
        if event.ph == "X":
            self._close(lane, at, at + round(event.dur * 1000), name, compile_id)
        return None

    def _close(self, lane: _Lane, start: int, end: int, name: str, compile_id: str | None) -> None:
        if len(self._closed) >= MAX_SPANS:
            self.left_out["phases beyond the limit"] += 1
            return
        self._closed.append((lane, start, end, name, compile_id))

    def finish(self) -> tuple[Phase, ...]:
        """All phases by start, the outer first.

        A phase lies in the innermost one of its thread that holds it whole: torch writes one thread id for all
        threads, so phases of several may overlap.
        """
        unclosed = sum(len(begun) for begun in self._open.values())
        if unclosed:
            self.left_out["phases without their end"] += unclosed
        self._closed.sort(key=lambda one: (one[1], -one[2]))
        stacks: dict[_Lane, list[tuple[int, int]]] = {}
        phases: list[Phase] = []
        for index, (lane, start, end, name, compile_id) in enumerate(self._closed):
            stack = stacks.setdefault(lane, [])
            while stack and stack[-1][0] < end:
                stack.pop()  # it ends sooner, so it holds neither this one nor anything that this one does not hold
            around = stack[-1][1] if stack else None
            phases.append(
                Phase(
                    name=name,
                    start_ns=start,
                    end_ns=end,
                    compile_id=compile_id,
                    depth=0 if around is None else phases[around].depth + 1,
                    parent=around,
                )
            )
            stack.append((end, index))
        return tuple(phases)


def _ns(us: float) -> int:
    """µs since the epoch, which a float holds to a quarter of one, as whole ns."""
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)


# When a record was written: its prefix has local time without a year, chromium events have the epoch's.
#
# A record of a chromium event is written as the event happens, so one of them tells the zone (a multiple of a
# quarter of an hour) and the year. Prefixes are good to a millisecond.


QUARTER_NS = 900 * 1_000_000_000
"""All zones differ from UTC by a multiple of it."""

Written = tuple[int, int, int, int, int, int]


class WallClock:
    """Turns prefixes into ns since the epoch, once an event told how."""

    def __init__(self) -> None:
        self._seen: tuple[Written, int] | None = None

    def learn(self, written: Written, epoch_ns: int) -> None:
        """An event at ``epoch_ns`` was written at ``written``."""
        self._seen = (written, epoch_ns)

    def epoch_ns(self, written: Written) -> int | None:
        """``written`` as ns since the epoch; ``None`` before the first event, or for a date that is none."""
        if self._seen is None:
            return None
        prefix, epoch_ns = self._seen
        year = 1970 + int(epoch_ns / 31_556_952e9)
        known = _nearest(prefix, year, epoch_ns)
        asked = _nearest(written, year, epoch_ns)
        if known is None or asked is None:
            return None
        zone = round((known - epoch_ns) / QUARTER_NS) * QUARTER_NS
        return asked - zone


def _nearest(written: Written, year: int, epoch_ns: int) -> int | None:
    month, day, hour, minute, second, ns = written
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    tries = (calendar.timegm((year + off, month, day, hour, minute, second)) for off in (-1, 0, 1))
    return min((one * 1_000_000_000 + ns for one in tries), key=lambda one: abs(one - epoch_ns))
