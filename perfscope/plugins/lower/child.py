"""The process that runs the user's program while its compiler writes its stages.

``python -m perfscope.plugins.lower.child FOLDER FRAMEWORK KIND WORDS...``: the parent has set the environment
(`capture.py`). When the program imports JAX, jaxprs get their lines; with the first function that it traces, JAX's
profiler begins to record the time of each part of the compiler. Until then the program may still set flags.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

TRACE = "trace"
"""Folder of the profile in the folder of a run."""
DURATIONS = "durations.jsonl"
"""Times and cache answers that JAX reports, one JSON object per line: event, function, and seconds (not of a count)."""


def main() -> None:
    """Run the program to its end, or to a SIGTERM."""
    folder, framework, kind, *words = sys.argv[1:]
    signal.signal(signal.SIGTERM, _leave)
    recorder = _Recorder(Path(folder))
    if framework == "jax":
        sys.meta_path.insert(0, _AfterImport("jax", recorder.begin))
    sys.argv = [*words]
    try:
        if kind == "module":
            sys.path.insert(0, "")
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        recorder.end()


def _leave(*_: Any) -> None:
    raise SystemExit(0)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a package has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the package, whose loader calls the function."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._then()

        loader.exec_module = exec_module
        return spec


class _Recorder:
    """Times of JAX's compiler; a trace of the program itself ends ours."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = False
        self._running = False

    def begin(self) -> None:
        """Print jaxprs with lines, and wait for the first function that is traced."""
        import jax
        import jax.extend.core as core

        shown = core.Jaxpr.pretty_print

        def with_lines(jaxpr: Any, **options: Any) -> str:
            return str(shown(jaxpr, **{"source_info": True, **options}))

        setattr(core.Jaxpr, "pretty_print", with_lines)  # noqa: B010 (a method of jax's class)
        stream = (self._folder / DURATIONS).open("w", buffering=1)

        def duration(event: str, seconds: float, **details: Any) -> None:
            if "/compil" in event:
                self._start()
                function = str(details.get("fun_name", ""))
                stream.write(json.dumps({"event": event, "function": function, "seconds": seconds}) + "\n")

        def count(event: str, **_: Any) -> None:
            if "/compilation_cache/" in event:
                stream.write(json.dumps({"event": event}) + "\n")

        jax.monitoring.register_event_duration_secs_listener(duration)
        jax.monitoring.register_event_listener(count)

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        import jax

        options = jax.profiler.ProfileOptions()
        options.host_tracer_level, options.python_tracer_level, options.enable_hlo_proto = 2, 0, False
        start = jax.profiler.start_trace
        try:
            start(str(self._folder / TRACE), profiler_options=options)
        except RuntimeError:  # the program traces already
            return
        self._running = True

        def of_the_program(*arguments: Any, **options: Any) -> Any:
            self.end()
            return start(*arguments, **options)

        jax.profiler.start_trace = of_the_program

    def end(self) -> None:
        """Write the profile, if it runs."""
        if self._running:
            self._running = False
            import jax

            jax.profiler.stop_trace()


if __name__ == "__main__":
    main()
