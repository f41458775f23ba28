"""Records the numerics of a PyTorch program: tensors by hooks, ops in some steps by a dispatch mode, loss scalers.

Values computed from a tensor stay on its device until the step ends; then they are copied to the host in one transfer
per device. No tensor of the program is kept alive.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.hooks import unserializable_hook

from perfscope.plugins.numerics.document import Kind, Nonfinite, Numerics, PrecisionLoss, State, StepValues
from perfscope.plugins.numerics.history import History, Moment, TensorKey, state_of
from perfscope.plugins.numerics.products import Products
from perfscope.plugins.numerics.torch.ops import OpResult, OpWatch, made_nonfinite
from perfscope.plugins.numerics.torch.products import ProductWatch
from perfscope.plugins.numerics.torch.statistics import HALF, counts, extremes, plain
from perfscope.profiler.patching import Undo, wrap
from perfscope.profiler.session.process_state import why_no_structure
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.module_calls import torch_tensors
from perfscope.profiler.torch.op_graph.capture import insert_lowest, remove_mode
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.op_graph.recorder import ModuleStack

FIRST_COUNTED = 2
COUNTED_EVERY = 10
"""Values are counted and ops watched in this many first steps, and then in every such one."""
WATCHED_AFTER = 2
"""Steps whose ops are watched after a tensor was not finite in a step without watched ops."""
MOST_PENDING = 20_000
"""Most tensors of a step per transfer."""
MOST_OUTPUTS = 8
"""Most tensors of one output."""
MOST_UPDATED = 1 << 16
"""Most elements of a parameter whose update is examined."""


@dataclass(slots=True)
class Pending:
    """A tensor of this step, whose numbers are still on its device."""

    key: TensorKey
    numbers: torch.Tensor
    elements: int
    scaled: bool
    ops: int
    """Results of ops before it."""


@dataclass(slots=True)
class Step:
    """Records since the last transfer."""

    tensors: list[Pending] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    """Norms."""
    updates: list[tuple[str, str, torch.Tensor]] = field(default_factory=list)
    """(Parameter, dtype, [elements that did not change, elements that should have])."""


class Recorder:
    """Hooks torch from ``start`` to ``stop``. Methods are called on the thread that made it."""

    def __init__(self, now: Callable[[], Moment], *, every_step: bool = False) -> None:
        """``now()``: equal within a step, and different in the next. ``every_step``: watch the ops of each step."""
        self._every = 1 if every_step else COUNTED_EVERY
        self._now = now
        self.scaler_updates = 0
        """Steps that end with the update of a loss scaler, including those whose optimizer step it skips."""
        self._moment: Moment = (now(), 0)
        self._history = History("torch")
        self._step = Step()
        self._ordinal = 0
        self._counted_until = FIRST_COUNTED
        self._watch: OpWatch | None = None
        self._stack = ModuleStack()
        self._frames = Frames(torch.__file__, Path.cwd())
        self._thread = threading.get_ident()
        self._busy = False
        self._depth = 0
        self._compiles = False
        self._adopted: dict[int, ref[Any]] = {}
        """Modules whose parameters have names and hooks."""
        self._parameters: dict[int, tuple[ref[Any], str]] = {}
        self._before: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
        self._last: Callable[[], Any] = lambda: None
        self._scalers: WeakSet[Any] = WeakSet()
        self._scaled: set[int] = set()
        self._undo: list[Undo] = []

    def start(self) -> None:
        """Hook modules, optimizers, ``backward`` and loss scalers."""
        enter, leave, backward = self._guarded(self._enter), self._guarded(self._leave), self._guarded(self._backward)
        step, stepped = self._guarded(self._optimizer_steps), self._guarded(self._optimizer_stepped)
        self._undo = [
            modules.register_module_forward_pre_hook(lambda module, given: enter(module, given)).remove,
            modules.register_module_forward_hook(lambda *called: leave(*called), always_call=True).remove,
            optimizers.register_optimizer_step_pre_hook(lambda optimizer, *_: step(optimizer)).remove,
            optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: stepped(optimizer)).remove,
            wrap(torch.Tensor, "backward", _called_before(backward)),
            wrap(torch, "compile", self._compiling),
            wrap(torch.amp.GradScaler, "scale", self._scaling),
            wrap(torch.amp.GradScaler, "update", self._updating),
        ]

    def stop(self) -> None:
        """Store pending values, and restore torch."""
        self._guarded(self._flush)()
        while self._undo:
            self._undo.pop()()

    def silence(self) -> None:
        """Record nothing more; the hooks stay."""
        self._busy = True

    def document(self, number: Callable[[Moment], int], steps_seen: int) -> Numerics:
        """All values so far; ``number``: step of a moment."""
        return self._history.document(number, steps_seen)

    @property
    def _counts(self) -> bool:
        """Whether values are counted and ops watched in this step."""
        return self._ordinal < self._counted_until or self._ordinal % self._every == 0

    def _guarded(self, record: Callable[..., None], *, any_thread: bool = False) -> Callable[..., None]:
        """Keep our errors from the program, and our computations out of the records.

        ``any_thread``: also on threads of the autograd engine, which run while the program's own waits for them.
        """

        @functools.wraps(record)
        def call(*arguments: Any) -> None:
            if compat.is_compiling() or self._busy:
                return
            if not any_thread and threading.get_ident() != self._thread:
                return
            self._busy = True
            try:
                if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                    with torch.no_grad():
                        record(*arguments)
            except Exception as error:
                self._history.note(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            finally:
                self._busy = False

        unserializable_hook(call)  # saving a tensor gives no warning
        return call

    def _enter(self, module: Any, given: Any) -> None:
        outermost = self._depth == 0
        if outermost:
            self._boundary()
        self._depth += 1
        self._stack.enter(module)
        if outermost:
            for number, tensor in enumerate(list(torch_tensors(given))[:MOST_OUTPUTS]):
                self._take("input", f"{self._stack.name(module)}, input {number}", tensor, type(module).__name__)
            self._begin_watching()
        known = self._adopted.get(id(module))
        if known is None or known() is not module:
            self._adopted[id(module)] = ref(module)
            self._adopt(module)

    def _adopt(self, module: Any) -> None:
        """Name the parameters of a module and hook their gradients, except for hooks that compiled code ignores."""
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in self._parameters and self._parameters[id(parameter)][0]() is parameter:
                continue
            known = f"{self._stack.name(module)}.{name}"
            self._parameters[id(parameter)] = ref(parameter), known
            if parameter.requires_grad and parameter.is_leaf:
                take = self._guarded(functools.partial(self._accumulated, known), any_thread=True)
                self._undo.append(parameter.register_post_accumulate_grad_hook(take).remove)

    def _accumulated(self, name: str, parameter: Any) -> None:
        self._take("parameter gradient", name, parameter.grad, scaled=bool(self._scalers))

    def _leave(self, module: Any, _given: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        name, kind = self._stack.name(module), type(module).__name__
        self._stack.leave(module)
        tensors = list(torch_tensors(output))[:MOST_OUTPUTS]
        if not tensors or (len(tensors) == 1 and self._last() is tensors[0]):
            return  # a container that returns the output of its last module
        self._last = ref(tensors[-1])
        for number, tensor in enumerate(tensors):
            named = name if len(tensors) == 1 else f"{name}, output {number}"
            self._take("output", named, tensor, kind)
            if tensor.requires_grad and not (self._compiles and tensor.is_leaf):
                take = functools.partial(self._take, "gradient", named, kind=kind)
                tensor.register_hook(self._guarded(take, any_thread=True))

    def _take(self, what: Kind, name: str, tensor: Any, kind: str = "", *, scaled: bool | None = None) -> None:
        """Compute the recorded values of a tensor, without waiting for the device."""
        values = plain(tensor)
        if values is None:
            return
        key = what, name, kind, str(values.dtype).removeprefix("torch.")
        if self._history.row(key, self._line if what in ("output", "loss") else str) is None:
            return
        numbers = extremes(values)
        if self._counts:
            numbers = torch.cat([numbers, counts(values)])
        gradient = what == "gradient" and bool(self._scalers)
        results = 0 if self._watch is None else len(self._watch.results)
        self._step.tensors.append(
            Pending(key, numbers, values.numel(), gradient if scaled is None else scaled, results)
        )
        if len(self._step.tensors) >= MOST_PENDING:
            self._flush()

    def _line(self) -> str:
        """The user's line that is running."""
        site = self._frames.site(sys._getframe(1))
        return f"{site.file}:{site.line}" if site.file else ""

    def _backward(self, loss: Any) -> None:
        if id(loss) not in self._scaled:
            self._loss(loss)

    def _loss(self, loss: Any) -> None:
        values = plain(loss)
        if values is not None:
            self._take("loss", "loss", loss)
            self._step.losses.append(values.double().mean().reshape(1))

    def _scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        record = self._guarded(self._loss)

        def scale(scaler: Any, outputs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, outputs)
            self._scalers.add(scaler)
            record(outputs)
            scaled = original(scaler, outputs)
            self._scaled.add(id(scaled))
            return scaled

        return scale

    def _updating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: Any, *arguments: Any, **named: Any) -> Any:
            answer = original(scaler, *arguments, **named)
            self.scaler_updates += bool(scaler.is_enabled())
            return answer

        return update

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(*arguments: Any, **named: Any) -> Any:
            if not self._compiles:
                self._compiles = True
                warnings.filterwarnings(
                    "ignore", message=r"Using `torch.compile\(module\)` when there are global hooks"
                )
                self._history.note(
                    "the program calls torch.compile: modules and ops in what it compiles are not seen; "
                    "TORCHDYNAMO_DISABLE=1 runs them as they are written"
                )
            return original(*arguments, **named)

        return compile_

    def _optimizer_steps(self, optimizer: Any) -> None:
        self._boundary()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norms = []
        for number, parameter in enumerate(parameters):
            gradient = plain(parameter.grad)
            if gradient is None:
                continue
            norms.append(torch.linalg.vector_norm(gradient, dtype=torch.float32))
            if id(parameter) not in self._parameters:
                self._take("parameter gradient", f"parameter {number}", parameter.grad)
        if norms:
            self._step.gradients.append(torch.stack(norms).norm().double().reshape(1))
        self._before = []
        for group in optimizer.param_groups if self._counts else ():
            for parameter in group["params"] if group.get("lr") else ():
                values, gradient = plain(parameter), plain(parameter.grad)
                if values is not None and gradient is not None and values.dtype in HALF:
                    self._before.append((parameter, _sample(values).clone(), _sample(gradient) != 0))

    def _optimizer_stepped(self, optimizer: Any) -> None:
        for parameter, before, moved in self._before:
            same = ((_sample(parameter.detach()) == before) & moved).sum()
            numbers = torch.stack([same, moved.sum()]).double()
            self._step.updates.append((self._name(parameter), str(before.dtype).removeprefix("torch."), numbers))
        self._before = []
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            self._take("parameter", self._name(parameter) or f"parameter {number}", parameter)

    def _name(self, parameter: Any) -> str:
        known = self._parameters.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else ""

    def _begin_watching(self) -> None:
        if self._watch is None and self._counts and not self._compiles and why_no_structure() is None:
            due = Products.due(len(self._history.watched))
            products = ProductWatch(self._stack.parameters()) if due else None
            self._watch = OpWatch(self._frames, self._stack, lambda: self._busy, self._history.examined, products)
            insert_lowest(self._watch)

    def _boundary(self) -> None:
        """Handle a possible begin of another step."""
        if (self._now(), self.scaler_updates) != self._moment:
            self._flush()

    def _flush(self) -> None:
        """Copy the numbers of the step to the host."""
        step, self._step = self._step, Step()
        watch, self._watch = self._watch, None
        moment, self._moment = self._moment, (self._now(), self.scaler_updates)
        self._scaled.clear()
        if watch is not None:
            remove_mode(watch)
            self._history.watched.append(moment)
            if watch.failure:
                self._history.note(watch.failure)
        if step.tensors or step.gradients:
            self._ordinal += 1
            self._keep(moment, step, watch)

    def _keep(self, moment: Moment, step: Step, watch: OpWatch | None) -> None:
        if watch is not None and watch.products is not None:
            watch.products.finish(self._history.products, moment)
        results = [] if watch is None else watch.results
        losses = [] if watch is None else watch.losses
        columns = (
            [pending.numbers for pending in step.tensors],
            [result.numbers for result in results],
            [error.reshape(1) for _, error in losses],
            [numbers for _, _, numbers in step.updates],
            step.losses[-1:],
            step.gradients,
        )
        numbers = iter(_to_host([item for column in columns for item in column]))
        tensors, ops, errors, updates, values, norms = ([next(numbers) for _ in column] for column in columns)
        first, clean = 0, True
        for pending, of_tensor in zip(step.tensors, tensors, strict=True):
            row = self._history.rows[pending.key]
            largest = max(abs(of_tensor[0]), abs(of_tensor[1]))
            state = state_of(of_tensor)
            began = row.add(moment, largest if state is None else math.nan, of_tensor[2:], pending.elements)
            if state is not None:
                made = None
                if watch is not None:
                    index = made_nonfinite(results, ops, first, pending.ops, before=clean)
                    made = None if index is None else (results[index], state_of(ops[index]))
                self._not_finite(moment, pending, state, row.line, began=began, watched=watch is not None, made=made)
                clean = False
            first = pending.ops
        for (loss, _), (error,) in zip(losses, errors, strict=True):
            self._history.add_loss(moment, replace(loss, error=error))
        for (name, dtype, _), (same, moved) in zip(step.updates, updates, strict=True):
            self._history.examined.add(("update", "", name))
            if moved:
                self._history.add_loss(moment, _update(name, dtype, int(moved), same / moved))
        self._history.add_step(moment, self._values(values, norms))

    def _values(self, losses: list[list[float]], norms: list[list[float]]) -> StepValues:
        norm = math.hypot(*(value for (value,) in norms)) if norms else math.nan
        loss = losses[0][0] if losses else math.nan
        scales = [float(scaler.get_scale()) for scaler in self._scalers]
        return StepValues(
            step=0,
            loss=loss if math.isfinite(loss) else None,
            gradient_norm=norm if math.isfinite(norm) else None,
            scale=min(scales, default=None),
        )

    def _not_finite(
        self,
        moment: Moment,
        pending: Pending,
        state: State,
        line: str,
        *,
        began: bool,
        watched: bool,
        made: tuple[OpResult, State | None] | None,
    ) -> None:
        """Record the first time, and the op that made it if that is known then or soon after."""
        key = pending.key
        events = [event for _, event in self._history.nonfinite if (event.kind, event.name) == key[:2]]
        if not began and (not events or events[0].watched or not watched or events[0].state != state):
            return  # values that were infinite and are NaN now got that from the parameters
        event = (
            events[0]
            if events
            else Nonfinite(step=0, kind=key[0], name=key[1], type=key[2], state=state, line=line, scaled=pending.scaled)
        )
        if not watched:
            self._counted_until = max(self._counted_until, self._ordinal + WATCHED_AFTER)
        else:
            event = replace(event, watched=True)
        if made is not None:
            op, op_state = made
            event = replace(
                event, op=op.op, op_line=op.line, op_module=op.module, op_step=moment, op_state=op_state
            )  # fmt: skip
        self._history.add_nonfinite(moment, event)


def _update(name: str, dtype: str, elements: int, share: float) -> PrecisionLoss:
    return PrecisionLoss(how="update", step=0, op="", module=name, line="", dtype=dtype, terms=elements, error=share)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Elements at equal distances."""
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // MOST_UPDATED)]


def _called_before(record: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(subject: Any, *arguments: Any, **named: Any) -> Any:
            record(subject)
            return original(subject, *arguments, **named)

        return call

    return make


def _to_host(items: Sequence[torch.Tensor]) -> list[list[float]]:
    """The numbers of each, with one transfer per device."""
    numbers: list[list[float]] = [[] for _ in items]
    groups: dict[Any, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault((item.device, item.dtype), []).append(index)
    for indexes in groups.values():
        values = iter(torch.cat([items[index] for index in indexes]).tolist())
        for index in indexes:
            numbers[index] = [next(values) for _ in range(items[index].numel())]
    return numbers
