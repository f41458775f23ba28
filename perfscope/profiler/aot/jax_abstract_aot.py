"""``jit(f).lower(...).compile()`` in a program that is run without data: nothing is compiled, calls are answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from jax import stages, tree_util

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_abstract_places import results_at

Called = Callable[[Sequence[Any], dict[str, Any], Sequence[Any]], list[Any]]
"""Answers a call: its arguments, what jax knows of the function, and jax's types of the arguments."""
Made = Callable[[dict[str, Any], Sequence[Any]], None]
"""Told of a function that is compiled."""
Asked = Callable[[str], None]
"""Told of a question that only the compiled program answers."""


class AbstractLowered(stages.Lowered):  # type: ignore[misc]
    """Stands for ``jax.stages.Lowered``; lowers only when it is asked for its text."""

    def __init__(self, traced: Any, lower: Callable[[], Any], called: Called, made: Made, asked: Asked) -> None:
        """``traced``: the function for its arguments; ``lower``: jax's own lowering of it."""
        self._traced, self._lower, self._found = traced, lower, None
        self._called, self._made, self._asked = called, made, asked

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
        """Nothing is compiled; the program counts as seen."""
        low = self._traced.lojax
        self._made(low._params, low._meta_tys_flat)
        return AbstractCompiled(self._traced, self._called, self._asked)


class AbstractCompiled(stages.Compiled):  # type: ignore[misc]
    """Stands for ``jax.stages.Compiled``: answers calls without data, and what only the compiler knows with zeros."""

    def __init__(self, traced: Any, called: Called, asked: Asked) -> None:
        self._traced, self._called, self._asked = traced, called, asked
        self.out_tree = traced.out_tree
        self.args_info = traced.args_info

    @property
    def in_tree(self) -> Any:
        """How the arguments are nested."""
        return self._traced._in_tree

    @property
    def out_info(self) -> Any:
        """Shapes and dtypes of the results."""
        return self._traced.out_info

    @property
    def in_avals(self) -> Any:
        """Abstract values of the arguments."""
        return tree_util.tree_unflatten(self.in_tree, self._traced.jaxpr.in_avals)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The results, without data; ``TypeError`` where the arguments are nested otherwise."""
        low = self._traced.lojax
        given, tree = compat.get("jax._src.tree_util", "tracing_registry").flatten((arguments, named))
        if tree != self.in_tree:
            raise TypeError(f"Function compiled for arguments {self.in_tree} is called with {tree}")
        found = self._called([*low._consts, *given], low._params, low._meta_tys_flat)
        return tree_util.tree_unflatten(self.out_tree, found)

    @property
    def input_shardings(self) -> Any:
        """Where the arguments lie."""
        low = self._traced.lojax
        return tree_util.tree_unflatten(self.in_tree, [one.sharding for one in low._meta_tys_flat[len(low._consts) :]])

    @property
    def output_shardings(self) -> Any:
        """Where the results lie."""
        low = self._traced.lojax
        return tree_util.tree_unflatten(self.out_tree, results_at(low._params, low._meta_tys_flat).shardings)

    def cost_analysis(self) -> Any:
        """Zeros."""
        self._asked("cost_analysis")
        return defaultdict(float, {"flops": 0.0, "bytes accessed": 0.0, "transcendentals": 0.0})

    def memory_analysis(self) -> Any:
        """Zeros."""
        self._asked("memory_analysis")
        names = ("generated_code", "argument", "output", "alias", "temp")
        sizes = {f"{where}{name}_size_in_bytes": 0 for name in names for where in ("", "host_")}
        return SimpleNamespace(**sizes, peak_memory_in_bytes=0)

    def as_text(self) -> str:
        """Nothing."""
        self._asked("as_text")
        return ""

    def runtime_executable(self) -> None:
        """None: nothing was compiled."""
        self._asked("runtime_executable")


def lowered(real: Any, called: Called, made: Made, asked: Asked) -> Callable[..., Any]:
    """What takes the place of ``Traced.lower``, which is ``real``."""

    def lower(traced: Any, **how: Any) -> Any:
        if how.get("lowering_platforms") is not None or how.get("_private_parameters") is not None:
            return real(traced, **how)  # for export: no program of this run
        return AbstractLowered(traced, lambda: real(traced), called, made, asked)

    return lower
