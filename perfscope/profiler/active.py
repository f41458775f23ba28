"""One pass while it runs: its capture, the steps in it, and the file it leaves."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from perfscope.profiler import observe
from perfscope.profiler.captures import load_capture, unavailable
from perfscope.profiler.jax_side import JaxSide
from perfscope.profiler.plan import Pass
from perfscope.profiler.run import Capture


class ActivePass:
    """A pass that was started at a step boundary. Methods are called on the thread that started it."""

    def __init__(self, due: Pass, first: int, directory: Path, capture: Any) -> None:
        """``capture`` records already; ``first``: the number of the step that begins next."""
        self.due = due
        self._first = first
        self._whole = 0
        self._inside = False
        self.spoiled = False
        """Whether something of the program's own keeps it from ending where it should."""
        self._directory = directory
        self._capture = capture
        self._marks_steps = hasattr(capture, "begin_step")

    @property
    def complete(self) -> bool:
        """Whether all its steps ran."""
        most: int | None = getattr(self._capture, "most_steps", None)
        return self._whole >= (self.due.count if most is None else most)

    @property
    def steps(self) -> tuple[int, int] | None:
        """The complete steps in it, half open."""
        return (self._first, self._first + self._whole) if self._whole else None

    def begin_step(self, number: int) -> None:
        """A step begins; the capture's range opens last, so that nothing of ours is in it."""
        self._inside = True
        if self._marks_steps:
            self._capture.begin_step(number)

    def end_step(self) -> None:
        """The step ended; the range closes first."""
        if self._marks_steps:
            self._capture.end_step()
        self._inside = False
        self._whole += 1

    def finish(self, run: Path) -> Capture:
        """Stop, keep the file, and say what is in it. Without one complete step there is no file."""
        if not self._whole:
            self.abort()
            return self.missing("the program ended during this pass")
        self._stop()
        path = self._directory / f"{self.due.name}{self.due.suffix}"
        self._capture.save(path)
        reason = getattr(self._capture, "remark", None)
        if not self.complete:
            reason = f"the program ended after {self._whole} of the {self.due.count} steps of this pass"
        return Capture(
            pass_name=self.due.name,
            tool=self.due.tool,
            state="recorded",
            steps=self.steps,
            reason=reason,
            artifact=path.relative_to(run).as_posix(),
        )

    def interrupt(self) -> None:
        """Stop without a file: the pass begins anew later."""
        self._stop()

    def abort(self) -> None:
        """Stop as far as that is possible; what it recorded is dropped."""
        with contextlib.suppress(Exception):  # it is dropped because something of it broke already
            self._stop()

    def abandon_in_fork(self) -> None:
        """In a forked child: stop costing; the recording is the parent's."""
        if hasattr(self._capture, "abandon_in_fork"):
            self._capture.abandon_in_fork()
        else:
            self.abort()

    def missing(self, reason: str) -> Capture:
        """The record of a pass that left nothing."""
        return Capture(pass_name=self.due.name, tool=self.due.tool, state="missing", reason=reason)

    def _stop(self) -> None:
        if self._marks_steps:
            self._capture.stop(self.steps, self._first + self._whole if self._inside else None)
        else:
            self._capture.stop()


def start_pass(due: Pass, number: int, directory: Path, jax: JaxSide | None) -> ActivePass | str:
    """Start the capture of a pass before step ``number``, or say why it cannot be."""
    reason = unavailable(due.tool) or (observe.why_no_structure() if due.tool == "op_graph" else None)
    if reason is not None:
        return reason
    module = load_capture(due.tool)
    capture: Any
    try:
        if due.tool == "jax_profiler":
            assert jax is not None
            capture = jax.capture(due)
        else:
            capture = module.OpGraphCapture() if due.tool == "op_graph" else module.TorchProfilerCapture(due)
        capture.start(number)
    except Exception as error:
        return f"{due.tool} could not start: {type(error).__name__}: {error}"
    return ActivePass(due, number, directory, capture)
