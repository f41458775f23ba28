"""Records the numerics of a JAX program from the calls of its jitted functions.

In counted steps the function is walked op by op with the arguments of the call, before the program calls it. In other
steps arguments and results are examined; if they are not finite for the first time, the walk follows. The program's own
call is unchanged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.plugins.numerics.document import Kind, Nonfinite, Numerics, PrecisionLoss, State, StepValues
from perfscope.plugins.numerics.history import History, Moment, TensorKey, state_of
from perfscope.plugins.numerics.jax.program import Walked, WalkedProgram, culprit
from perfscope.plugins.numerics.products import Products
from perfscope.profiler.jax.calls import CallRecorder, NotWatchedError, Signature, WatchedFunction, signature_of
from perfscope.profiler.jax.jaxpr_walk import is_float
from perfscope.profiler.trail import Lines

FIRST_COUNTED = 2
COUNTED_EVERY = 10
"""Functions are walked in this many first steps, and then in every such one."""
MOST_PROGRAMS = 64
"""Most walked programs: a function that is jitted in each step counts each time."""
_SCALES = (("flax.training.dynamic_scale", "DynamicScale", "scale"), ("jmp", "DynamicLossScale", "loss_scale"))
"""(Module, class, attribute) of loss scales."""


@dataclass(slots=True)
class Known:
    """A function for arguments of one shape."""

    signature: Signature | None = None
    program: WalkedProgram | None = None
    refused: bool = False


@dataclass(slots=True)
class Call:
    """Facts on a call before the program makes it."""

    function: WatchedFunction
    arguments: tuple[Any, ...]
    """Non-static arguments, keyword arguments last."""
    names: dict[int, str]
    known: Known
    traced: Any = None
    done: bool = False
    """Whether it was walked."""


class Recorder(CallRecorder):
    """The numerics of a JAX program."""

    scaler_updates = 0
    """Loss scales are part of a program's state, and all its steps are seen."""

    def __init__(self, now: Callable[[], Moment], *, every_step: bool = False) -> None:
        """``now()``: equal within a step, and different in the next. ``every_step``: walk in each step."""
        super().__init__()
        self._now, self._every = now, 1 if every_step else COUNTED_EVERY
        self._history = History("jax")
        self._ordinal = -1
        self._moment: Moment = None
        self._programs = 0
        self._values = StepValues(step=0)
        self._lines: Lines | None = None
        self._extremes = self._jit(_extremes)

    def document(self, number: Callable[[Moment], int], steps_seen: int) -> Numerics:
        """All values so far; ``number``: step of a moment."""
        return self._history.document(number, steps_seen)

    def failed(self, text: str) -> None:
        """Keep a sentence on what could not be recorded."""
        self._history.note(text)

    @property
    def _counts(self) -> bool:
        return self._ordinal < FIRST_COUNTED or self._ordinal % self._every == 0

    def before(self, function: WatchedFunction, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Walk the function with the arguments of a call, in counted steps."""
        moment = (self._now(), 0)
        if moment != self._moment:
            self._moment, self._ordinal = moment, self._ordinal + 1
            self._values = StepValues(step=0)
        given, names = function.dynamic(arguments, named)
        call = Call(function, given, names, function.known(given, Known))
        if call.known.program is None and not call.known.refused:
            call.traced = function.plain.trace(*arguments, **named)
            call.known.signature = signature_of(given, call.traced.out_info, names)
        if self._counts:
            call.done = self._walk(call)
        if not call.done and function.donates:
            call.arguments = jax.tree_util.tree_map(_copied, given)
        return call

    def _walk(self, call: Call) -> bool:
        """Walk the function with the arguments of a call; return whether that was possible."""
        known = call.known
        if known.refused or known.signature is None:
            return False
        try:
            if known.program is None:
                known.refused = True  # until it works
                if self._programs >= MOST_PROGRAMS:
                    raise NotWatchedError(f"{MOST_PROGRAMS} functions were watched before")
                self._programs += 1
                self._lines = self._lines or Lines()
                known.program = WalkedProgram(self._jit, call.traced, known.signature, self._lines)
            walked = known.program(jax.tree_util.tree_leaves(call.arguments))
            known.refused = False
        except NotWatchedError as error:
            self._history.note(f"{call.function.title()}: its ops are not watched: {error}")
            return False
        if walked.plan.left:
            self._history.note(f"{call.function.title()}: {walked.plan.left:,} ops are too many to watch")
        self._keep(walked)
        return True

    def after(self, call: Call, output: Any) -> None:
        """Look at the arguments and results of a call that was not walked."""
        for scale in _scales(output):
            self._add_values(scale=float(np.asarray(scale).min()))
        signature = call.known.signature
        if call.done or signature is None:
            return
        tensors = list(_outer(signature, call, output))
        numbers = np.asarray(self._extremes([value for _, value in tensors])).tolist() if tensors else []
        began: list[tuple[TensorKey, State]] = []
        for (key, value), extremes in zip(tensors, numbers, strict=True):
            if self._add(key, "", extremes, [], int(value.size)):
                began.append((key, state_of(extremes) or "nan"))
            if key[0] == "loss":
                self._add_values(loss=extremes[0])
        if began and not self._walk(call):
            for key, state in began:
                self._event(Nonfinite(step=0, kind=key[0], name=key[1], type="", state=state))

    def _keep(self, walked: Walked) -> None:
        """Add the numbers of a walk to the history."""
        if Products.due(len(self._history.watched)):
            for product, arrays in walked.products:
                left, right, amax = map(np.asarray, arrays)
                self._history.products.add(self._moment, product, left, right, (float(amax[0]), float(amax[1])))
        self._history.watched.append(self._moment)
        order = sorted(range(len(walked.tensors)), key=lambda index: _when(walked, index))
        for index in order:
            tensor, numbers = walked.plan.tensors[index], walked.tensors[index]
            key = (tensor.kind, tensor.name, "", tensor.dtype)
            extremes, counts = numbers[:2], numbers[2:]
            self._add(key, tensor.line, extremes, counts, tensor.elements)
            state = state_of(extremes)
            if state is not None:
                self._event(_located(walked, index, state, self._moment))
            if tensor.kind == "loss":
                self._add_values(loss=extremes[0])
        for loss, lost in zip(walked.plan.losses, walked.losses, strict=True):
            self._lost(loss.how, loss.op, loss.place, loss.dtype, loss.terms, lost)
        if walked.gradient_norm is not None:
            self._add_values(norm=walked.gradient_norm)

    def _lost(self, how: Any, op: str, place: Any, dtype: str, terms: int, numbers: list[float]) -> None:
        self._history.examined.add((op or how, place.line, place.scope))
        error = numbers[0]
        if how == "update":
            terms = int(numbers[1])
            if not terms:
                return
            error = numbers[0] / numbers[1]
        found = PrecisionLoss(
            how=how, step=0, op=op, module=place.scope, line=place.line, dtype=dtype, terms=terms, error=error
        )
        self._history.add_loss(self._moment, found)

    def _add(self, key: TensorKey, line: str, extremes: list[float], counts: list[float], elements: int) -> bool:
        """Whether the tensor is not finite for the first time."""
        row = self._history.row(key, lambda: line)
        if row is None:
            return False
        largest = max(abs(extremes[0]), abs(extremes[1])) if state_of(extremes) is None else math.nan
        return row.add(self._moment, largest, counts, elements)

    def _event(self, event: Nonfinite) -> None:
        """Record it if it is the first of its tensor."""
        if not any((known.kind, known.name) == (event.kind, event.name) for _, known in self._history.nonfinite):
            self._history.add_nonfinite(self._moment, event)

    def _add_values(self, *, loss: float | None = None, norm: float | None = None, scale: float | None = None) -> None:
        known = self._values
        self._values = StepValues(
            step=0,
            loss=known.loss if loss is None or not math.isfinite(loss) else loss,
            gradient_norm=known.gradient_norm if norm is None or not math.isfinite(norm) else norm,
            scale=known.scale if scale is None else scale,
        )
        self._history.add_step(self._moment, self._values)


def _outer(signature: Signature, call: Call, output: Any) -> list[tuple[TensorKey, Any]]:
    """Arguments and results that are looked at in every step."""
    program = call.known.program
    trains = program.trains if program is not None else bool(signature.states) and signature.loss is not None
    successors = dict(signature.states) if trains else {}
    given = jax.tree_util.tree_leaves(call.arguments)
    results = jax.tree_util.tree_leaves(output)
    found: list[tuple[Kind, str, Any]] = [
        ("input", name, leaf)
        for index, (name, leaf) in enumerate(zip(signature.arguments, given, strict=True))
        if index not in successors
    ]
    for before, after in successors.items():
        kind = "parameter" if program is None else program.kinds.get(before)
        if kind is not None:
            found.append((kind, signature.arguments[before], results[after]))
    for index, (name, result) in enumerate(zip(signature.results, results, strict=True)):
        if index not in successors.values():
            is_loss = trains and index == signature.loss
            found.append(("loss" if is_loss else "output", "loss" if is_loss else name, result))
    return [
        ((kind, name, "", str(value.dtype)), value)
        for kind, name, value in found
        if is_float(value) and value.size and isinstance(value, jax.Array | np.ndarray)
    ]


def _extremes(values: Sequence[Any]) -> Any:
    return jnp.stack([jnp.stack([value.min(), value.max()]).astype(jnp.result_type(float)) for value in values])


def _copied(leaf: Any) -> Any:
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf


def _scales(output: Any) -> list[Any]:
    """Values of the loss scales in the results of a call."""
    kinds = {
        kind: attribute
        for module, name, attribute in _SCALES
        if (kind := getattr(sys.modules.get(module), name, None)) is not None
    }
    if not kinds:
        return []
    parts = jax.tree_util.tree_leaves(output, is_leaf=lambda part: isinstance(part, tuple(kinds)))
    return [getattr(part, attribute) for part in parts for kind, attribute in kinds.items() if isinstance(part, kind)]


def _when(walked: Walked, index: int) -> int:
    made_by = walked.plan.tensors[index].made_by
    return -1 if made_by is None else made_by


def _located(walked: Walked, index: int, state: State, moment: Moment) -> Nonfinite:
    tensor = walked.plan.tensors[index]
    event = Nonfinite(step=0, kind=tensor.kind, name=tensor.name, type="", state=state, line=tensor.line, watched=True)
    made = culprit(walked, tensor.made_by)
    if made is None:
        return event
    op = walked.plan.ops[made]
    op_state: State = "nan" if walked.ops[made][1] > 1 else "inf"
    return replace(
        event, op=op.op, op_line=op.place.line, op_module=op.place.scope, op_step=moment, op_dtype=op.dtype,
        op_state=op_state,
    )  # fmt: skip
