"""The process that runs the user's program while its compiler writes its stages.

``python -m perfscope.plugins.lower.child FOLDER FRAMEWORK KIND WORDS...``: the parent has set the environment
(`capture.py`). Here JAX prints jaxprs with lines, and its profiler records the time of each part of the compiler.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

TRACE = "trace"
"""Folder of the profile in the folder of a run."""
DURATIONS = "durations.jsonl"
"""Times and cache answers that JAX reports, one JSON object per line: event, function, and seconds (not of a count)."""


def main() -> None:
    """Run the program to its end, or to a SIGTERM."""
    folder, framework, kind, *words = sys.argv[1:]
    signal.signal(signal.SIGTERM, _leave)
    stop = _record_jax(Path(folder) / TRACE) if framework == "jax" else lambda: None
    sys.argv = [*words]
    try:
        if kind == "module":
            sys.path.insert(0, "")
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        stop()


def _leave(*_: Any) -> None:
    raise SystemExit(0)


def _record_jax(folder: Path) -> Any:
    """Start the profiler, and return a function that ends it. A trace of the program itself ends ours."""
    import jax
    import jax.extend.core as core

    shown = core.Jaxpr.pretty_print

    def with_lines(jaxpr: Any, **options: Any) -> str:
        return str(shown(jaxpr, **{"source_info": True, **options}))

    setattr(core.Jaxpr, "pretty_print", with_lines)  # noqa: B010 (a method of jax's class)
    start, stop = jax.profiler.start_trace, jax.profiler.stop_trace
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level, options.enable_hlo_proto = 2, 0, False
    running = [True]
    start(str(folder), profiler_options=options)
    _record_durations(jax.monitoring, folder.parent / DURATIONS)

    def end() -> None:
        if running.pop() if running else False:
            stop()

    def of_the_program(*arguments: Any, **options: Any) -> Any:
        end()
        return start(*arguments, **options)

    jax.profiler.start_trace = of_the_program
    return end


def _record_durations(monitoring: Any, file: Path) -> None:
    """Write what JAX reports of its compilations and their cache, line by line."""
    stream = file.open("w", buffering=1)

    def duration(event: str, seconds: float, **details: Any) -> None:
        if "/compil" in event:
            function = str(details.get("fun_name", ""))
            stream.write(json.dumps({"event": event, "function": function, "seconds": seconds}) + "\n")

    def count(event: str, **_: Any) -> None:
        if "/compilation_cache/" in event:
            stream.write(json.dumps({"event": event}) + "\n")

    monitoring.register_event_duration_secs_listener(duration)
    monitoring.register_event_listener(count)


if __name__ == "__main__":
    if importlib.util.find_spec("perfscope") is None:  # run by its path
        sys.path.append(str(Path(__file__).resolve().parents[3]))
    main()
