"""Keeps torch's profilers apart: a range that opened under one recording must not close under another.

A ``record_function`` range remembers a place in the buffers of the recording it opened under. Those
buffers are freed when that recording stops. If another records when the range closes, torch writes the
end into the freed place and the program dies later, anywhere (seen with torch 2.13: 20 of 22 programs
with such a range). A range that closes while nothing records does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]

_MARK = "_perfscope_recording"


class RangeGuard:
    """Counts recordings, marks ranges that open under one, and leaves those open that would close under another."""

    def __init__(self) -> None:
        """No recording yet."""
        self._recording = 0
        self._kept: list[object] = []
        """Handles whose end must not run while a profiler records; they end with the process."""

    def started(self) -> None:
        """A profiler, ours or the program's, is about to record."""
        self._recording += 1

    def install(self, replace: Callable[[Any, str, Callable[..., Any]], Undo]) -> list[Undo]:
        """Watch ``record_function``; ``replace`` puts a function made of the original in its place."""
        from torch.autograd.profiler import record_function

        return [
            replace(record_function, "__enter__", self._entering),
            replace(record_function, "__exit__", self._leaving),
        ]

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter_range(range_: Any) -> Any:
            answer = original(range_)
            if _records():
                setattr(range_, _MARK, self._recording)
            return answer

        return enter_range

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave_range(range_: Any, *error: Any) -> Any:
            mark = range_.__dict__.pop(_MARK, None)
            if mark is not None and mark != self._recording and _records():
                self._kept.append(range_.record)
                return None
            return original(range_, *error)

        return leave_range


def _records() -> bool:
    import torch

    return bool(torch.autograd._profiler_enabled())
