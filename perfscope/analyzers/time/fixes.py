"""Advice about host time: by framework, phase of the program, device, and kind of the frame with most of the time.

The rules about the host take their advice from here. A fix names calls that exist in the recorded framework and on the
recorded device; `NAMES` is the only table with names of one device. Without a matching entry there is no fix: the
finding then has the known facts, and the recording that would show more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import is_compiled
from perfscope.analyzers.time.calls import Framework, framework
from perfscope.analyzers.time.model_calls import generation, one_generation
from perfscope.analyzers.time.phases import PHASES, host_phases, work_phases
from perfscope.analyzers.time.samples import stacks
from perfscope.model.documents.causes import Cause
from perfscope.model.finding import Where
from perfscope.model.frames.kinds import FrameKind, frame_kind
from perfscope.model.trace import MISSING, Trace

ProgramPhase = Literal["training", "evaluation", "generation", "service", "unknown"]
"""Activity of the recorded steps. Evaluation: a model runs without differentiation or updates."""


DeviceKind = Literal["cuda", "hip", "npu", "xpu", "mtia", "mps", "tpu", "cpu", "unknown"]
"""Kind of the devices that worked, by the name that PyTorch gives them; ``hip``: AMD's, ``npu``: Huawei's."""


class Situation(Struct, frozen=True, kw_only=True):
    """Inputs of the choice of advice."""

    framework: Framework
    phase: ProgramPhase
    device: DeviceKind = "unknown"
    sampled: bool = False
    """Whether Python stacks were sampled (`perfscope run`)."""
    compiled: bool = False
    """Whether torch.compile made a graph of more than the optimizer."""

    def for_device(self, text: str) -> str:
        """Return ``text`` with the names that exist on the recorded device in place of its {keys}."""
        names = NAMES[self.device]
        if self.compiled:
            names = {**names, **_COMPILED, **_COMPILED_BY_DEVICE.get(self.device, _COMPILED_ELSEWHERE)}
        return text.format_map(names)

    def frame_fix(self, kind: FrameKind, *, flax_nnx: bool = False) -> str:
        """Return the advice about time in frames of a kind; ``""`` without an entry."""
        if kind is FrameKind.TOKENIZER:
            return _TOKENIZER.get(self.phase, _TOKENIZE_AHEAD)
        if kind is FrameKind.OPTIMIZER and self.phase not in ("training", "unknown"):
            return ""
        if flax_nnx and kind is FrameKind.COMPILED_CALL and self.framework == "jax":
            return _NNX
        return self.for_device(_BY_FRAMEWORK[self.framework].get(kind, ""))

    def record_stacks(self) -> str:
        """Return, as a sentence, which recording would show the host's activity."""
        return _SAMPLE_MORE if self.sampled else _STACKS[self.framework]


def situation(trace: Trace) -> Situation:
    """Return framework, phase and device of the recorded program; a fact of the trace."""
    return Situation(
        framework=framework(trace),
        phase=_phase(trace),
        device=device_kind(trace),
        sampled=len(trace.rows["samples"]) > 0,
        compiled=_is_compiled(trace),
    )


_OPTIMIZERS = "torch/optim/"
"""Folder of the code of optimizers in torch."""


def _is_compiled(trace: Trace) -> bool:
    """Return whether torch.compile made a graph of more than the optimizer, by its log, else by the recorded ranges."""
    if trace.compile_log is not None:
        made = (compiled for compiled in trace.compile_log.compiles if compiled.traced_graphs or compiled.graph_ops)
        return any(compiled.place is None or _OPTIMIZERS not in compiled.place.file for compiled in made)
    return any(is_compiled(trace.text(code)) for code in np.unique(trace.rows["slices"]["name"]).tolist())


_DEVICE_NAMES: tuple[tuple[str, DeviceKind], ...] = (
    (r"\b(Ascend|NPU)\b", "npu"),
    (r"\b(AMD|Instinct|Radeon|MI\d{3}\w*|gfx\d+\w*)\b", "hip"),
    (r"\b(NVIDIA|Tesla|GeForce|Quadro|TITAN|RTX|[ABHLPV]\d{1,3}S?)\b", "cuda"),
    (r"\bTPU\b", "tpu"),
    (r"\bIntel\b", "xpu"),
    (r"\b(MTIA|ARTEMIS)\b", "mtia"),
    (r"\bApple\b", "mps"),
)
_CALL_NAMES: tuple[tuple[str, DeviceKind], ...] = (
    (r"AscendCL@", "npu"),
    (r"hip[A-Z]", "hip"),
    (r"cu(da)?[A-Z]", "cuda"),
    (r"(ze|ur)[A-Z]", "xpu"),
)
_OF_NVIDIA = ("nsys", "nsys_jax")
"""Formats of tools that record NVIDIA's devices alone."""


def device_kind(trace: Trace) -> DeviceKind:
    """Return the kind of the devices that worked, by their names, else by the calls that launched their work."""
    devices, graph = trace.rows["devices"], trace.op_graph
    if not len(devices) and not len(trace.rows["calls"]):
        seen = graph.device if graph is not None else "cpu"
        return next((kind for kind in get_args(DeviceKind) if kind == seen), "unknown")
    names = [trace.text(code) for code in np.unique(devices["name"]).tolist() if code != MISSING]
    calls = [trace.text(code) for code in np.unique(trace.rows["calls"]["name"]).tolist()]
    by_name = (kind for name in names for pattern, kind in _DEVICE_NAMES if re.search(pattern, name))
    by_call = (kind for name in calls for pattern, kind in _CALL_NAMES if re.match(pattern, name))
    kind = next(by_name, None) or next(by_call, None)
    return kind or ("cuda" if trace.source.format in _OF_NVIDIA else "unknown")


_TRAINING_KERNELS = ("backward", "_bwd", "bwd_", "dgrad", "wgrad", "FusedAdam", "FusedOptimizer")


def _phase(trace: Trace) -> ProgramPhase:
    sampled = set(map(frame_kind, trace.fact(stacks).texts))
    if sampled & {FrameKind.AUTOGRAD, FrameKind.OPTIMIZER}:
        return "training"
    graph = trace.op_graph
    if graph is not None and any(op.phase in ("backward", "optimizer") for op in graph.ops):
        return "training"
    spans = trace.fact(host_phases)
    if any(len(part.starts) for phase in ("backward", "optimizer") for part in spans[phase]):
        return "training"
    updates = [PHASES.index("backward"), PHASES.index("optimizer")]
    if any(np.isin(rows, updates).any() for rows in trace.fact(work_phases).values()):
        return "training"
    codes = {int(code) for code in np.unique(trace.rows["kernels"]["name"]).tolist()}
    if any(word in trace.text(code) for code in codes for word in _TRAINING_KERNELS):
        return "training"
    modules = {trace.text(code) for code in np.unique(trace.rows["hlo_ops"]["module"]).tolist() if code >= 0}
    if any("train" in name or "update" in name for name in modules):
        return "training"
    if FrameKind.SERVING in sampled:  # a notebook's kernel and a trainer with a web page have such frames too
        return "service"
    if trace.fact(generation) is not None or one_generation(trace):
        return "generation"
    return "evaluation" if graph is not None or len(spans["forward"][1].starts) or len(modules) else "unknown"


# Names of one device. Texts of rules have them as {keys}, which `for_device` fills in.


_TORCH_CUDA = {
    "compile_model": "`torch.compile(model)`",
    "launch_once": '`torch.compile(model, mode="reduce-overhead")`, or a `torch.cuda.CUDAGraph` around the step',
    "graph": "`torch.compile`, or a `torch.cuda.CUDAGraph` around the step",
    "compiled_call": 'Let a compiled call launch once: `mode="reduce-overhead"` makes a CUDA graph of it. ',
    "fused": "`fused=True`",
    "keep_segments": "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` and remove `torch.cuda.empty_cache()`. ",
    "empty_cache": "`torch.cuda.empty_cache()`",
    "synchronize": "`torch.cuda.synchronize()`",
}
_TORCH_OTHER = {
    "compile_model": "`torch.compile(model)`",
    "launch_once": "`torch.compile(model)`",
    "graph": "`torch.compile`",
    "compiled_call": "",
    "fused": "`fused=True`",
    "keep_segments": "Remove `torch.accelerator.empty_cache()`. ",
    "empty_cache": "`torch.accelerator.empty_cache()`",
    "synchronize": "`torch.accelerator.synchronize()`",
}
_TORCH_NPU = {
    "compile_model": "`torch.compile(model)`",
    "launch_once": "a `torch.npu.NPUGraph` around the step, or `TASK_QUEUE_ENABLE=2` in the environment without graphs",
    "graph": "a `torch.npu.NPUGraph` around the step",
    "compiled_call": "",
    "fused": "`torch_npu.optim.NpuFusedAdamW`",
    "keep_segments": "Set `PYTORCH_NPU_ALLOC_CONF=expandable_segments:True` and remove `torch.npu.empty_cache()`. ",
    "empty_cache": "`torch.npu.empty_cache()`",
    "synchronize": "`torch.npu.synchronize()`",
}
_XPU_GRAPH = "or a `torch.xpu.XPUGraph` around the step (torch 2.11 and later)"


def _own_module(module: str) -> Mapping[str, str]:
    """Return the names of a device whose module in torch has the usual functions."""
    return {
        "keep_segments": f"Remove `torch.{module}.empty_cache()`. ",
        "empty_cache": f"`torch.{module}.empty_cache()`",
        "synchronize": f"`torch.{module}.synchronize()`",
    }


_CUDA_TOOLS = {
    "clocks": " (`nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE`)",
    "tests_of_collectives": "nccl-tests",
    "links": "nvidia-smi nvlink -s, nvidia-smi nvlink -e, nvidia-smi topo -m",
    "priority": ": ProcessGroupNCCL.Options(is_high_priority_stream=True)",
    "channels": " Give fewer channels to the other (options.config.max_ctas).",
}
_HIP_TOOLS = {
    **_CUDA_TOOLS,  # RCCL has NCCL's names
    "clocks": " (`amd-smi metric`)",
    "tests_of_collectives": "rccl-tests",
    "links": "amd-smi xgmi, amd-smi topology",
}
_OTHER_TOOLS = {
    "clocks": "",
    "tests_of_collectives": "a benchmark of collectives",
    "links": "errors and speed of the links",
    "priority": ", in a separate group",
    "channels": "",
}
_CUDA_RUNTIME = {
    "graph_capture": "a CUDA graph (`cudaStreamBeginCapture`, `cudaGraphLaunch`)",
    "device_graph": "a CUDA graph",
    "pool": "`cudaMallocAsync`",
    "free_to_pool": "`cudaMallocAsync`, `cudaFreeAsync`",
    "pin": "`cudaMallocHost`, `cudaHostRegister`",
    "copy_async": "`cudaMemcpyAsync`",
    "wait_for_device": "`cudaDeviceSynchronize()`",
}
_HIP_RUNTIME = {key: text.replace("CUDA", "HIP").replace("cuda", "hip") for key, text in _CUDA_RUNTIME.items()} | {
    "pin": "`hipHostMalloc`, `hipHostRegister`",
}
_PREALLOCATE = "Leave preallocation on (`XLA_PYTHON_CLIENT_PREALLOCATE=true`)"
NAMES: Mapping[DeviceKind, Mapping[str, str]] = {
    "cuda": {**_TORCH_CUDA, **_CUDA_TOOLS, **_CUDA_RUNTIME},
    "hip": {  # torch.cuda is the module of AMD's devices as well
        **_TORCH_CUDA,
        **_own_module("cuda"),
        "compiled_call": _TORCH_CUDA["compiled_call"].replace("CUDA", "HIP"),
        **_HIP_TOOLS,
        **_HIP_RUNTIME,
    },
    "npu": {**_TORCH_NPU, **_OTHER_TOOLS, "clocks": " (`npu-smi info`)", **_CUDA_RUNTIME},
    "xpu": {
        **_TORCH_OTHER,
        **_own_module("xpu"),
        "launch_once": f"`torch.compile(model)`, {_XPU_GRAPH}",
        "graph": f"`torch.compile`, {_XPU_GRAPH}",
        **_OTHER_TOOLS,
        **_CUDA_RUNTIME,
    },
    "mtia": {**_TORCH_OTHER, **_own_module("mtia"), **_OTHER_TOOLS, **_CUDA_RUNTIME},
    "mps": {**_TORCH_OTHER, **_own_module("mps"), **_OTHER_TOOLS, **_CUDA_RUNTIME},
    "tpu": {**_TORCH_OTHER, **_OTHER_TOOLS, **_CUDA_RUNTIME},
    "cpu": {**_TORCH_OTHER, **_OTHER_TOOLS, **_CUDA_RUNTIME},
    "unknown": {
        **_TORCH_OTHER,
        **_OTHER_TOOLS,
        "clocks": " (`nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE`, `amd-smi metric`)",
        **_CUDA_RUNTIME,
    },
}
"""Names by device. Runtime calls are for programs without a framework, which CUDA's and HIP's tools record.

Sources: pytorch.org/docs for torch.cuda, torch.xpu, torch.mps, torch.mtia and torch.accelerator; Ascend Extension for
PyTorch for torch.npu and its environment variables; HIP runtime API reference.
"""


_COMPILE_THE_REST = "`torch.compile` for the code that still runs eagerly"
_COMPILED: Mapping[str, str] = {"compile_model": _COMPILE_THE_REST}
_REDUCE_OVERHEAD = '`mode="reduce-overhead"` of `torch.compile`, or a `torch.cuda.CUDAGraph` around the step'
_ONE_LAUNCH = {"launch_once": _REDUCE_OVERHEAD, "graph": _REDUCE_OVERHEAD}
_REST_OR_GRAPH = f"{_COMPILE_THE_REST}, {_XPU_GRAPH}"
_COMPILED_BY_DEVICE: Mapping[DeviceKind, Mapping[str, str]] = {
    "cuda": _ONE_LAUNCH,
    "hip": _ONE_LAUNCH,
    "npu": {},
    "xpu": {"launch_once": _REST_OR_GRAPH, "graph": _REST_OR_GRAPH},
}
_COMPILED_ELSEWHERE: Mapping[str, str] = {"launch_once": _COMPILE_THE_REST, "graph": _COMPILE_THE_REST}
"""Names for a program whose model is compiled: advice to compile it would change nothing."""


# Activity of a kind of frame, in words.


_DOES: Mapping[FrameKind, str] = {
    FrameKind.TRAINER: "is in a library's own loop",
    FrameKind.SERVING: "is in the server around the model",
    FrameKind.DISPATCH: "is in the framework between ops",
    FrameKind.EAGER_OP: "dispatches operations one by one",
    FrameKind.AUTOGRAD: "is in the backward pass between ops",
    FrameKind.OPTIMIZER: "is in the optimizer between ops",
    FrameKind.COMPILED_CALL: "calls compiled functions",
    FrameKind.COMPILER: "compiles",
    FrameKind.COLLECTIVE: "is in a collective",
    FrameKind.COLLECTIVE_SETUP: "sets up collectives",
    FrameKind.LOADER: "makes batches",
    FrameKind.WORKER_START: "starts or ends the data loader's workers",
    FrameKind.PROCESS_START: "starts processes",
    FrameKind.TOKENIZER: "tokenizes",
    FrameKind.LOGGING: "writes logs",
    FrameKind.CHECKPOINT: "saves checkpoints",
    FrameKind.ALLOCATOR: "manages device memory",
    FrameKind.GARBAGE_COLLECTION: "collects garbage",
    FrameKind.SLEEP: "sleeps",
    FrameKind.LOCK: "waits for another thread",
    FrameKind.QUEUE: "waits for a queue or another process",
    FrameKind.DEBUGGING: "runs debugging aids",
    FrameKind.DEVICE_WAIT: "is in a call that waits for the device",
    FrameKind.RANGE: "works in a range that the program names",
    FrameKind.OP: "is inside ops that launch nothing",
    FrameKind.PROFILER: "begins or ends a recording",
}


def does(kind: FrameKind) -> str:
    """Return the host's activity in frames of a kind, as the rest of a sentence that begins with ``the host``."""
    return _DOES.get(kind, "does other work")


# Advice by kind of frame.


_ASYNC_TORCH = "Save less often, or asynchronously (`torch.distributed.checkpoint.async_save`)."
_ASYNC_ORBAX = (
    "Save less often, or asynchronously: `ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())` of Orbax, and "
    "`wait_until_finished()` after the loop. It copies the arrays and writes them while the next steps run."
)
_ANY: Mapping[FrameKind, str] = {
    FrameKind.LOGGING: "Log every N steps, and pass numbers that are on the host already.",
    FrameKind.CHECKPOINT: "Save less often, or in another thread.",
    FrameKind.GARBAGE_COLLECTION: "Freeze what the warm-up made (`gc.collect(); gc.freeze()`) and collect at most "
    "every N steps.",
    FrameKind.SLEEP: "Remove the sleep, or sleep in another thread.",
    FrameKind.LOCK: "Let the other thread work ahead, or wait for it after the work of the step is launched.",
    FrameKind.QUEUE: "Fill the queue early: more producers, or a larger queue.",
    FrameKind.PROCESS_START: "Start the processes once, before the loop, and keep them.",
    FrameKind.LOADER: "Load ahead in other processes or threads, and fetch the next batch before the step ends.",
    FrameKind.DEBUGGING: "Turn off the run-time check or stack recording that this line starts.",
    FrameKind.COMPILER: "Keep shapes and types stable, so that nothing is compiled again.",
    FrameKind.COLLECTIVE_SETUP: "Make the groups and run a collective of each before the loop.",
}
LOADERS: Mapping[str, str] = {
    "keras": "Give the data set workers: `super().__init__(workers=4, use_multiprocessing=True)` of "
    "`keras.utils.PyDataset`; of arrays and generators `fit` makes each batch in the step.",
    "grain": "Give the loader workers: `grain.DataLoader(..., worker_count=N)`, or `.mp_prefetch(...)` of a data set.",
    "webdataset": "Give the loader workers: `wds.WebLoader(..., num_workers=N)`.",
    "torch": "Load ahead: `DataLoader(..., num_workers=N, persistent_workers=True)`.",
    "tensorflow": "Load ahead: `.map(..., num_parallel_calls=tf.data.AUTOTUNE)` and `.prefetch(tf.data.AUTOTUNE)`.",
}
"""Package of a loader -> how its batches are made ahead of the step."""

_TORCH: Mapping[FrameKind, str] = {
    FrameKind.CHECKPOINT: _ASYNC_TORCH,
    FrameKind.LOADER: "Load ahead: `DataLoader(..., num_workers=N, persistent_workers=True, prefetch_factor=4)`.",
    FrameKind.WORKER_START: "Keep the workers: `DataLoader(..., persistent_workers=True)`.",
    FrameKind.DISPATCH: "Reduce the Python work between ops: larger batches, or {compile_model}.",
    FrameKind.OPTIMIZER: "Reduce the launches of the update: {fused}, or `torch.compile(optimizer.step)`.",
    FrameKind.COMPILED_CALL: "{compiled_call}One larger function in place of several small ones checks fewer guards.",
    FrameKind.ALLOCATOR: "Remove {empty_cache} and statistics of the allocator from the step.",
    FrameKind.DEBUGGING: "Turn off the debugging aid that this line starts (anomaly detection, recorded stacks, "
    "run-time type checks).",
}
_JAX: Mapping[FrameKind, str] = {
    FrameKind.CHECKPOINT: _ASYNC_ORBAX,
    FrameKind.LOADER: "Prefetch batches in other threads or processes, and `jax.device_put` the next one while the "
    "step runs.",
    FrameKind.WORKER_START: "Keep the workers of the loader (`persistent_workers=True` of PyTorch's).",
    FrameKind.EAGER_OP: "Put the function in one `jax.jit`: each operation outside of it is dispatched alone.",
    FrameKind.OPTIMIZER: "Put the optimizer's update in the jitted step.",
    FrameKind.COMPILED_CALL: "Give each call more work: several steps in one call (`jax.lax.scan`), or larger batches. "
    "Pass fewer, larger arrays: each one costs time in every call.",
    FrameKind.DEBUGGING: "Turn off the run-time check of shapes or types (chex, jaxtyping) outside of tests.",
}
_BY_FRAMEWORK: Mapping[Framework, Mapping[FrameKind, str]] = {
    "torch": {**_ANY, **_TORCH},
    "jax": {**_ANY, **_JAX},
    "none": {**_ANY, FrameKind.LOGGING: "Write less often, or in another thread."},
}
_NNX = "Keep the module taken apart between calls: `nnx.cached_partial(step, model, ...)`; a Flax NNX module is taken "
_NNX += "apart in every call. Several steps in one call (`jax.lax.scan`) take it apart only once."

_TOKENIZER: Mapping[ProgramPhase, str] = {
    "training": "Tokenize once before training and store the ids, or in the workers of the loader.",
    "evaluation": "Tokenize once before the loop, in batches, or in the workers of the loader.",
}
_TOKENIZE_AHEAD = "Tokenize in another thread or process while the device works on the request before."


_MOVED: Mapping[ProgramPhase, str] = {
    "training": "do it once before the loop, in the workers of a data loader, or in a thread while the step runs",
    "evaluation": "do it once before the loop, in another process, or in a thread while the step runs",
    "generation": "do it once before the loop, or in a thread while the next token is computed",
    "service": "do it before the request reaches the model, or in a thread while the model runs",
}


def move(what: str, where: Situation) -> str:
    """Return the fix for the program's own work. ``what``: a function or a line of it."""
    how = _MOVED.get(where.phase, "do it once before the loop, in another process, or in a thread")
    return f"Move {what} out of the step: {how}."


_STACKS: Mapping[Framework, str] = {
    "torch": "Record with `perfscope run`, or with Python stacks (`with_stack=True`), to see which lines run there.",
    "jax": "Record with `perfscope run`, which samples Python stacks, to see which lines run there.",
    "none": "Name the parts of the program with NVTX ranges, or sample its stacks (`nsys profile "
    "--sample=process-tree`), to see what runs there.",
}
_SAMPLE_MORE = "Trace more steps (`perfscope run --steps A:B`), so that more stacks are sampled there."


# Advice about idle time of a cause that no rule explains further.


_CAUSES: Mapping[Cause, str] = {
    "exposed_communication": "Start collectives earlier, so that independent work runs at the same time.",
    "exposed_copy": "Start copies earlier, from pinned memory and on a separate stream.",
    "sync": "Read results on the host less often, or after the next step is launched.",
    "input": "Fetch the next batch while the step runs.",
    "collective_setup": "Make the process groups and run a collective of each before the loop.",
    "garbage_collection": "Call `gc.freeze()` after the warm-up, and collect at most every N steps.",
    "saving": "Log every N steps, and save in another thread.",
    "other_ranks": "Send fewer and larger messages, unless one rank comes late (`straggler`).",
    "compilation": "Warm up before measuring, and keep shapes stable.",
}
_CAUSES_BY_FRAMEWORK: Mapping[Framework, Mapping[Cause, str]] = {
    "torch": {
        **_CAUSES,
        "launch": "Launch less often: larger batches, {graph}.",
        "memory": "Keep shapes stable, so that the caching allocator keeps the memory it has.",
        "saving": "Log every N steps, and save asynchronously (`torch.distributed.checkpoint.async_save`).",
        "dependency": "Fuse kernels that follow each other, or run independent work on another stream.",
    },
    "jax": {
        **_CAUSES,
        "exposed_copy": "Call `jax.device_put` on the next batch while this step runs, and read results later.",
        "collective_setup": "Run the step once before the loop.",
        "launch": "Launch less often: put the step in one `jax.jit`, and several steps in one `jax.lax.scan`.",
        "memory": f"{_PREALLOCATE}.",
        "saving": "Log every N steps, and save asynchronously (`ocp.AsyncCheckpointer`).",
        "dependency": "Put the whole step in one `jax.jit`, so that XLA fuses what follows each other.",
    },
    "none": {
        **_CAUSES,
        "launch": "Launch less often: merge kernels, or capture what repeats in {device_graph}.",
        "memory": "Allocate before the loop, or from a pool ({pool}).",
        "dependency": "Fuse kernels that follow each other, or run independent work on another stream.",
    },
}


def cause_fix(cause: Cause, where: Situation) -> str:
    """Return the advice about time of a cause of the account; ``""`` if the cause alone is not sufficient."""
    return where.for_device(_CAUSES_BY_FRAMEWORK[where.framework].get(cause, ""))


# Advice about reads of a value by the host, by kind of read.


_DATA_DEPENDENT = (
    "Avoid sizes that depend on data: a mask, or `torch.nonzero_static(x, size=n)`. "
    "`index_add_` with a fixed capacity, or a grouped matmul, needs no such size either."
)
_FREE = (
    "{keep_segments}Keep shapes stable, and warm up with the largest batch: the caching allocator gave memory back to "
    "the driver, which waits for the device."
)
_WAIT = (
    "Wait once, where the host reads a result, and remove the other waits, those after each kernel first. Work "
    "on one stream keeps its order without a wait; wait for an event or a stream, not for the whole device."
)
UNCHECKED = (
    "Turn the checks off once the program works: `torch.distributions.Distribution.set_default_validate_args(False)`. "
    "Or pass `validate_args=False` where the distribution is made."
)
_LATER = "Read the value after the next step has been launched, or not at all."
_TORCH_READS: Mapping[str, str] = {
    "item": "Keep the value on the device: add it to a tensor there (detached, if it has a graph), and read that "
    "tensor every N steps.",
    "elements": "Copy the whole tensor to the host once, `values = x.tolist()`, and use those numbers.",
    "bool": "Decide on the device: `torch.where(condition, a, b)` or a mask.",
    "check": UNCHECKED,
    "equal": "Compare on the device with `(a == b).all()` and read the result every N steps.",
    "nonzero": _DATA_DEPENDENT,
    "masked_select": _DATA_DEPENDENT,
    "unique": _DATA_DEPENDENT,
    "to_host": 'Copy later and without waiting: `x.to("cpu", non_blocking=True)` into pinned memory, then read after '
    "the next step has been launched.",
    "copy": "Overlap the copy with computation: pinned host memory (`pin_memory=True`) and `non_blocking=True`. "
    "Read results after the next step has been launched.",
    "wait": _WAIT,
    "free": _FREE,
}
_JAX_READS: Mapping[str, str] = {
    "item": "Keep the value on the device: return it from the jitted step, sum it there, and read it every N steps, "
    "after the next step has been dispatched.",
    "elements": "If these are elements of one array, copy it to the host once, `np.asarray(x)`, and use its elements: "
    "each read of an element runs a program and waits for it. Otherwise read all results at once, `jax.device_get`.",
    "wait": "Remove `block_until_ready()` from the loop, and read results (`float(x)`, `np.asarray(x)`) after the next "
    "step has been dispatched.",
    "copy": "Begin the copy early (`x.copy_to_host_async()`), and read the array after the next step has been "
    "dispatched.",
    "free": f"{_PREALLOCATE}.",
}
_NO_FRAMEWORK_READS: Mapping[str, str] = {
    "wait": _WAIT,
    "free": "Free device memory after the loop, or give it back to a pool ({free_to_pool}).",
    "copy": "Copy from and to pinned memory on a separate stream, and wait for its event where the data is used.",
}
_READS: Mapping[Framework, Mapping[str, str]] = {
    "torch": _TORCH_READS,
    "jax": _JAX_READS,
    "none": _NO_FRAMEWORK_READS,
}
_ITEM_ELSEWHERE: Mapping[tuple[Framework, ProgramPhase], str] = {
    ("torch", "evaluation"): "Keep the value on the device: add it to a tensor there and read that tensor after the "
    "loop.",
    ("torch", "generation"): "Decide on the device: keep the flags of finished sequences in a tensor, and read "
    "them every N tokens.",
    ("torch", "service"): "Read all values of a request at once, at its end: `torch.stack(values).tolist()`.",
    ("jax", "evaluation"): "Keep the value on the device: sum it in the jitted function, and read it once after the "
    "loop.",
    ("jax", "generation"): "Let the loop run on the device (`jax.lax.while_loop`), or read the flags of finished "
    "sequences every N tokens.",
    ("jax", "service"): "Read all results of a request at once, at its end: `jax.device_get(results)`.",
}


def read_fix(kind: str, where: Situation) -> str:
    """Return the advice about a read by the host; other kinds have the general advice to read later.

    ``kind``: that of ``GraphOp.host_read``, or ``elements`` (of one tensor), ``copy``, ``wait``, ``free``.
    """
    if kind == "item" and (where.framework, where.phase) in _ITEM_ELSEWHERE:
        return _ITEM_ELSEWHERE[where.framework, where.phase]
    return where.for_device(_READS[where.framework].get(kind, _LATER))


# Advice about launches and memory calls that the device waits for.


_LAUNCHES: Mapping[Framework, str] = {
    "torch": "Launch less often: {launch_once}. Larger batches and fused optimizers ({fused}) help, too.",
    "jax": "Launch less often: put the whole step in one `jax.jit`, and several steps in one call with `jax.lax.scan`. "
    "Larger batches help, too.",
    "none": "Launch less often: capture what repeats in {graph_capture}, and merge small kernels.",
}
_MEMORY: Mapping[Framework, str] = {
    "torch": "{keep_segments}Keep shapes stable and warm up with the largest batch, so that the caching allocator "
    "keeps the memory it has.",
    "jax": f"{_PREALLOCATE}, so that the allocator does not ask the driver.",
    "none": "Allocate before the loop, or from a pool ({pool}).",
}


def launch_fix(where: Situation) -> str:
    """Return the advice about a device that waits for launches."""
    return where.for_device(_LAUNCHES[where.framework])


def memory_fix(where: Situation) -> str:
    """Return the advice about a device that waits for calls that allocate or free its memory."""
    return where.for_device(_MEMORY[where.framework])


FEWEST_STARTS = 3
"""Times that a loader starts its workers: training and validation start them once each."""
STEPS_PER_START = 50
"""Steps for which workers are used: over more, tens of milliseconds of a start are a small part."""


def worker_starts(trace: Trace) -> tuple[str, str]:
    """How often a data loader started its workers, and the fix; both empty where that is rare or was not recorded."""
    starts = [fact for fact in trace.program_facts if fact.name == "loader_start"]
    most = max(starts, key=lambda fact: fact.count, default=None)
    if most is None or most.count < FEWEST_STARTS or most.count * STEPS_PER_START < len(trace.step_times_ns):
        return "", ""
    line = Where(file=most.file, line=most.line).label()
    happened = (
        f"Worker processes were started {most.count:,} times at {line}: the first batch waits for them each time."
    )
    if most.value == "new loader":
        return happened, "Create the DataLoader once, before the loop, with persistent_workers=True."
    return happened, "Keep the workers between epochs: `persistent_workers=True`; data in memory needs no workers."
