"""Operations of jax that a program calls outside the jitted function that makes its steps.

All are counted. The call site is looked up only for the first ones, because each look walks the stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType

MOST_LOOKED_AT = 300
"""Operations whose stack is walked, about 3 us each: a millisecond of the run."""
MOST_FRAMES = 400
"""Frames that are walked: transforms of jax and a notebook above the program add dozens each."""
HALF = 0.5


class SingleOperations:
    """Counts operations per step, and finds the function or line that calls most of them."""

    def __init__(self, is_users: Callable[[str], bool]) -> None:
        self._is_users = is_users
        self.start_over()

    def start_over(self) -> None:
        """Forget the counts, because the steps so far were not steps."""
        self._step: tuple[CodeType, ...] = ()
        self._steps = 0
        self._done = 0
        self._since = 0
        self._functions: Counter[CodeType] = Counter()
        self._lines: Counter[tuple[str, int]] = Counter()

    def step(self, frame: FrameType | None) -> None:
        """The jitted function of the steps was called, at or inside of ``frame``."""
        if not self._steps:
            self._step = tuple(code for code, _ in self._stack(frame))
        else:  # operations before the first step or after the last one belong to no step
            self._done += self._since
        self._steps += 1
        self._since = 0

    def operation(self, frame: FrameType | None) -> None:
        """An operation was called, at or inside of ``frame``."""
        self._since += 1
        if not self._steps or self._lines.total() >= MOST_LOOKED_AT:
            return
        stack = self._stack(frame)
        if not stack:
            return
        shared = 0
        while shared < min(len(stack), len(self._step)) and stack[shared][0] is self._step[shared]:
            shared += 1
        code, line = stack[max(shared, 1) - 1]
        self._lines[code.co_filename, line] += 1
        if shared < len(stack) and not stack[shared][0].co_name.startswith("<"):
            self._functions[stack[shared][0]] += 1

    @property
    def per_step(self) -> int:
        """Operations between two calls of the step, on average."""
        return round(self._done / (self._steps - 1)) if self._steps > 1 else 0

    def place(self) -> tuple[str, str | None, int | None]:
        """Name of the function that calls most of them (``""``: no function), file, and line of it or of the call."""
        whole = self._lines.total()
        for code, count in self._functions.most_common(1):
            if count > HALF * whole:
                return code.co_name, code.co_filename, code.co_firstlineno
        for (file, line), _ in self._lines.most_common(1):
            return "", file, line
        return "", None, None

    def _stack(self, frame: FrameType | None) -> list[tuple[CodeType, int]]:
        """The program's own frames, outermost first: code and line that runs."""
        found = []
        for _ in range(MOST_FRAMES):
            if frame is None:
                break
            if self._is_users(frame.f_code.co_filename):
                found.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return found[::-1]
