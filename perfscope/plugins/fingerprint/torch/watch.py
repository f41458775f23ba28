"""The dispatch mode that records each op below autograd with its values."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.plugins.fingerprint.torch.step import Place, RunningOp, StepLog
from perfscope.plugins.fingerprint.torch.unwritten import EMPTY, LEFT_OPEN, PARTIAL
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.op_graph.recorder import ModuleStack, OpFacts, facts_of, tensors_in, unwraps

OVERWRITES = frozenset(
    (
        *("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_"),
        *("random_", "uniform_", "zero_"),
    )
)
"""Ops that write their first argument without reading it."""
_RANDOM = torch.Tag.nondeterministic_seeded
MOST_TEXT = 200
"""Largest length of the text of an op's arguments."""


class Watch(TorchDispatchMode):  # type: ignore[misc] # torch is not followed
    """Records into ``log()`` while it is on the stack of modes; nothing where that is ``None``."""

    supports_higher_order_operators = True

    def __init__(self, frames: Frames, modules: ModuleStack, log: Callable[[], StepLog | None]) -> None:
        super().__init__()
        self.failure: str | None = None
        self._frames, self._modules, self._log = frames, modules, log
        self._facts: dict[Any, tuple[OpFacts, str, bool]] = {}
        self._lock = threading.RLock()
        self._sequence = compat.next_sequence()
        self._made_by: dict[int, tuple[str, str]] = {}
        """Number of an autograd node -> line and module of its forward op."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled: only the ops they still dispatch are seen."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(unwraps, types)):
            return NotImplemented  # the subclass takes its tensors apart, and the ops on the parts are seen
        log = self._log()
        if log is None:
            return func(*args, **kwargs)
        facts, name, random = self._facts_of(func)
        if facts.view or name.startswith("profiler."):
            result = func(*args, **kwargs)
            with self._lock, torch.no_grad():
                self._guarded(self._moved, log, name, result)
            return result
        with self._lock, torch.no_grad():
            op = self._guarded(self._before, log, facts, name, random, args, kwargs)
        result = func(*args, **kwargs)
        if op is not None:
            with self._lock, torch.no_grad():
                self._guarded(self._after, log, op, func, args, kwargs, result)
        return result

    def _guarded(self, record: Callable[..., Any], *given: Any) -> Any:
        """Keep our errors from the program."""
        try:
            return record(*given)
        except Exception as error:
            self.failure = self.failure or f"ops: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None

    def _facts_of(self, func: Any) -> tuple[OpFacts, str, bool]:
        known = self._facts.get(func)
        if known is None:
            facts = facts_of(func)
            name = facts.packet.removeprefix("aten.")
            known = self._facts[func] = facts, name, _RANDOM in getattr(func, "tags", ())
        return known

    def _moved(self, log: StepLog, name: str, result: Any) -> None:
        """After an op that makes no values."""
        if name in EMPTY:
            for tensor in tensors_in(result):
                log.allocated(tensor)
        elif compat.next_sequence() > self._sequence:
            self._number_nodes(self._place())

    def _before(self, log: StepLog, facts: OpFacts, name: str, random: bool, args: Any, kwargs: Any) -> RunningOp:
        """The op with its inputs."""
        named = {**dict(zip(facts.arguments, args, strict=False)), **kwargs}
        unread = _unread(facts, name, named)
        op = RunningOp(name, self._place(), _text(named))
        for tensor in tensors_in((args, kwargs)):
            if not any(tensor is other for other in unread):
                number = log.read(tensor)
                if number is not None:
                    op.reads.append(number)
        if random:
            number = _generator(log, named, args)
            if number is not None:
                op.reads.append(number)
        return op

    def _place(self) -> Place:
        """Line, module and phase; those of a backward op are of the forward op that made its node."""
        site = self._frames.site(sys._getframe(4))
        line, module = f"{site.file}:{site.line}" if site.file else "", self._modules.innermost()
        node = compat.running_node()
        if node is None:
            return Place(line, module, "optimizer" if site.optimizer_before_user else "")
        if site.engine_before_user:
            line, module = self._made_by.get(compat.sequence_of(node), (line, module))
        return Place(line, module, "backward")

    def _after(self, log: StepLog, op: RunningOp, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        facts, name, _ = self._facts_of(func)
        named = {**dict(zip(facts.arguments, args, strict=False)), **kwargs}
        written = [tensor for argument in facts.written for tensor in tensors_in(named.get(argument))]
        if not log.add(op):
            return
        if name.startswith("c10d."):
            for tensor in written:
                log.later(tensor, op)
            return
        partial = name in PARTIAL and not kwargs.get("accumulate") and log.stored(args[0])
        outputs = [log.partly(func, args, kwargs) if partial else log.write(tensor) for tensor in written]
        seen = {id(tensor) for tensor in written}
        open_ = LEFT_OPEN.get(name, ())
        parts = enumerate(result if isinstance(result, tuple | list) else (result,))
        new = [(position, tensor) for position, part in parts for tensor in tensors_in(part) if id(tensor) not in seen]
        outputs += [log.made(tensor, open_=position in open_) for position, tensor in new]
        op.makes += [number for number in outputs if number is not None]
        self._number_nodes(op.place)

    def _number_nodes(self, place: Place) -> None:
        """Remember the place of an op for the autograd nodes that were made since the last one."""
        if threading.current_thread() is not threading.main_thread():
            return  # each thread has its own numbers
        upcoming = compat.next_sequence()
        if place.line:
            self._made_by.update((number, (place.line, place.module)) for number in range(self._sequence, upcoming))
        self._sequence = upcoming


def _unread(facts: OpFacts, name: str, named: dict[str, Any]) -> list[Any]:
    """Tensors that the op writes without reading."""
    unread = [tensor for argument in facts.written if argument == "out" for tensor in tensors_in(named.get(argument))]
    if facts.name.endswith("out"):
        unread += [tensor for argument in facts.written for tensor in tensors_in(named.get(argument))]
    if name in OVERWRITES and facts.arguments:
        unread.append(named.get(facts.arguments[0]))
    return unread


def _text(named: dict[str, Any]) -> str:
    """The arguments that are plain values."""
    parts = [f"{key}={text}" for key, value in named.items() if (text := _plain(value)) is not None]
    return ", ".join(parts)[:MOST_TEXT]


def _plain(value: Any) -> str | None:
    """A number, text or type, or a list of these; ``None`` for everything else."""
    if isinstance(value, bool | int | float | str | torch.dtype | torch.memory_format):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple) and value and all(isinstance(part, bool | int | float) for part in value):
        return str(list(value))
    return None


def _generator(log: StepLog, named: dict[str, Any], args: Any) -> int | None:
    """The state of the random generator that an op uses."""
    generator = named.get("generator")
    if generator is None:
        generator = default_generator(_device(named, args))
    if generator is None:
        return None
    return log.number(state_hash(generator), "generator")


def _device(named: dict[str, Any], args: Any) -> torch.device:
    first = next(tensors_in(args), None)
    given = named.get("device")
    return torch.device(given if given is not None else "cpu" if first is None else first.device)


def default_generator(device: torch.device) -> Any:
    """The generator of a device that programs use without naming one; ``None`` if unknown."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda" and torch.cuda.default_generators:
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return None


def state_hash(generator: Any) -> int:
    """Hash of the state of a generator of torch."""
    import hashlib

    state = bytes(generator.get_state().numpy())
    return int.from_bytes(hashlib.blake2b(state, digest_size=8).digest(), "big")


def all_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Dense tensors of a nested value, those that wrappers hold too."""
    for tensor in tensors_in(value):
        local = getattr(tensor, "to_local", None)  # a DTensor
        yield tensor if local is None else local()
