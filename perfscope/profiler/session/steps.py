"""Finds the steps of a program that may not know of us: listens to eight sources and settles on one."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from enum import IntEnum
from time import perf_counter_ns
from typing import Protocol

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session.passes import first_step
from perfscope.profiler.torch import compat

LEAST_COVERED = 0.5
"""Share of the time between two ranges' beginnings that a range must cover to be the loop's body: a
range called ``step`` around the optimizer alone covers less, one around forward and backward more."""

LONGEST_START_S = 30.0
"""Other threads of a pool that call the model wait so long while a profiler starts: else they end before it."""

_STEP_NAME = re.compile(
    r"(?:\[pl\]\[profile\])?(?:run_)?(?:train(?:ing)?[ _-]?)?(?:step|iter|iteration|batch)(?:[ _#:=-]*\d+)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?:(?<![ _#:=-])[ _#:=-]++|(?<![ _#:=\d-]))\d++$")


class Source(IntEnum):
    """Sources of steps; the lower value wins."""

    EXPLICIT = 0
    PROFILER = 1
    STEP_TRACE = 2
    ANNOTATION = 3
    OPTIMIZER = 4
    JITTED = 5
    BACKWARD = 6
    """Backward passes of one line, of a program without an optimizer."""
    MODULE = 7
    """Calls of the model, or of a compiled function, of a program without an optimizer."""


LATE = frozenset({Source.BACKWARD, Source.MODULE})
"""Sources that any better one replaces, also after the steps are known."""


class Recorder(Protocol):
    """Receiver of step boundaries (``perfscope.profiler.session.session``). ``now``: ``perf_counter_ns``."""

    def settled(self, source: str, completed: int) -> None:
        """Steps come from ``source`` from now on; ``completed`` of them are over."""

    def unsettled(self) -> None:
        """Discard the captures, because a better source came late: they were not of steps."""

    def broken(self, error: Exception) -> None:
        """The search for steps failed; the program must not feel it."""

    def begin(self, number: int) -> None:
        """Step ``number`` is about to begin."""

    def end(self, now: int) -> None:
        """The step that was begun ended at ``now``."""


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a call from the user's program, so that an error of perfscope does not reach it."""

    @functools.wraps(method)
    def call(finder: StepFinder, *arguments: object) -> None:
        try:
            method(finder, *arguments)
        except Exception as error:
            finder.recorder.broken(error)

    return call


class StepFinder:
    """Counts the steps of every source; after the warm-up the best source seen is followed alone.

    ``perfscope.step()`` rules wherever it is called, else the program's own ``prof.step()``, else jax's
    ``StepTraceAnnotation``, else an annotation that is named like a step, else the first optimizer that
    steps, else the first jitted function, the first line with backward passes, or the first model, that is called again
    and again. Events of other threads than the first one's are not steps. Backward passes and calls of a model are
    given up for any better source.
    """

    def __init__(self, options: CaptureOptions, recorder: Recorder, forget: Callable[[Source], None]) -> None:
        """``forget``: called for each source that need not be listened to any more."""
        self.recorder = recorder
        self._forget = forget
        self._wanted = options.step_annotation
        # With --steps far away, the source is still determined in the warm-up.
        self.warmup = min(first_step(options), max(1, options.warmup))
        self._threads: dict[Source, int] = {}
        self._gate = threading.RLock()
        self.completed: dict[Source, int] = {}
        """Complete steps by source."""
        self.source: Source | None = None
        """The source that was settled on."""
        self._inside_with = False
        self._with_used = False
        self._family: str | None = None
        self._names: dict[Source, str] = {}
        self._span_depth = 0
        self._depth = 0
        self._covered_ns = 0
        self._first_enter_ns = 0
        self._enter_ns = 0

    def label(self, source: Source) -> str:
        """The source as a person would name it."""
        names = {
            Source.EXPLICIT: "perfscope.step",
            Source.PROFILER: "torch.profiler",
            Source.STEP_TRACE: f"StepTraceAnnotation {self._names.get(source, '')}",
            Source.OPTIMIZER: "optimizer.step",
            Source.JITTED: f"calls of {self._names.get(source, '')}",
            Source.BACKWARD: f"calls of {self._names.get(source, '')}",
            Source.MODULE: f"calls of {self._names.get(source, '')}",
        }
        return names.get(source) or f"annotation {self._family}"

    def thread_of(self, source: Source) -> int | None:
        """Identifier of the thread whose events are steps of ``source``."""
        return self._threads.get(source)

    def best(self) -> Source | None:
        """The best source that has shown itself."""
        return min(self.completed, default=None)

    @_guarded
    def explicit_edge(self) -> None:
        """``perfscope.step()`` was called."""
        if self._with_used and not self._inside_with:  # a `with` follows: nothing ended here
            self._begin(Source.EXPLICIT)
        else:
            self.edge(Source.EXPLICIT)

    @_guarded
    def explicit_enter(self) -> None:
        """The last ``step()`` call belonged to a ``with``, so the time before it was not a step."""
        if not self._with_used:
            self._with_used = True
            if self._mine(Source.EXPLICIT) and self.completed.get(Source.EXPLICIT):
                self.completed[Source.EXPLICIT] -= 1
        self._inside_with = True

    @_guarded
    def explicit_exit(self) -> None:
        """The ``with`` ended."""
        now = perf_counter_ns()
        self._inside_with = False
        self._end(Source.EXPLICIT, now)

    @_guarded
    def edge(self, source: Source) -> None:
        """A step of ``source`` ended here and the next one began; in compiled code, as the compiled call returns.

        No profiler may start below compiled code.
        """
        if source is Source.MODULE and not self._mine(source):
            if self._gate.acquire(timeout=LONGEST_START_S):  # as the thread of the steps, while a profiler starts
                self._gate.release()
            return
        later = functools.partial(self._edge, source)
        if not (compat.below_compiled_code() and compat.after_compiled_code(later)):
            self._edge(source)

    @_guarded
    def _edge(self, source: Source) -> None:
        with self._gate:
            self._end(source, perf_counter_ns())
            self._begin(source)

    @_guarded
    def span_enter(self, source: Source, name: str) -> None:
        """A range that is a step by its kind is about to begin; one inside another is not."""
        if not self._mine(source) or (self._wanted is not None and name != self._wanted):
            return
        if self._names.setdefault(source, name) == name:
            self._span_depth += 1
            if self._span_depth == 1:
                self.completed.setdefault(source, 0)
                self._begin(source)

    @_guarded
    def span_exit(self, source: Source, name: str) -> None:
        """It ended."""
        now = perf_counter_ns()
        if self._mine(source) and self._names.get(source) == name and self._span_depth:
            self._span_depth -= 1
            if not self._span_depth:
                self._end(source, now)

    def release(self, source: Source) -> None:
        """The thread of ``source`` is gone: any other may have its steps."""
        self._threads.pop(source, None)

    def thread_enter(self, source: Source, name: str) -> bool:
        """Begin a step that is the whole run of a thread. False if another such thread runs."""
        with self._gate:
            if source in self._threads:
                return False
            self.span_enter(source, name)
            return True

    def thread_exit(self, source: Source, name: str) -> None:
        """It ends, on the same thread."""
        with self._gate:
            self.span_exit(source, name)
            self.release(source)

    @_guarded
    def called(self, source: Source, name: str, before: int = 0) -> None:
        """The function whose calls are steps was called, after ``before`` calls that were not followed.

        A requested step annotation has priority.
        """
        if self._wanted is None:
            self._names[source] = name
            self.completed[source] = self.completed.get(source, 0) + before
            self.edge(source)

    @_guarded
    def mistaken(self, source: Source) -> None:
        """Forget the steps of ``source``, because they were wrong, and look again."""
        self.completed.pop(source, None)
        self._names.pop(source, None)
        if self.source is source:
            self.source = None
            self.recorder.unsettled()

    @_guarded
    def annotation_enter(self, name: str) -> None:
        """A range is about to begin."""
        family = self._family_of(name)
        if family is None or not self._mine(Source.ANNOTATION):
            return
        if self._family is None:
            self._family = family
            self._first_enter_ns = perf_counter_ns()
        if family == self._family:
            self._depth += 1
            if self._depth == 1:
                self.completed.setdefault(Source.ANNOTATION, 0)
                self._begin(Source.ANNOTATION)
                self._enter_ns = perf_counter_ns()

    @_guarded
    def annotation_exit(self, name: str) -> None:
        """A range ended."""
        now = perf_counter_ns()
        if self._family_of(name) != self._family or self._family is None or not self._mine(Source.ANNOTATION):
            return
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._covered_ns += now - self._enter_ns
            self._end(Source.ANNOTATION, now)

    def _family_of(self, name: str) -> str | None:
        """The name without its number if it is a step's, else ``None``."""
        family = _NUMBER.sub("", name)
        if self._wanted is not None:
            return family if self._wanted in (name, family) else None
        return family if _STEP_NAME.fullmatch(name) else None

    def _mine(self, source: Source) -> bool:
        return self._threads.setdefault(source, threading.get_ident()) == threading.get_ident()

    def _end(self, source: Source, now: int) -> None:
        if not self._mine(source):
            return
        self.completed[source] = self.completed.get(source, 0) + 1
        if source == self.source:
            self.recorder.end(now)

    def _begin(self, source: Source) -> None:
        if not self._mine(source):
            return
        completed = self.completed.setdefault(source, 0)
        replaceable = source is Source.EXPLICIT or self.source in LATE
        if self.source is not None and replaceable and source < self.source:
            self.recorder.unsettled()
            self.source = None
        if self.source is None and self._may_settle(source, completed):
            self.source = source
            for other in Source:
                if other not in (source, Source.EXPLICIT) and not (source in LATE and other < source):
                    self._forget(other)
            self.recorder.settled(self.label(source), completed)
        if source == self.source:
            self.recorder.begin(completed)

    def _may_settle(self, source: Source, completed: int) -> bool:
        least = self.warmup
        if source is Source.EXPLICIT and not self._with_used:
            least = max(2, least)  # only the second call shows that the first was not a `with`
        if completed < least:
            return False
        if source is Source.ANNOTATION and not self._frames_the_loop():
            del self.completed[source]
            self._forget(source)
            return False
        return source == self.best()

    def _frames_the_loop(self) -> bool:
        if self._wanted is not None:
            return True
        return self._covered_ns >= LEAST_COVERED * (perf_counter_ns() - self._first_enter_ns)
