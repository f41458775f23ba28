"""Purpose of each step of the program: one unchanged, one eager with every op recorded, two through the plan.

Steps are found as in `perfscope run`. The first step runs unchanged (caches, the optimizer's state); it also shows
whether the program compiles anything itself. In the second, torch.compile is off and the ops are recorded. From the
third on it is on, also for the outermost modules if the program compiles none. In the fifth it is off again, and its
ops replace those of the second, in which many programs do more (evaluation, logging); then planning ends.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from perfscope.model.capture import CaptureOptions
from perfscope.model.documents.torch_plan import ALL_STEPS
from perfscope.model.errors import PerfscopeError
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.memory import StepPeaks
from perfscope.plugins.ahead.torch.processes import JobPlan
from perfscope.profiler.session import annotate
from perfscope.profiler.session.steps import Source, StepFinder
from perfscope.profiler.torch.hooks import Hooks
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from perfscope.profiler.torch.op_graph.frames import Frames

EAGER, PLANNED, AGAIN = 0, 1, 3
"""Steps counted from the first that begins after steps are known."""
MOST_EVALUATIONS = 1_000
"""Most further calls of the model to wait for if there is an optimizer: many programs evaluate before training."""
AWAITED = 0.5
"""Share of the command's time to wait for them: a training step must be planned in the rest."""


class StopPlanningError(BaseException):
    """Ends the program: not an ``Exception``, which it might catch."""


class PlanSteps:
    """The recorder of a `StepFinder`.

    ``compiles()``: whether the program has compiled a graph by itself. ``seconds``: for the whole command.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        frames: Frames,
        *,
        compiles: Callable[[], bool],
        backend: Callable[..., Any],
        memory: StepPeaks,
        processes: JobPlan,
        seconds: float,
    ) -> None:
        self._file = folder
        self._folder, self._name, self._frames, self._memory = folder, name, frames, memory
        self._compiles, self._backend, self._processes, self._seconds = compiles, backend, processes, seconds
        self._hooks = Hooks()
        self._finder = StepFinder(CaptureOptions(warmup=1, quiet=True), self, self._hooks.forget)
        self._recorder: OpGraphCapture | None = None
        self._call = torch.nn.Module.__call__
        self._wraps = False
        self._number = -1
        self._first = 0
        self.compiled_by: str | None = None
        """``program`` or ``perfscope``, once it is known."""
        self.source: str | None = None
        self.counting = False
        """Whether calls of graphs belong to the planned step."""
        self.calls: Counter[int] = Counter()
        """Calls of each graph in the planned step."""
        self.stopped = ""
        self.eager_file: str | None = None
        self.outside_file: str | None = None
        self.problems: list[str] = []
        self.optimizers: set[str] = set()
        """Classes of optimizers that made a step."""
        self.seen_planned = False
        self._done_at = 0.0
        self._optimizer_exists: bool | None = None
        """Whether the program had an optimizer at the last step."""

    def install(self) -> None:
        """Listen for steps."""
        self._hooks.install(self._finder, ours=lambda: False, make_way=lambda: None)
        annotate.listen(self._finder)

    def settled(self, source: str, completed: int) -> None:
        """Handle that steps are known."""
        self.source = source

    def unsettled(self) -> None:
        """A better source of steps was found: restart with its steps."""
        self._close()
        self.calls.clear()
        self._number, self.seen_planned, self.counting, self.stopped = -1, False, False, ""
        self._unwrap()
        torch.compiler.set_stance("default")

    def broken(self, error: Exception) -> None:
        """The search failed: the plan covers what was seen."""
        self.problems.append(f"steps: {type(error).__name__}: {error}")

    def begin(self, number: int) -> None:
        """Begin a step."""
        if self._number < 0:
            self._first = number
        self._number = number
        what = number - self._first
        self._memory.begin()
        self._processes.begin()
        if what in (EAGER, AGAIN):
            if what == EAGER:
                self.decide()
            self._unwrap()
            torch.compiler.set_stance("force_eager")
            self._record(f"{self._name}.eager.opgraph.json.gz", number, modules=True)
        elif what == PLANNED:
            torch.compiler.set_stance("default")
            if self.compiled_by == "perfscope":
                self.wrap()
            self._record(f"{self._name}.outside.opgraph.json.gz", number, modules=False)
            self.counting = True

    def end(self, now: int) -> None:
        """End a step."""
        self.optimizers |= {type(optimizer).__name__ for optimizer in self._hooks.optimizers}
        what = self._number - self._first
        eager = what == EAGER or what >= AGAIN
        self._memory.end(self._hooks.optimizers, eager=eager)
        self._processes.end(eager=eager, planned=what == PLANNED)
        if what in (EAGER, AGAIN):
            self.eager_file = self._close()
        elif what == PLANNED:
            self.counting, self.seen_planned = False, True
            self.outside_file = self._close()
        if what >= AGAIN:
            self.stopped = ALL_STEPS
            if what == AGAIN:
                self._done_at = monotonic()
            waits = what - AGAIN < MOST_EVALUATIONS and monotonic() - self._done_at < AWAITED * self._seconds
            if self._training_follows():
                if waits:
                    return
                self.problems.append(
                    f"the steps are those of an evaluation: in {what - AGAIN:,} further calls of the model no "
                    f"optimizer made a step (--limit, {self._seconds:,.0f} s, is the time for all)"
                )
            self._hooks.forget_sources()
            raise StopPlanningError

    def _training_follows(self) -> bool:
        """Whether the steps are calls of a model, and there is an optimizer: the program evaluates first."""
        if self._finder.source is not Source.MODULE or self._hooks.optimizers:
            return False
        if self._optimizer_exists is None:
            kind = torch.optim.Optimizer
            self._optimizer_exists = any(issubclass(type(thing), kind) for thing in gc.get_objects())
        return self._optimizer_exists

    @property
    def ops(self) -> int:
        """Ops of this step that are in its op graph so far."""
        return 0 if self._recorder is None else self._recorder.count

    @property
    def ended(self) -> str:
        """How the program ended if it neither raised nor was stopped."""
        if self._number >= 0 and self.eager_file is None:
            return (
                f"the program ended after {self._number - self._first + 1} of the five steps that a plan walks through"
            )
        return "the program ended by itself"

    def decide(self) -> None:
        """Decide who compiles: known after a whole unchanged step."""
        self.compiled_by = "program" if self._compiles() else "perfscope"

    def finish(self) -> None:
        """Handle the end of the program."""
        what, ops = self._number - self._first, self.ops
        if what >= AGAIN and self._recorder is not None:  # incomplete: the first eager step is kept
            self._recorder.stop()
            self._recorder = None
        file = self._close()
        if self._number >= 0 and file is not None and ops:
            if what == EAGER:
                self.eager_file = file
            elif what == PLANNED:
                self.outside_file, self.seen_planned = file, True
        self.counting = False
        self._hooks.remove()
        self._unwrap()

    def wrap(self) -> None:
        """Route calls of outermost modules through torch.compile from now on."""
        if self._wraps:
            return
        self._wraps = True
        original, steps = self._call, self

        def compiled_call(module: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                return original(module, *arguments, **named)  # the module that it wraps is the outermost
            torch.nn.Module.__call__ = original
            try:
                compat.compile_module(module, steps._backend)
                return original(module, *arguments, **named)
            finally:
                if steps._wraps:
                    torch.nn.Module.__call__ = compiled_call

        torch.nn.Module.__call__ = compiled_call

    def _unwrap(self) -> None:
        self._wraps = False
        torch.nn.Module.__call__ = self._call

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, running ops do not belong to the program."""
        recorder = self._recorder
        if recorder is None:
            yield
            return
        with recorder.paused():
            yield

    def _record(self, file: str, number: int, *, modules: bool) -> None:
        self._file = self._folder / file
        self._recorder = OpGraphCapture()
        self._recorder.start(number, modules=modules, frames=self._frames)

    def _close(self) -> str | None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return None
        recorder.stop()
        try:
            recorder.save(self._file)
        except PerfscopeError as error:
            self.problems.append(str(error).partition(": ")[2])
            return None
        return self._file.name


# Ops dispatched while torch's compiler works, or while a planned graph replaces its kernels, belong to no step.


class WatcherPause:
    """``watchers``: contexts in which a watcher of ops ignores them."""

    def __init__(self, watchers: Sequence[Callable[[], AbstractContextManager[None]]]) -> None:
        self._watchers = watchers
        self._held: ExitStack | None = None

    @property
    def compiling(self) -> bool:
        """Whether the compiler is working; it may run a graph it has just made, to see the sizes of its results."""
        return self._held is not None

    @contextmanager
    def around(self) -> Iterator[None]:
        """Inside, all watchers ignore ops."""
        with ExitStack() as stack:
            for watcher in self._watchers:
                stack.enter_context(watcher())
            yield

    def listen(self) -> None:
        """Listen to the compiler from now on."""

        def begins() -> None:
            held = ExitStack()
            held.enter_context(self.around())
            self._held = held

        def ends() -> None:
            held, self._held = self._held, None
            if held is not None:
                held.close()

        compat.on_compilation(begins, ends)
