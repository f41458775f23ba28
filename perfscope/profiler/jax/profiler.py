"""Captures steps with the profiler of jax, the Python tracer off, and keeps the XSpace as the tool wrote it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfscope.model.files import write_atomically
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.hlo import without_hosts
from perfscope.profiler.session.annotate import JAX_STEP, under_nsys
from perfscope.profiler.session.passes import Pass

HOST_TRACER_LEVEL = 2
"""jax's own default; 1 and 3 record the same ops on the CPU."""
NAME = "perfscope"
"""Of the trace in TensorBoard's layout, where other tools put the host's name."""


def available() -> str | None:
    """Why jax's profiler cannot capture in this process, or ``None`` if it can."""
    if not compat.installed():
        return "jax is not installed"
    if under_nsys():
        return "Nsight Systems profiles this process, and only one tool at a time can use CUPTI"
    return None


class JaxProfilerCapture:
    """One window over whole steps. Every method is called at step boundaries on the thread of the loop."""

    def __init__(
        self,
        settings: Pass,
        *,
        tracing: Callable[[bool], None],
        synchronise: Callable[[], None],
        marks: bool,
    ) -> None:
        """Hold what to record; nothing starts yet.

        ``tracing``: called when the window opens and closes; ``synchronise``: waits for the devices;
        ``marks``: put a range of our own around each step.
        """
        self._settings = settings
        self._tracing = tracing
        self._synchronise = synchronise
        self._marks = marks
        self._session: Any = None
        self._range: Any = None
        self._space = b""

    def start(self, step: int) -> None:
        """Wait for what was dispatched before, and begin to record."""
        self._synchronise()
        self._session = compat.session(host_tracer_level=HOST_TRACER_LEVEL)
        if self._session is None:
            raise RuntimeError(compat.NO_SESSION)
        self._tracing(True)

    def begin_step(self, number: int) -> None:
        """Open the range that a reader, and TensorBoard, takes for step ``number``."""
        if self._marks:
            from jax.profiler import StepTraceAnnotation

            self._range = StepTraceAnnotation(JAX_STEP, step_num=number)
            self._range.__enter__()

    def end_step(self) -> None:
        """Close it."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def stop(self, complete: tuple[int, int] | None, cut_off: int | None) -> None:
        """Wait for the device, so that the last step is in it whole, and end it."""
        self._tracing(False)
        self._synchronise()
        session, self._session = self._session, None
        if session is not None:
            self._space = session.stop()
        # Only now: a range that is dropped while the profiler records is written as if it had ended there.
        self._range = None

    def save(self, path: Path) -> None:
        """Write the trace to ``path``, and lay it out beside it as TensorBoard expects it, without a copy if it can."""
        write_atomically(path, without_hosts(self._space), durable=False)
        self._space = b""
        stamp = datetime.now(UTC).strftime("%Y_%m_%d_%H_%M_%S")
        shown = path.parent / "plugins" / "profile" / stamp / f"{NAME}.xplane.pb"
        shutil.rmtree(path.parent / "plugins", ignore_errors=True)  # of a pass that was taken again
        shown.parent.mkdir(parents=True)
        try:
            os.link(path, shown)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, shown)

    def abandon_in_fork(self) -> None:
        """In a child forked while this records: its profiler has lost its threads and must not be touched."""
        _never_freed.append(self._session)
        self._session = None


_never_freed: list[Any] = []
