"""The private interfaces of jax that capture needs, tried on jax 0.6.0 (the oldest supported) and 0.10.2.

A function whose interface is missing returns ``None`` or does nothing; its caller reports what is missing. Import this
module only in a process that has imported jax.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from perfscope.profiler.jax.post_hook import hook_state, hook_threads
from perfscope.profiler.patching import Undo as Undo
from perfscope.profiler.patching import replace, wrap

PROFILER_MODULE = "jax._src.profiler"
"""The module that ``jax.profiler`` takes its functions from."""

PRIVATE: dict[str, tuple[str, ...]] = {
    "arrays": ("jax._src.array.ArrayImpl",),
    "backends that are up": ("jax._src.xla_bridge._backends",),
    "calls of jitted functions": ("jax._src.api._post_hook_state", "jax._src.lib.jax_jit.global_state"),
    "calls that miss the fast path": ("jax._src.pjit._run_python_pjit", "jax._src.pjit._python_pjit_helper"),
    "compiled modules": ("jax.extend.xla.register_hlo_module_transformation",),
    "distributed process": ("jax._src.distributed.global_state",),
    "donated buffers that are not usable": ("jax._src.interpreters.mlir.warnings",),
    "end of listening to durations": (
        "jax._src.monitoring.unregister_event_duration_listener",
        "jax._src.monitoring._unregister_event_duration_listener_by_callback",
    ),
    "end of listening to events": (
        "jax._src.monitoring.unregister_event_listener",
        "jax._src.monitoring._unregister_event_listener_by_callback",
    ),
    "frames that jax skips in operations": ("jax._src.source_info_util.register_exclusion",),
    "frames that jax skips in tracebacks": ("jax._src.traceback_util.register_exclusion",),
    "Pallas kernels that are interpreted": ("jax._src.pallas.hlo_interpreter.pallas_call_hlo_interpret",),
    "name of what is compiled": ("jax._src.dispatch.log_elapsed_time",),
    "line that is lowered": ("jax._src.source_info_util.user_frame",),
    "reason of each retrace": ("jax._src.config.explain_cache_misses",),
    "reason of each retrace, by cache keys": (
        "jax._src.interpreters.partial_eval.diff_tracing_cache_keys",
        "jax._src.pjit.diff_tracing_cache_keys",
    ),
    "state of tracing": ("jax._src.core.trace_state_clean",),
    "state of the program's profiler": (f"{PROFILER_MODULE}._profile_state",),
    "server of the program's profiler": (f"{PROFILER_MODULE}._profiler_server",),
    "trace as bytes": ("jax._src.lib._profiler.ProfilerSession", "jax._src.lib.xla_client.profiler.ProfilerSession"),
}
"""Interface -> its modules, newest jax first. Compiled modules: jax 0.10.2 and later."""

_TIMER_DEPTH = 4
"""Frames from a listener to the context manager that measures the duration: jax 0.6 has one between them."""

_TENSORFLOW = ("tensorflow", "tensorflow.python.profiler.trace")
NO_SESSION = "this jax has no ProfilerSession where it is expected"
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
    """Folders of jax and jaxlib with a trailing slash: files below are not the user's code."""
    folders = []
    for name in ("jax", "jaxlib"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            folders.append(f"{Path(file).parent}/")
    return tuple(folders)


def find(module: str, name: str) -> Any:
    """An attribute of one of jax's modules, ``None`` if either is missing."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def missing(places: tuple[str, ...]) -> str | None:
    """The reason why an interface of `PRIVATE` cannot be used; ``None`` if it is in one of its places."""
    if any(_is_there(*dotted.split(".")) for dotted in places):
        return None
    return f"jax {version()[0]} has no {' and no '.join(places)}"


def _is_there(*parts: str) -> bool:
    holder: Any = importlib.import_module(parts[0])
    for depth, name in enumerate(parts[1:], start=2):
        if not hasattr(holder, name):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(parts[:depth]))
        if not hasattr(holder, name):
            return False
        holder = getattr(holder, name)
    return True


def private_apis() -> dict[str, bool]:
    """Private interfaces that we use, by purpose, and whether this jax has them."""
    return {purpose: missing(places) is None for purpose, places in PRIVATE.items()}


def backends() -> tuple[str, ...]:
    """Platforms whose backend is up; never starts one."""
    clients = find("jax._src.xla_bridge", "_backends")
    return tuple(sorted(str(name) for name in clients)) if clients else ()


def devices() -> list[Any]:
    """Local devices of the default backend; empty while none is up, so that the call starts nothing."""
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

    Results do not change; the caller's time does. Work whose results are not referenced is waited for only as far
    as a device takes its work in turn: jax has no public way to ask for it.
    """
    if not backends():
        return
    import jax

    for array in jax.live_arrays():
        # If the array failed or was deleted meanwhile, the program gets the error when it reads the array itself.
        with contextlib.suppress(RuntimeError):
            if not array.is_deleted():
                array.block_until_ready()
    # A callback that raised leaves its token, so that the program gets the error as it would without us.
    with contextlib.suppress(RuntimeError):
        jax.effects_barrier()


def has_memory_profile() -> bool:
    """Whether a device memory profile can be had."""
    return find("jax.profiler", "device_memory_profile") is not None


def memory_profile() -> bytes:
    """Memory of arrays and programs on the devices now, by stack: a gzipped pprof profile."""
    import jax

    taken: bytes = jax.profiler.device_memory_profile()
    return taken


# Profiler ---------------------------------------------------------------------------------------------------


def _profiler() -> Any:
    profiler = find("jax._src.lib", "_profiler") or getattr(find("jax._src.lib", "xla_client"), "profiler", None)
    return profiler if hasattr(profiler, "ProfilerSession") and hasattr(profiler, "ProfileOptions") else None


def has_session() -> bool:
    """Whether a trace can be had as bytes."""
    return _profiler() is not None


def options(*, host_tracer_level: int) -> Any:
    """Options of a trace: no Python tracer, the compiled programs embedded; ``None`` if this jax has none."""
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
    """A profiler that records from now on, until `stop`.

    ``None`` if this jax has no such profiler.
    """
    profiler = _profiler()
    if profiler is None:
        return None
    with _without_tensorflow():
        return profiler.ProfilerSession(options(host_tracer_level=host_tracer_level))


def stop(running: Any) -> bytes:
    """End a `session`; its trace, a serialized XSpace."""
    with _without_tensorflow():
        space: bytes = running.stop()
    return space


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Replace the module of TensorFlow that XLA imports with jax 0.6, and whose absence it reports on stderr."""
    absent = [] if "tensorflow" in sys.modules else [name for name in _TENSORFLOW if name not in sys.modules]
    sys.modules.update({name: ModuleType(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def is_tracing() -> bool:
    """Whether the calling thread is inside a function that jax traces."""
    clean = trace_state_clean()
    return clean is not None and not clean()


@functools.cache
def trace_state_clean() -> Callable[[], bool] | None:
    """jax's check whether the calling thread traces nothing; ``None`` if it is not in its expected place."""
    question: Callable[[], bool] | None = find("jax._src.core", "trace_state_clean")
    return question


def is_staged() -> bool:
    """Whether jax traces the calling function into a program; inside of ``jax.grad`` alone, it runs at once."""
    trace = getattr(find("jax._src.core", "trace_ctx"), "trace", None)
    while trace is not None and type(trace).__name__ != "DynamicJaxprTrace":
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


_ours_runs = False


def set_our_trace(on: bool) -> None:
    """Note whether a trace of perfscope runs, which jax's public state does not show."""
    global _ours_runs
    _ours_runs = on


def our_trace_runs() -> bool:
    """Whether a trace of perfscope runs."""
    return _ours_runs


def trace_runs() -> bool:
    """Whether the program itself records a jax trace now, or serves a profiler that may."""
    module = sys.modules.get(PROFILER_MODULE)
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


def timed_name(frame: FrameType | None) -> str | None:
    """Name of what jax compiles, for a listener to durations called at ``frame``; ``None`` if it is not known.

    jax 0.6 reports durations without a name: it is in the context manager that measures them.
    """
    timer = find("jax._src.dispatch", "log_elapsed_time")
    for _ in range(_TIMER_DEPTH):
        if frame is None or not isinstance(timer, type):
            return None
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "__exit__" else None
        if isinstance(owner, timer):
            return str(owner.fun_name) if hasattr(owner, "fun_name") else None
        frame = frame.f_back
    return None


def _explain_flag() -> Any:
    return find("jax._src.config", "explain_cache_misses")


_EXPLAINERS = ("jax._src.interpreters.partial_eval", "jax._src.pjit")
"""Modules, and loggers, that write why a function is traced again (the second: jax 0.6)."""
_CACHE_LOGGERS = ("jax._src.compiler", "jax._src.compilation_cache")
"""Loggers that report the persistent cache when misses are explained."""
_CACHE_MESSAGES = ("PERSISTENT COMPILATION CACHE MISS", "Not writing persistent cache entry", "Writing ")


def on_explained_miss(explained: Callable[[str], None]) -> Undo | None:
    """Make jax explain its traces, to us and not to the program's log. ``None`` if it cannot, or already does."""
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
            return not (record.name in _CACHE_LOGGERS and text.startswith(_CACHE_MESSAGES))

    taker = Take()
    loggers = [logging.getLogger(name) for name in (*_EXPLAINERS, *_CACHE_LOGGERS)]
    for logger in loggers:
        logger.addFilter(taker)
    guards = [_guard_explanation(module) for module in _EXPLAINERS]
    jax.config.update("jax_explain_cache_misses", True)

    def undo() -> None:
        jax.config.update("jax_explain_cache_misses", False)
        for logger in loggers:
            logger.removeFilter(taker)
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

    return replace(sys.modules[module], "diff_tracing_cache_keys", differences)


def _transformation(verb: str) -> Any:
    if find("jax._src.lib", "_xla") is None:
        return None
    return find("jax.extend.xla", f"{verb}_hlo_module_transformation")


def on_compiled_module(compiled: Callable[[bytes], None]) -> Undo | None:
    """Pass on each scheduled module (serialized HloModuleProto) as it is compiled; ``None`` before jaxlib 0.10.2."""
    register, clear = _transformation("register"), _transformation("clear")
    stages = find("jax.extend.xla", "PipelineStage")
    if register is None or clear is None or stages is None:
        return None

    def look(module: bytes) -> None:
        compiled(module)  # its result, None, leaves the module unchanged

    register(look, name=TRANSFORMATION, stage=stages.POST_SCHEDULER)

    def undo() -> None:
        clear(TRANSFORMATION, stage=stages.POST_SCHEDULER)

    return undo


@functools.cache
def array_class() -> Any:
    """The class of arrays; ``None`` if it is not in its expected place."""
    return find("jax._src.array", "ArrayImpl")


# Calls of jitted functions as jax itself reports them.


Called = Callable[[Any], None]
"""Called with each jitted function that is called."""


def has_post_hook() -> bool:
    """Whether jitted calls end with a function that can be set (that of ``jax_debug_nans``)."""
    if hasattr(find("jax._src.api", "_post_hook_state"), "set_global"):
        return True
    return hasattr(_global_jit_state(), "post_hook")


def _global_jit_state() -> Any:
    jit = find("jax._src.lib", "jax_jit")
    return jit.global_state() if hasattr(jit, "global_state") else None


def on_fast_call(called: Called) -> Undo | None:
    """Report every jitted call that its compiled program served at once; an existing hook is called, too.

    jax calls it after the dispatch, on the calling thread, and never for calls inside a function that is traced.
    """
    if not has_post_hook():
        return None
    listening = True

    def with_ours(theirs: Any) -> Any:
        def after_call(function: Any, arguments: Any, named: Any, output: Any) -> None:
            if theirs is not None:
                theirs(function, arguments, named, output)
            if listening:
                called(function)

        return after_call

    # Both forms set the hook again whenever ``jax_debug_nans`` changes, which jax itself does while it
    # differentiates a scan: the new hook must include ours.
    state = find("jax._src.api", "_post_hook_state")
    api = sys.modules["jax._src.api"]
    jit = find("jax._src.lib", "jax_jit")
    undo = hook_threads(api, jit, with_ours) if state is None else hook_state(api, state, with_ours)

    def stop() -> None:
        nonlocal listening
        listening = False  # other threads may keep it
        undo()

    return stop


def miss_path() -> tuple[Any, str, int] | None:
    """Module, name and the position of the function among the arguments of the function that serves all other calls."""
    for name, position in (("_run_python_pjit", 2), ("_python_pjit_helper", 0)):
        if find("jax._src.pjit", name) is not None:
            return sys.modules["jax._src.pjit"], name, position
    return None


def on_slow_call(called: Called) -> Undo | None:
    """Report the other jitted calls: the first, those that retrace, and those that never take the fast path."""
    path = miss_path()
    clean = trace_state_clean()
    if path is None or clean is None:
        return None
    module, name, position = path
    original = getattr(module, name)

    @functools.wraps(original)
    def run(*arguments: Any, **named: Any) -> Any:
        answer = original(*arguments, **named)
        if clean() or not is_staged():  # else it is called by a function that is being traced
            called(arguments[position])
        return answer

    _hide_our_frames()
    return replace(module, name, run)


def _hide_our_frames() -> None:
    """Hide the frames of this file, because jax names the user's frames in errors and in programs."""
    for of in ("traceback_util", "source_info_util"):
        exclude = find(f"jax._src.{of}", "register_exclusion")
        if exclude is not None:
            exclude(__file__)


_STAGES_FILE = "/jax/_src/stages.py"
_NEAR = 8
"""Frames between a call of a compiled function and the hook."""


def is_compiled_call(frame: FrameType | None) -> bool:
    """Whether a call comes from a function that the program compiled ahead of time (``jax.stages.Compiled``)."""
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(_STAGES_FILE):
            return True
        frame = frame.f_back
    return False


_PMAP_FILE = "/jax/_src/pmap.py"


def under_pmap(function: Any, code: Any) -> Any:
    """The program's function that ``jax.pmap`` maps, where ``function`` is jax's own around it, else ``function``."""
    if code is None or not code.co_filename.endswith(_PMAP_FILE) or "fun" not in code.co_freevars:
        return function
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    cells = dict(zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False))
    return getattr(cells["fun"].cell_contents, "f", function) if "fun" in cells else function


# Settings of the program, and kernels that Pallas interprets.


def setting(name: str) -> bool:
    """Whether a switch of jax's configuration is on."""
    import jax

    return bool(getattr(jax.config, name, False))


def on_config_update(updated: Callable[[str], None]) -> Undo:
    """Tell the name of each setting that is changed."""
    import jax

    def make(original: Any) -> Any:
        def update(config: Any, name: str, value: Any) -> Any:
            answer = original(config, name, value)
            updated(name)
            return answer

        return update

    return wrap(type(jax.config), "update", make)


def on_disable_jit(disabled: Callable[[], None]) -> Undo:
    """Tell of each ``with jax.disable_jit()``."""
    import jax

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def disable_jit(disable: bool = True) -> Any:
            if disable:
                disabled()
            return original(disable)

        return disable_jit

    return wrap(jax, "disable_jit", make)


def on_interpreted_kernel(interpreted: Callable[[], None]) -> Undo | None:
    """Report each Pallas kernel that is lowered to be interpreted; ``None`` while Pallas is not imported."""
    module = sys.modules.get("jax._src.pallas.hlo_interpreter")
    if not hasattr(module, "pallas_call_hlo_interpret"):
        return None

    def make(original: Any) -> Any:
        def interpret(*arguments: Any, **named: Any) -> Any:
            interpreted()
            return original(*arguments, **named)

        return interpret

    _hide_our_frames()
    return wrap(module, "pallas_call_hlo_interpret", make)


def line_being_lowered() -> tuple[str, int] | None:
    """File and line of the operation that jax lowers now."""
    current, user_frame = (find("jax._src.source_info_util", name) for name in ("current", "user_frame"))
    if current is None or user_frame is None:
        return None
    info = current()
    for where in (getattr(info, "traceback", None), info):  # the second: jax 0.6
        with contextlib.suppress(AttributeError, TypeError):
            frame = user_frame(where)
            return None if frame is None else (str(frame.file_name), int(frame.start_line))
    return None
