"""The clocks of a Perfetto trace: every time on its primary clock.

A packet names its clock or takes the default of its sequence. Clocks 64 to 127 belong to one sequence: they are
defined by a snapshot in it, may count in other units, and may be written as differences. The others (boot time,
monotonic, realtime ...) are the machine's, and snapshots taken from time to time say how they relate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfscope.analyzers.readers.perfetto_trace.walk import Int

BOOT_TIME = 6
_FIRST_OF_SEQUENCE, _LAST_OF_SEQUENCE = 64, 127


@dataclass(slots=True)
class _Own:
    """A clock of one sequence."""

    offset_ns: int
    """Add it to the clock's time in ns to have that of ``base``."""
    base: int
    unit_ns: int
    incremental: bool
    last: int
    """Of an incremental one: the last time in its own units."""


@dataclass(slots=True)
class Clocks:
    """What the snapshots of a file say."""

    primary: int = BOOT_TIME
    _own: dict[tuple[int, int], _Own] = field(default_factory=dict)
    _pending: list[dict[int, int]] = field(default_factory=list)

    def add(self, sequence: int, snapshot: Any) -> None:
        """One snapshot of several clocks at the same moment."""
        if snapshot.primary_trace_clock:
            self.primary = snapshot.primary_trace_clock
        shared = {clock.clock_id: clock.timestamp for clock in snapshot.clocks if not is_own(clock.clock_id)}
        self._pending.append(shared)
        base = next((one for one in (self.primary, BOOT_TIME, *sorted(shared)) if one in shared), None)
        if base is None:
            return
        for clock in snapshot.clocks:
            if is_own(clock.clock_id):
                unit = clock.unit_multiplier_ns or 1
                self._own[sequence, clock.clock_id] = _Own(
                    offset_ns=shared[base] - clock.timestamp * unit,
                    base=base,
                    unit_ns=unit,
                    incremental=clock.is_incremental,
                    last=clock.timestamp,
                )

    def of_sequence(self, sequence: int, clock: int, times: Int) -> tuple[Int, int] | None:
        """Times of a sequence's own clock, in the order of the packets: in ns, and the clock they are on then.

        ``None``: no snapshot defines it.
        """
        own = self._own.get((sequence, clock))
        if own is None:
            return None
        if own.incremental and len(times):
            times = np.cumsum(times) + own.last
            own.last = int(times[-1])
        return times * own.unit_ns + own.offset_ns, own.base

    def to_primary(self, clock: int, times_ns: Int) -> Int | None:
        """Times of a machine's clock on the primary one, by the last snapshot before each; ``None``: unknown."""
        if clock == self.primary:
            return times_ns
        pairs = sorted(
            (shared[clock], shared[self.primary])
            for shared in self._pending
            if clock in shared and self.primary in shared
        )
        if not pairs:
            return None
        own, primary = np.array(pairs, np.int64).T
        place = np.maximum(np.searchsorted(own, times_ns, side="right") - 1, 0)
        return np.asarray(times_ns + (primary - own)[place], np.int64)


def is_own(clock: int) -> bool:
    """True for a clock that belongs to one sequence."""
    return _FIRST_OF_SEQUENCE <= clock <= _LAST_OF_SEQUENCE
