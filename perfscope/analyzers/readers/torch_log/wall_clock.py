"""When a record was written: its prefix has local time without a year, chromium events have the epoch's.

A record of a chromium event is written as the event happens, so one of them tells the zone (a multiple of a
quarter of an hour) and the year. Prefixes are good to a millisecond.
"""

from __future__ import annotations

import calendar

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
