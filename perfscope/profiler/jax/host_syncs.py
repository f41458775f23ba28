"""Host syncs: places where the program waits for a device, or reads a value that is ready already.

The profilers of jax do not name them: ``block_until_ready`` leaves no span, and ``float(x)`` one without a line.
The methods of arrays through which Python reads a value are wrapped while this is on; ``is_ready()``
before the call distinguishes a stall from a read of a computed value. ``np.asarray(x)`` on the CPU uses
the buffer protocol and is not seen.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Any

from perfscope.model.documents.run import Capture
from perfscope.model.jax_log import SYNCS_FILE, SYNCS_SCHEMA
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.record_log import CallSites, RecordLog
from perfscope.profiler.patching import Undo, replace

PASS = "syncs"  # noqa: S105 (the name of a pass)
MOST_SYNCS = 20_000
"""Some 4 MB; when they are reached the wrappers go, and the program runs without them."""
RANGE = "perfscope.sync"
"""Name of the range in a trace, with ``call`` and ``ready`` as its statistics."""

METHODS = (
    "__array__",
    "__bool__",
    "__complex__",
    "__float__",
    "__format__",
    "__index__",
    "__int__",
    "__iter__",
    "__repr__",
    "__str__",
    "block_until_ready",
    "item",
    "tolist",
)
FUNCTIONS = ("block_until_ready", "device_get")
"""Functions of the module jax."""


def available() -> str | None:
    """Why syncs cannot be seen, or ``None`` if they can."""
    if not compat.installed():
        return "jax is not installed"
    return None if compat.array_class() is not None else "this jax keeps its arrays where we do not know"


class SyncLog:
    """Sees syncs from ``start()`` to ``stop()``. ``step``: the number of the step that runs."""

    def __init__(self, sites: CallSites, step: Callable[[], int | None]) -> None:
        self._sites = sites
        self._step = step
        self._lines = RecordLog(SYNCS_SCHEMA, MOST_SYNCS)
        self._undo: list[Undo] = []
        self._inside = threading.local()
        self.traced = False
        """Whether a trace of perfscope runs: then each sync is also a range in it."""
        self.disturbed = False
        """Whether we waited for the devices when this step began: its arrays may be ready only because of that."""

    @property
    def on(self) -> bool:
        """Whether syncs are seen now."""
        return bool(self._undo)

    def start(self) -> None:
        """Wrap the methods. ``RuntimeError`` if this jax has no array class that we know."""
        import jax

        arrays = compat.array_class()
        if arrays is None:
            raise RuntimeError(available())
        for name in METHODS:
            original = arrays.__dict__.get(name)
            if original is not None:
                self._undo.append(replace(arrays, name, self._wrapped(original, name)))
        for name in FUNCTIONS:
            original = getattr(jax, name, None)
            if original is not None:
                self._undo.append(replace(jax, name, self._wrapped(original, name)))

    def stop(self) -> None:
        """Leave jax as it was."""
        while self._undo:
            self._undo.pop()()

    def start_over(self) -> None:
        """Steps are counted by another source from here on, whose numbers begin again."""
        self._lines.forget_steps()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore waits of this thread meanwhile, because perfscope causes them."""
        before = getattr(self._inside, "now", False)
        self._inside.now = True
        try:
            yield
        finally:
            self._inside.now = before

    def save(self, directory: Path, run: Path) -> Capture:
        """Write the syncs so far."""
        path = directory / SYNCS_FILE
        self._lines.save(path)
        reason = f"the first {MOST_SYNCS} syncs; the rest was not looked at" if self._lines.full else None
        return Capture(
            pass_name=PASS,
            tool="jax_sync",
            state="recorded",
            reason=reason,
            artifact=path.relative_to(run).as_posix(),
        )

    def _wrapped(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        call = name.strip("_")

        def synced(value: Any, *arguments: Any, **named: Any) -> Any:
            inside = self._inside
            if getattr(inside, "now", False):  # print(x) reads x through three of these
                return original(value, *arguments, **named)
            if name == "__iter__" and _stays_on_device(value):
                return original(value, *arguments, **named)
            inside.now = True
            try:
                ready = _ready(value)
                span = self._span(call, ready)
                begin, begin_ns = time_ns(), perf_counter_ns()
                try:
                    with span:
                        return original(value, *arguments, **named)
                finally:
                    self._seen(call, ready, value, begin, perf_counter_ns() - begin_ns, sys._getframe(1))
            finally:
                inside.now = False

        synced.__name__ = name
        synced.__doc__ = getattr(original, "__doc__", None)
        return synced

    def _span(self, call: str, ready: bool | None) -> contextlib.AbstractContextManager[Any]:
        if not self.traced:
            return contextlib.nullcontext()
        try:
            from jax.profiler import TraceAnnotation

            span: contextlib.AbstractContextManager[Any] = TraceAnnotation(RANGE, call=call, ready=str(ready))
        except Exception:
            return contextlib.nullcontext()
        return span

    def _seen(self, call: str, ready: bool | None, value: Any, begin: int, duration: int, frame: Any) -> None:
        try:
            site = self._sites.here(frame)
            self._lines.add(
                call=call,
                begin_ns=begin,
                duration_ns=duration,
                step=self._step(),
                ready=ready,
                bytes=_bytes(value),
                file=site and site.file,
                line=site and site.line,
                function=site and site.function,
                library=site and site.library,
                traced=self.traced,
                disturbed=self.disturbed or None,
                main_thread=threading.current_thread() is threading.main_thread(),
            )
            if self._lines.full:
                self.stop()
        except Exception:  # the program reads its array: an error of perfscope must not stop it
            self._lines.dropped += 1


def _leaves(value: Any) -> list[Any]:
    arrays = compat.array_class()
    if isinstance(value, arrays):
        return [value]
    import jax

    return [leaf for leaf in jax.tree_util.tree_leaves(value) if isinstance(leaf, arrays)]


def _stays_on_device(array: Any) -> bool:
    """Whether iteration slices the array on its device (``key, used = jax.random.split(key)``).

    jax reads only an array that is divided between devices on the host for that.
    """
    return bool(array.is_fully_replicated)


def _ready(value: Any) -> bool | None:
    """Whether the value was ready already; ``None`` if unknown.

    Never call it for a deleted or donated array: jaxlib 0.10.2 crashes the process.
    """
    try:
        leaves = _leaves(value)
        if any(leaf.is_deleted() for leaf in leaves):
            return None
        return all(leaf.is_ready() for leaf in leaves)
    except Exception:
        return None


def _bytes(value: Any) -> int | None:
    try:
        return sum(int(leaf.nbytes) for leaf in _leaves(value))
    except Exception:
        return None
