"""Donation in JAX: a jitted function may write its outputs into the memory of its input state."""

from __future__ import annotations

import functools
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.profiler.jax.wrapped import WrappedFunction, is_traced
from perfscope.profiler.patching import wrap


def donatable(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, ...]:
    """Positions of arguments with the structure, shapes and dtypes of an output: a state and its successor.

    Each output matches one argument. ``function`` is traced, not run.
    """
    import jax

    output = jax.eval_shape(function, *arguments, **named)
    outputs = [_signature(part) for part in (output if isinstance(output, tuple | list) else [output])]
    positions = []
    for position, argument in enumerate(arguments):
        leaves = jax.tree_util.tree_leaves(argument)
        if leaves and all(isinstance(leaf, jax.Array) for leaf in leaves) and _signature(argument) in outputs:
            outputs.remove(_signature(argument))
            positions.append(position)
    return tuple(positions)


def _signature(tree: Any) -> Any:
    import jax

    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, [(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves if hasattr(leaf, "shape")]


def _donate(application: Application) -> None:
    """Make `jax.jit` return functions that find out at their first call which arguments they can donate."""
    import jax

    class Donating(WrappedFunction):
        """A jitted function that is jitted again with donation at its first call."""

        def __init__(self, jit: Any, function: Any, options: dict[str, Any]) -> None:
            super().__init__(jit(function, **options))
            self._again = functools.partial(jit, function, **options)
            self._decided = False

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            if not self._decided and not is_traced((arguments, named)):
                self._decided = True
                self._decide(arguments, named)
            return self._jitted(*arguments, **named)

        def _decide(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            name = getattr(self._jitted, "__name__", "a function")
            try:
                positions = donatable(self._jitted, arguments, named)
            except Exception as error:
                application.left(f"{name}: its outputs are not known: {type(error).__name__}")
                return
            if positions:
                self._jitted = self._again(donate_argnums=positions)
                application.changed(f"{name}: donate_argnums={positions}")
            else:
                application.left(f"{name}: no argument has the shapes of an output")

    def make(original: Any) -> Any:
        def jit(*arguments: Any, **named: Any) -> Any:
            options = dict(named)
            function = arguments[0] if arguments else options.pop("fun", None)
            if len(arguments) > 1 or any(key.startswith(("donate", "static")) for key in named):
                return original(*arguments, **named)
            if function is None:
                return lambda decorated: Donating(original, decorated, options)
            return Donating(original, function, options)

        return jit

    wrap(jax, "jit", make)


DONATE = Intervention(
    name="jax-donate",
    title="donation of arguments that come back",
    family="donation",
    framework="jax",
    answers=("donation_missed", "oom_near", "peak_owner"),
    may_change="Nothing; a program that uses a donated argument again fails.",
    code="@partial(jax.jit, donate_argnums=0)\ndef train_step(state, batch): ...",
    apply=_donate,
)
