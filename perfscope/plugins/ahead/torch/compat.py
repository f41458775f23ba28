"""Private interfaces of torch needed for planning without a device, tested with torch 2.13.0 and triton 3.7.

No other module of this folder uses private interfaces. `check` reports the first missing one, in one line, before a
program runs. Import this module only in the child process, which changes torch permanently.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from perfscope.model.errors import DataError
from perfscope.profiler.torch.compat import missing

KNOWN_VERSION = "2.13"
"""The torch version that this was written for."""

_WRAPPER = "torch._inductor.codegen.wrapper"
PRIVATE: dict[str, str] = {
    "answers that depend on data": "torch._subclasses.fake_tensor.DataDependentOutputException",
    "attention as one kernel": "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "attention written out": "torch.ops.aten._scaled_dot_product_attention_math",
    "autograd node that runs": "torch._C._current_autograd_node",
    "autograd sequence number": "torch._C._autograd._get_sequence_nr",
    "autograd task that runs": "torch._C._current_graph_task_id",
    "below autograd": "torch._C._AutoDispatchBelowAutograd",
    "buckets by size": "torch.distributed._compute_bucket_assignment_by_size",
    "builtins of TorchScript": "torch.jit._builtins._register_builtin",
    "collectives of inductor": "torch._inductor.ir._CollectiveKernel",
    "collectives of fake tensors": "torch.distributed._meta_registrations",
    "compiler of a module": "torch.nn.Module._call_impl",
    "compiling outside of modes": "torch._dynamo.convert_frame.CatchErrorsWrapper.__call__",
    "current graph": "torch._inductor.virtualized.V",
    "device of the host": "torch._dynamo.device_interface.CpuInterface.Worker",
    "dispatch modes": "torch.utils._python_dispatch.TorchDispatchMode",
    "dispatch of fake tensors": "torch._subclasses.fake_tensor.FakeTensorMode.dispatch",
    "dispatch of subclasses": "torch._C.DisableTorchFunctionSubclass",
    "dispatch of torch functions": "torch._C.DisableTorchFunction",
    "end of the backward": "torch.autograd.Variable._execution_engine.queue_callback",
    "entry of inductor": "torch._inductor.compile_fx.compile_fx_inner",
    "fake process group": "torch.testing._internal.distributed.fake_pg.FakeStore",
    "fake tensors": "torch._subclasses.fake_tensor.FakeTensor",
    "foreach kernels": "torch.utils._foreach_utils._get_foreach_kernels_supported_devices",
    "foreach types": "torch.utils._foreach_utils._foreach_supported_types",
    "forward of data parallelism": "torch.nn.parallel.distributed.DistributedDataParallel._inside_ddp_forward",
    "group by name": "torch.distributed.distributed_c10d._resolve_process_group",
    "inference of pipelines": "torch.distributed.pipelining._utils",
    "kernels of inductor": "torch._inductor.scheduler.NopKernelSchedulerNode",
    "hooks after modules": "torch.nn.modules.module._global_forward_hooks",
    "hooks before modules": "torch.nn.modules.module._global_forward_pre_hooks",
    "leaving modes": "torch.utils._python_dispatch._disable_current_modes",
    "log of the compiler": "torch._logging.trace_structured",
    "nodes of kernels": "torch._inductor.debug.dump_inductor_provenance_info",
    "lowering of a graph": "torch._inductor.graph.GraphLowering.compile_to_module",
    "memory of a graph": f"{_WRAPPER}.AllocateLine",
    "memory of calls": f"{_WRAPPER}.ExternKernelAllocLine",
    "memory that ends": f"{_WRAPPER}.FreeIfNotReusedLine",
    "memory that is taken over": f"{_WRAPPER}.ReuseLine",
    "modules of torch's own": "torch._dynamo.external_utils.wrap_inline",
    "rules of dynamo": "torch._dynamo.trace_rules.clear_lru_cache",
    "settings of AOTAutograd": "torch._functorch.config.force_non_lazy_backward_lowering",
    "settings of dynamo": "torch._dynamo.config.automatic_dynamic_local_pgo",
    "settings of inductor": "torch._inductor.config.cpu_backend",
    "sizes of types": "torch._inductor.utils.get_dtype_size",
    "sizes that depend on data": "torch._subclasses.fake_tensor.DynamicOutputShapeException",
    "start of the compiler": "torch._dynamo.callback_handler",
    "trees of arguments": "torch.utils._pytree.tree_map_only",
    "Triton kernels": "torch._inductor.codegen.triton.TritonScheduling.define_kernel",
    "version of triton": "torch.utils._triton.triton_hash_with_backend",
    "waits of inductor": "torch._inductor.ir._WaitKernel",
    "work of a collective": "torch._C._distributed_c10d.Work",
    "work of a fake collective": "torch._C._distributed_c10d.FakeWork",
}
"""Purpose of an interface -> its location in torch 2.13.0."""


def check(places: Mapping[str, str] | None = None) -> None:
    """Raise ``DataError`` with one line if this torch lacks an interface for planning."""
    for interface in (PRIVATE if places is None else places).values():
        reason = missing(interface)
        if reason is not None:
            raise DataError(f"torch programs cannot be planned: {reason}; torch {KNOWN_VERSION} has")


@functools.cache
def _private(name: str) -> Any:
    check({name: PRIVATE[name]})
    return functools.reduce(getattr, PRIVATE[name].split(".")[1:], torch)


FakeTensor: Any = _private("fake tensors")
FakeTensorMode: Any = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
DataDependentOutput: Any = _private("answers that depend on data")
"""An op whose result depends on data."""
DynamicOutputShape: Any = _private("sizes that depend on data")
"""An op whose result size depends on data."""
DispatchMode: Any = _private("dispatch modes")


# Tensors and autograd ---------------------------------------------------------------------------------------------


def hook_fake_dispatch(answer: Callable[..., Any]) -> None:
    """Call ``answer(original, mode, func, types, args, kwargs)`` for each op of every mode of fake tensors."""
    original = FakeTensorMode.dispatch

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return answer(original, mode, func, types, args, kwargs or {})

    FakeTensorMode.dispatch = dispatch


def any_device(tree: Any, kind: str) -> bool:
    """Whether there is a ``torch.device`` of a type among nested arguments."""
    from torch.utils import _pytree

    return bool(_pytree.tree_any(lambda leaf: isinstance(leaf, torch.device) and leaf.type == kind, tree))


def map_devices(tree: Any, change: Callable[[torch.device], torch.device]) -> Any:
    """Nested arguments with each ``torch.device`` changed."""
    return _private("trees of arguments")(torch.device, change, tree)


def map_tensors(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested arguments with each tensor changed."""
    return _private("trees of arguments")(torch.Tensor, change, tree)


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no dispatch mode is active: tensors are real."""
    context: contextlib.AbstractContextManager[Any] = _private("leaving modes")()
    return context


def fake_with_values(mode: Any, values: Any) -> Any:
    """A fake tensor with known values, which its elements and results computed from single elements keep."""
    return mode.fake_tensor_converter.from_real_tensor(mode, values, make_constant=True)


def without_torch_functions() -> contextlib.AbstractContextManager[Any]:
    """Inside, subclasses of tensors do not override functions."""
    context: contextlib.AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    return context


def without_functions_of_subclasses() -> contextlib.AbstractContextManager[Any]:
    """Inside, ``__torch_function__`` of subclasses is not called; modes stay."""
    context: contextlib.AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return context


@contextlib.contextmanager
def without_hooks_of_modules() -> Iterator[None]:
    """Inside, calls of modules call no hooks that were registered for all modules."""
    kept = [(hooks, dict(hooks)) for hooks in map(_private, ("hooks after modules", "hooks before modules"))]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.update(before)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Inside, autograd does not record ops."""
    context: contextlib.AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return context


def next_sequence() -> int:
    """The number that autograd will give to this thread's next node."""
    return int(torch._C._autograd._get_sequence_nr())


def in_backward() -> bool:
    """Whether autograd's engine runs a backward pass on this thread."""
    return torch._C._current_autograd_node() is not None or torch._C._current_graph_task_id() != -1


def backward_sequence() -> int | None:
    """The sequence number of the running autograd node, ``None`` outside of one."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def at_end_of_backward(called: Callable[[], None]) -> None:
    """Call ``function`` once, at the end of the running backward pass."""
    _private("end of the backward")(called)


def register_for_script(original: Any, made: Any) -> None:
    """``torch.jit.script`` uses a function in place of the op it implements, instead of searching its source."""
    from torch.jit import _builtins

    op = _builtins._find_builtin(original)
    if op is not None:
        _builtins._register_builtin(made, op)


def prefer_foreach() -> None:
    """Make torch prefer ``_foreach_*`` ops for fake CPU tensors, as it does for CUDA tensors, in this process.

    ``torch.optim`` and ``clip_grad_norm_`` use them if all tensors have a type and a device in two of its lists
    (``torch/optim/optimizer.py``: ``_default_to_fused_or_foreach``); ``foreach=False`` still overrides it.
    """
    from torch.optim import optimizer, swa_utils
    from torch.utils import _foreach_utils

    for module in (optimizer, _foreach_utils):
        kinds = module._foreach_supported_types
        if FakeTensor not in kinds:
            kinds.append(FakeTensor)
    original = _foreach_utils._get_foreach_kernels_supported_devices

    def also_host() -> list[str]:
        return [*original(), "cpu"]

    for holder in (optimizer, swa_utils, _foreach_utils):
        setattr(holder, original.__name__, also_host)


def attention_math(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, **named: Any) -> Any:
    """``scaled_dot_product_attention`` as separate ops."""
    return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, None, **named)[0]


def attention_fused(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    """``scaled_dot_product_attention`` as torch's one fused kernel for the CPU."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)[0]


# Dynamo -----------------------------------------------------------------------------------------------------------


def on_compilation(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Call ``begins()`` and ``ends()`` around each compilation."""
    from torch._dynamo import callback_handler

    callback_handler.register_start_callback(lambda _: begins())
    callback_handler.register_end_callback(lambda _: ends())


def compile_module(module: Any, backend: Callable[..., Any]) -> None:
    """Like ``module.compile()``, without the wrappers of watched calls, whose frame would become the graph's.

    The wrappers would leave torch's own modules (``nn.Sequential``) in eager mode if they are outermost.
    """
    if getattr(module, "_compiled_call_impl", None) is not None:
        return
    call = inspect.unwrap(type(module)._call_impl).__get__(module)
    if (type(module).forward.__module__ or "").startswith("torch."):  # a GraphModule's forward has none
        inline = _private("modules of torch's own")
        module._compiled_call_impl = torch.compile(inline(call), backend=backend)
    else:
        module._compiled_call_impl = torch.compile(call, backend=backend)


@contextlib.contextmanager
def keeping_dynamo_rules() -> Iterator[None]:
    """Inside, dynamo does not rebuild its rules, which were made before ``torch.cuda`` was changed."""
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")
    clear, rules.clear_lru_cache = rules.clear_lru_cache, lambda: None
    try:
        yield
    finally:
        rules.clear_lru_cache = clear


def compile_outside_modes(ddp: Any) -> None:
    """Let dynamo compile within DistributedDataParallel's ``forward`` outside of modes, as elsewhere.

    Otherwise the planning mode would replace a view that is an input (``tokens[:, :-1]``) by a new tensor.
    """
    from torch._dynamo.convert_frame import CatchErrorsWrapper

    wrapper: Any = CatchErrorsWrapper
    compiles = wrapper.__call__

    def without(self: Any, *arguments: Any, **named: Any) -> Any:
        with without_modes() if ddp._get_active_ddp_module() else contextlib.nullcontext():
            return compiles(self, *arguments, **named)

    wrapper.__call__ = without


# Inductor ---------------------------------------------------------------------------------------------------------


def configure_inductor() -> None:
    """Make the compiler use no caches and no results of other runs, in this process."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as config
    import torch.utils._triton as triton
    from torch._inductor import scheduler

    config.fx_graph_cache = config.fx_graph_remote_cache = False
    dynamo.automatic_dynamic_local_pgo = False  # results of other runs would change the plan
    config.compile_threads = 1
    functorch.enable_autograd_cache = False
    functorch.force_non_lazy_backward_lowering = True
    triton.triton_hash_with_backend = lambda: "0" * 64
    scheduler.has_triton = lambda: True


def treat_cpu_as_device(properties: object) -> None:
    """Make inductor write Triton for CPU tensors, by the rules of a device with these properties."""
    import torch._inductor.config as config
    from torch._dynamo.device_interface import CpuInterface
    from torch._inductor import scheduler

    config.cpu_backend = "triton"
    CpuInterface.get_device_properties = staticmethod(lambda *_: properties)
    CpuInterface.Worker.get_device_properties = staticmethod(lambda *_: properties)
    # Every tensor counts as one of the device: loops are merged and reduction orders mixed as there. A CPU scalar is
    # then not a scalar of the host.
    scheduler.BaseSchedulerNode.is_gpu = lambda node: True
    scheduler.Scheduler.update_zero_dim_cpu_tensor = lambda _: None
    scheduler._is_gpu_triton_backend = lambda *_: True


def hook_inductor(
    lowered: Callable[[Any], Any],
    defined: Callable[[str, Iterable[Any]], None],
    compiled: Callable[..., Any],
) -> None:
    """Change inductor in this process.

    ``lowered(graph)`` is called in place of the compilation of a lowered graph, ``defined(name, nodes)`` with each
    Triton kernel, and ``compiled(original, model, inputs, patches)`` in place of ``compile_fx``.
    """
    from torch._inductor import compile_fx, graph
    from torch._inductor.codegen.triton import TritonScheduling

    define = TritonScheduling.define_kernel
    original = compile_fx.compile_fx

    def define_kernel(scheduling: Any, source: str, nodes: Any, kernel: Any) -> Any:
        name = define(scheduling, source, nodes, kernel)
        defined(str(name), nodes)
        return name

    def compile_planned(model: Any, inputs: Any, *_: Any, config_patches: Any = None, **__: Any) -> Any:
        return compiled(original, model, inputs, dict(config_patches or {}))

    TritonScheduling.define_kernel = define_kernel
    graph.GraphLowering.compile_to_module = lambda lowering: lowered(lowering)
    compile_fx.compile_fx = compile_planned


def compile_fx(module: Any, inputs: Any) -> Any:
    """Inductor's entry point, as hooked."""
    return importlib.import_module("torch._inductor.compile_fx").compile_fx(module, inputs)


def lower(module: Any, inputs: Any, named: dict[str, Any]) -> Any:
    """Inductor on one graph of AOTAutograd."""
    return _private("entry of inductor")(module, inputs, **named)


def log_output_code(code: object) -> None:
    """Write a graph's code, and which nodes each kernel computes, to the log of ``TORCH_TRACE``, as a compilation does.

    Inductor writes both after the step that planning replaces.
    """
    folder = os.environ.get("TORCH_TRACE")
    if not folder:
        return
    from torch._inductor import config, debug
    from torch._logging import trace_structured

    text = str(getattr(code, "value", code))
    file = Path(folder) / f"output_code_{len(list(Path(folder).glob('output_code_*.py')))}.py"
    file.write_text(text, encoding="utf-8")
    trace_structured("inductor_output_code", lambda: {"filename": str(file)}, payload_fn=lambda: text)
    if config.trace.provenance_tracking_level:
        tables = {
            "node_mappings": debug.dump_inductor_provenance_info(),
            "kernel_stack_traces": debug._inductor_kernel_stack_trace,
        }
        for name, table in tables.items():
            head = {"name": f"inductor_provenance_tracking_{name}", "encoding": "json"}
            trace_structured("artifact", lambda head=head: head, payload_fn=lambda table=table: json.dumps(table))


def inductor_settings(patches: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Inside, inductor has these settings."""
    context: contextlib.AbstractContextManager[Any] = importlib.import_module("torch._inductor.config").patch(patches)
    return context


def is_wait(kernel: Any) -> bool:
    """Whether a scheduled node only waits for a collective, without a launch."""
    return isinstance(getattr(kernel, "node", None), _private("waits of inductor"))


def is_collective(kernel: Any) -> bool:
    """Whether a scheduled node is an exchange with other processes."""
    return isinstance(getattr(kernel, "node", None), _private("collectives of inductor")) and not is_wait(kernel)


def launch_nothing() -> None:
    """Make launches of Triton kernels by the program do nothing: their tensors have shapes and no data."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    JITFunction.run = lambda self, *arguments, grid, warmup, **named: None


def is_launch(kernel: Any) -> bool:
    """Whether a scheduled node is a launch: not an allocation, a wait, or a part of another call's results."""
    from torch._inductor import ir

    if isinstance(kernel, _private("kernels of inductor")) or is_wait(kernel):
        return False
    return not isinstance(getattr(kernel, "node", None), (ir.MultiOutput, ir.DynamicScalar, ir.AssertScalar))


def _dtype_bytes(dtype: Any) -> int:
    return int(_private("sizes of types")(dtype))


def read_bytes(name: str) -> int:
    """Bytes of a buffer of the graph being lowered; 0 if the name is unknown."""
    buffer = _private("current graph").graph.try_get_buffer(name)
    return 0 if buffer is None else node_bytes(buffer)


def node_bytes(buffer: Any) -> int:
    """Bytes of a buffer; 0 if it has no layout or torch cannot compute it."""
    sizes = _private("current graph").graph.sizevars
    try:
        elements = 1
        for extent in buffer.get_size():
            elements *= int(sizes.optimization_hint(extent, fallback=0))
        return elements * _dtype_bytes(buffer.get_dtype())
    except Exception:  # scalars, objects, views of nothing: negligible
        return 0


def buffer_bytes(graph: Any, name: str) -> int | None:
    """Bytes of a buffer with its own memory; ``None`` for a tuple of others, and for a write into another buffer."""
    from torch._inductor import ir

    buffer = graph.name_to_buffer.get(name)
    if buffer is None:
        return None
    if isinstance(buffer.get_output_spec(), (ir.MultiOutputLayout, ir.NoneLayout, ir.MutationLayoutSHOULDREMOVE)):
        return None
    count = graph.sizevars.optimization_hint(graph.get_allocation_storage_size(buffer), fallback=0)
    return int(count) * _dtype_bytes(buffer.get_dtype())


def memory_lines(graph: Any) -> Iterator[tuple[str, str, str]]:
    """Memory operations in inductor's wrapper, after its memory planning: (operation, name, other name).

    ``allocate``; ``free``; ``reuse``: the second takes over the memory of the first, which ends; ``alias``: the first
    stays; ``unread``: memory is allocated in a way that is not followed here.
    """
    from torch._inductor.codegen import wrapper as lines

    parts: dict[str, list[str]] = {}
    for line in graph.wrapper_code.lines:
        if isinstance(line, lines.MultiOutputLine):
            parts.setdefault(line.arg_name, []).append(line.result_name)
    for line in graph.wrapper_code.lines:
        if isinstance(line, lines.AllocateLine):
            yield "allocate", line.node.get_name(), ""
        elif isinstance(line, lines.ReuseLine):
            yield "reuse" if line.delete_old else "alias", line.node.get_name(), line.reused_as.get_name()
        elif isinstance(line, lines.ReinterpretLine):
            yield "alias", line.node.get_name(), line.reused_as.get_name()
        elif isinstance(line, lines.FreeIfNotReusedLine):
            if not line.is_reused:
                yield "free", line.node.get_name(), ""
        elif isinstance(line, lines.FreeLine):
            yield "free", line.node.get_name(), ""
        elif isinstance(line, lines.ExternKernelAllocLine):
            # all results of a call exist when it returns, although their names follow after later frees
            for name in (line.node.get_name(), *parts.get(line.node.get_name(), ())):
                yield "allocate", name, ""
        elif isinstance(line, lines.MultiOutputLine):
            yield "allocate", line.result_name, ""
        elif type(line).__name__ in ("EnterSubgraphLine", "ConditionalLine"):
            yield "unread", "", ""


# Processes --------------------------------------------------------------------------------------------------------


def fake_store() -> Any:
    """The store of a process group that exchanges nothing."""
    return _private("fake process group")()


def load_fake_groups() -> None:
    """Register the process group that exchanges nothing, and what collectives do to fake tensors."""
    for name in ("torch.distributed._meta_registrations", "torch.testing._internal.distributed.fake_pg"):
        importlib.import_module(name)


def hook_waits(waited: Callable[[Any], None]) -> None:
    """Call ``waited(number)`` when the program waits for a collective's work."""
    kinds: tuple[Any, ...] = (_private("work of a fake collective"), _private("work of a collective"))
    for kind in kinds:
        original = kind.wait

        def wait(work: Any, *arguments: Any, _original: Any = original, **named: Any) -> Any:
            waited(getattr(work, "seq_id", None))
            return _original(work, *arguments, **named)

        kind.wait = torch.compiler.disable(wait)


def work_number(result: Any) -> int | None:
    """The number of the work that an op returns, if it does."""
    if isinstance(result, torch.Tensor) or not hasattr(result, "_type"):
        return None
    try:
        return int(_private("work of a fake collective").unbox(result).seq_id)
    except (RuntimeError, TypeError, AttributeError):
        return None


def group_ranks(named: dict[str, Any]) -> tuple[int, ...]:
    """Global ranks of the group passed to an op, as object or name."""
    from torch.distributed import distributed_c10d as c10d

    group = named.get("process_group")
    if group is not None and not isinstance(group, c10d.ProcessGroup):
        group = c10d.ProcessGroup.unbox(group)
    if group is None:
        group = c10d._resolve_process_group(named["group_name"])
    return tuple(int(rank) for rank in c10d.get_process_group_ranks(group))


def active_ddp(module: Any) -> contextlib.AbstractContextManager[None]:
    """Inside, dynamo splits graphs at the buckets of a DistributedDataParallel, as in its ``forward``."""
    context: contextlib.AbstractContextManager[None] = module._inside_ddp_forward()
    return context


def buckets_in_reverse(parameters: Sequence[Any], first_cap: int, cap: int) -> list[list[int]]:
    """Indices of the parameters in each bucket of DistributedDataParallel, in sending order.

    Torch's own assignment, for parameters in reverse order of registration, which is the order of gradients. Caps are
    in bytes, ``first_cap`` for the first bucket of a dtype.
    """
    given = list(reversed(parameters))
    if not given:
        return []
    buckets, _ = torch.distributed._compute_bucket_assignment_by_size(given, [first_cap, cap], [False] * len(given))
    return [[len(given) - 1 - index for index in bucket] for bucket in buckets]


def pipeline_inference_modes() -> Any:
    """How the shapes of a pipeline are found (an enumeration with ``DYNAMIC``); ``None`` where torch has one way."""
    return getattr(importlib.import_module("torch.distributed.pipelining._utils"), "InferenceMode", None)
