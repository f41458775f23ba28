"""The interpreter's switch interval while stacks are sampled, and the clocks of threads that decide about it.

A thread that samples waits for the interpreter's lock at most for the switch interval, 5 ms: a sample that was due in a
loop of plain Python would be taken in the next op that releases the lock, and all of that loop would count for the op's
line. So the interval is 0.25 ms while the program has one working thread; that does not affect a program in which no
other thread waits for the lock. If others do, the program's interval stays.
"""

from __future__ import annotations

import sys
import time

from perfscope.model.documents.stacks import SWITCH_NS

FAST_SWITCH_S = SWITCH_NS / 1e9
OTHERS_SHARE = 0.1
"""Share of the time on a processor: program threads that work for more may wait for the lock often. Threads that
only pass data on (a queue's, a logger's) work for less, and every worker of a data loader has some."""


class ThreadClock:
    """The clock of a thread's processor time."""

    __slots__ = ("clock", "cpu_ns")

    def __init__(self, native_id: int | None) -> None:
        """``native_id``: the system's number of the thread; ``None``: not known."""
        # The number of a thread's clock in Linux (clock_getcpuclockid). For a dead thread it gives an error, where
        # pthread_getcpuclockid would read freed memory.
        self.clock = (~native_id << 3) | 6 if native_id is not None and sys.platform == "linux" else None
        self.cpu_ns = self.read()

    def read(self) -> int:
        """Processor time, ns; -1: not known."""
        if self.clock is None:
            return -1
        try:
            return time.clock_gettime_ns(self.clock)
        except OSError:
            self.clock = None
            return -1

    def since(self) -> int:
        """Processor time since the last call, ns; -1: not known."""
        before, self.cpu_ns = self.cpu_ns, self.read()
        return self.cpu_ns - before if before >= 0 and self.cpu_ns >= 0 else -1


class SwitchInterval:
    """Puts our switch interval and the program's."""

    def __init__(self) -> None:
        """The program's stays until ``put``."""
        self._alone = True
        """Whether only the thread of the steps worked when it was last looked at."""
        self._program_s: float | None = None
        """The program's switch interval, while ours is put."""

    def put(self, *, alone: bool | None = None) -> None:
        """Ours while the thread of the steps works alone, else the program's. ``None``: as at the last call."""
        self._alone = self._alone if alone is None else alone
        if not self._alone:
            self.put_back()
        elif self._program_s is None and sys.getswitchinterval() > FAST_SWITCH_S:
            self._program_s = sys.getswitchinterval()
            sys.setswitchinterval(FAST_SWITCH_S)

    def put_back(self) -> None:
        """The program's."""
        if self._program_s is not None:
            if abs(sys.getswitchinterval() - FAST_SWITCH_S) < FAST_SWITCH_S / 10:  # else the program has put its own
                sys.setswitchinterval(self._program_s)
            self._program_s = None
