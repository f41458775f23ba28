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
from perfscope.profiler.aot.jax_abstract_places import metaty, results_at, sharding_of_operation


class Listener(Protocol):
    """Who wants to know what a program does."""

    def called(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any]) -> None:
        """A function that jax compiles is called: its arguments, what jax knows of it, and jax's types of them."""

    def operated(self, name: str, arguments: Sequence[Any], params: dict[str, Any]) -> None:
        """An operation is called outside of any compiled function."""

    def made(self, params: dict[str, Any], types: Sequence[Any]) -> None:
        """A function is compiled ahead of its calls."""

    def asked(self, what: str) -> None:
        """The program asks what only a compiled program knows."""

    def read(self, how: str, array: AbstractArray) -> None:
        """The host reads a value that nobody knows."""


@contextlib.contextmanager
def without_data(devices: Sequence[Any], listener: Listener) -> Iterator[None]:
    """Run the program inside for its shapes; ``devices``: those it is to see. ``DataError`` on a jax we do not know."""
    compat.check()
    jax_abstract_array.register()
    compat.leave_out_our_lines()
    core, dispatch, pjit, stages = (
        sys.modules[f"jax._src.{name}"] for name in ("core", "dispatch", "pjit", "stages")
    )
    run = _Run(listener)
    with contextlib.ExitStack() as stack:
        stack.enter_context(answers(devices))
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

            def shard_map(*inner: Any) -> Any:
                return primitive.bind(*inner, subfuns=(function,), **params)

            return jax.jit(shard_map)(*arguments)

        return process

    def device_put(self, real: Any) -> Any:
        """``dispatch._batched_device_put_impl``: nothing is copied."""

        def put(*values: Any, devices: Any, srcs: Any, copy_semantics: Any, dst_avals: Any) -> Any:
            if compat.is_real():
                return real(*values, devices=devices, srcs=srcs, copy_semantics=copy_semantics, dst_avals=dst_avals)
            return [_put(value, device) for value, device in zip(values, devices, strict=True)]

        return put

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
        placed = results_at(params, types)
        self.listener.called(arguments, params, types)
        internal = is_internal(closed)
        values = jax_abstract_values.results_of(closed, arguments, from_made_up=internal)
        results = []
        for at, (aval, sharding) in enumerate(zip(closed.out_avals, placed.shardings, strict=True)):
            value, doubtful = values.get(at, (None, True))
            results.append(_made(aval, sharding, committed=placed.committed, known=value, made_up=doubtful))
        for donated, argument in zip(params["donated_invars"], arguments, strict=True):
            if donated and isinstance(argument, AbstractArray):
                argument._deleted = True
        return results

    def _operation(self, primitive: Any, arguments: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive.name == "device_put":
            found = [_put(value, device) for value, device in zip(arguments, params["devices"], strict=True)]
            return found
        typeof = compat.get("jax._src.core", "typeof")
        avals, _ = primitive.abstract_eval(*(typeof(one) for one in arguments), **params)
        several = primitive.multiple_results
        avals = list(avals) if several else [avals]
        self.listener.operated(primitive.name, arguments, params)
        values = jax_abstract_values.computed(primitive, arguments, params, avals) or [None] * len(avals)
        doubtful = any(map(jax_abstract_values.made_up, arguments))
        sharding, committed = sharding_of_operation(primitive, arguments, params, avals)
        results = [
            _made(aval, where, committed=committed, known=value, made_up=doubtful)
            for aval, where, value in zip(avals, sharding, values, strict=True)
        ]
        return results if several else results[0]


def is_internal(closed: Any) -> bool:
    """Whether a compiled function is one of jax's own (``jnp.sum``), by the file that it is written in."""
    file = closed.jaxpr.debug_info.func_filename
    return bool(file) and file.startswith(compat.package_folders())


def _made(aval: Any, sharding: Any, *, committed: bool, known: Any, made_up: bool) -> Any:
    if not hasattr(aval, "dtype"):
        return aval
    if known is None:
        known = jax_abstract_values.zeros(aval)
        made_up = True
    return AbstractArray(aval, sharding, committed=committed, known=known, made_up=made_up)


def _put(value: Any, device: Any) -> Any:
    """``jax.device_put`` of one leaf: a device, a sharding, a format, a space of memory, or ``None``."""
    import jax
    from jax.sharding import Sharding, SingleDeviceSharding

    core = "jax._src.core"
    if isinstance(value, AbstractArray) and device is None:
        return value
    before = compat.get(core, "typeof")(value) if not hasattr(value, "aval") else value.aval
    kept = jax_abstract_values.known(value)
    if kept is not None and not isinstance(value, AbstractArray):
        with compat.for_real():
            kept = jax.device_put(value)
            before = compat.get(core, "typeof")(kept)
    doubtful = jax_abstract_values.made_up(value)
    asked = getattr(device, "sharding", device) if type(device).__name__ == "Format" else device
    aval = compat.get("jax._src.dispatch", "update_dp_aval")(before, asked)
    if isinstance(asked, Sharding):
        return _made(aval, asked, committed=True, known=kept, made_up=doubtful)
    if asked is None:
        default = compat.get("jax._src.interpreters.pxla", "get_default_device")()
        where = getattr(value, "sharding", None) or SingleDeviceSharding(default)
        committed = bool(getattr(value, "_committed", False))
        return _made(aval, where, committed=committed, known=kept, made_up=doubtful)
    if isinstance(asked, jax.Device):
        return _made(aval, SingleDeviceSharding(asked), committed=True, known=kept, made_up=doubtful)
    where = getattr(value, "sharding", None)
    kind = compat.get(core, "mem_space_to_kind")(asked)
    if where is None:
        where = SingleDeviceSharding(compat.get("jax._src.interpreters.pxla", "get_default_device")())
    return _made(aval, where.with_memory_kind(kind), committed=True, known=kept, made_up=doubtful)
