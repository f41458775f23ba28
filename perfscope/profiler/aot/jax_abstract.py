"""Running a JAX program without data and without devices.

Inside `without_data` every array of the program is an `AbstractArray`: nothing is computed but what is small and known
(`jax_abstract_values.py`), nothing is copied to a device, and nothing is compiled. Calls of compiled functions, and
operations outside of them, are told to a listener. Devices, their number and platform are those of the target.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from perfscope.profiler.aot import jax_abstract_array, jax_abstract_values
from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_abstract_aot import lowered
from perfscope.profiler.aot.jax_abstract_array import AbstractArray
from perfscope.profiler.aot.jax_abstract_devices import answers
from perfscope.profiler.aot.jax_abstract_jobs import answered
from perfscope.profiler.aot.jax_abstract_made import made, put
from perfscope.profiler.aot.jax_abstract_make import without_copies
from perfscope.profiler.aot.jax_abstract_places import Placed, metaty, results_at, sharding_of_operation


class Listener(Protocol):
    """Who wants to know what a program does."""

    def called(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any]) -> None:
        """A function that jax compiles is called: its arguments, what jax knows of it, and jax's types of them."""

    def operated(self, name: str, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """An operation is called outside of any compiled function."""

    def made(self, params: dict[str, Any], types: Sequence[Any]) -> None:
        """A function is compiled ahead of its calls."""

    def asked(self, what: str) -> None:
        """The program asks what only a compiled program, a device or a job of several processes knows."""

    def read(self, how: str, array: AbstractArray) -> None:
        """The host reads a value that nobody knows."""


@contextlib.contextmanager
def without_data(devices: Sequence[Any], listener: Listener) -> Iterator[None]:
    """Run the program inside for its shapes; ``devices``: those it is to see. ``DataError`` on a jax we do not know."""
    compat.check()
    jax_abstract_array.register()
    compat.leave_out_our_lines()
    core, dispatch, pjit, stages = (sys.modules[f"jax._src.{name}"] for name in ("core", "dispatch", "pjit", "stages"))
    run = _Run(listener)
    with contextlib.ExitStack() as stack:
        stack.enter_context(answers(devices))
        stack.enter_context(answered(devices, listener.asked))
        stack.enter_context(without_copies())
        stack.enter_context(compat.replaced(core.EvalTrace, "process_primitive", run.primitive))
        stack.enter_context(compat.replaced(core.EvalTrace, "process_shard_map", run.shard_map))
        stack.enter_context(compat.replaced(dispatch, "_batched_device_put_impl", run.device_put))
        stack.enter_context(compat.replaced(pjit, "_pjit_call_impl_python", run.jit))
        stack.enter_context(compat.replaced(pjit, "convert_to_metaty", run.metaty))
        stack.enter_context(compat.replaced(stages.Traced, "lower", run.lower))
        jax_abstract_array.listen(listener.read)
        stack.callback(jax_abstract_array.listen, None)
        yield


class _Run:
    """What takes the place of jax's own; each is given what it replaces."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._placed: dict[Any, tuple[Any, Placed]] = {}

    def primitive(self, real: Any) -> Any:
        """``EvalTrace.process_primitive``: an operation outside of jit."""

        def process(trace: Any, primitive: Any, arguments: Any, params: Any, /) -> Any:
            if compat.is_real():
                return real(trace, primitive, arguments, params)
            if primitive.name in ("jit", "pjit"):
                return self._jit(arguments, params)
            return self._operation(primitive, arguments, params)

        return process

    def shard_map(self, real: Any) -> Any:
        """``EvalTrace.process_shard_map``: outside of jit it is one program all the same."""

        def process(trace: Any, primitive: Any, function: Any, arguments: Any, **params: Any) -> Any:
            if compat.is_real():
                return real(trace, primitive, function, arguments, **params)
            import jax

            trees = []

            def shard_map(*inner: Any) -> Any:
                trees.append(primitive.bind(*inner, subfuns=(function,), **params))
                return list(trees[-1].vals)

            found = jax.jit(shard_map)(*arguments)
            return trees[-1].update(found)

        return process

    def device_put(self, real: Any) -> Any:
        """``dispatch._batched_device_put_impl``: nothing is copied."""

        def place(*values: Any, devices: Any, srcs: Any, copy_semantics: Any, dst_avals: Any) -> Any:
            if compat.is_real():
                return real(*values, devices=devices, srcs=srcs, copy_semantics=copy_semantics, dst_avals=dst_avals)
            return [put(value, device) for value, device in zip(values, devices, strict=True)]

        return place

    def jit(self, real: Any) -> Any:
        """``pjit._pjit_call_impl_python``: a call of a compiled function."""

        def call(*arguments: Any, **params: Any) -> Any:
            if compat.is_real():
                return real(*arguments, **params)
            return self._jit(arguments, params), None, None, []

        return call

    def metaty(self, real: Any) -> Any:
        """``pjit.convert_to_metaty``: what jax keeps of an argument."""

        def convert(argument: Any) -> Any:
            return metaty(argument) if isinstance(argument, AbstractArray) else real(argument)

        return convert

    def lower(self, real: Any) -> Any:
        """``Traced.lower``: a function is to be compiled ahead of its calls."""
        standing = lowered(real, self._jit, self.listener.made, self.listener.asked)

        def lower(traced: Any, **how: Any) -> Any:
            return real(traced, **how) if compat.is_real() else standing(traced, **how)

        return lower

    def _jit(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any] | None = None) -> list[Any]:
        types = [metaty(one) for one in arguments] if types is None else types
        closed = params["jaxpr"]
        placed = self._where(params, tuple(types))
        self.listener.called(arguments, params, types)
        internal = is_internal(closed, params["name"])
        values = jax_abstract_values.results_of(closed, arguments, from_made_up=internal)
        results = []
        for at, (aval, sharding) in enumerate(zip(closed.out_avals, placed.shardings, strict=True)):
            value, doubtful = values.get(at, (None, True))
            result = made(aval, sharding, committed=placed.committed, known=value, made_up=doubtful)
            if placed.guessed[at] and isinstance(result, AbstractArray):
                result._guessed = True
            results.append(result)
        for donated, argument in zip(params["donated_invars"], arguments, strict=True):
            if donated and isinstance(argument, AbstractArray):
                argument._deleted = True
        return results

    def _where(self, params: dict[str, Any], types: tuple[Any, ...]) -> Placed:
        """Where the results of a call lie; kept with the jaxpr, whose identity stands for it."""
        key = (id(params["jaxpr"]), types, params["in_shardings"], params["out_shardings"], params["ctx_mesh"])
        if key not in self._placed:
            self._placed[key] = (params["jaxpr"], results_at(params, types))
        return self._placed[key][1]

    def _operation(self, primitive: Any, arguments: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive.name == "device_put":
            return [put(value, device) for value, device in zip(arguments, params["devices"], strict=True)]
        if any(True for _ in compat.get("jax._src.core", "jaxprs_in_params")(params)):
            return primitive.impl(*arguments, **params)  # a loop or a branch is a program, the rest goes on one by one
        typeof = compat.get("jax._src.core", "typeof")
        avals, _ = primitive.abstract_eval(*(typeof(one) for one in arguments), **params)
        several = primitive.multiple_results
        avals = list(avals) if several else [avals]
        self.listener.operated(primitive.name, arguments, avals)
        values = jax_abstract_values.computed(primitive, arguments, params, avals) or [None] * len(avals)
        doubtful = any(map(jax_abstract_values.made_up, arguments))
        sharding, committed = sharding_of_operation(primitive, arguments, params, avals)
        results = [
            made(aval, where, committed=committed, known=value, made_up=doubtful)
            for aval, where, value in zip(avals, sharding, values, strict=True)
        ]
        return results if several else results[0]


PROGRAMS = ("pmap.py", "jax_abstract.py")
"""Files of jax's and ours that wrap a function of the user's into a program."""


def is_internal(closed: Any, name: str) -> bool:
    """Whether a compiled function is one of jax's own (``jnp.sum``), by the file that it is written in."""
    file = closed.jaxpr.debug_info.func_filename
    if not is_jaxs_file(file) or file.endswith(PROGRAMS):
        return False
    equations = closed.jaxpr.eqns
    if len(equations) == 1 and equations[0].primitive.name == name:  # an operation outside of jit
        inner = next(iter(compat.get("jax._src.core", "jaxprs_in_params")(equations[0].params)), None)
        return inner is None or is_jaxs_file(inner.debug_info.func_filename)
    return True


def is_jaxs_file(file: str | None) -> bool:
    """Whether a file is jax's."""
    return bool(file) and str(file).startswith(compat.package_folders())
