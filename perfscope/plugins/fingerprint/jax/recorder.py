"""Records the fingerprints of a JAX program from the calls of its jitted functions.

Arguments and results of each call are those of the program. In sampled steps the function is walked op by op with the
same arguments, as a separate compiled program, before the program calls it; the program's own call is unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.plugins.fingerprint.document import CALL, RETURN, UNCOUNTED, Log, combined
from perfscope.plugins.fingerprint.jax.measure import is_key, measure, row_of
from perfscope.plugins.fingerprint.jax.observer import Lines, Prints, ValuePlan, write_walk
from perfscope.plugins.fingerprint.states import host_generators
from perfscope.profiler.jax.calls import (
    CallRecorder,
    NotWatchedError,
    Signature,
    WatchedFunction,
    quickly_compiled,
    signature_of,
    strong,
)
from perfscope.profiler.jax.jaxpr_walk import Place, Walk, is_float
from perfscope.profiler.trail import Lines as SourceLines

MOST_PROGRAMS = 64
"""Most walked programs: a function that is jitted in each step counts each time."""
Moment = Any


@dataclass(slots=True)
class Known:
    """A function for arguments of one shape."""

    signature: Signature | None = None
    traced: Any = None
    program: WalkedCall | None = None
    refused: bool = False


@dataclass(slots=True)
class Call:
    """A call that the program makes."""

    function: WatchedFunction
    known: Known


class Recorder(CallRecorder):
    """The fingerprints of a JAX program."""

    def __init__(self, now: Callable[[], Moment], sampled: Callable[[Moment, bool], bool], log: Log) -> None:
        """``now()``: equal within a step, and different in the next. ``sampled``: whether its ops are recorded."""
        super().__init__()
        self._now, self._sampled, self._log = now, sampled, log
        self._moment: Moment = {UNCOUNTED: 0}
        self._lines = Lines()
        self._ops = sampled(self._moment, False)
        self._called = False
        self._programs = 0
        self._uncounted: dict[str, int] = {}
        """Calls by function while no source of steps is known."""
        self._sources = SourceLines()
        self._measured = self._jit(lambda leaves: jnp.stack([measure(leaf) for leaf in leaves]))

    def step_begins(self) -> None:
        """Nothing: a new step shows at the next call."""

    def stop(self) -> None:
        """Keep the step that has begun, and restore jax."""
        self._flush()
        super().stop()

    def failed(self, text: str) -> None:
        """Keep a sentence on what could not be recorded."""
        self._log.note(text)

    def before(self, function: WatchedFunction, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Record the arguments of a call; in a sampled step walk the function with them."""
        moment = self._moment_of(function)
        if moment != self._moment:
            self._flush()
            self._moment, self._ops, self._called = moment, self._sampled(moment, False), False
        given, names = function.dynamic(arguments, named)
        known: Known = function.known(given, Known)
        if known.signature is None:
            traced = known.traced = function.plain.trace(*arguments, **named)
            known.signature = signature_of(given, traced.out_info, names)
        leaves = jax.tree_util.tree_leaves(given)
        self._moments(CALL, function, list(_named_arguments(known.signature, leaves)), generators=not self._called)
        self._called = True
        if self._ops:
            self._walk(function, known, leaves)
        return Call(function, known)

    def after(self, call: Call, output: Any) -> None:
        """Record the results of a call."""
        signature = call.known.signature
        if signature is None or not self._ops:
            return
        pairs = zip(signature.results, jax.tree_util.tree_leaves(output), strict=True)
        self._moments(RETURN, call.function, [(f"output {name}", leaf) for name, leaf in pairs])

    def _moment_of(self, function: WatchedFunction) -> Moment:
        now = self._now()
        if now != {}:
            return now
        key = function.title()
        self._uncounted[key] = calls = self._uncounted.get(key, -1) + 1
        return {UNCOUNTED: calls}

    def _walk(self, function: WatchedFunction, known: Known, leaves: Sequence[Any]) -> None:
        if known.refused:
            return
        try:
            if known.program is None:
                known.refused = True  # until it works
                if self._programs >= MOST_PROGRAMS:
                    raise NotWatchedError(f"{MOST_PROGRAMS} functions were walked before")
                self._programs += 1
                known.program = WalkedCall(self._jit, known.traced, self._sources, len(leaves))
                known.traced = None
            known.program.write(leaves, self._lines)
            known.refused = False
        except NotWatchedError as error:
            self._log.note(f"{function.title()}: its ops are not recorded: {error}")

    def _moments(
        self, name: str, function: WatchedFunction, named: list[tuple[str, Any]], *, generators: bool = False
    ) -> None:
        """Add what a call is given or gives; in a step that is not sampled one hash for all values of a kind."""
        arrays = [(what, leaf) for what, leaf in named if isinstance(leaf, jax.Array | np.ndarray) and leaf.size]
        table = np.asarray(self._measured([leaf for _, leaf in arrays])) if arrays else np.zeros((0, 0))
        inputs: list[int] = []
        names: list[str] = []
        for what, hashed in host_generators() if generators else ():
            inputs.append(self._lines.generator(f"{hashed:016x}"))
            names.append(f"generator {what}")
        if self._ops:
            for (what, leaf), numbers in zip(arrays, table, strict=True):
                dtype = "generator" if is_key(leaf) else str(leaf.dtype)
                inputs.append(self._lines.value(ValuePlan(dtype, tuple(leaf.shape), is_float(leaf)), numbers))
                names.append(what)
        else:
            kinds: dict[str, list[int]] = {}
            for (what, _), numbers in zip(arrays, table, strict=True):
                kinds.setdefault(what.partition(" ")[0], []).append(int(row_of(numbers, floating=False)[0], 16))
            for kind, hashes in kinds.items():
                inputs.append(self._lines.generator(f"{combined(hashes):016x}"))
                names.append(kind)
        place = Place(function.title(), self._sources.name(_frames()), "forward")
        self._lines.op(name, place, inputs, [], names=names)

    def _flush(self) -> None:
        lines, self._lines = self._lines, Lines()
        if lines.left:
            self._log.note(f"{lines.left:,} ops of a step beyond the first {lines.ops:,} are not recorded")
        if lines.ops:
            self._log.add(self._moment, lines.rows, sampled=self._ops)


class WalkedCall:
    """The walk of a function for arguments of one shape. ``jit``: jax's own."""

    def __init__(self, jit: Any, traced: Any, sources: SourceLines, arguments: int) -> None:
        """`NotWatchedError` if running the function twice would have visible effects."""
        self._closed = traced.jaxpr
        if self._closed.effects:
            raise NotWatchedError(f"it has effects ({', '.join(sorted(map(str, self._closed.effects)))})"[:120])
        if len(self._closed.in_avals) != arguments:
            raise NotWatchedError("its arguments are not those of its program")
        self._sources = sources
        self._plan = Prints()
        self._run = jit(self._walk, compiler_options=quickly_compiled())

    def write(self, leaves: Sequence[Any], lines: Lines) -> None:
        """Walk it with these arguments, and add the lines of its ops."""
        dtypes = (aval.dtype for aval in self._closed.in_avals)
        numbers = self._run(*map(strong, leaves, dtypes))
        write_walk(self._plan, numbers, lines)
        if self._plan.left:
            lines.left += self._plan.left

    def _walk(self, *leaves: Any) -> Any:
        plan = Prints()
        walk = Walk(self._sources, set(), quiet=True, observer=plan)
        walk.program(self._closed, list(leaves), [None] * len(leaves))
        numbers = plan.numbers()
        numbers = numbers[0], list(numbers[1])
        plan.release()
        self._plan = plan
        return numbers


def _named_arguments(signature: Signature, leaves: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Leaves of the arguments: state that the function gives back is a parameter, the rest is input."""
    states = {before for before, _ in signature.states}
    for index, (name, leaf) in enumerate(zip(signature.arguments, leaves, strict=True)):
        if isinstance(leaf, jax.Array) and is_key(leaf):
            yield f"random {name}", leaf
        else:
            yield f"{'parameter' if index in states else 'input'} {name}", leaf


def _frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


def settings() -> dict[str, str]:
    """Settings of jax that change results in their last bits."""
    found = {
        "jax": jax.__version__,
        "float64": jax.config.jax_enable_x64,
        "default products": jax.config.jax_default_matmul_precision,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }
    return {name: str(value) for name, value in found.items()}
