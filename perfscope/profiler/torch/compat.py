"""The private interfaces of torch that capture needs, tried on torch 2.13.0; torch 2.6 is the oldest supported.

Only `op_graph/recorder.py` uses some besides, as it subclasses ``TorchDispatchMode`` (`PRIVATE` has them all). Its
callers report what is missing. Only modules that are already imported are touched: a program
that compiles nothing must not load the compiler for us.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from perfscope.profiler.patching import Undo as Undo
from perfscope.profiler.patching import replace, undo_all, wrap

PRIVATE: dict[str, str] = {
    "autograd node that runs": "torch._C._current_autograd_node",
    "autograd sequence number": "torch._C._autograd._get_sequence_nr",
    "autograd task that runs": "torch._C._current_graph_task_id",
    "compilation counters": "torch._dynamo.utils.counters",
    "compilation that runs": "torch._guards.CompileContext.current_compile_id",
    "compiled frames": "torch._dynamo.convert_frame.output_codes",
    "identity of compiled functions": "torch._dynamo.eval_frame.innermost_fn",
    "return of compiled calls": "torch._dynamo.eval_frame._maybe_set_eval_frame",
    "dispatch modes below the top": "torch._C._get_dispatch_stack_at",
    "dispatch of torch functions": "torch._C.DisableTorchFunction",
    "entering a dispatch mode": "torch._C._push_on_torch_dispatch_stack",
    "transforms of functions": "torch._C._functorch.peek_interpreter_stack",
    "formatter of the structured trace": "torch._logging._internal.TorchLogsFormatter",
    "fusion decisions": "torch._inductor.scheduler.Scheduler.codegen",
    "fusion refusals": "torch._inductor.scheduler.WhyNoFuse.__call__",
    "graph that inductor compiles": "torch._inductor.virtualized.V",
    "higher-order operators": "torch._ops.HigherOrderOperator",
    "inductor": "torch._inductor.compile_fx",
    "inductor's settings": "torch._inductor.config.trace",
    "leaving a dispatch mode": "torch._C._pop_torch_dispatch_stack",
    "iterator of a data loader": "torch.utils.data.DataLoader._get_iterator",
    "logger of the structured trace": "torch._logging._internal.trace_log",
    "memory history": "torch.cuda.memory._record_memory_history",
    "memory snapshots": "torch.cuda.memory._snapshot",
    "number of dispatch modes": "torch._C._len_torch_dispatch_stack",
    "profiler settings": "torch._C._profiler._ExperimentalConfig",
    "profiler state": "torch.autograd.profiler._is_profiler_enabled",
    "profiler state of the thread": "torch.autograd._profiler_enabled",
    "recording of functions": "torch._C._autograd._enable_record_function",
    "record of collectives": "torch._C._distributed_c10d._dump_fr_trace_json",
    "subclasses of dispatch modes": "torch.utils._python_dispatch.TorchDispatchMode",
}
"""Interface -> its place in torch 2.13.0."""
CUDA_PRIVATE: dict[str, str] = {
    "observer of failed allocations": "torch._C._cuda_attach_out_of_memory_observer",
    "state of the memory history": "torch._C._cuda_isHistoryEnabled",
}
"""The same for interfaces that only builds of torch with CUDA have."""

TRACE_LOGGER = "torch.__trace"
"""The logger of torch's structured trace; ``TORCH_TRACE=DIR`` gives it a handler that writes files."""

COMPILE_WORKER = ("torch", "_inductor", "compile_worker", "__main__.py")
"""File of helper processes that inductor starts: they compile for another process and do not belong to the program."""

SETTINGS = {
    "provenance": ("trace", "provenance_tracking_level", "INDUCTOR_PROVENANCE"),
    "cpp_kernel_names": ("cpp", "enable_kernel_profile", "TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE"),
}
"""Our name of a setting of inductor: the group it is in, its name there, and the variable that sets it."""


def missing(dotted: str) -> str | None:
    """The reason why an interface of `PRIVATE` or `CUDA_PRIVATE` cannot be used; ``None`` if it is there."""
    import torch

    parts = dotted.split(".")
    holder: Any = torch
    for depth, name in enumerate(parts[1:], start=2):
        if not hasattr(holder, name):
            try:
                importlib.import_module(".".join(parts[:depth]))
            except ImportError:
                return f"torch {torch.__version__} has no {dotted}"
        holder = getattr(holder, name, None)
    return None if holder is not None else f"torch {torch.__version__} has no {dotted}"


def in_compile_worker() -> bool:
    """Whether this process is one of inductor's own helpers."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return file is not None and Path(file).parts[-len(COMPILE_WORKER) :] == COMPILE_WORKER


def trace_formatter() -> logging.Formatter:
    """The formatter that makes lines of the structured trace from records."""
    from torch._logging._internal import TorchLogsFormatter

    formatter: logging.Formatter = TorchLogsFormatter(trace=True)
    return formatter


def add_trace_handler(handler: logging.Handler) -> Undo:
    """Pass every record of the structured trace to ``handler``, before the other handlers.

    Torch's own handler removes itself with the first record unless TORCH_TRACE is set; the handler after it is then
    skipped. Torch composes records only if there is a handler.
    """
    logger = logging.getLogger(TRACE_LOGGER)
    logger.handlers[:0] = [handler]
    # torch 2.6 warns of settings that it leaves out of the records, which the program did not ask for.
    warnings.filterwarnings("ignore", "Skipping serialization of ", module=r"torch\.utils\._config_module$")
    return lambda: logger.removeHandler(handler)


def torch_version() -> str:
    """As the structured trace gives it."""
    torch: Any = sys.modules["torch"]
    return str(torch.__version__)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, out of the compiler's sight also where compiled code calls it. Loads dynamo."""
    import torch

    hidden: Callable[..., Any] = torch.compiler.disable(function)
    return hidden


def has_compiled() -> bool:
    """Whether dynamo looked at any frame in this process."""
    module: Any = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", None)
    return bool(counters and (counters.get("frames") or counters.get("stats")))  # no frames with ``fullgraph``


def compile_id() -> str | None:
    """Id of the running compilation: ``'0/1'``."""
    guards: Any = sys.modules.get("torch._guards")
    current = guards.CompileContext.current_compile_id() if guards is not None else None
    return None if current is None else str(current)


def inductor_loaded() -> bool:
    """Whether inductor is completely imported, so that its settings and functions are there."""
    module = sys.modules.get("torch._inductor.compile_fx")
    spec = getattr(module, "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def inductor_group(name: str) -> Any:
    """A group of inductor's settings, or ``None``."""
    return getattr(sys.modules.get("torch._inductor.config"), name, None)


def direction() -> str | None:
    """Direction of the graph that inductor compiles now: ``forward``, ``backward`` or ``inference``."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:
        return None
    graph = virtualized.V.graph
    if getattr(graph, "is_backward", False):
        return "backward"
    inference = getattr(graph, "is_inference", None)
    return None if inference is None else "inference" if inference else "forward"


def hook_scheduler(refused: Callable[[Any, Any, str, tuple[Any, ...]], None], decided: Callable[[Any], None]) -> Undo:
    """Listen to inductor's scheduler.

    ``refused(first, second, reason, arguments)``: two scheduler nodes were not fused for ``reason % arguments``.
    ``decided(scheduler)``: the fusion of this graph is finished.
    """
    from torch._inductor.scheduler import Scheduler, WhyNoFuse

    init: Any = vars(WhyNoFuse)["__init__"]
    call: Any = vars(WhyNoFuse)["__call__"]
    codegen: Any = vars(Scheduler)["codegen"]
    # By the id of the object that will give the reason: it has slots and no room for more. A dead object is
    # replaced by the next with its id, so there are never more than live at a time.
    pairs: dict[int, tuple[Any, Any]] = {}

    def made(reasons: Any, first: Any, second: Any) -> None:
        init(reasons, first, second)
        pairs[id(reasons)] = (first, second)

    def noted(reasons: Any, reason: str, *arguments: Any) -> Any:
        pair = pairs.get(id(reasons))
        if pair is not None:
            refused(*pair, reason, arguments)
        return call(reasons, reason, *arguments)

    def generate(chosen: Any, *arguments: Any, **named: Any) -> Any:
        pairs.clear()
        decided(chosen)
        return codegen(chosen, *arguments, **named)

    ours = ((WhyNoFuse, "__init__", made), (WhyNoFuse, "__call__", noted), (Scheduler, "codegen", generate))
    return undo_all([replace(owner, name, function) for owner, name, function in ours])


# Private interfaces of torch that the capture of CUDA memory snapshots needs.


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA through torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def record_memory_history(entries: int) -> Undo:
    """Make the allocator keep its last ``entries`` events with Python stacks.

    If the program records a history itself, that history is kept and is what a snapshot shows.
    """
    torch: Any = sys.modules["torch"]
    if torch._C._cuda_isHistoryEnabled():
        return lambda: None
    record = torch.cuda.memory._record_memory_history
    record("all", context="alloc", stacks="python", max_entries=entries)
    return lambda: record(None)


def memory_snapshot() -> dict[str, Any]:
    """Memory of the allocator, and its history. Only host state is read, without a wait for the device."""
    memory: Any = sys.modules["torch.cuda.memory"]
    snapshot: dict[str, Any] = memory._snapshot()
    return snapshot


def watch_out_of_memory(called: Callable[[], None]) -> None:
    """Have ``called()`` called on the thread whose allocation failed, before the error is raised. It stays."""
    torch: Any = sys.modules["torch"]
    torch._C._cuda_attach_out_of_memory_observer(lambda device, wanted, total, free: called())


# Dispatch modes ---------------------------------------------------------------------------------------------------


def modes_on_stack() -> int:
    """The number of dispatch modes that this thread is inside of."""
    torch: Any = sys.modules["torch"]
    return int(torch._C._len_torch_dispatch_stack())


def pop_ordinary_modes() -> list[Any]:
    """Take all dispatch modes off this thread's stack but torch's own; lowest first."""
    torch: Any = sys.modules["torch"]
    stack = [torch._C._get_dispatch_stack_at(index) for index in range(modes_on_stack())]
    ordinary = [mode for mode in stack if getattr(mode, "_mode_key", None) is None]
    for _ in ordinary:
        torch._C._pop_torch_dispatch_stack(None)
    return ordinary


def push_modes(modes: Iterable[Any]) -> None:
    """Put dispatch modes on this thread's stack, lowest first.

    Unlike ``mode.__enter__()`` this sets no flags, which are restored in LIFO order and visible to torch.compile.
    """
    torch: Any = sys.modules["torch"]
    for mode in modes:
        torch._C._push_on_torch_dispatch_stack(mode)


# Nodes of autograd --------------------------------------------------------------------------------------------------


def next_sequence() -> int:
    """The number that this thread gives to the next node of autograd."""
    torch: Any = sys.modules["torch"]
    return int(torch._C._autograd._get_sequence_nr())


def in_backward() -> bool:
    """Whether a backward pass runs on this thread, also where it runs code of the program."""
    torch: Any = sys.modules["torch"]
    return bool(torch._C._current_graph_task_id() != -1)


def running_node() -> Any:
    """The node whose backward runs on this thread; ``None`` without one."""
    torch: Any = sys.modules["torch"]
    return torch._C._current_autograd_node()


def sequence_of(node: Any) -> int:
    """The number that the node got when it was made."""
    return int(node._sequence_nr())


# Profilers and compiled frames -------------------------------------------------------------------------------------


def profiler_records() -> bool:
    """Whether a torch profiler records in this process."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    return profiler is not None and bool(profiler._is_profiler_enabled)


def profiler_records_thread() -> bool:
    """Whether a torch profiler records this thread."""
    return bool(sys.modules["torch"].autograd._profiler_enabled())


def stop_recording_functions() -> None:
    """Make ops free again in a child that was forked while a profiler recorded."""
    torch: Any = sys.modules["torch"]
    torch._C._autograd._enable_record_function(False)


def profiler_config(*, device_syncs: bool, all_threads: bool) -> Any:
    """Private settings of the profiler: synchronisations as reported by the driver, ops of all threads.

    A profiler of all threads may stop on another thread than it started on. ``TypeError`` if torch lacks this
    setting (2.6); ``None`` if no setting is requested.
    """
    torch: Any = sys.modules["torch"]
    wanted = {"enable_cuda_sync_events": device_syncs, "profile_all_threads": all_threads}
    chosen = {name: True for name, is_on in wanted.items() if is_on}
    return torch._C._profiler._ExperimentalConfig(**chosen) if chosen else None


def python_calls(profiler: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """The outermost events of a stopped ``torch.profiler.profile``, and the tags of calls of Python functions."""
    from torch._C._profiler import _EventType

    events = profiler.profiler.kineto_results.experimental_event_tree()
    return list(events), (_EventType.PyCall, _EventType.PyCCall)


def is_compiling() -> bool:
    """Whether torch.compile traces this call now: it must see no code of perfscope, or its graph would break."""
    import torch

    return bool(torch.compiler.is_compiling())


def transforms_functions() -> bool:
    """Whether a transform of ``torch.func`` (``grad``, ``vmap``) runs: its tensors wrap others."""
    import torch

    return torch._C._functorch.peek_interpreter_stack() is not None


def pass_for_compiled(wrapper: Any) -> Any:
    """Return ``wrapper``, made with ``functools.wraps``, as the compiled function that it calls.

    torch takes a wrapper for the function of ``torch.compile`` only if it carries its own id.
    """
    if hasattr(wrapper, "_torchdynamo_wrapper_id"):
        wrapper._torchdynamo_wrapper_id = id(wrapper)
    return wrapper


def compiled_graphs() -> int:
    """The number of graphs that torch.compile made in this process."""
    module: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if module is None else int(module.counters["stats"].get("unique_graphs", 0))


def below_compiled_code() -> bool:
    """Whether a caller is a frame that torch.compile made: a profiler that starts there can crash the program."""
    compiler: Any = sys.modules.get("torch._dynamo.convert_frame")
    codes = getattr(compiler, "output_codes", None)
    if codes is None:  # not loaded, or another thread loads it now
        return False
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def after_compiled_code(call: Callable[[], None]) -> bool:
    """Have ``call()`` called on this thread when the outermost compiled call returns. False if this cannot be done.

    torch.compile restores the interpreter's frame evaluation through a function of its module as a call returns; that
    function is replaced until then.
    """
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if not callable(getattr(frames, "_maybe_set_eval_frame", None)):
        return False
    thread = threading.get_ident()
    original = frames._maybe_set_eval_frame

    def restore_evaluation(callback: Any) -> Any:
        answer = original(callback)
        if threading.get_ident() == thread and not below_compiled_code():
            undo()
            call()
        return answer

    undo = replace(frames, "_maybe_set_eval_frame", restore_evaluation)
    return True


def without_overrides() -> AbstractContextManager[Any]:
    """Read tensors without a call of the program's own modes and tensor subclasses; nothing where torch is absent."""
    torch: Any = sys.modules.get("torch")
    disable = None if torch is None else getattr(torch._C, "DisableTorchFunction", None)
    return nullcontext() if disable is None else disable()


# Anomaly mode ------------------------------------------------------------------------------------------------------


def time_anomaly_stacks(kept: Callable[[int], None]) -> Undo | None:
    """Call ``kept`` with the begin, ``perf_counter_ns``, of each stack that anomaly mode took.

    torch takes one stack per node of the graph, in the forward pass. ``None`` if torch hides the function.
    """
    stacks: Any = sys.modules.get("torch.fx.traceback")
    if not callable(getattr(stacks, "format_stack", None)):
        return None

    def make(original: Callable[[], list[str]]) -> Callable[[], list[str]]:
        def format_stack() -> list[str]:
            begin = perf_counter_ns()
            lines = original()
            # The last line is the call above, which torch would print with an error.
            lines = lines[:-1] if lines and __file__ in lines[-1] else lines
            kept(begin)
            return lines

        return format_stack

    return wrap(stacks, "format_stack", make)


_FLIGHT_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions for all backends, and for NCCL in torch up to 2.8."""


def flight_record() -> bytes:
    """The record of the last collectives as JSON, without stacks; empty where torch keeps none.

    Backends but NCCL write no groups: those of ``torch.distributed`` are filled in.
    """
    module: Any = sys.modules.get("torch._C._distributed_c10d")
    distributed: Any = sys.modules.get("torch.distributed")
    dump = next((getattr(module, name) for name in _FLIGHT_RECORDERS if hasattr(module, name)), None)
    if dump is None or distributed is None or not distributed.is_initialized():
        return b""
    record: dict[str, Any] = json.loads(dump(True, False))
    if not any(group.get("name") for group in record.get("pg_config", {}).values()):
        world: Any = distributed.distributed_c10d._world
        record["pg_config"] = {
            name: {
                "name": name,
                "desc": str(getattr(group, "group_desc", "")),
                "ranks": str(sorted(world.pg_group_ranks.get(group, {}))),
            }
            for group, name in world.pg_names.items()
        }
    return json.dumps(record).encode()
