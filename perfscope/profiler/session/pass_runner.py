"""The passes of one process: which is due, which runs, and the results of the earlier ones."""

from __future__ import annotations

import contextlib
import importlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from perfscope.model.capture import CaptureOptions
from perfscope.model.documents.run import Capture
from perfscope.model.plugins import Recording, load, named
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.session import JaxSession
from perfscope.profiler.session import process_state
from perfscope.profiler.session.passes import RESTING_STEPS, Framework, Pass, passes
from perfscope.profiler.torch import compat as torch_compat

# The capture tools: name -> module. Each has ``available() -> str | None``, the reason why it cannot capture.


CAPTURES: dict[str, str] = {
    "jax_events": "perfscope.profiler.jax.events",
    "jax_hlo": "perfscope.profiler.jax.hlo",
    "jax_memory": "perfscope.profiler.jax.memory",
    "jax_profiler": "perfscope.profiler.jax.profiler",
    "jax_sync": "perfscope.profiler.jax.host_syncs",
    "nsys": "perfscope.profiler.nsys.command",
    "op_graph": "perfscope.profiler.torch.op_graph.capture",
    "python_stacks": "perfscope.profiler.sampling.capture",
    "step_counters": "perfscope.profiler.session.step_counters",
    "torch_compile": "perfscope.profiler.torch.compile_log",
    "torch_memory": "perfscope.profiler.torch.memory",
    "torch_profiler": "perfscope.profiler.torch.profiler",
    "torch_tensors": "perfscope.profiler.torch.tensors",
}


def tools() -> tuple[str, ...]:
    """Names of all capture tools, those of plug-ins included, sorted."""
    return tuple(sorted({*CAPTURES, *_of_plugins()}))


def load_capture(tool: str) -> ModuleType:
    """The module of a capture tool, imported now; ``KeyError`` if there is no such tool."""
    return importlib.import_module(CAPTURES[tool])


def unavailable(tool: str) -> str | None:
    """Reason why a tool cannot capture here, or ``None`` if it can. A tool that cannot be loaded returns the error."""
    try:
        available = load_capture(tool).available if tool in CAPTURES else load(_of_plugins()[tool])
        reason: str | None = available()
    except Exception as error:  # this runs inside the user's program, which must go on whatever we break
        return f"{tool} cannot be loaded: {type(error).__name__}: {error}"
    return reason


def _of_plugins() -> dict[str, str]:
    recordings: Mapping[str, Recording] = named("recordings")
    return {tool: recording.available for recording in recordings.values() for tool in recording.tools}


# One pass while it runs: its capture, the steps in it, and the file it leaves.


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
        return self._whole >= self.due.count

    @property
    def steps(self) -> tuple[int, int] | None:
        """The complete steps in it, half open."""
        return (self._first, self._first + self._whole) if self._whole else None

    def begin_step(self, number: int) -> None:
        """A step begins; the capture's range opens last, so that no code of perfscope is in it."""
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
        """Stop, keep the file, and return its capture. Without one complete step there is no file."""
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
        """Stop without a file: the pass is restarted later."""
        self._stop()

    def abort(self) -> None:
        """Stop as far as that is possible; the recording is dropped."""
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


def start_pass(due: Pass, number: int, directory: Path, jax: JaxSession | None) -> ActivePass | str:
    """Start the capture of a pass before step ``number``, or return the reason why it cannot start."""
    reason = unavailable(due.tool) or (process_state.why_no_structure() if due.tool == "op_graph" else None)
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


class PassRunner:
    """Starts and ends passes at step boundaries, on the thread of the loop. ``run``: the run directory."""

    def __init__(self, options: CaptureOptions, run: Path, before: Callable[[Pass], None] = lambda due: None) -> None:
        """Plan the passes; none runs. ``before(due)`` is called right before each starts."""
        self._before = before
        self._options = options
        self._run = run
        self._queue = deque(passes(options))
        self._done: list[Capture] = []
        self._triggered = 0
        """Number of recordings that were requested while the program ran."""
        self._recorded: int | None = None
        """Number of the last step under torch's profiler."""
        self._aborted = False
        """Whether a pass was just discarded, so that the number of its step counts for nothing."""
        self.active: ActivePass | None = None
        """The pass that runs."""
        self.starting = False
        """Whether the profiler that starts right now is ours."""
        self.delay = "the program ended before"
        """Why the passes to come did not run, if they never do."""

    @property
    def to_come(self) -> tuple[Pass, ...]:
        """Passes that have not begun."""
        return tuple(self._queue)

    def plan(self, framework: Framework) -> None:
        """Take the passes of ``framework``."""
        self._queue = deque(passes(self._options, framework))

    def record_again(self, steps: int, framework: Framework) -> None:
        """Add another timing pass of ``steps`` steps, which writes a separate file."""
        for timing in passes(self._options, framework)[:1]:
            self._triggered += 1
            suffix = f"-{self._triggered + 1}{timing.suffix}"
            self._queue.append(replace(timing, count=steps, suffix=suffix))

    def start_over(self) -> None:
        """Discard the captures, because they were not of steps. Other steps are counted from now on."""
        self._recorded = None
        if self.active is not None:
            self.active.abort()
            self.active = None
            self._aborted = True
        self._done.clear()
        self._queue = deque(passes(self._options))

    def start(
        self, number: int, directory: Path, jax: JaxSession | None, *, program_profiles: bool, compiles: bool
    ) -> None:
        """Start the pass that is due, unless there is an obstacle; a pass that cannot start gives way to the next.

        ``program_profiles``: a torch profiler of the program records, or is about to. ``compiles``: torch.compile
        compiled something in the previous step.
        """
        while self._queue and self.active is None:
            if self._held_up(number, program_profiles=program_profiles, compiles=compiles):
                return
            self._before(self._queue[0])  # if it raises, the pass is still to come, and missed with a reason
            due = self._queue.popleft()
            self.starting = True
            try:
                started = start_pass(due, number, directory, jax)
            finally:
                self.starting = False
            if isinstance(started, str):
                self._done.append(_missing_pass(due, started))
            else:
                self.active = started

    def rests(self, number: int) -> bool:
        """Whether a recording of torch's profiler ended too short a while ago for another to begin."""
        if self._aborted:
            self._recorded, self._aborted = number, False
        return self._recorded is not None and number <= self._recorded + RESTING_STEPS

    def end_step(self, number: int) -> bool:
        """Step ``number`` ended in the pass that runs; True if the pass ended with it."""
        active = self.active
        assert active is not None
        if active.due.tool == "op_graph" and torch_compat.modes_on_stack() > 1:
            # Modes leave in the order opposite to which they came; ours must wait for the program's.
            active.spoiled = True
            return False
        if active.spoiled:
            active.abort()
            self.active = None
            self._done.append(active.missing("a dispatch mode of the program's own outlived the step it began in"))
            return False
        active.end_step()
        if active.complete:
            self.finish(number)
        return active.complete

    def finish(self, number: int) -> None:
        """End the running pass, at or after step ``number``, and keep its recording."""
        active, self.active = self.active, None
        if active is None:
            return
        if active.due.tool == "torch_profiler":
            self._recorded = number
        try:
            self._done.append(active.finish(self._run))
        except Exception as error:
            self._done.append(active.missing(f"perfscope failed here: {type(error).__name__}: {error}"))
            raise

    def make_way(self, tool: str) -> bool:
        """Stop our profiler, because the program starts one; it may resume later. Return whether it was running."""
        active = self.active
        if active is None or active.due.tool != tool:
            return False
        self.active = None
        active.interrupt()
        self._queue.appendleft(active.due)
        self.delay = f"the program started its own {tool.replace('_', '.')}; the program ended before"
        return True

    def give_up(self, reason: str) -> None:
        """Capture nothing more, because of an error of perfscope."""
        if self.active is not None:
            self.active.abort()
            self._done.append(self.active.missing(reason))
            self.active = None
        self._done += [_missing_pass(item, reason) for item in self._queue]
        self._queue.clear()

    def abandon_in_fork(self) -> None:
        """In a forked child: everything is the parent's."""
        active, self.active = self.active, None
        self._queue.clear()
        if active is not None:
            active.abandon_in_fork()

    def captures(self) -> list[Capture]:
        """Captures so far, with the reason for each that would be missing if the program ended now."""
        captures = list(self._done)
        if self.active is not None:
            captures.append(self.active.missing("the program ended during this pass"))
        return captures + [_missing_pass(item, f"{self.delay} this pass began") for item in self._queue]

    def _held_up(self, number: int, *, program_profiles: bool, compiles: bool) -> bool:
        """Whether the pass that is due has to wait."""
        tool = self._queue[0].tool
        if compiles and self._queue[0].stacks:
            # Millions of the compiler's own Python calls would be recorded, and minutes spent on writing them.
            self.delay = "torch.compile compiled in each step up to its end; the program ended before"
            return True
        if tool == "torch_profiler" and (program_profiles or torch_compat.profiler_records()):
            self.delay = "the program's own torch.profiler was recording; the program ended before"
            return True
        if tool == "torch_profiler" and self.rests(number):
            return True
        if tool == "jax_profiler" and compat.trace_runs():
            self.delay = "the program's own jax.profiler was recording; the program ended before"
            return True
        if torch_compat.below_compiled_code():
            self.delay = "steps ended inside a compiled function, where no capture can start; the program ended before"
            return True
        return False


def _missing_pass(due: Pass, reason: str) -> Capture:
    return Capture(pass_name=due.name, tool=due.tool, state="missing", reason=reason)
