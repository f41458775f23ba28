"""Answers of ``torch.cuda`` and ``torch.accelerator`` for a planned program: a device like the target, always idle."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from perfscope.model.documents.torch_plan import StepPosition
from perfscope.plugins.ahead.torch import compat

_NOTHING = (
    "empty_cache", "set_device", "init", "_lazy_init", "manual_seed", "manual_seed_all", "ipc_collect",
    "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated", "seed",
    "seed_all", "set_per_process_memory_fraction",
)  # fmt: skip
_ZERO = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "current_device",
    "utilization", "memory_cached", "max_memory_cached",
)  # fmt: skip
_CONSTRUCTORS = ("tensor", "as_tensor", "asarray")
"""Functions of torch that would call the driver if their device is ``cuda``."""
_FACTORIES = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "zeros")
"""Functions of torch that would call the driver if their device is a number."""

BEGIN = StepPosition(ops=0)

MAX_HEAD_SIZE = 256
"""Largest head size of the flash kernels, in features."""
FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""float32 is supported by the memory-efficient kernel."""


class FakeCuda:
    """Installs the answers in this process; inside ``hidden()`` no device is reported.

    ``capability``: ``(9, 0)``; ``memory_bytes`` and ``cores`` of the target, 0 if unknown. ``on_device(tensor)`` is
    called with each tensor requested on ``cuda``. ``compiling()`` returns whether dynamo is the caller.
    """

    def __init__(
        self,
        *,
        name: str,
        count: int,
        memory_bytes: int,
        cores: int,
        capability: tuple[int, int],
        on_device: Callable[[Any], None],
        compiling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._on_device = on_device
        self._compiling = compiling
        self.name, self.count, self.memory_bytes, self.cores, self.capability = (
            name, count, memory_bytes, cores, capability,
        )  # fmt: skip
        self._truth: list[tuple[Any, str, Any]] = []
        self.autocast = False
        """Whether the program entered ``autocast`` for CUDA, which keeps other ops in float32 than the CPU's."""

    def install(self) -> None:
        """Change ``torch.cuda`` and ``torch.accelerator`` permanently."""
        answers = [(torch.cuda, self._answers()), (torch.accelerator, self._accelerator_answers())]
        for module, named in answers:
            for name, answer in named.items():
                if hasattr(module, name):
                    self._truth.append((module, name, getattr(module, name)))
                    setattr(module, name, answer)
        host: Any = torch.cpu
        for name, answer in CLOCK.answers().items():
            if hasattr(host, name):  # FSDP2 uses the streams of the tensors' device
                setattr(host, name, answer)
        torch.Generator = _Generator
        torch.Tensor.pin_memory = lambda tensor, *_: tensor
        _move_requests_to_host(self._on_device)
        self._autocast_on_host()
        _load_data_in_process()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Inside, no GPU is reported, for torch's own compiler."""
        shown = [(module, name, getattr(module, name)) for module, name, _ in self._truth]
        for module, name, answer in self._truth:
            setattr(module, name, answer)
        try:
            yield
        finally:
            for module, name, answer in shown:
                setattr(module, name, answer)

    def _autocast_on_host(self) -> None:
        """``autocast("cuda")`` applies to tensors made on the CPU here."""
        kind: Any = torch.autocast
        original, answers = kind.__init__, self

        @functools.wraps(original)
        def begin(context: Any, device_type: str, *arguments: Any, **named: Any) -> None:
            if device_type.startswith("cuda"):
                answers.autocast = True
                device_type = "cpu"
            original(context, device_type, *arguments, **named)

        kind.__init__ = begin

    def _answers(self) -> dict[str, Any]:
        return {
            **dict.fromkeys(_NOTHING, _nothing),
            **dict.fromkeys(_ZERO, _zero),
            "is_available": _true,
            "is_initialized": _true,
            "device_count": lambda: self.count,
            "is_current_stream_capturing": _false,  # a build with CUDA would call the driver for it
            "is_bf16_supported": lambda *_, **__: self.capability >= (8, 0),
            "get_device_name": lambda *_: self.name,
            "get_device_capability": lambda *_: self.capability,
            "get_device_properties": lambda *_: self.properties(),
            "mem_get_info": lambda *_: (self.memory_bytes, self.memory_bytes),
            "memory_stats": lambda *_: {},
            "memory_summary": lambda *_, **__: "",
            "get_arch_list": lambda: [f"sm_{self.capability[0]}{self.capability[1]}"],
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "set_rng_state": _nothing,
            "get_rng_state_all": list,
            "device": nullcontext,
            "synchronize": CLOCK.synchronize,
            **CLOCK.answers(),
        }

    def _accelerator_answers(self) -> dict[str, Any]:
        """As `_answers`; dynamo sees no accelerator, because it would put the current stream into its graphs."""
        return {
            **dict.fromkeys(_NOTHING, _nothing),
            **dict.fromkeys(_ZERO, _zero),
            "is_available": lambda: not self._compiling(),
            "device_count": lambda: 0 if self._compiling() else self.count,
            "current_accelerator": lambda *_, **__: None if self._compiling() else torch.device("cuda"),
            "current_device_index": _zero,
            "current_device_idx": _zero,
            "set_device_index": _nothing,
            "set_device_idx": _nothing,
            "device_index": nullcontext,
            "memory_stats": lambda *_: {},
            "get_memory_info": lambda *_: (self.memory_bytes, self.memory_bytes),
            "current_stream": lambda *_: CLOCK.current,
            "set_stream": lambda stream: CLOCK.set_current(stream),  # dynamo refuses one function with two names
            "synchronize": lambda *_: CLOCK.synchronize(),
        }

    def properties(self) -> SimpleNamespace:
        """Result of ``get_device_properties``; registers and threads as on NVIDIA GPUs since Volta, except Turing."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name,
            major=major,
            minor=minor,
            total_memory=self.memory_bytes,
            multi_processor_count=self.cores,
            is_integrated=0,
            gcnArchName=self.name,
            warp_size=32,
            regs_per_multiprocessor=65536,
            max_threads_per_multi_processor=2048,
            max_threads_per_block=1024,
        )


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _true(*_: Any) -> bool:
    return True


def _false(*_: Any) -> bool:
    return False


def on_host(argument: Any) -> Any:
    """The CPU for a CUDA device; any other value unchanged."""
    if isinstance(argument, str):
        return "cpu" if argument == "cuda" or argument.startswith("cuda:") else argument
    return torch.device("cpu") if isinstance(argument, torch.device) and argument.type == "cuda" else argument


def _device_on_host(argument: Any) -> Any:
    """As `on_host`, also for a device number, as in `tensor.to(rank)`."""
    return "cpu" if type(argument) is int else on_host(argument)


def _move_requests_to_host(on_device: Callable[[Any], None]) -> None:
    """Make tensors requested on ``cuda`` on the CPU, if torch would call the driver before a mode sees the request.

    ``on_device(tensor)`` is called with each such tensor.
    """
    tensor: Any = torch.Tensor
    module: Any = torch.nn.Module
    to, module_to = tensor.to, module.to

    @functools.wraps(to)
    def moved(self: Any, *arguments: Any, **named: Any) -> Any:
        here = {name: _device_on_host(value) for name, value in named.items()}
        there = to(self, *map(_device_on_host, arguments), **here)
        if not torch.compiler.is_compiling() and any(
            _device_on_host(argument) is not argument for argument in (*arguments, *named.values())
        ):
            on_device(there)
        return there

    def to_cuda(self: Any, device: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        return moved(self, "cuda", non_blocking=non_blocking, copy=True)

    @functools.wraps(module_to)
    def module_moved(self: Any, *arguments: Any, **named: Any) -> Any:
        if arguments and type(arguments[0]) is int:
            arguments = ("cuda", *arguments[1:])
        elif type(named.get("device")) is int:
            named["device"] = "cuda"
        return module_to(self, *arguments, **named)

    tensor.to, tensor.cuda = moved, to_cuda
    module.to, module.cuda = module_moved, lambda self, *_: self.to("cuda")
    for name in (*_CONSTRUCTORS, *_FACTORIES):
        original = getattr(torch, name)
        made = _constructed_on_host(original, on_device) if name in _CONSTRUCTORS else _device_by_name(original)
        compat.register_for_script(original, made)
        setattr(torch, name, made)


def _constructed_on_host(original: Any, on_device: Callable[[Any], None]) -> Any:
    @functools.wraps(original)
    def made(*arguments: Any, **named: Any) -> Any:
        requested = named.get("device")
        here = _device_on_host(requested)
        if here is requested:
            return original(*arguments, **named)
        there = original(*arguments, **{**named, "device": here})
        if not torch.compiler.is_compiling():
            on_device(there)
        return there

    return made


def _device_by_name(original: Any) -> Any:
    @functools.wraps(original)
    def made(*arguments: Any, **named: Any) -> Any:
        if type(named.get("device")) is int:
            named["device"] = "cuda"
        return original(*arguments, **named)

    return made


class _Generator(torch.Generator):  # type: ignore[misc]
    """A CPU generator, whatever its device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Create it."""
        return super().__new__(cls, "cpu")


def _load_data_in_process() -> None:
    """Disable workers of a ``DataLoader``, which would make real data in other processes."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def alone(*arguments: Any, **named: Any) -> None:
        options = signature.bind(*arguments, **named).arguments
        for needs_workers in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            options.pop(needs_workers, None)
        original(**{**options, "num_workers": 0, "pin_memory": False})

    DataLoader.__init__ = alone


# Streams and events, as the work that each has waited for.
#
# Nothing runs, so a stream is only the work that later work on it would wait for: the program's own work up to a
# position, and collectives. Work other than collectives counts for the program's (first) stream, whichever stream it is
# given to.

StreamState = tuple[StepPosition, frozenset[int]]
"""(position of the program's own work, collectives) that must be done."""


class StreamClock:
    """The streams of this process, those of `CLOCK`."""

    def __init__(self) -> None:
        self.now: Callable[[], StepPosition] = lambda: BEGIN
        """The position in the step."""
        self.waited: Callable[[int], None] = lambda collective: None
        """Called when the program's stream waits for a collective from now on."""
        self.begun: Callable[[], int] = lambda: 0
        """Number of collectives requested by the step so far."""
        self.step = 0
        self.main: Any = None
        self.current: Any = None

    def begin(self) -> None:
        """Begin a step: earlier work is done."""
        self.step += 1

    def seen(self) -> StreamState:
        """The work that a request made now would wait for."""
        state: StreamState = self.current.seen()
        return state

    def synchronize(self, *_: Any) -> None:
        """The host waits for the device."""
        for collective in range(self.begun()):
            self.waited(collective)

    def set_current(self, stream: Any) -> None:
        """Replacement of ``torch.cuda.set_stream``."""
        self.current = stream

    @contextmanager
    def on(self, stream: Any = None) -> Iterator[None]:
        """Replacement of ``torch.cuda.stream``."""
        before = self.current
        if isinstance(stream, Stream):
            self.current = stream
        try:
            yield
        finally:
            self.current = before

    def answers(self) -> dict[str, Any]:
        """Replacements of the classes in ``torch.cuda`` and ``torch.cpu``."""
        functions = {
            "current_stream": lambda *_, **__: self.current,
            "default_stream": lambda *_, **__: self.main,
            "stream": self.on,
            "set_stream": self.set_current,
        }
        hidden = {name: torch.compiler.disable(function) for name, function in functions.items()}
        return {"Stream": Stream, "Event": Event, **hidden}


CLOCK = StreamClock()


class _Marked:
    """Work that must be done at a mark; empty in later steps."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._step = -1
        self._seen: StreamState = (BEGIN, frozenset())

    def seen(self) -> StreamState:
        """The work that later work waits for."""
        return self._seen if self._step == CLOCK.step else (BEGIN, frozenset())

    def mark(self, seen: StreamState) -> None:
        """Set the mark to the current state."""
        self._step, self._seen = CLOCK.step, seen

    def synchronize(self) -> None:
        """The host waits, so its later requests come after."""
        CLOCK.main.waits_for(self.seen())

    def query(self) -> bool:
        """Return True: idle, or reached."""
        return True

    def is_capturing(self) -> bool:
        """Return False: no CUDA graph is captured."""
        return False


class Stream(_Marked):
    """Replaces ``torch.cuda.Stream``: what work given to it next would wait for."""

    cuda_stream = 0

    def seen(self) -> StreamState:
        """For the program's stream: all of its work so far."""
        return (CLOCK.now(), frozenset()) if self is CLOCK.main else super().seen()

    def waits_for(self, seen: StreamState) -> None:
        """Wait for a collective from now on."""
        position, collectives = seen
        if self is CLOCK.main:
            for collective in sorted(collectives):
                CLOCK.waited(collective)
            return
        own, others = self.seen()
        latest = max(own, position, key=lambda position: position.ops + position.runs)
        self.mark((latest, others | collectives))

    def wait_stream(self, other: Any) -> None:
        """As in torch; also for an event."""
        if isinstance(other, _Marked):
            self.waits_for(other.seen())

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> Event:
        """As in torch."""
        recorded = event if isinstance(event, Event) else Event()
        recorded.record(self)
        return recorded


CLOCK.main = CLOCK.current = Stream()


class Event(_Marked):
    """Replaces ``torch.cuda.Event``: a position on a stream."""

    def record(self, stream: Any = None) -> None:
        """As in torch."""
        self.mark((stream if isinstance(stream, Stream) else CLOCK.current).seen())

    def wait(self, stream: Any = None) -> None:
        """As in torch."""
        (stream if isinstance(stream, Stream) else CLOCK.current).wait_event(self)

    def elapsed_time(self, other: Any) -> float:
        """Return 0 ms: no time passes."""
        return 0.0


# The path of ``scaled_dot_product_attention`` on the target instead of this machine.
#
# Torch chooses in C++ on the device, and a torch without CUDA would choose for a CPU. The rule here follows torch's
# documentation of its fused kernels for CUDA (flash, memory-efficient, cuDNN). A fused path is planned as torch's one
# fused kernel for the CPU, with the same traffic: queries, keys, values, output and the logarithms of the sums.


class AttentionRule:
    """Counts the calls per path; ``math``: separate ops, because no fused kernel supports the call."""

    def __init__(self) -> None:
        self.paths: Counter[str] = Counter()
        self._library: Any = None
        self._math: Any = None

    def install(self) -> None:
        """Register the rule for the tensors that represent those of the device, over torch's own choice."""
        self._library = torch.library.Library("aten", "IMPL")
        for key in ("CPU", "AutogradCPU"):
            self._library.impl("scaled_dot_product_attention", self._attend, key, allow_override=True)

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        why = fusion_refusal(query, key, value)
        if why is not None:
            self.paths[why] += 1
            return compat.attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        self.paths["fused"] += 1
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
        # Dropout is drawn inside the fused kernels of the device, without additional traffic.
        return compat.attention_fused(query, key, value, attn_mask, is_causal, scale)


def fusion_refusal(query: Any, key: Any, value: Any) -> str | None:
    """Why no fused kernel of the target supports the call, or ``None``."""
    backends = torch.backends.cuda
    if not (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled() or backends.cudnn_sdp_enabled()):
        return "the program allows the math path only (sdpa_kernel)"
    if query.dtype not in FUSED_DTYPES:
        return f"{str(query.dtype).removeprefix('torch.')} has no fused kernel"
    if query.dim() != 4:
        return f"{query.dim()} dimensions; the fused kernels take 4"
    if query.shape[-1] > MAX_HEAD_SIZE:
        return f"{int(query.shape[-1])} features a head; the flash kernels take {MAX_HEAD_SIZE}"
    if query.shape[-1] != value.shape[-1]:
        return "queries and values differ in their features"
    return None
