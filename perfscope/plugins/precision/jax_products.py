"""A JAX function whose matrix products round their factors by a recipe, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from perfscope.plugins.precision.recipes import Recipe, quantised

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters of primitives that hold an inner program."""


def rounded_products(function: Callable[..., Any], recipe: Recipe) -> Callable[..., Any]:
    """The function with its products rounded, also inside of calls, checkpoints and scans; not in while and cond."""

    def call(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        leaves = jax.tree_util.tree_leaves(arguments)
        results = _evaluate(closed.jaxpr, closed.consts, leaves, recipe)
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), results)

    return call


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], recipe: Recipe) -> list[Any]:
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return jnp.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _apply(eqn, [read(atom) for atom in eqn.invars], recipe), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(eqn: Any, values: list[Any], recipe: Recipe) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general" and all(jnp.issubdtype(value.dtype, jnp.floating) for value in values):
        return [_product(params, recipe)(*values)]
    inner = next((params[key] for key in _INNER if key in params), None)
    if inner is not None and _has_products(getattr(inner, "jaxpr", inner)):
        jaxpr, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
        if name == "scan":
            return _scan(params, jaxpr, consts, values, recipe)
        return _evaluate(jaxpr, consts, values, recipe)
    bound = eqn.primitive.get_bind_params(params)
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    results = eqn.primitive.bind(*functions, *values, **bound)
    return list(results) if eqn.primitive.multiple_results else [results]


def _has_products(jaxpr: Any) -> bool:
    inner = [getattr(eqn.params[key], "jaxpr", eqn.params[key]) for eqn in jaxpr.eqns for key in _INNER
             if key in eqn.params]  # fmt: skip
    return any(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) or any(map(_has_products, inner))


def _scan(params: Any, jaxpr: Any, consts: Sequence[Any], values: list[Any], recipe: Recipe) -> list[Any]:
    fixed, carries = params["num_consts"], params["num_carry"]

    def body(carry: list[Any], taken: list[Any]) -> tuple[list[Any], list[Any]]:
        made = _evaluate(jaxpr, consts, [*values[:fixed], *carry, *taken], recipe)
        return made[:carries], made[carries:]

    start, rows = values[fixed : fixed + carries], values[fixed + carries :]
    end, made = jax.lax.scan(body, start, rows, length=params["length"], reverse=params["reverse"])
    return [*end, *made]


def _product(params: Any, recipe: Recipe) -> Any:
    """The product with its own derivative: each of the three products rounds its factors along its own sum."""
    summed, shared = params["dimension_numbers"]

    def exact(left: Any, right: Any) -> Any:
        return jax.lax.dot_general_p.bind(left, right, **params)

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def product(left: Any, right: Any) -> Any:
        return exact(_rounded(left, summed[0], recipe), _rounded(right, summed[1], recipe))

    def forward(left: Any, right: Any) -> Any:
        return product(left, right), (left, right)

    def backward(kept: Any, gradient: Any) -> Any:
        left, right = kept
        free = [[axis for axis in range(value.ndim) if axis not in (*ours, *both)]
                for value, ours, both in zip(kept, summed, shared, strict=True)]  # fmt: skip
        rows = range(len(shared[0]), len(shared[0]) + len(free[0]))
        columns = range(rows.stop, rows.stop + len(free[1]))
        wide = _rounded(right, free[1], recipe)
        (of_left,) = jax.vjp(lambda value: exact(value, wide), left)[1](_rounded(gradient, columns, recipe))
        tall = _rounded(left, free[0], recipe)
        (of_right,) = jax.vjp(lambda value: exact(tall, value), right)[1](_rounded(gradient, rows, recipe))
        return of_left, of_right

    product.defvjp(forward, backward)
    return product


def _rounded(value: Any, axes: Sequence[int], recipe: Recipe) -> Any:
    """A factor rounded along the axes of its sum; unchanged without one."""
    if not len(axes) or not value.size:
        return value
    order = [axis for axis in range(value.ndim) if axis not in axes] + list(axes)
    moved = value.transpose(order)
    kept = moved.shape[: value.ndim - len(axes)]
    noise = (lambda shape: jax.random.uniform(jax.random.key(0), shape)) if recipe.stochastic else None
    made = quantised(jnp, moved.reshape(*kept, -1).astype(jnp.float32), recipe, noise=noise)
    return made.astype(value.dtype).reshape(moved.shape).transpose([order.index(axis) for axis in range(value.ndim)])
