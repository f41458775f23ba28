"""Calls of the functions that a program jits, for recorders that walk these or look at arguments and results."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from perfscope.profiler.jax.jaxpr_walk import is_float
from perfscope.profiler.jax.wrapped import WrappedFunction, is_traced, wrap_jit
from perfscope.profiler.patching import Undo


class NotWatchedError(Exception):
    """Why a function is not walked, in one line."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The leaves of a call and of its results."""

    arguments: tuple[str, ...]
    """Names of the leaves, ``params/Dense_0/kernel``."""
    results: tuple[str, ...]
    states: tuple[tuple[int, int], ...]
    """(Argument, result) of leaves of a state and of its successor, or of its gradient."""
    loss: int | None
    """The first result that is a single number."""


def quickly_compiled() -> dict[str, Any] | None:
    """Compiler options for a program that runs a few times: XLA's CPU compiler spends most time in LLVM's passes."""
    if jax.default_backend() != "cpu":
        return None
    return {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def strong(leaf: Any, dtype: Any) -> Any:
    """The value as an array that is not weakly typed; otherwise a first call with numbers would compile twice."""
    if not hasattr(leaf, "dtype"):
        return np.asarray(leaf, dtype)
    return leaf.astype(leaf.dtype) if getattr(leaf, "weak_type", False) else leaf


def signature_of(arguments: Any, results: Any, names: Mapping[int, str]) -> Signature:
    """Signature of the trees of arguments (a tuple) and results. ``names``: argument names by position.

    Consecutive results with the shapes and dtypes of an argument's leaves may be its successor, or its gradient; the
    walk determines which.
    """
    inputs: list[str] = []
    outputs: list[str] = []
    states: list[tuple[int, int]] = []
    parts = results if isinstance(results, tuple | list) else (results,)
    if len(jax.tree_util.tree_leaves(list(parts))) != len(jax.tree_util.tree_leaves(results)):
        parts = (results,)  # a tuple that is registered as a node, such as the optimizer state of jax.example_libraries
    for position, part in enumerate(parts):
        outputs += _names(part, f"result {position}" if len(parts) > 1 else "result")
    leaves = jax.tree_util.tree_leaves(results)
    shapes = [shape_of(leaf) for leaf in leaves]
    free = [True] * len(shapes)
    for position, argument in enumerate(arguments):
        wanted = [shape_of(leaf) for leaf in jax.tree_util.tree_leaves(argument)]
        for first in range(len(shapes) - len(wanted) + 1) if wanted else ():
            if shapes[first : first + len(wanted)] == wanted and all(free[first : first + len(wanted)]):
                free[first : first + len(wanted)] = [False] * len(wanted)
                states += [(len(inputs) + index, first + index) for index in range(len(wanted))]
                break
        inputs += _names(argument, names.get(position, f"argument {position}"))
    successors = {result for _, result in states}
    scalars = (index for index, leaf in enumerate(leaves) if index not in successors and is_float(leaf))
    loss = next((index for index in scalars if leaves[index].size == 1), None)
    return Signature(tuple(inputs), tuple(outputs), tuple(states), loss)


def shape_of(leaf: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype; a Python number counts as an array, so that the first call is like the others."""
    return tuple(np.shape(leaf)), str(leaf.dtype) if is_float(leaf) else ""


def _names(tree: Any, name: str) -> list[str]:
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    parts = [
        [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path] for path in paths
    ]
    return ["/".join((name, *(part.lstrip(".") for part in path))) for path in parts]


class CallRecorder:
    """Hooks `jax.jit` from ``start`` to ``stop``. Calls on other threads are not seen."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._busy = False
        self._jit = jax.jit
        self._undo: list[Undo] = []

    def start(self) -> None:
        """Watch functions that are jitted from now on."""
        self._undo = [wrap_jit(lambda jitted, options: WatchedFunction(jitted, options, self))]

    def stop(self) -> None:
        """Restore jax."""
        while self._undo:
            self._undo.pop()()
        self._busy = True

    def silence(self) -> None:
        """Record nothing more; the hooks stay."""
        self._busy = True

    def before(self, function: WatchedFunction, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Look at a call that the program is about to make; what is returned is given to ``after``."""
        raise NotImplementedError

    def after(self, call: Any, output: Any) -> None:
        """Look at its results."""
        raise NotImplementedError

    def failed(self, text: str) -> None:
        """Keep a sentence on what could not be recorded."""
        raise NotImplementedError

    def call(self, function: WatchedFunction, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make the program's call, and record it."""
        if self._busy or threading.get_ident() != self._thread or is_traced((arguments, named)):
            return function.plain(*arguments, **named)
        self._busy = True
        try:
            call = self._guarded(function, self.before, function, arguments, named)
            output = function.plain(*arguments, **named)
            if call is not None:
                self._guarded(function, self.after, call, output)
            return output
        finally:
            self._busy = False

    def _guarded(self, function: WatchedFunction, record: Callable[..., Any], *given: Any) -> Any:
        """Keep our errors from the program."""
        try:
            return record(*given)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0][:200]
            self.failed(f"{function.title()}: {type(error).__name__}: {reason}")
        return None


class WatchedFunction(WrappedFunction):
    """A jitted function of the program."""

    def __init__(self, jitted: Any, options: Mapping[str, Any], recorder: CallRecorder) -> None:
        super().__init__(jitted)
        self.plain = jitted
        self.donates = any(options.get(name) not in (None, ()) for name in ("donate_argnums", "donate_argnames"))
        self._recorder = recorder
        self._static = _static_names(jitted, options)
        self._parameters = _parameters(jitted)
        self._known: dict[Any, Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the program's function and return its result."""
        return self._recorder.call(self, arguments, named)

    def title(self) -> str:
        """As it is called in notes."""
        return str(getattr(self.plain, "__name__", "a function"))

    def known(self, given: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Data that a recorder keeps of the function for arguments like these; made at their first call."""
        leaves, structure = jax.tree_util.tree_flatten(given)
        key = structure, tuple(shape_of(leaf) for leaf in leaves)
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def dynamic(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[int, str]]:
        """The arguments that are not static, and their names by their position among these."""
        pairs = [(self._parameters.get(index, f"argument {index}"), value) for index, value in enumerate(arguments)]
        pairs = [pair for index, pair in enumerate(pairs) if not {index, pair[0]} & self._static]
        pairs += [(name, named[name]) for name in sorted(named) if name not in self._static]
        return tuple(value for _, value in pairs), {index: name for index, (name, _) in enumerate(pairs)}


def _parameters(jitted: Any) -> dict[int, str]:
    try:
        return dict(enumerate(inspect.signature(jitted).parameters))
    except (TypeError, ValueError):
        return {}


def _static_names(jitted: Any, options: Mapping[str, Any]) -> set[int | str]:
    """Positions and names of static arguments."""
    positions, names = options.get("static_argnums") or (), options.get("static_argnames") or ()
    positions = (positions,) if isinstance(positions, int) else tuple(positions)
    names = (names,) if isinstance(names, str) else tuple(names)
    count = len(_parameters(jitted))
    return {*(position % count if count and position < 0 else position for position in positions), *names}
