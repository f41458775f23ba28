"""Records a JAX model: an interpreter runs its jaxpr op by op under `jax.vjp`, for values and gradients in one pass.

A zero is added to each layer (`jaxpr_walk`); its gradient is the layer's.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.plugins.parity.document import RECORDING_SCHEMA, Arrays, Recording, Weight
from perfscope.plugins.parity.side import (
    Input,
    OpValues,
    RunRequest,
    SideError,
    cotangents,
    fitted_inputs,
    fitted_weights,
    recipe_dtype,
)
from perfscope.plugins.parity.update.probing import RATE
from perfscope.plugins.precision import RECIPES, rounded_products
from perfscope.profiler.jax.jaxpr_walk import Walk, is_float
from perfscope.profiler.trail import Lines, Trail


class JaxSide:
    """A model in JAX. ``make`` returns (function, parameters, inputs), or (module, inputs) of Flax nnx and Equinox."""

    framework = "jax"

    def __init__(self, make: Callable[[], Any], device: str | None) -> None:
        self._make, self._device = make, device
        self._lines = Lines()

    def _model(self) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
        made = self._make()
        inputs = made[-1] if isinstance(made[-1], tuple | list) else (made[-1],)
        if len(made) == 3:
            function = made[0].apply if hasattr(made[0], "apply") else made[0]  # a Flax linen module
            return function, made[1], tuple(inputs)
        return *_split_module(made[0]), tuple(inputs)

    def parts(self) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
        """(function of parameters and inputs, parameters, inputs)."""
        return self._model()

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Floating-point leaves of the parameters, in the order in which the program uses them."""
        function, parameters, inputs = self._model()
        names, leaves, tree = _named(parameters)
        floats = [is_float(leaf) for leaf in leaves]
        tracked = {name for name, is_float in zip(names, floats, strict=True) if is_float}
        walk = Walk(self._lines, tracked)
        closed = jax.make_jaxpr(lambda leaves, inputs: function(tree.unflatten(leaves), *inputs))(leaves, inputs)
        flat = [*leaves, *jax.tree_util.tree_leaves(inputs)]
        tags = [*(frozenset({name}) for name in names), *(None for _ in flat[len(leaves) :])]
        jax.eval_shape(lambda *values: walk.program(closed, list(values), tags), *flat)
        used = [name.partition("[")[0] for layer in walk.trail.layers for name in layer.weights]
        order = {name: number for number, name in enumerate(dict.fromkeys(used))}
        kept = [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if name in tracked]
        kept.sort(key=lambda pair: order.get(pair[0], len(order)))
        weights = [Weight(name=name, shape=tuple(leaf.shape), dtype=str(leaf.dtype)) for name, leaf in kept]
        return weights, {name: to_numpy(leaf) for name, leaf in kept if values}

    def inputs(self) -> list[Input]:
        """Leaves of its inputs."""
        pairs = jax.tree_util.tree_flatten_with_path(self._model()[2])[0]
        return [Input(_path_name(path), to_numpy(jnp.asarray(leaf))) for path, leaf in pairs]

    def run(self, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it forward, and backward from the fixed cotangents of its outputs."""
        wide = request.wide or request.dtype == "float64"
        before = jax.config.jax_enable_x64
        function, parameters, inputs = self._model()
        if request.recipe is not None:
            function = rounded_products(function, RECIPES[request.recipe])
        weights = self.describe(values=False)[0]
        jax.config.update("jax_enable_x64", wide or before)
        try:
            device = jax.devices(self._device)[0] if self._device is not None else None
            with jax.default_device(device):
                return self._run(request, function, parameters, inputs, weights)
        finally:
            jax.config.update("jax_enable_x64", before)

    def updates(self, optimizer: Any, starts: Arrays, gradients: Sequence[Arrays], dtype: str | None) -> list[Arrays]:
        """Its floating-point leaves after each step; a leaf without a gradient has zeros, as `jax.grad` gives."""
        names, leaves, tree = _named(self._model()[1])
        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", dtype == "float64" or before)
        try:
            return _updated(_optimizer(optimizer), (names, leaves, tree), starts, gradients, dtype)
        finally:
            jax.config.update("jax_enable_x64", before)

    def _run(
        self, request: RunRequest, function: Callable[..., Any], parameters: Any, inputs: Any, weights: list[Weight]
    ) -> tuple[Recording, Arrays]:
        names, leaves, tree = _named(parameters)
        if request.weights is not None:
            fitted_weights({weight.name: weight.shape for weight in weights}, request.weights)
        own = {weight.name for weight in weights}
        values = [
            _cast((request.weights or {}).get(name, leaf), leaf, request.dtype) if name in own else leaf
            for name, leaf in zip(names, leaves, strict=True)
        ]
        flat, shape = jax.tree_util.tree_flatten(inputs)
        own_shapes = [tuple(np.shape(leaf)) for leaf in flat]
        given = flat if request.inputs is None else fitted_inputs(own_shapes, request)
        arrays = [_cast(array, leaf, request.dtype) for array, leaf in zip(given, flat, strict=True)]
        closed = jax.make_jaxpr(lambda weights, inputs: function(tree.unflatten(weights), *shape.unflatten(inputs)))(
            values, arrays
        )
        trail, found, outputs, notes = _walked(closed, values, arrays, names, own, self._lines, wide=request.wide)
        stored = found | {f"input:{number}": to_numpy(array) for number, array in enumerate(arrays)}
        stored |= {f"weight:{name}": to_numpy(value) for name, value in zip(names, values, strict=True) if name in own}
        recording = Recording(
            schema=RECORDING_SCHEMA,
            framework=self.framework,
            version=jax.__version__,
            device=str(next(iter(jnp.zeros(()).devices())).platform),
            dtype=recipe_dtype(request.recipe)
            or request.dtype
            or next((weight.dtype for weight in weights), "float32"),
            weights=tuple(weights),
            layers=tuple(trail.layers),
            ops=tuple(trail.ops),
            outputs=outputs,
            notes=tuple(notes),
        )
        return recording, stored


def _optimizer(made: Any) -> Any:
    """The optimizer of Optax of a name of `NAMED`, or of a function without arguments."""
    if callable(made):
        return made()
    try:
        optax = importlib.import_module("optax")
    except ImportError as error:
        raise SideError(f"the optimizer {made} is that of Optax: pip install optax") from error
    return getattr(optax, made)(RATE)


def _updated(
    optimizer: Any,
    parts: tuple[list[str], list[Any], Any],
    starts: Arrays,
    gradients: Sequence[Arrays],
    dtype: str | None,
) -> list[Arrays]:
    names, leaves, tree = parts
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise SideError(f"a {type(optimizer).__name__} is not an optimizer with init and update, as those of Optax")
    values = [_cast(starts.get(name, leaf), leaf, dtype) for name, leaf in zip(names, leaves, strict=True)]
    parameters, found = tree.unflatten(values), []
    state = optimizer.init(parameters)
    for given in gradients:
        zeros = [jnp.zeros_like(value) for value in values]
        each = [jnp.asarray(given.get(name, zero), zero.dtype) for name, zero in zip(names, zeros, strict=True)]
        changes, state = optimizer.update(tree.unflatten(each), state, parameters)
        parameters = jax.tree_util.tree_map(
            lambda old, change: jnp.asarray(old + change, old.dtype), parameters, changes
        )
        after = jax.tree_util.tree_leaves(parameters)
        found.append({name: to_numpy(value) for name, value in zip(names, after, strict=True) if is_float(value)})
    return found


def _walked(
    closed: Any, values: list[Any], inputs: list[Any], names: list[str], own: set[str], lines: Lines, *, wide: bool
) -> tuple[Trail, Arrays, int, list[str]]:
    """Walk the program of (weights, inputs) forward and backward; the number of outputs and notes on the walk, too."""
    tags = [*(frozenset({name}) for name in names), *(None for _ in inputs)]
    rehearsal = Walk(lines, own, wide=wide)
    jax.eval_shape(lambda *flat: rehearsal.program(closed, list(flat), tags), *values, *inputs)
    zeros = [jnp.zeros(layer.shape, layer.dtype) for layer in rehearsal.kept]
    walk = Walk(lines, own, wide=wide)

    def forward(weights: list[Any], taps: list[Any]) -> Any:
        walk.reset(taps)
        full = [given if name not in own else weights.pop(0) for name, given in zip(names, values, strict=True)]
        outputs = [out for out in walk.program(closed, [*full, *inputs], tags) if is_float(out)]
        return outputs, (walk.kept, [value for _, _, value in walk.results])

    floats_named = [name for name in names if name in own]
    floats = [value for name, value in zip(names, values, strict=True) if name in own]
    notes: list[str] = []
    try:
        outputs, kept, results, gradients, taps = jax.jit(_with_gradients, static_argnums=0)(forward, floats, zeros)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        notes.append(f"no gradients: {type(error).__name__}: {reason}")
        outputs, (kept, results) = forward(list(floats), zeros)
        gradients, taps = [], []
    if not outputs:
        raise SideError("the model gives no floating-point array")
    trail, kept_ops = _trail(walk, results, wide=wide)
    arrays = kept_ops.arrays | {
        f"layer:{number}": walk.canonical(number, to_numpy(value)) for number, value in enumerate(kept)
    }
    arrays |= {f"gradient:{number}": walk.canonical(number, to_numpy(value)) for number, value in enumerate(taps)}
    arrays |= {f"weight_gradient:{name}": to_numpy(g) for name, g in zip(floats_named, gradients, strict=False)}
    for number, out in enumerate(outputs):
        name = f"output {number}" if len(outputs) > 1 else "output"
        arrays[f"layer:{trail.add_layer(name, '', '', str(out.dtype))}"] = to_numpy(out)
    return trail, arrays, len(outputs), notes


def _with_gradients(forward: Callable[..., Any], weights: list[Any], taps: list[Any]) -> tuple[Any, ...]:
    outputs, backward, (kept, results) = jax.vjp(forward, weights, taps, has_aux=True)
    signs = cotangents(tuple(out.shape) for out in outputs)
    return outputs, kept, results, *backward([jnp.asarray(s, out.dtype) for s, out in zip(signs, outputs, strict=True)])


def _trail(walk: Walk, results: list[Any], *, wide: bool) -> tuple[Trail, OpValues]:
    """The ops with the numbers of their results, which are now known, and the results."""
    trail = Trail(layers=walk.trail.layers, roundings=walk.trail.roundings, terms=walk.trail.terms)
    kept = OpValues()
    for (name, line, _), layers, value in zip(walk.results, walk.layers_before, results, strict=True):
        array = to_numpy(value)
        trail.add_op(name, line, array.astype(np.float64), layers)
        if not wide:  # the reference's ops are not compared
            kept.add(array)
    return trail, kept


def to_numpy(array: Any) -> np.ndarray:
    """Its values; bfloat16 and float16 become float32."""
    return np.asarray(array.astype(jnp.float32) if str(array.dtype) in ("bfloat16", "float16") else array)


def _split_module(module: Any) -> tuple[Callable[..., Any], Any]:
    """(function of parameters and inputs, parameters) of a callable module: Flax nnx, or a pytree."""
    if "flax" in sys.modules and importlib.util.find_spec("flax.nnx") is not None:
        from flax import nnx

        if isinstance(module, nnx.Module):
            graph, state = nnx.split(module)
            return lambda parameters, *inputs: nnx.merge(graph, parameters)(*inputs), state
    if "keras" in sys.modules and isinstance(module, sys.modules["keras"].Model):
        return _split_keras(module)
    if not callable(module):
        raise SideError(f"a {type(module).__name__} is not a model: give (function, parameters, inputs)")
    leaves, tree = jax.tree_util.tree_flatten(module)
    arrays = [leaf if hasattr(leaf, "dtype") else None for leaf in leaves]
    names = [_path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(module)[0]]

    def function(parameters: dict[str, Any], *inputs: Any) -> Any:
        full = [parameters.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        return tree.unflatten(full)(*inputs)

    return function, {name: leaf for name, leaf in zip(names, arrays, strict=True) if leaf is not None}


def _split_keras(model: Any) -> tuple[Callable[..., Any], Any]:
    """(function, parameters) of a Keras model on JAX, by the paths of its variables."""
    variables = {variable.path: variable for variable in model.variables}
    if len(variables) < len(model.variables):
        raise SideError("two variables of the Keras model have one path: give its layers names")

    def function(parameters: dict[str, Any], *inputs: Any) -> Any:
        trained, other = ([parameters[v.path] for v in group] for group in
                          (model.trainable_variables, model.non_trainable_variables))  # fmt: skip
        return model.stateless_call(trained, other, *inputs)[0]

    return function, {path: variable.value for path, variable in variables.items()}


def _named(parameters: Any) -> tuple[list[str], list[Any], Any]:
    """Names (``blocks/up``), leaves and structure of a pytree."""
    pairs, tree = jax.tree_util.tree_flatten_with_path(parameters)
    return [_path_name(path) for path, _ in pairs], [_array(leaf) for _, leaf in pairs], tree


def _array(leaf: Any) -> Any:
    """An array, or the shape of one where the user's function made no values."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)


def named_floats(parameters: Any) -> list[tuple[str, Any]]:
    """Names and arrays of the floating-point leaves of a pytree."""
    names, leaves, _ = _named(parameters)
    return [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if is_float(leaf)]


def _path_name(path: Any) -> str:
    if len(path) > 1 and getattr(path[-1], "name", "") == "value":
        path = path[:-1]  # a Flax variable
    parts = (str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
    return "/".join(part.lstrip(".") for part in parts)


def _cast(array: Any, like: Any, dtype: str | None) -> Any:
    """An array in the dtype of ``like``, or in ``dtype`` if that is a floating-point type."""
    if isinstance(array, jax.ShapeDtypeStruct):
        raise SideError("a weight has a shape and no values: run with the weights of A")
    return jnp.asarray(array, jnp.dtype(dtype) if dtype is not None and is_float(like) else _array(like).dtype)
