"""Running a JAX program without data and without devices.

Inside `without_data` every array of the program is an `AbstractArray`: nothing is computed but what is small and known
(`array.py`), nothing is copied to a device, and nothing is compiled. Calls of compiled functions, and
operations outside of them, are reported to a listener. Devices, their number and platform are those of the target.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jax import stages, tree_util
from jax.extend.core import set_current_trace

from perfscope.plugins.ahead.jax import compat as compat
from perfscope.plugins.ahead.jax.abstract import array as abstract_array
from perfscope.plugins.ahead.jax.abstract.array import AbstractArray
from perfscope.plugins.ahead.jax.abstract.placement import (
    ResultPlacement,
    abstract_device_put,
    abstract_result,
    argument_type,
    operation_sharding,
    result_placement,
    single_process_job,
    target_devices,
    without_copies,
)

if TYPE_CHECKING:
    from perfscope.plugins.ahead.jax.discover import RunRecorder

# ``jit(f).lower(...).compile()`` in a program that is run without data: nothing is compiled, calls are answered.


OnCall = Callable[[Sequence[Any], dict[str, Any], Sequence[Any]], list[Any]]
"""Answers a call: its arguments, jax's data on the function, and jax's types of the arguments."""
OnCompile = Callable[[dict[str, Any], Sequence[Any]], None]
"""Called with a function that is compiled."""
OnQuestion = Callable[[str], None]
"""Called with a question that only the compiled program could answer."""


class AbstractLowered(stages.Lowered):  # type: ignore[misc]
    """Replaces ``jax.stages.Lowered``; lowers only when its text is read."""

    def __init__(
        self, traced: Any, lower: Callable[[], Any], called: OnCall, made: OnCompile, question: OnQuestion
    ) -> None:
        """``traced``: the function with its arguments; ``lower``: jax's own lowering."""
        self._traced, self._lower, self._found = traced, lower, None
        self._called, self._made, self._question = called, made, question

    @property
    def _real(self) -> Any:
        if self._found is None:
            self._found = self._lower()
        return self._found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real, name)

    def compile(self, *_: Any, **__: Any) -> AbstractCompiled:
        """Return without compiling; the program counts as seen."""
        self._made(*compat.traced_call(self._traced)[1:])
        return AbstractCompiled(self._traced, self._called, self._question)


class AbstractCompiled(stages.Compiled):  # type: ignore[misc]
    """Replaces ``jax.stages.Compiled``: answers calls without data, and questions to the compiler with zeros."""

    def __init__(self, traced: Any, called: OnCall, question: OnQuestion) -> None:
        self._traced, self._called, self._question = traced, called, question
        self.out_tree = traced.out_tree
        self.args_info = traced.args_info

    @property
    def in_tree(self) -> Any:
        return self._traced._in_tree

    @property
    def out_info(self) -> Any:
        return self._traced.out_info

    @property
    def in_avals(self) -> Any:
        return tree_util.tree_unflatten(self.in_tree, self._traced.jaxpr.in_avals)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The results without data; ``TypeError`` if the arguments are nested differently."""
        given, tree = compat.tracing_registry.flatten((arguments, named))
        if tree != self.in_tree:
            raise TypeError(f"Function compiled for arguments {self.in_tree} is called with {tree}")
        consts, params, types = compat.traced_call(self._traced)
        return tree_util.tree_unflatten(self.out_tree, self._called([*consts, *given], params, types))

    @property
    def input_shardings(self) -> Any:
        consts, _, types = compat.traced_call(self._traced)
        return tree_util.tree_unflatten(self.in_tree, [type_.sharding for type_ in types[len(consts) :]])

    @property
    def output_shardings(self) -> Any:
        _, params, types = compat.traced_call(self._traced)
        return tree_util.tree_unflatten(self.out_tree, result_placement(params, types).shardings)

    def cost_analysis(self) -> Any:
        self._question("cost_analysis")
        return defaultdict(float, {"flops": 0.0, "bytes accessed": 0.0, "transcendentals": 0.0})

    def memory_analysis(self) -> Any:
        self._question("memory_analysis")
        names = ("generated_code", "argument", "output", "alias", "temp")
        sizes = {f"{where}{name}_size_in_bytes": 0 for name in names for where in ("", "host_")}
        return SimpleNamespace(**sizes, peak_memory_in_bytes=0)

    def as_text(self) -> str:
        self._question("as_text")
        return ""

    def runtime_executable(self) -> None:
        self._question("runtime_executable")


def abstract_lowering(real: Any, called: OnCall, made: OnCompile, question: OnQuestion) -> Callable[..., Any]:
    """The replacement for ``Traced.lower``, given as ``real``."""

    def lower(traced: Any, **how: Any) -> Any:
        if how.get("lowering_platforms") is not None or how.get("_private_parameters") is not None:
            return real(traced, **how)  # for export: not a program of this run
        return AbstractLowered(traced, lambda: real(traced), called, made, question)

    return lower


@contextlib.contextmanager
def without_data(devices: Sequence[Any], listener: RunRecorder) -> Iterator[None]:
    """Run the program inside for its shapes; ``devices``: those it sees. ``DataError`` for an unknown jax."""
    compat.check()
    abstract_array.register_abstract_arrays()
    compat.exclude_own_frames()
    run = _AbstractRun(listener)
    with contextlib.ExitStack() as stack:
        stack.enter_context(target_devices(devices))
        stack.enter_context(single_process_job(devices, listener.question))
        stack.enter_context(without_copies())
        for name, replacement in (
            ("process_primitive", run.primitive),
            ("process_shard_map", run.shard_map),
            ("_batched_device_put_impl", run.device_put),
            ("_pjit_call_impl_python", run.jit),
            ("convert_to_metaty", run.metaty),
            ("lower", run.lower),
        ):
            stack.enter_context(compat.patched_interface(name, replacement))
        abstract_array.on_host_read(listener.read)
        stack.callback(abstract_array.on_host_read, None)
        yield


class _AbstractRun:
    """The replacements for jax's functions; each gets the original."""

    def __init__(self, listener: RunRecorder) -> None:
        self.listener = listener
        self._placed: dict[Any, tuple[Any, ResultPlacement]] = {}

    def primitive(self, real: Any) -> Any:
        """``EvalTrace.process_primitive``: an operation outside of jit."""

        def process(trace: Any, primitive: Any, arguments: Any, params: Any, /) -> Any:
            if compat.is_computing():
                return real(trace, primitive, arguments, params)
            with set_current_trace(trace):  # computing or calling jax inside it happens for real
                if primitive.name in ("jit", "pjit"):
                    return self._jit(arguments, params)
                return self._operation(primitive, arguments, params)

        return process

    def shard_map(self, real: Any) -> Any:
        """``EvalTrace.process_shard_map``: a separate program even outside of jit."""

        def process(trace: Any, primitive: Any, function: Any, arguments: Any, **params: Any) -> Any:
            if compat.is_computing():
                return real(trace, primitive, function, arguments, **params)
            import jax

            trees = []

            def shard_map(*inner: Any) -> Any:
                trees.append(primitive.bind(*inner, subfuns=(function,), **params))
                return list(trees[-1].vals)

            leaves = jax.jit(shard_map)(*arguments)
            return trees[-1].update(leaves)

        return process

    def device_put(self, real: Any) -> Any:
        """``dispatch._batched_device_put_impl``: nothing is copied."""

        def place(*values: Any, devices: Any, srcs: Any, copy_semantics: Any, dst_avals: Any) -> Any:
            if compat.is_computing():
                return real(*values, devices=devices, srcs=srcs, copy_semantics=copy_semantics, dst_avals=dst_avals)
            return [abstract_device_put(value, device) for value, device in zip(values, devices, strict=True)]

        return place

    def jit(self, real: Any) -> Any:
        """``pjit._pjit_call_impl_python``: a call of a compiled function."""

        def call(*arguments: Any, **params: Any) -> Any:
            if compat.is_computing():
                return real(*arguments, **params)
            return self._jit(arguments, params), None, None, []

        return call

    def metaty(self, real: Any) -> Any:
        """``pjit.convert_to_metaty``: the type that jax keeps of an argument."""

        def convert(argument: Any) -> Any:
            return argument_type(argument) if isinstance(argument, AbstractArray) else real(argument)

        return convert

    def lower(self, real: Any) -> Any:
        """``Traced.lower``: a function will be compiled before its calls."""
        standing = abstract_lowering(real, self._jit, self.listener.made, self.listener.question)

        def lower(traced: Any, **how: Any) -> Any:
            return real(traced, **how) if compat.is_computing() else standing(traced, **how)

        return lower

    def _jit(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any] | None = None) -> list[Any]:
        types = [argument_type(argument) for argument in arguments] if types is None else types
        closed = params["jaxpr"]
        placed = self._where(params, tuple(types))
        self.listener.called(arguments, params, types)
        internal = is_internal(closed, params["name"])
        values = abstract_array.evaluate_known_results(closed, arguments, from_made_up=internal)
        results = []
        for index, (aval, sharding) in enumerate(zip(closed.out_avals, placed.shardings, strict=True)):
            value, doubtful = values.get(index, (None, True))
            result = abstract_result(aval, sharding, committed=placed.committed, known=value, made_up=doubtful)
            if placed.guessed[index] and isinstance(result, AbstractArray):
                result._guessed = True
            results.append(result)
        for donated, argument in zip(params["donated_invars"], arguments, strict=True):
            if donated and isinstance(argument, AbstractArray):
                argument._deleted = True
        return results

    def _where(self, params: dict[str, Any], types: tuple[Any, ...]) -> ResultPlacement:
        """Device placement of a call's results; cached with the jaxpr, so that its identity remains valid."""
        key = (id(params["jaxpr"]), types, params["in_shardings"], params["out_shardings"], params["ctx_mesh"])
        if key not in self._placed:
            self._placed[key] = (params["jaxpr"], result_placement(params, types))
        return self._placed[key][1]

    def _operation(self, primitive: Any, arguments: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive.name == "device_put":
            return [
                abstract_device_put(value, device) for value, device in zip(arguments, params["devices"], strict=True)
            ]
        if primitive.name == "stage":  # jax 0.12: makes an array of a value, like device_put without a device
            return abstract_device_put(arguments[0], None)
        if any(True for _ in compat.jaxprs_in_params(params)):
            # a loop or branch is a program; other operations run one by one
            return primitive.impl(*arguments, **params)
        avals, _ = primitive.abstract_eval(*(compat.typeof(argument) for argument in arguments), **params)
        several = primitive.multiple_results
        avals = list(avals) if several else [avals]
        self.listener.operated(primitive.name, arguments, avals)
        values = abstract_array.evaluate_operation(primitive, arguments, params, avals) or [None] * len(avals)
        doubtful = any(map(abstract_array.is_placeholder, arguments))
        sharding, committed = operation_sharding(primitive, arguments, params, avals)
        results = [
            abstract_result(aval, where, committed=committed, known=value, made_up=doubtful)
            for aval, where, value in zip(avals, sharding, values, strict=True)
        ]
        return results if several else results[0]


WRAPPER_FILES = ("pmap.py", __file__)
"""Files of jax and perfscope that wrap a user's function into a program."""


def is_internal(closed: Any, name: str) -> bool:
    """Whether a compiled function belongs to jax (``jnp.sum``), by the file that defines it."""
    file = closed.jaxpr.debug_info.func_filename
    if not is_jax_file(file) or file.endswith(WRAPPER_FILES):
        return False
    equations = closed.jaxpr.eqns
    if len(equations) == 1 and equations[0].primitive.name == name:  # an operation outside of jit
        inner = next(compat.jaxprs_in_params(equations[0].params), None)
        return inner is None or is_jax_file(inner.debug_info.func_filename)
    return True


def is_jax_file(file: str | None) -> bool:
    """Whether a file belongs to jax."""
    return bool(file) and str(file).startswith(compat.package_folders())
