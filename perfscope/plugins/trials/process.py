"""Interventions in this process: applied when the framework is imported; their changes are written at the end."""

from __future__ import annotations

import gc
import os
import resource
import sys
from pathlib import Path
from time import perf_counter_ns

from perfscope.model.capture import Message
from perfscope.model.files import write_atomically
from perfscope.plugins.trials.interventions import load_intervention
from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.plugins.trials.process_report import REPORT_FILE, ProcessTrial, dump
from perfscope.plugins.trials.recorder import ResultRecorder
from perfscope.profiler.session.passes import Framework
from perfscope.profiler.session.ranks import rank_from_environment


class ProcessInterventions:
    """Work of a `perfscope try` launch in its process besides measuring times."""

    def __init__(self, message: Message) -> None:
        """Nothing is applied yet. ``UsageError`` if an intervention of that name is not installed here."""
        self._run = Path(message.directory)
        self._interventions = [load_intervention(name) for name in message.settings["interventions"]]
        self._applications = {intervention.name: Application() for intervention in self._interventions}
        record_steps: int = message.settings["record_steps"]
        self._recorder = ResultRecorder(record_steps) if record_steps else None
        self._done: set[str] = set()
        self._collector = CollectorClock() if record_steps else None

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
            peak_rss_bytes=peak_rss_bytes(),
            gc_ns_per_step=None if self._collector is None else self._collector.ns_per_step(),
        )
        file = self._run / REPORT_FILE.format(pid=os.getpid())
        write_atomically(file, dump(report), durable=False)


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


def peak_rss_bytes() -> int:
    """Most physical memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
