"""The stack of another thread, read while that thread stands still.

Between two bytecodes the interpreter may switch to the thread whose frames are being read. CPython 3.11 then reads
freed memory in ``frame.f_back`` where a generator ended meanwhile, and the program dies with SIGSEGV (seen within
seconds in a loop of generators, with nothing but the standard library). So a stack is read by one call of ``list``
over iterators and functions in C, in which no switch can happen. Up to 3.11 a garbage collection may start in it
and run code of the program: where one of the youngest objects is so near that the frames of a stack would start it, it
is made before.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, itemgetter
from types import CodeType
from typing import Any

MOST_DEPTH = 200
"""Frames of a stack; those beyond are the outermost."""

COLLECTS_ANYWHERE = sys.version_info < (3, 12)
"""Whether a garbage collection can start wherever memory is allocated, and not between bytecodes only."""

MARGIN = 64
"""Objects that reading a stack allocates besides two for each of its frames."""

_position = attrgetter("f_code", "f_lasti")


class StackReader:
    """Reads stacks, and remembers how deep they are."""

    def __init__(self) -> None:
        self._depth = MARGIN

    def ready(self) -> bool:
        """Make room for the next stack; whether no garbage collection can start while it is read."""
        if self._has_room():
            return True
        gc.collect(0)
        return self._has_room()

    def _has_room(self) -> bool:
        if not COLLECTS_ANYWHERE or not gc.isenabled():
            return True
        threshold = gc.get_threshold()[0]
        return not threshold or gc.get_count()[0] + 2 * self._depth + MARGIN < threshold

    def read(self, thread: int) -> list[tuple[CodeType, int]] | None:
        """Code and offset of each frame of a thread, innermost first; ``None`` if it ended or cannot be read now."""
        innermost = map(itemgetter(thread), starmap(sys._current_frames, ((),)))
        names: Iterator[Any] = repeat("f_back", MOST_DEPTH - 1)
        frames = takewhile(bool, accumulate(chain(innermost, names), getattr))
        positions = map(_position, frames)
        if not self.ready():
            return None
        try:
            stack = list(positions)
        except KeyError:
            return None
        self._depth = len(stack)
        return stack
