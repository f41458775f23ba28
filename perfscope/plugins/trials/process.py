"""Interventions in this process: applied when the framework is imported; their changes are written at the end."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from perfscope.model.capture import Message
from perfscope.model.files import write_atomically
from perfscope.plugins.trials.interventions import load_intervention
from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.plugins.trials.process_report import REPORT_FILE, Ending, ProcessTrial, dump
from perfscope.plugins.trials.recorder import ResultRecorder
from perfscope.profiler.session.passes import Framework
from perfscope.profiler.session.ranks import rank_from_environment
from perfscope.profiler.session.resident import peak_resident_bytes

LEAST_STEPS = 12
"""Fewest steps of a launch that is ended: the first two are not timed, and ten give a median."""
LEAST_IN_WINDOWS = 42
"""The same where steps are timed in windows of eight, because the device works asynchronously: five windows."""
LEAST_SECONDS = 2.0
"""Least time of the steps of such a launch, so that single delays of the machine do not fill it."""


class ProcessInterventions:
    """Work of a `perfscope try` launch in its process besides measuring times."""

    def __init__(self, message: Message) -> None:
        """``UsageError`` if an intervention of that name is not installed here."""
        self._run = Path(message.directory)
        self._interventions = [load_intervention(name) for name in message.settings["interventions"]]
        self._applications = {intervention.name: Application() for intervention in self._interventions}
        record_steps: int = message.settings["record_steps"]
        self._recorder = ResultRecorder(record_steps) if record_steps else None
        self._done: set[str] = set()
        self._collector = CollectorClock() if record_steps else None
        ending = message.settings.get("ending")
        self._end = None if ending is None else EarlyEnd(Ending(**ending))

    def attach(self, framework: Framework) -> None:
        """Apply the interventions, right after the import of ``framework``, before further code of the program."""
        if self._recorder is not None:  # its hooks are inside those of the interventions
            self._recorder.listen(framework)
        for intervention in reversed(self._interventions):  # the first is outermost, so that others see its effect
            if intervention.framework in (framework, "any") and intervention.name not in self._done:
                self._done.add(intervention.name)
                self._apply(intervention)

    def _apply(self, intervention: Intervention) -> None:
        application = self._applications[intervention.name]
        if intervention.apply is None:
            return
        try:
            intervention.apply(application)
        except Exception as error:
            application.left(f"it cannot be applied here: {type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def step(self, number: int) -> None:
        """Step ``number`` is about to begin."""
        if self._collector is not None:
            self._collector.step()
        for application in self._applications.values():
            for call in application.on_step:
                call(number)
        if self._end is not None and self._end.is_due(number):
            raise SystemExit(0)  # as `sys.exit` in the program's loop: its ``finally`` and ``atexit`` run

    def save(self) -> None:
        """Write the changes and records of this process."""
        rank = rank_from_environment(os.environ)
        recorder = self._recorder
        report = ProcessTrial(
            rank=0 if rank is None else rank.rank,
            applied={name: tuple(done.applied) for name, done in self._applications.items() if done.applied},
            refused={name: tuple(done.refused) for name, done in self._applications.items() if done.refused},
            values=() if recorder is None else tuple(recorder.values),
            layers=() if recorder is None else tuple(recorder.layers),
            unrecorded=() if recorder is None else tuple(recorder.unrecorded),
            peak_rss_bytes=peak_resident_bytes(),
            ended_after=None if self._end is None else self._end.ended_after,
            gc_ns_per_step=None if self._collector is None else self._collector.ns_per_step(),
        )
        file = self._run / REPORT_FILE.format(pid=os.getpid())
        write_atomically(file, dump(report), durable=False)


class EarlyEnd:
    """Decides in the program's process at which step a launch ends."""

    def __init__(self, ending: Ending) -> None:
        """Wait for the first step."""
        self._ending = ending
        self._since: float | None = None
        self._wanted = 0.0
        self.ended_after: int | None = None
        """Steps that were made before the end."""

    def is_due(self, number: int) -> bool:
        """Return whether the launch ends before step ``number``; true once.

        Only a process without other ranks ends, and only in its main thread: elsewhere the exception would leave a
        program that waits.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._wanted = max(LEAST_SECONDS, time.time() - self._ending.began_unix_s)
        if self.ended_after is not None or _has_peers() or threading.current_thread() is not threading.main_thread():
            return False
        if self._ending.steps:
            due = number >= self._ending.steps
        else:
            due = number >= (LEAST_IN_WINDOWS if _in_windows() else LEAST_STEPS) and now - self._since >= self._wanted
        if due:
            self.ended_after = number
        return due


def _has_peers() -> bool:
    rank = rank_from_environment(os.environ)
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return in_group or (rank is not None and (rank.world_size or 1) > 1)


def _in_windows() -> bool:
    torch: Any = sys.modules.get("torch")
    return "jax" in sys.modules or (torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())


class CollectorClock:
    """Adds up the time of Python's garbage collector from the first step that is seen."""

    def __init__(self) -> None:
        """Begin to listen."""
        self._begin_ns = self._total_ns = self._steps = 0
        gc.callbacks.append(self._collecting)

    def step(self) -> None:
        """A step begins."""
        self._steps += 1

    def ns_per_step(self) -> int | None:
        """Time per step; ``None`` without a step."""
        return self._total_ns // self._steps if self._steps else None

    def _collecting(self, phase: str, _info: object) -> None:
        if phase == "start":
            self._begin_ns = perf_counter_ns()
        elif self._steps:
            self._total_ns += perf_counter_ns() - self._begin_ns
