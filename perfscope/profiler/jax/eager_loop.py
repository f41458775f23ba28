"""Steps of a program that jits nothing: turns of the loop in which it calls single operations of jax.

Found from the stack at each operation: the outermost frame of the program that is inside a loop of its code, by the
jumps of its bytecode. The function that this loop calls is the one to jit.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType

MIN_TURNS = 3
"""Turns of a loop before it counts as the program's steps."""
MIN_OPERATIONS = 10
"""Operations per turn: with fewer the loop around it is the step."""
FEW_TURNS = 12
"""A loop that was left after at most so many turns made weights or data; another one may be the program's steps."""
MOST_PLACES = 64
"""Places in a loop that are distinguished."""
MOST_DEPTH = 400
"""Frames that are searched for a loop. Nested transforms of jax (grad, vmap, checkpoint) and a launcher, a notebook or
a test runner above the program add dozens each.
"""

_Loop = tuple[int, int]
"""Offsets in the bytecode, from the first instruction to the jump back."""


class _Turns:
    """Turns and operations of one loop so far."""

    __slots__ = ("operations", "places", "turns")

    def __init__(self) -> None:
        self.places: set[tuple[int, CodeType | None]] = set()
        """Where in the loop operations were called, and in which function of the program that it calls."""
        self.turns = 0
        self.operations = 0


class EagerLoop:
    """Watches single operations and reports each new turn of the program's loop."""

    def __init__(
        self,
        is_users: Callable[[str], bool],
        turned: Callable[[str, int], None],
        mistaken: Callable[[], None] | None = None,
    ) -> None:
        """``turned(name, before)``: a turn ended; ``before`` turns were over before the loop was known.

        ``mistaken()``: the turns so far were not steps; those of another loop follow.
        """
        self._is_users = is_users
        self._mistaken = mistaken
        self._turned = turned
        self._loops: dict[CodeType, tuple[_Loop, ...]] = {}
        self._counts: dict[tuple[CodeType, _Loop], _Turns] = {}
        self._chosen: tuple[CodeType, _Loop] | None = None
        self._turns = 0
        self._last: tuple[CodeType, int] | None = None
        self.operations = 0
        """Single operations so far."""
        self.function: CodeType | None = None
        """The function that the loop calls, or the function with the loop; ``None`` until a loop is known."""
        self.line = 0
        """First line of that function, or the line of the loop if it calls none."""
        self.name = ""
        self._at = 0
        self._inside: tuple[_Loop, ...] = ()
        self.calls = False
        """Whether the loop calls a function of the program."""

    def operation(self, frame: FrameType | None) -> None:
        """An operation of jax's own was called, at or inside of ``frame``."""
        self.operations += 1
        if self._chosen is not None and (self._follow(frame, *self._chosen) or self._turns > FEW_TURNS):
            return
        if sys.gettrace() is not None:  # the mark on frames is a setting of tracing functions
            return
        found = self._frame_with_loop(frame)
        if found is None:
            return
        holder, child = found
        code, at = holder.f_code, holder.f_lasti
        direct = child is not None and child.f_back is holder  # else a library calls it, maybe for each leaf of a tree
        began = direct and child is not None and child.f_trace_lines
        if began and child is not None:
            child.f_trace_lines = False  # marks the frame as seen: another call is another frame
        last = self._last[1] if self._last is not None and self._last[0] is code else None
        self._last = (code, at)
        around = [loop for loop in self._of(code) if loop[0] <= at <= loop[1]]
        for number, loop in enumerate(around):
            counts = self._counts.setdefault((code, loop), _Turns())
            counts.operations += 1
            if len(counts.places) < MOST_PLACES:
                counts.places.add((at, child.f_code if direct and child is not None else None))
            inner = any(one[0] <= at <= one[1] and last is not None and one[0] <= last <= one[1]
                        for one in around[:number])  # fmt: skip
            back = last is not None and loop[0] <= last <= loop[1] and not inner
            if back and last is not None and (at < last or (at == last and began)):
                counts.turns += 1
                self._turn((code, loop), counts)

    def _follow(self, frame: FrameType | None, code: CodeType, loop: _Loop) -> bool:
        """The same once the loop is known, in a microsecond or two; False for an operation outside of the loop."""
        child: FrameType | None = None
        for _ in range(MOST_DEPTH):
            if frame is None:
                return False
            if frame.f_code is code:
                break
            child, frame = frame, frame.f_back
        else:
            return True
        at = frame.f_lasti
        if not loop[0] <= at <= loop[1]:
            return False
        last, self._at = self._at, at
        if at > last:
            return True
        if at == last:
            if not self.calls or child is None or not child.f_trace_lines or sys.gettrace() is not None:
                return True
            child.f_trace_lines = False
        elif any(one[0] <= at and last <= one[1] for one in self._inside):
            return True
        self._turns += 1
        self._turned(self.name, 0)
        return True

    def _turn(self, key: tuple[CodeType, _Loop], counts: _Turns) -> None:
        if key == self._chosen:
            return
        enough = counts.turns >= MIN_TURNS and counts.operations >= MIN_OPERATIONS * counts.turns
        if enough:
            if self._chosen is not None and self._mistaken is not None:
                self._mistaken()
            self._chosen, before = key, counts.turns - 1
            self._turns = counts.turns
            function = next(iter(counts.places))[1] if len(counts.places) == 1 else None
            self.calls = function is not None
            self.function = key[0] if function is None else function
            self.line = _line(*key) if function is None else function.co_firstlineno
            self.name = self.function.co_name if self.calls else f"operations of jax (loop in line {self.line})"
            self._at = 0 if self._last is None else self._last[1]
            code, (first, end) = key
            self._inside = tuple(one for one in self._of(code) if first <= one[0] and one[1] <= end and one != key[1])
            self._counts.clear()
            self._turned(self.name, before)

    def _frame_with_loop(self, frame: FrameType | None) -> tuple[FrameType, FrameType | None] | None:
        """The outermost frame of the program that is inside a loop, and the program's frame that it called."""
        found: tuple[FrameType, FrameType | None] | None = None
        child: FrameType | None = None
        for _ in range(MOST_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            if self._is_users(code.co_filename):
                at = frame.f_lasti
                if any(loop[0] <= at <= loop[1] for loop in self._of(code)):
                    found = frame, child
                child = frame
            frame = frame.f_back
        return found

    def _of(self, code: CodeType) -> tuple[_Loop, ...]:
        """Loops of a function, the shortest first."""
        loops = self._loops.get(code)
        if loops is None:
            found: dict[int, int] = {}
            for one in dis.get_instructions(code):
                if one.opname.startswith("JUMP_BACKWARD") or (
                    one.opname == "JUMP_ABSOLUTE" and one.argval < one.offset
                ):
                    found[one.argval] = max(one.offset, found.get(one.argval, 0))
            loops = self._loops[code] = tuple(sorted(found.items(), key=lambda loop: loop[1] - loop[0]))
        return loops


def _line(code: CodeType, loop: _Loop) -> int:
    """Line at which a loop begins."""
    lines = [line for start, line in dis.findlinestarts(code) if start <= loop[0] and line is not None]
    return lines[-1] if lines else code.co_firstlineno
