"""Captures steps with the profiler of jax, the Python tracer off, and keeps the XSpace as the tool wrote it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfscope.profiler.jax import compat, hlo
from perfscope.profiler.jax import hlo as wire
from perfscope.profiler.session.annotate import JAX_STEP, under_nsys
from perfscope.profiler.session.passes import Pass

HOST_TRACER_LEVEL = 2
"""jax's own default; 1 and 3 record the same ops on the CPU."""
MOST_EVENTS = 400_000
"""Of a trace: 25 MB, two seconds to stop. A scan over 10,000 turns reaches it in one step."""
EVENTS_AN_INSTRUCTION = 2
"""On the CPU each op leaves one when it begins and one when it ends."""
MOST_READ = 32 << 20
"""Bytes of programs looked through for the estimate: a second of the program's time, between two steps."""
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
        self._folder: str | None = None
        self._range: Any = None
        self._space = b""
        self.most_steps: int | None = None
        """Steps it takes, where they are fewer than was asked for."""
        self.remark: str | None = None
        """What could not be recorded though the rest was."""

    def start(self, step: int) -> None:
        """Wait for what was dispatched before, and begin to record."""
        self._synchronise()
        self._limit_steps()
        self._session = compat.session(host_tracer_level=HOST_TRACER_LEVEL)
        if self._session is None:
            import jax

            self._folder = tempfile.mkdtemp(prefix="perfscope-")
            jax.profiler.start_trace(self._folder)
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
        elif self._folder is not None:
            import jax

            jax.profiler.stop_trace()
            self._space = next(Path(self._folder).rglob("*.xplane.pb")).read_bytes()
            shutil.rmtree(self._folder, ignore_errors=True)
        # Only now: a range that is dropped while the profiler records is written as if it had ended there.
        self._range = None

    def save(self, path: Path) -> None:
        """Write the trace to ``path``, and lay it out beside it as TensorBoard expects it, without a copy if it can."""
        draft = path.with_name(f".{path.name}.part")
        draft.write_bytes(wire.without_hosts(self._space))
        draft.replace(path)
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

    def _limit_steps(self) -> None:
        """Ask the programs that are alive how many events a step will leave, as if each ran once."""
        wanted = self._settings.count
        with contextlib.suppress(RuntimeError, ValueError):  # no estimate: the number that was asked for
            names = [wire.module_of(module.proto) for module in hlo.snapshot()]
            if sum(map(len, names)) > MOST_READ:
                self.most_steps, self.remark = 1, "one step is traced: the compiled programs are too large to estimate"
                return
            a_step = EVENTS_AN_INSTRUCTION * sum(map(wire.event_count, names))
            fit = max(1, MOST_EVENTS // max(1, a_step))
            if fit < wanted:
                self.most_steps = fit
                self.remark = f"{fit} of {wanted} steps are traced: a step is some {a_step:,} events"


_never_freed: list[Any] = []
