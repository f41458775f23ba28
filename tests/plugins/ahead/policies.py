"""Policies, and programs compiled under ``--checkpoint``, for tests of `jax_checkpoint`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

import jax

from perfscope.plugins.ahead.jax.checkpoint.rewrite import Checkpoints, checkpointed
from perfscope.plugins.ahead.jax.plugin_devices import canonical_text
from perfscope.plugins.ahead.request import parse_checkpoint

POLICIES: dict[str, Any] = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("hidden"),
}


def under(policy: str, of: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a policy written around it; ``none``: as it is."""
    return of if policy == "none" else jax.checkpoint(of, policy=POLICIES[policy])


def step_of(fun: Callable[..., Any], asked: str | None, weights: Any, x: jax.Array) -> tuple[str, Checkpoints | None]:
    """The compiled gradient without names and lines; a fresh function, as jax keeps what it traced."""
    with checkpointed(None if asked is None else parse_checkpoint(asked)) as book:
        return canonical_text(_traced(fun, weights, x).lower().compile()), book


def book_of(fun: Callable[..., Any], asked: str, weights: Any, x: jax.Array) -> Checkpoints:
    """The outcome of ``--checkpoint`` for the gradient, which is traced and not compiled."""
    with checkpointed(parse_checkpoint(asked)) as book:
        _traced(fun, weights, x)
    assert book is not None
    return book


def _traced(fun: Callable[..., Any], weights: Any, x: jax.Array) -> Any:
    traced = jax.jit(lambda weights, x: jax.value_and_grad(fun)(weights, x)).trace(weights, x)
    importlib.import_module("jax._src.core").check_jaxpr(traced.jaxpr.jaxpr)
    return traced
