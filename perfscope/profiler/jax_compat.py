"""Everything of jax that is not public, in one place (here and ``jax_compat_calls``), each found by looking for it.

A function here answers ``None`` (or does nothing) where this jax has no such thing; who calls says
what is missing then. Checked on jax 0.6.0 and 0.10.2. Import it only in a process that has imported jax.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Undo = Callable[[], None]

TRANSFORMATION = "perfscope"
"""Name under which the callback on compiled modules is registered."""


def installed() -> bool:
    """Whether jax can be imported here; it is not."""
    return "jax" in sys.modules or importlib.util.find_spec("jax") is not None


def version() -> tuple[str, str]:
    """Versions of jax and jaxlib."""
    import jax

    return str(jax.__version__), str(find("jaxlib.version", "__version__"))


def package_folders() -> tuple[str, ...]:
    """Folders of jax and jaxlib with a slash behind them: what lies below is not the user's code."""
    folders = []
    for name in ("jax", "jaxlib"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            folders.append(f"{Path(file).parent}/")
    return tuple(folders)


def find(module: str, name: str) -> Any:
    """An attribute of a module of jax's own, ``None`` where either is not there."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def private_apis() -> dict[str, bool]:
    """What we use beyond the public interface, by purpose, and whether this jax has it."""
    from perfscope.profiler.jax_compat_calls import has_post_hook, miss_path

    return {
        "trace as bytes (ProfilerSession)": has_session(),
        "calls of jitted functions (post hook)": has_post_hook(),
        "calls that miss the fast path": miss_path() is not None,
        "reason of each retrace (explain_cache_misses)": _explain_flag() is not None,
        "donated buffers that are not usable (mlir.warnings)": find("jax._src.interpreters.mlir", "warnings")
        is not None,
        "modules as they are compiled (hlo_module_transformation)": _transformation("register") is not None,
        "arrays (ArrayImpl)": array_class() is not None,
    }


def backends() -> tuple[str, ...]:
    """Platforms whose backend is up; never starts one."""
    held = find("jax._src.xla_bridge", "_backends")
    return tuple(sorted(str(name) for name in held)) if held else ()


def devices() -> list[Any]:
    """Local devices of the default backend; empty while none is up, so that looking starts nothing."""
    if not backends():
        return []
    import jax

    return list(jax.local_devices())


def process() -> tuple[int, int] | None:
    """Number of this process and how many there are, where ``jax.distributed`` was initialised."""
    state = find("jax._src.distributed", "global_state")
    if state is None or getattr(state, "client", None) is None:
        return None
    return int(state.process_id or 0), int(state.num_processes or 1)


def synchronise() -> None:
    """Wait for the work of all arrays that are alive, on all devices, and for callbacks into Python.

    Results do not change; the caller's time does. Work whose results nobody holds is waited for only as far
    as a device takes its work in turn: jax has no public way to ask for it.
    """
    if not backends():
        return
    import jax

    for array in jax.live_arrays():
        # What failed in it, or that it is gone meanwhile, the program learns when it reads the array itself.
        with contextlib.suppress(RuntimeError):
            if not array.is_deleted():
                array.block_until_ready()
    # A callback that raised leaves its token, so that the program is told as it would have been.
    with contextlib.suppress(RuntimeError):
        jax.effects_barrier()


def has_memory_profile() -> bool:
    """Whether a device memory profile can be had."""
    return find("jax.profiler", "device_memory_profile") is not None


def memory_profile() -> bytes:
    """What arrays and programs hold on the devices now, by stack: a gzipped pprof profile."""
    import jax

    taken: bytes = jax.profiler.device_memory_profile()
    return taken


# Profiler ---------------------------------------------------------------------------------------------------


def _profiler() -> Any:
    found = find("jax._src.lib", "_profiler") or getattr(find("jax._src.lib", "xla_client"), "profiler", None)
    return found if hasattr(found, "ProfilerSession") and hasattr(found, "ProfileOptions") else None


def has_session() -> bool:
    """Whether a trace can be had as bytes."""
    return _profiler() is not None


def options(*, host_tracer_level: int) -> Any:
    """Options of a trace: no Python tracer, the compiled programs embedded; ``None`` where there are none."""
    profiler = _profiler()
    kind = find("jax.profiler", "ProfileOptions") or getattr(profiler, "ProfileOptions", None)
    if kind is None:
        return None
    made = kind()
    made.host_tracer_level = host_tracer_level
    made.python_tracer_level = 0
    made.enable_hlo_proto = True
    return made


def session(*, host_tracer_level: int) -> Any:
    """A profiler that records from now on; its ``stop()`` gives a serialized XSpace. ``None`` if there is none."""
    profiler = _profiler()
    return None if profiler is None else profiler.ProfilerSession(options(host_tracer_level=host_tracer_level))


def is_tracing() -> bool:
    """Whether the calling thread is inside a function that jax traces."""
    clean = trace_state_clean()
    return clean is not None and not clean()


@functools.cache
def trace_state_clean() -> Callable[[], bool] | None:
    """jax's question whether the calling thread traces nothing; ``None`` where it is not where we know it."""
    found: Callable[[], bool] | None = find("jax._src.core", "trace_state_clean")
    return found


_ours_runs = False


def set_our_trace(on: bool) -> None:
    """Note whether a trace of our own runs, which jax's public state does not show."""
    global _ours_runs
    _ours_runs = on


def our_trace_runs() -> bool:
    """Whether a trace of our own runs."""
    return _ours_runs


def trace_runs() -> bool:
    """Whether the program itself records a jax trace now, or serves a profiler that may."""
    module = sys.modules.get("jax._src.profiler")
    if module is None:
        return False
    state = getattr(module, "_profile_state", None)
    return getattr(state, "profile_session", None) is not None or getattr(module, "_profiler_server", None) is not None


# Compilation ---------------------------------------------------------------------------------------------------


def on_events(event: Callable[..., None], duration: Callable[..., None]) -> Undo:
    """Listen to ``jax.monitoring``: ``event(name, **facts)`` and ``duration(name, seconds, **facts)``."""
    from jax import monitoring

    monitoring.register_event_listener(event)
    monitoring.register_event_duration_secs_listener(duration)

    def undo() -> None:
        for kind, listener in (("event", event), ("event_duration", duration)):
            remove = find("jax._src.monitoring", f"unregister_{kind}_listener") or find(
                "jax._src.monitoring", f"_unregister_{kind}_listener_by_callback"
            )
            if remove is not None:
                try:
                    remove(listener)
                except (AssertionError, ValueError):  # the program cleared all listeners
                    return

    return undo


def _explain_flag() -> Any:
    return find("jax._src.config", "explain_cache_misses")


_EXPLAINERS = ("jax._src.interpreters.partial_eval", "jax._src.pjit")
"""Modules, and loggers, that write why a function is traced again (the second: jax 0.6)."""
_ALSO_SAID = ("jax._src.compiler", "jax._src.compilation_cache")
"""Loggers that speak up of the persistent cache when they are asked to explain misses."""
_ALSO_SAYS = ("PERSISTENT COMPILATION CACHE MISS", "Not writing persistent cache entry", "Writing ")


def on_explained_miss(explained: Callable[[str], None]) -> Undo | None:
    """Have jax say why it traces, to us and not to the program's log. ``None`` if it cannot, or already does."""
    flag = _explain_flag()
    if flag is None or flag.value:
        return None
    import jax

    class Take(logging.Filter):
        """Takes what we asked for out of the program's log."""

        def filter(self, record: logging.LogRecord) -> bool:
            text = str(record.msg)
            if "TRACING CACHE MISS" in text:
                explained(record.getMessage())
                return False
            return not (record.name in _ALSO_SAID and text.startswith(_ALSO_SAYS))

    taker = Take()
    loggers = [logging.getLogger(name) for name in (*_EXPLAINERS, *_ALSO_SAID)]
    for one in loggers:
        one.addFilter(taker)
    guards = [_guard_explanation(module) for module in _EXPLAINERS]
    jax.config.update("jax_explain_cache_misses", True)

    def undo() -> None:
        jax.config.update("jax_explain_cache_misses", False)
        for one in loggers:
            one.removeFilter(taker)
        for restore in guards:
            restore()

    return undo


def _guard_explanation(module: str) -> Undo:
    """Explaining is a debugging aid of jax's, off by default: a slip in it must not become the program's error."""
    original = find(module, "diff_tracing_cache_keys")
    if original is None:
        return lambda: None

    @functools.wraps(original)
    def differences(*keys: Any) -> Any:
        try:
            return original(*keys)
        except Exception:
            old_form = len(keys) == 3  # jax 0.6 hands the debug info over too, and wants (texts, size)
            return (["no explanation"], 0) if old_form else (sys.maxsize, 0, "no explanation")

    holder = sys.modules[module]
    setattr(holder, "diff_tracing_cache_keys", differences)  # noqa: B010 (mypy knows no such attribute)

    def restore() -> None:
        if getattr(holder, "diff_tracing_cache_keys", None) is differences:
            setattr(holder, "diff_tracing_cache_keys", original)  # noqa: B010

    return restore


def _transformation(verb: str) -> Any:
    if find("jax._src.lib", "_xla") is None:
        return None
    return find("jax.extend.xla", f"{verb}_hlo_module_transformation")


def on_compiled_module(compiled: Callable[[bytes], None]) -> Undo | None:
    """Give each scheduled module (serialized HloModuleProto) away as it is compiled; ``None`` before jaxlib 0.10.2."""
    register, clear = _transformation("register"), _transformation("clear")
    stages = find("jax.extend.xla", "PipelineStage")
    if register is None or clear is None or stages is None:
        return None

    def look(module: bytes) -> None:
        compiled(module)  # its answer, None, leaves the module as it is

    register(look, name=TRANSFORMATION, stage=stages.POST_SCHEDULER)

    def undo() -> None:
        clear(TRANSFORMATION, stage=stages.POST_SCHEDULER)

    return undo


@functools.cache
def array_class() -> Any:
    """The class of arrays; ``None`` where it is not where we know it."""
    return find("jax._src.array", "ArrayImpl")
