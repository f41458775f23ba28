"""Objects in the place of the functions that `jax.jit` gives, so that their calls are seen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from perfscope.profiler.patching import Undo, wrap


def is_traced(tree: Any) -> bool:
    """Whether a leaf is a tracer: a placeholder in a function that is being traced."""
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree))


class WrappedFunction:
    """Has all attributes of the jitted function; a subclass defines the call."""

    def __init__(self, jitted: Any) -> None:
        functools.update_wrapper(self, jitted)  # which copies the attributes of one of ours
        self._jitted = jitted

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the jitted function and return its result."""
        return self._jitted(*arguments, **named)

    def __get__(self, holder: Any, kind: Any = None) -> Any:
        return self if holder is None else functools.partial(self, holder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)


def wrap_jit(make: Callable[[Any, Mapping[str, Any]], Any]) -> Undo:
    """Have `jax.jit` give ``make(jitted, options)``, called and as a decorator."""
    import jax

    def jit_with(original: Any) -> Any:
        def jit(*arguments: Any, **named: Any) -> Any:
            jitted = original(*arguments, **named)
            if arguments or "fun" in named:
                return make(jitted, named)
            return lambda function: make(jitted(function), named)  # jax.jit(static_argnums=0), as a decorator

        return jit

    return wrap(jax, "jit", jit_with)
