"""Kind of a frame or a host span: user code, the autograd engine, an optimizer, logging, a lock and so on.

One table for all rules. A place is looked up by the path of its file inside an installed package or the standard
library, and by its function; names without a file (callees, built-in functions, C++ events) by their last word. The
names are those of PyTorch 2.0 to 2.13, JAX 0.4 to 0.10 and of the libraries as of 2026; functions that a version lacks
are harmless.

Every look-up is linear in the length of the name, because names come from untrusted files.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

from perfscope.model.documents.stacks import COLLECTING
from perfscope.model.frames import Owner, owner_of

_LOGS = ("debug", "info", "warning", "warn", "error", "critical", "exception", "log", "_log", "handle", "callHandlers",
         "emit", "flush", "format", "makeRecord", "findCaller", "getMessage")  # fmt: skip
"""Functions of ``logging``. Every ``os.fork`` holds its locks without logging."""

_OFTEN_THE_USERS = frozenset({"aim", "composer", "datasets", "grain", "ignite", "streaming", "tokenizers"})
"""Packages whose names are also common for a program's own folders: the path must show that they are installed."""

_JAX_FILES = ("profiler.py", "api.py", "array.py", "dispatch.py", "pjit.py", "compiler.py")
"""XLA's Python tracer writes ``$array.py:12 _value``: only the name of the file."""

_COMPILING = (
    "(dynamo_timed)", "backend_compile", "BackendCompile", "XlaCompile", "Compiler::Compile", "PjRtClient::Compile",
    "::CompileProgram", "HloPassPipeline", "CompileAndLoad", "trace_to_jaxpr", "lower_sharding_computation",
    "lower_jaxpr_to_module", "compile_or_get_cached",
)  # fmt: skip
"""Substrings of event names: regions of torch.compile, functions of JAX, events of XLA, nvrtc in nvFuser."""

_WAITING = ("::Await", "::BlockHostUntilReady")
"""Substrings of events of XLA's client in which the host waits for a device."""

_MOST_CHARACTERS = 400
"""Maximum number of characters of a name without a file that are examined."""


class FrameKind(IntEnum):
    """Kind of code that runs in a frame."""

    UNKNOWN = 0
    """Not in the table: the standard library, C++ events of a framework."""
    USER = 1
    """A file of the program."""
    LIBRARY = 2
    """An installed package that is not in the table."""
    TRAINER = 3
    """A library with the training loop: Lightning, Accelerate, transformers' ``Trainer``, Keras."""
    SERVING = 4
    """A server or an inference engine around the model."""
    DISPATCH = 5
    """A framework between the program's line and its ops: modules, Python wrappers, ops outside compiled code."""
    AUTOGRAD = 6
    OPTIMIZER = 7
    COMPILED_CALL = 8
    """The call of a function that torch.compile or ``jax.jit`` compiled."""
    COMPILER = 9
    """Tracing, lowering, compiling."""
    COLLECTIVE = 10
    """Communication with other ranks on the host."""
    COLLECTIVE_SETUP = 11
    LOADER = 12
    """A data loader, including the program's data set that it calls."""
    WORKER_START = 13
    """A data loader starts or ends its worker processes."""
    PROCESS_START = 14
    TOKENIZER = 15
    LOGGING = 16
    CHECKPOINT = 17
    """Saving or reading a checkpoint, serialisation."""
    ALLOCATOR = 18
    GARBAGE_COLLECTION = 19
    SLEEP = 20
    LOCK = 21
    """Waiting for a lock or for another thread."""
    QUEUE = 22
    """Waiting for a queue, a pipe or the result of another process."""
    DEVICE_WAIT = 23
    """A call that returns when the device has finished."""
    DEVICE_READ = 24
    """A call that may wait for the device, by its name: ``.item()``, ``.cpu()``."""
    DEBUGGING = 25
    """Run-time checks and stack walks."""
    EAGER_OP = 26
    """A JAX operation outside of compiled code: dispatched alone."""
    RANGE = 27
    """A range that the program or a library annotates, without a function."""
    OP = 28
    PROFILER = 29
    """Begin or end of a profiler's recording."""
    CHILD = 30
    """The first function of a child process: later frames are the child's own program."""


K = FrameKind
WAITS = frozenset({K.SLEEP, K.LOCK, K.QUEUE})
ENGINES = frozenset({K.AUTOGRAD, K.OPTIMIZER, K.COMPILED_CALL, K.DISPATCH, K.EAGER_OP})
"""The framework's own work for the program's computation: moving a line of the program does not avoid it."""

COMPUTES = ENGINES | {K.COLLECTIVE, K.COMPILER}
"""Kinds of frames with a framework's own code."""
_PURPOSES = frozenset(K) - ENGINES - WAITS - {
    K.UNKNOWN, K.USER, K.LIBRARY, K.TRAINER, K.SERVING, K.TOKENIZER, K.DEVICE_WAIT, K.DEVICE_READ, K.DEBUGGING,
    K.CHILD,
}  # fmt: skip
"""Kinds that name the purpose of a call: everything it calls, including the program's own functions, is part of it."""


def kind_below(above: FrameKind, own: FrameKind, *, is_python: bool) -> FrameKind:
    """Return the kind of a stack whose last two frames have these kinds.

    ``above``: kind of the stack without its innermost frame. ``is_python``: the innermost frame has a file; without one
    it is a callee, written as in the program.
    """
    if own is K.GARBAGE_COLLECTION:
        return own
    if own is K.CHILD:  # a forked child has the parent's call that started it as its caller
        return K.UNKNOWN
    if above is K.LOADER and own is K.PROCESS_START:
        return K.WORKER_START
    if above in _PURPOSES or (above is K.SERVING and own in (K.LOCK, K.QUEUE)):
        return above
    if above in WAITS:  # a function called by a waiting function does not wait
        return own if is_python or own in WAITS else above
    if own in _PURPOSES | WAITS | {K.USER, K.TOKENIZER, K.DEVICE_WAIT, K.DEBUGGING}:
        return own
    if own is K.UNKNOWN or above in (K.TOKENIZER, K.DEVICE_WAIT, K.DEBUGGING):
        return above
    if above in ENGINES and above is not K.DISPATCH:  # the optimizer calls ops, autograd calls modules
        return above
    return own


_Functions = Mapping[str, FrameKind]
"""Kind by function; ``""`` for all others."""


def _only(kind: FrameKind, *functions: str, rest: FrameKind = K.UNKNOWN) -> _Functions:
    return {"": rest, **dict.fromkeys(functions, kind)}


_TORCH: dict[str, FrameKind | _Functions] = {
    "torch": K.DISPATCH,
    "functorch": K.DISPATCH,
    "torch_xla": K.DISPATCH,
    "triton": K.DISPATCH,
    "triton/compiler": K.COMPILER,
    "torch/_tensor.py": _only(K.AUTOGRAD, "backward", rest=K.DISPATCH),
    "torch/autograd/__init__.py": _only(K.AUTOGRAD, "backward", "grad", rest=K.DISPATCH),
    "torch/autograd/graph.py": _only(K.AUTOGRAD, "_engine_run_backward", rest=K.DISPATCH),
    "torch/autograd/anomaly_mode.py": K.DEBUGGING,
    "torch/fx/traceback.py": K.DEBUGGING,
    "torch/utils/_traceback.py": K.DEBUGGING,
    "torch/optim": K.OPTIMIZER,
    "torch/nn/utils/clip_grad.py": K.OPTIMIZER,
    "torch/amp/grad_scaler.py": K.OPTIMIZER,
    "torch/cuda/amp/grad_scaler.py": K.OPTIMIZER,
    "torch/utils/data": K.LOADER,
    "torchdata": K.LOADER,
    "torch/utils/tensorboard": K.LOGGING,
    "torch/serialization.py": _only(K.CHECKPOINT, "save", "_save", "_legacy_save", rest=K.DISPATCH),
    "torch/distributed": K.COLLECTIVE,
    "torch/distributed/distributed_c10d.py": {
        "": K.COLLECTIVE,
        **dict.fromkeys(
            ("init_process_group", "new_group", "_new_process_group_helper", "new_subgroups", "split_group"),
            K.COLLECTIVE_SETUP,
        ),
    },
    "torch/distributed/device_mesh.py": K.COLLECTIVE_SETUP,
    "torch/distributed/checkpoint": K.CHECKPOINT,
    "torch/distributed/tensor": K.DISPATCH,
    "torch/distributed/pipelining": K.TRAINER,
    "torch/distributed/algorithms": K.DISPATCH,
    "torch/distributed/fsdp": K.DISPATCH,
    "torch/distributed/_composable": K.DISPATCH,
    "torch/_dynamo": K.COMPILED_CALL,
    "torch/_dynamo/convert_frame.py": K.COMPILER,
    "torch/_dynamo/symbolic_convert.py": K.COMPILER,
    "torch/_functorch": K.COMPILED_CALL,
    "torch/_inductor": K.COMPILED_CALL,
    "torch/_inductor/compile_fx.py": K.COMPILER,
    "torch/_inductor/autotune_process.py": K.COMPILER,
    "torch/_inductor/async_compile.py": K.COMPILER,
    "torch/_inductor/codecache.py": K.COMPILER,
    "torch/cuda/memory.py": K.ALLOCATOR,
    "torch/cuda/__init__.py": _only(K.DEVICE_WAIT, "synchronize", rest=K.DISPATCH),
    "torch/cuda/streams.py": _only(K.DEVICE_WAIT, "synchronize", rest=K.DISPATCH),
    "torch/accelerator": _only(K.DEVICE_WAIT, "synchronize", rest=K.DISPATCH),
    "torch/multiprocessing/spawn.py": {
        **_only(K.PROCESS_START, "start_processes", "spawn"),
        "_wrap": K.CHILD,
        "join": K.QUEUE,
    },
    "torch/profiler": _only(
        K.PROFILER,
        "start",
        "stop",
        "start_trace",
        "stop_trace",
        "prepare_trace",
        "export_chrome_trace",
        rest=K.DISPATCH,
    ),
    "accelerate": K.TRAINER,
    "lightning": K.TRAINER,
    "pytorch_lightning": K.TRAINER,
    "lightning_fabric": K.TRAINER,
    "composer": K.TRAINER,
    "deepspeed": K.TRAINER,
    "megatron": K.TRAINER,
    "trl": K.TRAINER,
    "ignite": K.TRAINER,
    "fastai": K.TRAINER,
    "transformers": K.DISPATCH,
    "transformers/trainer.py": K.TRAINER,
    "transformers/generation": K.DISPATCH,
    "transformers/data": K.LOADER,
    "transformers/tokenization_utils.py": K.TOKENIZER,
    "transformers/tokenization_utils_base.py": K.TOKENIZER,
    "transformers/tokenization_utils_fast.py": K.TOKENIZER,
    "transformers/tokenization_utils_tokenizers.py": K.TOKENIZER,
    "transformers/tokenization_python.py": K.TOKENIZER,
    "diffusers": K.DISPATCH,
    "timm": K.DISPATCH,
    "torchvision": K.DISPATCH,
    "peft": K.DISPATCH,
    "xformers": K.DISPATCH,
    "flash_attn": K.DISPATCH,
    "transformer_engine": K.DISPATCH,
    "vllm": K.SERVING,
    "sglang": K.SERVING,
    "tensorrt_llm": K.SERVING,
}
_JAX: dict[str, FrameKind | _Functions] = {
    "jax": K.DISPATCH,
    "jaxlib": K.DISPATCH,
    "jax/_src/pjit.py": K.COMPILED_CALL,
    "jax/_src/interpreters/pxla.py": K.COMPILED_CALL,
    "jax/_src/traceback_util.py": K.COMPILED_CALL,
    "jax/_src/numpy": K.EAGER_OP,
    "jax/_src/lax": K.EAGER_OP,
    "jax/_src/nn": K.EAGER_OP,
    "jax/_src/random.py": K.EAGER_OP,
    "jax/_src/api.py": _only(
        K.DEVICE_WAIT, "try_to_block", "block_until_ready", "device_get", "_device_get", rest=K.COMPILED_CALL
    ),
    "jax/_src/array.py": _only(
        K.DEVICE_WAIT, "block_until_ready", "_value", "__array__", "item", "tolist", rest=K.DISPATCH
    ),
    "jax/_src/dispatch.py": _only(K.DEVICE_WAIT, "device_get", "block_until_ready", rest=K.DISPATCH),
    "jax/_src/compiler.py": K.COMPILER,
    "jax/_src/profiler.py": _only(K.PROFILER, "start_trace", "stop_trace", "stop_and_export", rest=K.DISPATCH),
    "jax/_src/compilation_cache.py": K.COMPILER,
    "jax/_src/interpreters/mlir.py": K.COMPILER,
    "jax/_src/interpreters/partial_eval.py": K.COMPILER,
    "jax/experimental/multihost_utils.py": K.COLLECTIVE,
    "flax": K.DISPATCH,
    "flax/nnx": K.COMPILED_CALL,
    "flax/training/checkpoints.py": K.CHECKPOINT,
    "flax/serialization.py": K.CHECKPOINT,
    "flax/metrics": K.LOGGING,
    "optax": K.OPTIMIZER,
    "equinox": K.DISPATCH,
    "equinox/_jit.py": K.COMPILED_CALL,
    "equinox/_serialisation.py": K.CHECKPOINT,
    "haiku": K.DISPATCH,
    "numpyro": K.DISPATCH,
    "orbax": K.CHECKPOINT,
    "tensorstore": K.CHECKPOINT,
    "keras": K.TRAINER,
    "keras/src/backend": K.DISPATCH,
    "keras/src/layers": K.DISPATCH,
    "keras/src/trainers/data_adapters": K.LOADER,
    "keras/src/optimizers": K.OPTIMIZER,
    "keras/src/saving": K.CHECKPOINT,
    "grain": K.LOADER,
    "tensorflow_datasets": K.LOADER,
    "tensorflow/python/data": K.LOADER,
    "chex": K.DEBUGGING,
    "jaxtyping": K.DEBUGGING,
}

_ANY: dict[str, FrameKind | _Functions] = {
    "logging": _only(K.LOGGING, *_LOGS),
    "json/__init__.py": _only(K.LOGGING, "dump", "dumps"),
    **dict.fromkeys(
        ("wandb", "tensorboard", "tensorboardX", "mlflow", "neptune", "comet_ml", "clearml", "swanlab", "trackio",
         "aim", "dvclive", "tqdm", "rich", "loguru", "absl/logging", "structlog", "clu/metric_writers"),
        K.LOGGING,
    ),
    "pickle.py": _only(K.CHECKPOINT, "dump", "load"),
    "safetensors": K.CHECKPOINT,
    "h5py": K.CHECKPOINT,
    "joblib/numpy_pickle.py": K.CHECKPOINT,
    "numpy/lib": _only(K.CHECKPOINT, "save", "savez", "savez_compressed", "savetxt", "_savez", "write_array"),
    "tokenizers": K.TOKENIZER,
    "tiktoken": K.TOKENIZER,
    "sentencepiece": K.TOKENIZER,
    "spacy": K.TOKENIZER,
    "datasets": K.LOADER,
    "webdataset": K.LOADER,
    "ffcv": K.LOADER,
    "nvidia/dali": K.LOADER,
    "streaming": K.LOADER,
    "threading.py": _only(K.LOCK, "wait", "wait_for", "join", "acquire", "_wait_for_tstate_lock"),
    "queue.py": _only(K.QUEUE, "get", "put", "join"),
    "selectors.py": _only(K.QUEUE, "select"),
    "socket.py": _only(K.QUEUE, "accept", "recv_into", "readinto"),
    "concurrent/futures": _only(K.QUEUE, "result", "wait", "as_completed", "exception"),
    "multiprocessing/queues.py": _only(K.QUEUE, "get", "put", "join"),
    "multiprocessing/connection.py": _only(
        K.QUEUE, "wait", "poll", "_poll", "recv", "recv_bytes", "_recv", "_recv_bytes", "_send", "send", "send_bytes"
    ),
    "multiprocessing/pool.py": _only(K.QUEUE, "get", "wait", "map", "starmap", "apply", "next"),
    "multiprocessing/synchronize.py": _only(K.LOCK, "wait", "acquire", "wait_for"),
    "multiprocessing/popen_fork.py": _only(K.PROCESS_START, "_launch", "__init__", rest=K.QUEUE),
    "multiprocessing/popen_spawn_posix.py": K.PROCESS_START,
    "multiprocessing/popen_forkserver.py": K.PROCESS_START,
    "multiprocessing/forkserver.py": K.PROCESS_START,
    "multiprocessing/context.py": _only(K.PROCESS_START, "_Popen", "Pool"),
    "multiprocessing/process.py": {**_only(K.PROCESS_START, "start"), "_bootstrap": K.CHILD, "join": K.QUEUE},
    "subprocess.py": _only(
        K.PROCESS_START, "__init__", "_execute_child", "run", "call", "check_call", "check_output", "communicate"
    ),
    "traceback.py": K.DEBUGGING,
    "linecache.py": K.DEBUGGING,
    "inspect.py": K.DEBUGGING,
    "pdb.py": K.DEBUGGING,
    "bdb.py": K.DEBUGGING,
    "cProfile.py": K.DEBUGGING,
    "tracemalloc.py": K.DEBUGGING,
    "beartype": K.DEBUGGING,
    "typeguard": K.DEBUGGING,
    **dict.fromkeys(
        ("uvicorn", "starlette", "fastapi", "flask", "werkzeug", "gunicorn", "tornado", "aiohttp", "grpc", "gradio",
         "litserve", "bentoml", "ray/serve", "http/server.py", "socketserver.py"),
        K.SERVING,
    ),
}  # fmt: skip
PLACES: Mapping[str, FrameKind | _Functions] = {**_TORCH, **_JAX, **_ANY}
"""Path inside an installed package or the standard library -> its kind; the longest matching path counts."""


_DEEPEST = max(place.count("/") for place in PLACES) + 1


_LAST_WORDS: Mapping[str, FrameKind] = {
    "sleep": K.SLEEP,
    **dict.fromkeys(("wait", "acquire"), K.LOCK),
    **dict.fromkeys(("select", "poll", "epoll_wait"), K.QUEUE),
    **dict.fromkeys(("backward", "run_backward"), K.AUTOGRAD),
    **dict.fromkeys(("fork", "fork_exec", "posix_spawn", "Popen"), K.PROCESS_START),
    **dict.fromkeys(("print", "write", "flush"), K.LOGGING),
    **dict.fromkeys(("save_pretrained", "save_checkpoint", "savez", "savez_compressed"), K.CHECKPOINT),
    **dict.fromkeys(("synchronize", "block_until_ready"), K.DEVICE_WAIT),
    **dict.fromkeys(("item", "tolist", "cpu", "to", "numpy", "nonzero", "device_get"), K.DEVICE_READ),
    **dict.fromkeys(("empty_cache", "reset_peak_memory_stats"), K.ALLOCATOR),
}
"""By the last word of a callee or a built-in function."""

_RECEIVERS: Mapping[str, FrameKind] = {
    **dict.fromkeys(("opt", "optim", "optimizer", "optimiser", "scaler", "scheduler", "sched"), K.OPTIMIZER),
    **dict.fromkeys(("logging", "logger", "log", "wandb", "mlflow", "writer", "pbar", "tqdm"), K.LOGGING),
    **dict.fromkeys(("pickle", "cloudpickle", "ckpt", "checkpointer", "checkpoint_manager"), K.CHECKPOINT),
    **dict.fromkeys(("tok", "tokenizer", "enc"), K.TOKENIZER),
    "gc": K.GARBAGE_COLLECTION,
    "dist": K.COLLECTIVE,
    **dict.fromkeys(("torch", "F", "nn", "jnp", "jax", "lax"), K.DISPATCH),
}
"""By the word before it: common names of such objects in programs."""

_CALLEES: Mapping[str, FrameKind] = {
    "torch.save": K.CHECKPOINT,
    "torch.load": K.CHECKPOINT,
    "np.save": K.CHECKPOINT,
    "jax.device_get": K.DEVICE_READ,
    "<built-in function collect>": K.GARBAGE_COLLECTION,
    "init_process_group": K.COLLECTIVE_SETUP,
    "c10d::init_process_group": K.COLLECTIVE_SETUP,
    "new_group": K.COLLECTIVE_SETUP,
    "c10d::new_group": K.COLLECTIVE_SETUP,
    "ncclGetUniqueId": K.COLLECTIVE_SETUP,
    "ncclCommSplit": K.COLLECTIVE_SETUP,
    COLLECTING: K.GARBAGE_COLLECTION,
}
_BEGINNINGS: tuple[tuple[str, FrameKind], ...] = (
    ("Python GC", K.GARBAGE_COLLECTION),
    ("gc: ", K.GARBAGE_COLLECTION),
    ("ncclCommInit", K.COLLECTIVE_SETUP),
    ("TorchDynamo Cache Lookup", K.COMPILER),
    ("_compile.", K.COMPILER),
    ("compile_fx", K.COMPILER),
    ("OutputGraph.", K.COMPILER),
    ("entire_frame_compile", K.COMPILER),
    ("backward_compile", K.COMPILER),
    ("FusionKernelRuntime::compile", K.COMPILER),
    ("FusionExecutorCache::getKernelRuntimeFor", K.COMPILER),
    ("ExecutorDispatch::compile", K.COMPILER),
    ("KernelExecutor::compile", K.COMPILER),
    ("CompiledKernel::compile", K.COMPILER),
    ("Torch-Compiled Region", K.COMPILED_CALL),
    ("PjitFunction(", K.COMPILED_CALL),
    ("autograd::engine::evaluate_function: ", K.AUTOGRAD),
    ("Optimizer.step#", K.OPTIMIZER),
    ("Optimizer.zero_grad#", K.OPTIMIZER),
)


@lru_cache(maxsize=65536)
def frame_kind(text: str) -> FrameKind:
    """Return the kind of a frame or host event by its text.

    ``text``: ``file.py(12): function``, ``$file.py:12 function``, ``<built-in function sleep>``, a callee
    (``time.sleep``), or the name of an event.
    """
    if text.startswith("<built-in"):
        return _built_in(text)
    if text.startswith("$"):
        place, _, function = text[1:].rpartition(" ")
        file = place.rpartition(":")[0]
        if not file:
            return _callee(f"{place}.{function}" if place else function)
        kind = _of_place(f"jax/_src/{file}" if file in _JAX_FILES else file, function)
        return K.DEVICE_WAIT if function == "block_until_ready" else kind
    place, separator, function = text.rpartition("): ")
    file, bracket, _ = place.rpartition("(")
    if separator and bracket and file:
        kind = _of_place(file, function)
        return kind if kind or owner_of(file) is not Owner.USER else K.USER
    return _event(text[:_MOST_CHARACTERS])


def _of_place(path: str, function: str) -> FrameKind:
    tail = _in_package(path)
    parts = tail.split("/", _DEEPEST)[:_DEEPEST]
    if tail == path and parts[0] in _OFTEN_THE_USERS:
        return K.USER
    for depth in range(len(parts), 0, -1):
        found = PLACES.get("/".join(parts[:depth]))
        if found is None and depth == len(parts) == 1:
            found = PLACES.get(parts[0].removesuffix(".py"))
        if isinstance(found, FrameKind):
            return found
        if found is not None:
            return found.get(function.rpartition(".")[2], found[""])
    if any(word in function[:_MOST_CHARACTERS] for word in _COMPILING):
        return K.COMPILER
    owner = owner_of(path)
    return K.LIBRARY if owner is Owner.LIBRARY else K.USER if owner is Owner.USER else K.UNKNOWN


def _in_package(path: str) -> str:
    """Return the path inside the installed package or the standard library; other paths unchanged."""
    path = path.replace("\\", "/")
    for folder in ("site-packages/", "dist-packages/"):
        _, found, tail = path.rpartition(folder)
        if found:
            return tail
    before, found, tail = path.rpartition("lib/python3")
    if found and (not before or before.endswith("/")):
        return tail.partition("/")[2]
    return path


def package_of(path: str) -> str:
    """Return the installed package of a path: ``torch`` for ``site-packages/torch/nn/modules/module.py``."""
    return _in_package(path).partition("/")[0].removesuffix(".py")


def _built_in(text: str) -> FrameKind:
    """Return the kind of ``<built-in function sleep>``, ``<built-in method acquire of _thread.lock object at 0x.>``."""
    if text in _CALLEES:
        return _CALLEES[text]
    words = text[:_MOST_CHARACTERS].rstrip(">").split(" ")
    name, of = (words[2] if len(words) > 2 else ""), " ".join(words[4:])
    if name == "acquire" or (name in ("wait", "poll", "select", "sleep", "print", "run_backward")):
        return _LAST_WORDS[name]
    if name in ("write", "flush"):
        return K.LOGGING
    return K.DISPATCH if of.startswith(("type object", "torch.", "Tensor object", "module torch")) else K.UNKNOWN


def _event(text: str) -> FrameKind:
    """Return the kind of a callee as written in the program, or of an event."""
    if text in _CALLEES:
        return _CALLEES[text]
    for beginning, kind in _BEGINNINGS:
        if text.startswith(beginning):
            return kind
    if any(word in text for word in _COMPILING):
        return K.COMPILER
    if any(word in text for word in _WAITING) and "pjrt" in text.lower():
        return K.DEVICE_WAIT
    return _callee(text)


def _callee(text: str) -> FrameKind:
    receiver, _, name = text.rpartition(".")
    if text in _CALLEES:
        return _CALLEES[text]
    if name in _LAST_WORDS and not (name == "select" and receiver in ("torch", "jnp")):
        return _LAST_WORDS[name]
    if name.startswith("_single_device_array_to_np_array"):
        return K.DEVICE_READ
    return _RECEIVERS.get(receiver.lstrip("_"), K.UNKNOWN) if receiver else K.UNKNOWN
