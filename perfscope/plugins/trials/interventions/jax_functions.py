"""Transformations of functions in JAX: compiled gradients, and values kept by checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.profiler.jax.wrapped import is_traced
from perfscope.profiler.patching import wrap


def _jit_gradients(application: Application) -> None:
    """Compile the results of `jax.grad` and `jax.value_and_grad` if the program calls them outside of ``jit``."""
    import jax

    def compiled(gradient: Any) -> Any:
        name = getattr(gradient, "__name__", "a function")
        jitted = jax.jit(gradient)
        plain = [False]

        @functools.wraps(gradient)
        def call(*arguments: Any, **named: Any) -> Any:
            if plain[0] or is_traced((arguments, named)):
                return gradient(*arguments, **named)
            try:
                output = jitted(*arguments, **named)
            except (TypeError, jax.errors.JAXTypeError) as error:  # an argument or a branch is not an array
                plain[0] = True
                application.left(f"{name}: {str(error).partition(chr(10))[0]}")
                return gradient(*arguments, **named)
            application.changed(f"jit({name})")
            return output

        return call

    def make(original: Any) -> Any:
        known: dict[Any, Any] = {}

        def transform(*arguments: Any, **named: Any) -> Any:
            """Compile a function once, even if it is transformed in every step."""
            key = (arguments, tuple(sorted(named.items())))
            try:
                if key not in known:
                    known[key] = compiled(original(*arguments, **named))
                return known[key]
            except TypeError:  # an argument without a hash
                return compiled(original(*arguments, **named))

        return transform

    for name in ("grad", "value_and_grad"):
        wrap(jax, name, make)


def _remat(application: Application, change: Callable[[Any, Any, dict[str, Any]], Any]) -> None:
    """Replace `jax.checkpoint`, which is also `jax.remat`, by ``change(original, function, options)``."""
    import jax

    def make(original: Any) -> Any:
        def checkpoint(function: Any = None, **options: Any) -> Any:
            if function is None:
                return lambda decorated: checkpoint(decorated, **options)
            changed = change(original, function, options)
            name = getattr(function, "__name__", "a function")
            if changed is None:
                application.left(f"{name}: the program sets its own policy")
                return original(function, **options)
            application.changed(f"jax.checkpoint of {name}")
            return changed

        return checkpoint

    for name in ("checkpoint", "remat"):
        wrap(jax, name, make)


def _remat_off(application: Application) -> None:
    _remat(application, lambda _original, function, _options: function)


def _remat_dots(application: Application) -> None:
    import jax

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        return None if options.get("policy") is not None else original(function, **{**options, "policy": policy})

    _remat(application, change)


JIT_GRADIENTS = Intervention(
    name="jax-jit-gradients",
    title="gradients compiled that ran op by op",
    family="jit",
    framework="jax",
    answers=("host_bound", "launch_bound", "small_kernels", "unfused_ops"),
    may_change="Compiled functions fuse and sum in another order; Python code of the loss runs once per shape.",
    code="gradients = jax.jit(jax.grad(loss_of))(parameters, batch)",
    apply=_jit_gradients,
)
REMAT_OFF = Intervention(
    name="jax-remat-off",
    title="activations kept, not computed again",
    family="checkpointing",
    framework="jax",
    answers=("excess_remat",),
    may_change="Sums may be in another order; more memory.",
    code="block = block_of  # without jax.checkpoint",
    apply=_remat_off,
)
REMAT_DOTS = Intervention(
    name="jax-remat-dots",
    title="matrix products kept, the rest computed again",
    family="checkpointing",
    framework="jax",
    answers=("excess_remat",),
    may_change="Sums may be in another order; more memory.",
    code="policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable\n"
    "block = jax.checkpoint(block_of, policy=policy)",
    apply=_remat_dots,
)
