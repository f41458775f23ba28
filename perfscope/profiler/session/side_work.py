"""Work of a training besides its steps: saves, waits for saves, and evaluations, with their times and lines.

Saves are the calls of `checkpoints.py`. An evaluation lasts from ``model.eval()`` to ``model.train()``; a model that is
still in evaluation mode when a step ends was put there for other reasons.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from perfscope.model.documents.counters import SideWork
from perfscope.profiler.patching import wrap
from perfscope.profiler.session.checkpoints import IN_STEPS, MOST_PENDING, SAVE, WAIT, Checkpoint, CheckpointLog
from perfscope.profiler.session.storage import own_storage

EVALUATION = "evaluation"
MOST_EVENTS = 4_096
"""Events that are kept of one process."""
LOOKS_EVERY = 64
"""Steps between two looks for newly imported libraries, after as many first steps."""


class SideWorkLog(CheckpointLog):
    """The side work of one process. Methods are called on the thread of the steps."""

    def __init__(self) -> None:
        """Prepare an empty log; ``watch`` wraps the calls."""
        super().__init__(IN_STEPS)
        self._done: list[SideWork] = []
        self.dropped = 0
        """Events beyond `MOST_EVENTS`, and evaluations of one step beyond `MOST_PENDING`."""
        self._open: tuple[int, str, int] | None = None
        """Begin, line and identity of the model of an evaluation that has not ended."""
        self._pending: list[tuple[Checkpoint, int, Any]] = []
        """Saves of managers that store on their own, with the bytes written before, and the manager."""
        self._modules = False

    def watch(self) -> None:
        """Wrap the functions of all modules that are imported by now, and the change of a model's mode."""
        super().watch()
        torch: Any = sys.modules.get("torch")
        if not self._modules and torch is not None and hasattr(torch, "nn"):
            with suppress(AttributeError, ImportError, KeyError):  # torch is being imported
                self._undos.append(wrap(torch.nn.Module, "train", self._switching))
                self._modules = True

    def step_ended(self, number: int) -> None:
        """A step ended: discard an open evaluation, and look for saves that are stored by now."""
        self._open = None
        self._collect()
        if number < LOOKS_EVERY or number % LOOKS_EVERY == 0:
            self.watch()
        for entry in list(self._pending):
            event, wrote, manager = entry
            stored = False
            with suppress(Exception):
                stored = not manager.is_saving_in_progress()
            if stored:
                self._pending.remove(entry)
                written = self._written() - wrote if wrote >= 0 else -1
                self._events.append(event._replace(done_ns=time.perf_counter_ns(), wrote=written))

    def events(self) -> tuple[SideWork, ...]:
        """All events so far."""
        self._collect()
        waiting = [_event(event._replace(done_ns=0)) for event, _, _ in self._pending]
        return (*self._done, *waiting)

    def _collect(self) -> None:
        """Move new events to those that are kept."""
        if self._events:
            taken, room = self.taken(), MOST_EVENTS - len(self._done)
            self._done += map(_event, taken[:room])
            self.dropped += max(0, len(taken) - room)

    def _switching(self, original: Any) -> Any:
        from torch.compiler import is_compiling

        def train(module: Any, mode: bool = True) -> Any:
            if is_compiling():  # what follows would break the graph
                return original(module, mode)
            if getattr(self._inside, "train", False) or threading.current_thread() is not threading.main_thread():
                return original(module, mode)
            self._inside.train = True
            was = module.training
            try:
                return original(module, mode)
            finally:
                self._inside.train = False
                with suppress(Exception):
                    self._switched(module, was=was, now=mode, frame=sys._getframe(1))

        return train

    def _switched(self, module: Any, *, was: bool, now: bool, frame: FrameType | None) -> None:
        if self._open is None and was and not now:
            self._open = time.perf_counter_ns(), self._line(frame), id(module)
        elif self._open is not None and now and not was and self._open[2] == id(module):
            begin, line, _ = self._open
            self._open = None
            end = time.perf_counter_ns()
            if len(self._events) < MOST_PENDING:
                self._events.append(Checkpoint(EVALUATION, "eval", begin, end, line, True, end, ""))
            else:
                self.dropped += 1

    def _call_name(self, holder: str, function: str) -> str:
        return f"{holder}.{function}" if holder else function

    def _written(self) -> int:
        counted = own_storage()
        return -1 if counted is None else counted.written

    def _on_its_own(self, event: Checkpoint) -> bool:
        """A thread of the program whose target is the save; not one that stores an asynchronous save."""
        return event.kind == SAVE and not self._storing and not self._pending

    def _keep(self, event: Checkpoint, wrote: int, subject: Any) -> None:
        progress = getattr(subject, "is_saving_in_progress", None)
        if event.kind == SAVE and event.of_steps and callable(progress) and progress():
            self._pending.append((event, wrote, subject))
        elif event.kind != WAIT or event.of_steps:
            self._events.append(event)

    def _line(self, frame: FrameType | None) -> str:
        """The innermost line of the program; one of an installed library if no other is on the stack."""
        library = ""
        while frame is not None:
            path = frame.f_code.co_filename
            if self._files.is_user(path) and f"{os.sep}perfscope{os.sep}plugins" not in path:
                line = f"{self._files.name_with_owner(path)}:{frame.f_lineno}:{frame.f_code.co_qualname}"
                if not self._files.is_installed(path):
                    return line
                library = library or line
            frame = frame.f_back
        return library


def _event(event: Checkpoint) -> SideWork:
    file, _, rest = event.line.partition(":") if event.line else ("", "", "")
    line, _, function = rest.partition(":")
    return SideWork(
        activity=event.kind,
        call=event.call,
        file=file,
        line=int(line) if line.isdigit() else None,
        function=function,
        begin_ns=event.begin_ns,
        end_ns=event.end_ns,
        stored_ns=event.done_ns or -1,
        bytes=event.wrote,
        of_steps=event.of_steps,
    )
