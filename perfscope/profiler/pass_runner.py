"""The passes of one process: which is due, the one that runs, and what came of those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from perfscope.profiler import jax_compat, observe
from perfscope.profiler.active import ActivePass, start_pass
from perfscope.profiler.jax_side import JaxSide
from perfscope.profiler.options import CaptureOptions
from perfscope.profiler.plan import RESTING_STEPS, Framework, Pass, passes
from perfscope.profiler.run import Capture


class PassRunner:
    """Starts and ends passes at step boundaries, on the thread of the loop. ``run``: the run directory."""

    def __init__(self, options: CaptureOptions, run: Path, before: Callable[[Pass], None] = lambda due: None) -> None:
        """Plan the passes; none runs. ``before(due)`` is called right before each starts."""
        self._before = before
        self._options = options
        self._run = run
        self._queue = deque(passes(options))
        self._done: list[Capture] = []
        self._recorded: int | None = None
        """Number of the last step under torch's profiler."""
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

    def start_over(self, number: int) -> None:
        """What was captured up to step ``number`` was not of steps."""
        if self.active is not None:
            self.active.abort()
            self.active = None
            self._recorded = number
        self._done.clear()
        self._queue = deque(passes(self._options))

    def start(
        self, number: int, directory: Path, jax: JaxSide | None, *, program_profiles: bool, compiles: bool
    ) -> None:
        """Start the pass that is due, unless something is in the way; one that cannot be gives way to the next.

        ``program_profiles``: a torch profiler of the program's own records, or is about to. ``compiles``: torch.compile
        compiled something in the step before.
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
                self._done.append(_missing(due, started))
            else:
                self.active = started

    def rests(self, number: int) -> bool:
        """Whether a recording of torch's profiler ended too short a while ago for another to begin."""
        return self._recorded is not None and number <= self._recorded + RESTING_STEPS

    def end_step(self, number: int) -> bool:
        """Step ``number`` ended in the pass that runs; True if the pass ended with it."""
        active = self.active
        assert active is not None
        if active.due.tool == "op_graph" and observe.modes_on_stack() > 1:
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
        """End the pass that runs, at or behind step ``number``, and keep what it recorded."""
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
        """The program starts a profiler of its own: ours goes, with what it has, and may come back. True if it went."""
        active = self.active
        if active is None or active.due.tool != tool:
            return False
        self.active = None
        active.interrupt()
        self._queue.appendleft(active.due)
        self.delay = f"the program started its own {tool.replace('_', '.')}; the program ended before"
        return True

    def give_up(self, reason: str) -> None:
        """Something of ours failed: nothing more is captured."""
        if self.active is not None:
            self.active.abort()
            self._done.append(self.active.missing(reason))
            self.active = None
        self._done += [_missing(one, reason) for one in self._queue]
        self._queue.clear()

    def abandon_in_fork(self) -> None:
        """In a forked child: everything is the parent's."""
        active, self.active = self.active, None
        self._queue.clear()
        if active is not None:
            active.abandon_in_fork()

    def captures(self) -> list[Capture]:
        """What there is, and why the rest is missing if the program ends now."""
        captures = list(self._done)
        if self.active is not None:
            captures.append(self.active.missing("the program ended during this pass"))
        return captures + [_missing(one, f"{self.delay} this pass began") for one in self._queue]

    def _held_up(self, number: int, *, program_profiles: bool, compiles: bool) -> bool:
        """Whether the pass that is due has to wait."""
        tool = self._queue[0].tool
        if compiles and self._queue[0].stacks:
            # Millions of the compiler's own Python calls would be recorded, and minutes spent on writing them.
            self.delay = "torch.compile compiled in each step up to its end; the program ended before"
            return True
        if tool == "torch_profiler" and (program_profiles or observe.profiler_records()):
            self.delay = "the program's own torch.profiler was recording; the program ended before"
            return True
        if tool == "torch_profiler" and self.rests(number):
            return True
        if tool == "jax_profiler" and jax_compat.trace_runs():
            self.delay = "the program's own jax.profiler was recording; the program ended before"
            return True
        if observe.below_compiled_code():
            self.delay = "steps ended inside a compiled function, where no capture can start; the program ended before"
            return True
        return False


def _missing(due: Pass, reason: str) -> Capture:
    return Capture(pass_name=due.name, tool=due.tool, state="missing", reason=reason)
