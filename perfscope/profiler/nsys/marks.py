"""Steps in Nsight Systems: NVTX ranges around the steps to analyze, whatever the source of steps is."""

from __future__ import annotations

from typing import Any

from perfscope.model.capture import CaptureOptions
from perfscope.model.documents.run import Capture
from perfscope.profiler.session import annotate
from perfscope.profiler.session.passes import first_step

CAPTURE_RANGE = "perfscope.capture"
"""Range in our domain that `nsys` records from its beginning to its end, where steps were chosen."""
TIMED = "timing"
NO_NVTX = "its steps are not marked: no NVTX range could be written (is the package nvtx installed?)"


class NsysMarks:
    """Opens and closes the ranges of one process at its step boundaries. ``artifact``: the export (`Capture`)."""

    def __init__(self, options: CaptureOptions, artifact: str) -> None:
        """Nothing is written yet. Steps are marked here from now on, and not by ``perfscope.step()`` too."""
        self._artifact = artifact
        self._first = 0 if options.whole else first_step(options)
        self._end = options.steps[1] if options.steps is not None else None
        self._ranges: Any = None
        self._window: Any = None
        self._step: Any = None
        self._whole: tuple[int, int] | None = None
        self._problem: str | None = None
        annotate.leave_steps_to_session()

    def begin(self, number: int) -> None:
        """Step ``number`` begins."""
        if number < self._first or (self._end is not None and number >= self._end):
            return
        if self._ranges is None:
            self._ranges = annotate.nvtx_ranges()
            if not self._ranges:
                self._problem = NO_NVTX
        if not self._ranges:
            return
        if self._end is not None and self._window is None:
            self._window = self._ranges.start_range(CAPTURE_RANGE, domain=annotate.DOMAIN)
        self._step = (number, self._ranges.start_range(f"{annotate.STEP_RANGE}{number}", domain=annotate.DOMAIN))

    def end(self) -> None:
        """The step that was begun ended."""
        if self._step is None:
            return
        number, handle = self._step
        self._ranges.end_range(handle)
        self._step = None
        self._whole = (self._whole[0] if self._whole is not None else number, number + 1)
        if self._end is not None and number + 1 == self._end:
            self._ranges.end_range(self._window)

    def start_over(self) -> None:
        """Discard the marked steps: their ranges stay in the recording, but their numbers are used again."""
        self._step, self._whole = None, None

    def capture(self) -> Capture:
        """The pass from this process's view; whether `nsys` kept data is known after the program has ended."""
        return Capture(
            pass_name=TIMED,
            tool="nsys",
            state="recorded",
            steps=self._whole,
            reason=self._problem,
            artifact=self._artifact,
        )
