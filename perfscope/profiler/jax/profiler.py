"""Captures steps with the profiler of jax, the Python tracer off, and keeps the XSpace as the tool wrote it."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from perfscope.model.files import write_atomically
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.hlo import without_hosts
from perfscope.profiler.session.annotate import JAX_STEP, under_nsys
from perfscope.profiler.session.passes import Pass

HOST_TRACER_LEVEL = 2
"""jax's own default; 1 and 3 record the same ops on the CPU."""
MOST_RUN_S = 2.0
"""Longest recording of a whole program as one step: XLA's CPU backend writes a million events per second."""
LONG_COMPILE_S = 1.0
"""Duration of a compilation after which everything recorded before is dropped, because the main program starts."""
POLL_S = 0.1
_COMPILES = ("partial_eval.py", "mlir.py", "compiler.py", "compilation_cache.py")
"""Files of jax that are on the stack while it traces, lowers or compiles."""
NAME = "perfscope"
"""Name of the trace in TensorBoard's layout, where other tools put the host's name."""


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
        bounded: bool = False,
    ) -> None:
        """Hold what to record; nothing starts yet.

        ``tracing``: called when the window opens and closes; ``synchronise``: waits for the devices;
        ``marks``: put a perfscope range around each step; ``bounded``: end after ``MOST_RUN_S`` without compilation,
        wherever the program is then.
        """
        self._settings = settings
        self._tracing = tracing
        self._synchronise = synchronise
        self._marks = marks
        self._session: Any = None
        self._range: Any = None
        self._space = b""
        self._bounded = bounded
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.remark: str | None = None
        """Remark on the recording for its reader."""

    def start(self, step: int) -> None:
        """Wait for all earlier work, and begin to record."""
        self._synchronise()
        self._session = compat.session(host_tracer_level=HOST_TRACER_LEVEL)
        if self._session is None:
            raise RuntimeError(compat.NO_SESSION)
        self._tracing(True)
        if self._bounded:
            watched = threading.get_ident()
            threading.Thread(target=self._end_in_time, args=(watched,), name="perfscope-limit", daemon=True).start()

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
        self._over.set()
        self._tracing(False)
        self._synchronise()
        self._end()
        # Only now: a range that is dropped while the profiler records is written as if it had ended there.
        self._range = None

    def _end(self, *, again: bool = False) -> bool:
        """Stop recording; False where it had ended. ``again``: begin a new recording in its place."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                self._space = compat.stop(session)
                if again:
                    self._session = compat.session(host_tracer_level=HOST_TRACER_LEVEL)
        return session is not None

    def _end_in_time(self, thread: int) -> None:
        """End the recording when the thread that began it has run long enough after its last long compilation."""
        ran, compiled, before = 0.0, 0.0, monotonic()
        while ran < MOST_RUN_S:
            if self._over.wait(POLL_S):
                return
            passed, before = monotonic() - before, monotonic()
            if _compiles(thread):
                compiled += passed
                continue
            if compiled < LONG_COMPILE_S:
                ran += passed
            elif self._end(again=True):
                ran, before = 0.0, monotonic()
            else:
                return
            compiled = 0.0
        if self._end():
            self.remark = f"{MOST_RUN_S:.0f} s of it, after compiling; the program went on without a profiler"

    def save(self, path: Path) -> None:
        """Write the trace to ``path``, and link or copy it into the layout that TensorBoard expects."""
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


def _compiles(thread: int) -> bool:
    """Whether jax traces or compiles on a thread, by the files on its stack."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.endswith(_COMPILES) and f"jax{os.sep}_src" in path:
            return True
        frame = frame.f_back
    return False


_never_freed: list[Any] = []
