"""Records the fingerprints of a PyTorch program: ops of sampled steps, states of every step."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from perfscope.plugins.fingerprint.document import CALL, OPTIMIZER, RETURN, Log, combined
from perfscope.plugins.fingerprint.states import host_generators
from perfscope.plugins.fingerprint.torch.measure import Tables, to_host
from perfscope.plugins.fingerprint.torch.step import Place, RunningOp, StepLog
from perfscope.plugins.fingerprint.torch.unwritten import Storages, Unwritten
from perfscope.plugins.fingerprint.torch.watch import Watch, all_tensors, default_generator, state_hash
from perfscope.profiler.patching import Undo, wrap
from perfscope.profiler.session.process_state import why_no_structure
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.op_graph.capture import insert_lowest, keep_in_inference_mode, remove_mode
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.op_graph.recorder import ModuleStack

COMPILES = (
    "the program calls torch.compile: ops in what it compiles are not seen; TORCHDYNAMO_DISABLE=1 runs them as they "
    "are written"
)
Moment = Any


class Recorder:
    """Hooks torch from ``start`` to ``stop``."""

    def __init__(self, now: Callable[[], Moment], sampled: Callable[[Moment, bool], bool], log: Log) -> None:
        """``now()``: equal within a step, and different in the next.

        ``sampled``: whether its ops are recorded, given whether gradients are.
        """
        self._now, self._sampled, self._log = now, sampled, log
        self._moment: Moment = None
        self._tables, self._storages = Tables(), Storages()
        self._unwritten = Unwritten(self._storages)
        self._step: StepLog | None = None
        self._ops = False
        """Whether the ops of this step are recorded."""
        self._called = False
        self._stack = ModuleStack()
        self._frames = Frames(torch.__file__, Path.cwd())
        self._watch = Watch(self._frames, self._stack, self._open_log)
        self._on = False
        self._compiles = False
        self._thread = threading.get_ident()
        self._busy = False
        self._depth = 0
        self._trains = False
        """Whether the program records gradients."""
        self._parameters: dict[int, tuple[ref[Any], str]] = {}
        self._undo: list[Undo] = []

    def start(self) -> None:
        """Hook modules and optimizers, and record from here on: the first step begins with the program."""
        enter, leave = self._guarded(self._enter), self._guarded(self._leave)
        before = self._guarded(self._optimizer_steps)
        self._undo = [
            modules.register_module_forward_pre_hook(lambda module, given: enter(module, given)).remove,
            modules.register_module_forward_hook(lambda *called: leave(*called), always_call=True).remove,
            optimizers.register_optimizer_step_pre_hook(lambda optimizer, *_: before(optimizer)).remove,
            wrap(torch, "compile", self._compiling),
            keep_in_inference_mode(lambda: self._on and threading.get_ident() == self._thread),
        ]
        self._new_step()
        self._choose_mode()

    def step_begins(self) -> None:
        """A step begins."""
        self._guarded(self._boundary)()

    def stop(self) -> None:
        """Keep the step that has begun, and restore torch."""
        self._guarded(self._flush)()
        self._set_mode(on=False)
        while self._undo:
            self._undo.pop()()
        if self._watch.failure:
            self._log.note(self._watch.failure)

    def silence(self) -> None:
        """Record nothing more; the hooks stay."""
        self._busy = True
        self._step = None

    def _open_log(self) -> StepLog | None:
        """The log of ops of now: of the program's own, in a sampled step."""
        if self._busy or not self._ops:
            return None
        if self._moment != self._now():
            self._guarded(self._new_step)()  # the mode is off the stack here, and goes back
        return self._step if self._ops else None

    def _guarded(self, record: Callable[..., None]) -> Callable[..., None]:
        """Keep our errors from the program, and our own ops out of the record."""

        @functools.wraps(record)
        def call(*arguments: Any) -> None:
            if compat.is_compiling() or self._busy or threading.get_ident() != self._thread:
                return
            self._busy = True
            self._trains = torch.is_grad_enabled()
            try:
                if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                    with torch.no_grad():
                        record(*arguments)
            except Exception as error:
                self._log.note(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            finally:
                self._busy = False

        return call

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(*arguments: Any, **named: Any) -> Any:
            self._compiles = True
            self._log.note(COMPILES)
            self._set_mode(on=False)
            return original(*arguments, **named)

        return compile_

    def _boundary(self) -> None:
        """Handle a possible begin of another step."""
        if self._now() != self._moment:
            self._new_step()
        self._choose_mode()

    def _new_step(self) -> None:
        self._flush()
        self._moment = self._now()
        self._called = False
        self._step = StepLog(self._tables, self._storages, self._unwritten)
        self._ops = self._sampled(self._moment, self._trains) and not self._log.full

    def _choose_mode(self) -> None:
        on = self._ops and not self._compiles
        if on and not self._on and (reason := why_no_structure()) is not None:
            self._log.note(reason)
            on = False
        self._set_mode(on=on)

    def _set_mode(self, *, on: bool) -> None:
        if on and not self._on:
            insert_lowest(self._watch)
        elif self._on and not on:
            remove_mode(self._watch)
        self._on = on

    def _flush(self) -> None:
        step, self._step = self._step, None
        if step is None or not step.ops:
            return
        if step.left:
            self._log.note(f"{step.left:,} ops of a step beyond the first {len(step.ops):,} are not recorded")
        self._log.add(self._moment, step.lines(), sampled=self._ops)

    def _enter(self, module: Any, given: Any) -> None:
        if self._depth == 0:
            self._boundary()
            self._model_called(module, given)
        self._depth += 1
        self._stack.enter(module)

    def _leave(self, module: Any, _given: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        self._stack.leave(module)
        if self._depth == 0 and self._ops:
            self._add(RETURN, self._stack.name(module), (("output", tensor) for tensor in all_tensors(output)))

    def _model_called(self, module: Any, given: Any) -> None:
        """The states with which a step begins, at its first call of a model; then what each call is given."""
        first, self._called = not self._called, True
        for name, parameter in module.named_parameters():
            self._parameters[id(parameter)] = ref(parameter), name
        inputs = ((f"input {index}", tensor) for index, tensor in enumerate(all_tensors(given)))
        if not first:
            if self._ops:
                self._add(CALL, type(module).__name__, inputs)
            return
        state = [
            *((f"parameter {name}", tensor) for name, tensor in module.named_parameters()),
            *((f"buffer {name}", tensor) for name, tensor in module.named_buffers()),
        ]
        self._add(CALL, type(module).__name__, iter((*state, *inputs)), generators=True)

    def _optimizer_steps(self, optimizer: Any) -> None:
        """Gradients, and the optimizer's own state, before it steps."""
        self._boundary()
        rows: list[tuple[str, Any]] = []
        known: set[str] = set()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            name = self._name(parameter) or str(number)
            name = f"{name} #{number}" if name in known else name  # of another model
            known.add(name)
            if parameter.grad is not None:
                rows.append((f"gradient {name}", parameter.grad))
            for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=str):
                if isinstance(value, torch.Tensor):
                    rows.append((f"{key} {name}", value))
        self._add(
            OPTIMIZER, type(optimizer).__name__, ((name, one) for name, value in rows for one in all_tensors(value))
        )

    def _name(self, parameter: Any) -> str:
        known = self._parameters.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else ""

    def _add(self, name: str, module: str, tensors: Iterator[tuple[str, Any]], *, generators: bool = False) -> None:
        """Add a moment; in a step that is not sampled one hash for all values of a kind."""
        step = self._step
        if step is None:
            return
        op = RunningOp(name, Place(self._line(), module))
        if generators:
            for what, hashed in (*self._generators(), *host_generators()):
                op.reads.append(step.number(hashed, "generator"))
                op.roles.append(f"generator {what}")
        if self._ops:
            for what, tensor in tensors:
                number = step.read(tensor.detach())
                if number is not None:
                    op.reads.append(number)
                    op.roles.append(what)
        else:
            self._add_kinds(step, op, tensors)
        step.add(op)

    def _add_kinds(self, step: StepLog, op: RunningOp, tensors: Iterator[tuple[str, Any]]) -> None:
        kinds: dict[str, list[Any]] = {}
        for what, tensor in tensors:
            if tensor.layout is torch.strided and tensor.numel():
                kinds.setdefault(what.partition(" ")[0], []).append(self._tables.measure(tensor, sketch=False))
        for kind, measured in kinds.items():
            to_host(measured)
            op.reads.append(step.number(combined(item.hash & ((1 << 64) - 1) for item in measured), "several"))
            op.roles.append(kind)

    def _generators(self) -> Iterator[tuple[str, int]]:
        yield "cpu", state_hash(default_generator(torch.device("cpu")))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            yield "cuda", state_hash(default_generator(torch.device("cuda")))

    def _line(self) -> str:
        site = self._frames.site(sys._getframe(2))
        return f"{site.file}:{site.line}" if site.file else ""


def settings() -> dict[str, str]:
    """Settings of torch that change results in their last bits."""
    found = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 products": torch.get_float32_matmul_precision(),
        "default dtype": torch.get_default_dtype(),
        "mkldnn": torch.backends.mkldnn.enabled,
    }
    if torch.cuda.is_available():
        found["cudnn benchmark"] = torch.backends.cudnn.benchmark
        found["cudnn deterministic"] = torch.backends.cudnn.deterministic
        found["device"] = torch.cuda.get_device_name() if torch.cuda.is_initialized() else ""
    return {name: str(value).removeprefix("torch.") for name, value in found.items()}
